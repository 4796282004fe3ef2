//! Files that change while they are in use.

use std::{
    fs,
    path::{Path, PathBuf},
};

use calla_engine::checkpoint::{Checkpoint, Source};

use crate::damage::{Copy, cut, tiny};

/// The child maps a checkpoint, cuts its file, and reads on.
#[test]
fn a_file_that_is_cut_while_mapped_ends_the_program_with_its_name() {
    const VARIABLE: &str = "CALLA_TEST_CUT_WHILE_MAPPED";
    if let Some(folder) = std::env::var_os(VARIABLE) {
        let folder = PathBuf::from(folder);
        calla_engine::checkpoint::explain_lost_files();
        let gone = Checkpoint::open(&Source::folder(tiny("dense"))).expect("good");
        drop(gone);
        let checkpoint = Checkpoint::open(&Source::folder(&folder)).expect("good");
        cut(&folder.join("model.safetensors"), 0);
        let sum: u64 = checkpoint.weights.embed.weight.iter().map(|&byte| u64::from(byte)).sum();
        panic!("read a file that is gone: {sum}");
    }
    let copy = Copy::of("moe_base", "cut while mapped");
    let test = "mapped::a_file_that_is_cut_while_mapped_ends_the_program_with_its_name";
    let child = std::process::Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", test, "--nocapture"])
        .env(VARIABLE, &copy.0)
        .output()
        .expect("it starts");
    let message = String::from_utf8_lossy(&child.stderr);
    let path = copy.0.join("model.safetensors");
    let wanted = format!("calla: {}: cannot be read any more", path.display());
    assert!(message.contains(&wanted) && message.contains("fetch it again"), "{message}");
    assert_eq!(child.status.code(), Some(1), "{}: {message}", child.status);
}

/// A fault in memory that is no checkpoint's ends the program as ever.
#[test]
fn other_bus_errors_are_left_alone() {
    use std::os::unix::process::ExitStatusExt as _;

    const VARIABLE: &str = "CALLA_TEST_BUS_ERROR";
    if let Some(path) = std::env::var_os(VARIABLE) {
        calla_engine::checkpoint::explain_lost_files();
        let file = fs::File::open(&path).expect("readable");
        // SAFETY: read-only, and the fault on reading it is what this is about.
        let map = unsafe { memmap2::Mmap::map(&file) }.expect("mapped");
        cut(Path::new(&path), 0);
        panic!("read a file that is gone: {}", map[0]);
    }
    let copy = Copy::of("moe_base", "bus error");
    let child = std::process::Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "mapped::other_bus_errors_are_left_alone", "--nocapture"])
        .env(VARIABLE, copy.0.join("model.safetensors"))
        .output()
        .expect("it starts");
    assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{}", child.status);
}

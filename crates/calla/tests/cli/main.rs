//! The built program, run as a user runs it.

mod agree;
#[cfg(target_os = "linux")]
#[path = "../calls/mod.rs"]
mod calls;
mod config;
mod doctor;
mod exam;
mod files;
mod inspect;
mod memory;
mod perplexity;
mod program;
mod quantize;
mod serve;
mod talk;
mod tools;
mod usage;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// The program with arguments, and nothing of the caller's environment.
fn calla(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_calla"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

/// Runs to the end with this text piped in.
fn pipe(arguments: &[&str], stdin: &str) -> Output {
    let mut child = calla(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = child.stdin.take().expect("stdin is piped");
    // A program that does not read its stdin may be gone by now.
    let _ = pipe.write_all(stdin.as_bytes());
    drop(pipe);
    child.wait_with_output().expect("the program ends")
}

/// Runs to the end; stdout of a run that must succeed.
fn stdout(arguments: &[&str]) -> String {
    success(&calla(arguments).output().expect("the program starts"))
}

/// Stdout of a run that must have succeeded.
fn success(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8")
}

/// Stdout of a run with `--json` that must succeed.
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(arguments)).expect("stdout is JSON")
}

/// Stderr of a run that must end with this exit code and an empty stdout.
fn failure(arguments: &[&str], code: i32) -> String {
    let output = calla(arguments).output().expect("the program starts");
    let stderr = String::from_utf8(output.stderr).expect("stderr is UTF-8");
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    stderr
}

/// A path as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// An empty folder of this test's own.
fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    folder
}

/// A committed checkpoint with golden logits.
fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/tiny").join(name)
}

/// A copy of the embedded model's files, to be damaged.
fn seedling(test: &str) -> PathBuf {
    let model = scratch(test);
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/seedling");
    for entry in std::fs::read_dir(files).expect("readable").flatten() {
        std::fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
    }
    model
}

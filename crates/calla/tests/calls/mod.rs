//! What a run asks of the file system, in order: whether what it made would outlive a power cut.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Calls of one run.
pub(crate) struct Calls {
    log: PathBuf,
}

impl Calls {
    /// Has the calls of a command noted, in this folder.
    pub(crate) fn of(command: &mut Command, folder: &Path) -> Self {
        let (library, log) = (folder.join("calls.so"), folder.join("calls.log"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calls/calls.c");
        // Rust links with it, so it is there.
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([library.as_os_str(), source.as_ref(), "-ldl".as_ref()])
            .status()
            .expect("cc starts");
        assert!(built.success(), "{built}");
        command.env("LD_PRELOAD", library).env("CALLS", &log);
        Self { log }
    }

    /// Fails unless all of `files` were made durable before `renamed` got its final name.
    #[track_caller]
    pub(crate) fn assert_durable_before(&self, files: &[PathBuf], renamed: &Path) {
        let log = fs::read_to_string(&self.log).expect("calls were noted");
        let renaming = format!("rename {}", renamed.display());
        let calls: Vec<&str> = log.lines().take_while(|line| **line != *renaming).collect();
        assert!(calls.len() < log.lines().count(), "no `{renaming}` in\n{log}");
        for file in files {
            let wanted = format!("fsync {}", file.display());
            assert!(
                calls.contains(&wanted.as_str()),
                "no `{wanted}` before it was renamed:\n{log}"
            );
        }
    }
}

//! Tells the program what it is built from: the target, and the revision of the source when git
//! knows it. `CALLA_REVISION` in the environment says it where there is no git.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CALLA_REVISION");
    let target = env::var("TARGET").expect("cargo names the target");
    println!("cargo::rustc-env=CALLA_TARGET={target}");
    if env::var_os("CALLA_REVISION").is_none()
        && let Some(revision) = revision()
    {
        println!("cargo::rustc-env=CALLA_REVISION={revision}");
    }
}

/// The commit that is checked out. Not that of another repository around an unpacked archive.
fn revision() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    let top = git(&root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // Files that change whenever another commit is checked out or made.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&root, &["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&root, &["rev-parse", "--short=12", "HEAD"])
}

/// One line from git; `None` when there is no git or it knows no answer.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| line.trim().to_owned())
}

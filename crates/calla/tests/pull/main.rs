//! `calla pull`, `list` and `remove` as a user runs them, against a hub on this machine that behaves
//! well, badly, or not at all.

#[cfg(target_os = "linux")]
#[path = "../calls/mod.rs"]
mod calls;
mod download;
mod hub;
mod interrupt;
mod names;
mod refuse;
mod remove;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::hub::{COMMIT, Hub, Repo};

const TOKEN: &str = "hf_do_not_tell";

/// A user's home with an empty cache.
struct Home(PathBuf);

impl Home {
    /// An empty one of this test's own.
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pull").join(test);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the target folder is writable");
        Self(folder)
    }

    /// The program with arguments, this cache, and nothing of the caller's environment.
    fn calla(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_calla"));
        command.args(arguments).env_clear().stdin(Stdio::null());
        command.env("HF_HOME", &self.0).current_dir(&self.0);
        command
    }

    /// The same, with a hub to ask.
    fn with_hub(&self, hub: &Hub, arguments: &[&str]) -> Command {
        let mut command = self.calla(arguments);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_TOKEN", TOKEN);
        command
    }

    /// Pulls with `-v`; stdout and stderr, after looking that neither tells the token.
    fn pull(&self, hub: &Hub, arguments: &[&str]) -> (Output, String) {
        let output = self.with_hub(hub, &[&["pull", "-v"], arguments].concat()).output();
        let output = output.expect("the program starts");
        let told = [&output.stdout[..], &output.stderr].concat();
        let told = String::from_utf8(told).expect("UTF-8");
        assert!(!told.contains(TOKEN) && !told.contains("signature"), "{told}");
        (output, told)
    }

    /// Pulls what must succeed.
    fn pulled(&self, hub: &Hub, arguments: &[&str]) -> String {
        let (output, told) = self.pull(hub, arguments);
        assert!(output.status.success(), "{told}");
        told
    }

    /// Pulls what must fail; the one line of stderr that says why.
    fn refused(&self, hub: &Hub, arguments: &[&str]) -> String {
        let (output, told) = self.pull(hub, arguments);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(output.stdout.is_empty(), "{told}");
        let line = told.lines().last().unwrap_or_default();
        assert!(line.starts_with("calla: "), "{told}");
        line.to_owned()
    }

    fn list(&self) -> Value {
        let output = self.calla(&["list", "--json"]).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("stdout is JSON")
    }

    /// The last line of stderr of a run that must fail.
    fn failure(&self, arguments: &[&str]) -> String {
        let output = self.calla(arguments).output().expect("the program starts");
        let told = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{told}");
        told.lines().last().unwrap_or_default().to_owned()
    }

    /// The folder of a model in the cache.
    fn folder(&self, repo: &Repo) -> PathBuf {
        self.0.join("hub").join(format!("models--{}", repo.name.replace('/', "--")))
    }

    fn snapshot(&self, repo: &Repo) -> PathBuf {
        self.folder(repo).join("snapshots").join(&repo.commit)
    }

    /// What a model's folder holds, as relative paths; links are not followed.
    fn contents(&self, repo: &Repo) -> Vec<String> {
        let folder = self.folder(repo);
        let mut paths = files_below(&folder);
        paths.sort();
        let relative = |path: &PathBuf| {
            let path = path.strip_prefix(&folder).expect("it is below");
            path.to_str().expect("UTF-8").to_owned()
        };
        paths.iter().map(relative).collect()
    }
}

/// A small model without words: enough for everything but talking.
fn tiny() -> Repo {
    let read = |name: &str| fs::read(data().join(name)).expect("it is committed");
    Repo { name: "someone/tiny", commit: COMMIT.into(), files: Vec::new() }
        .with("config.json", read("config.json"))
        .with("model.safetensors", read("model.safetensors"))
        .with("tokenizer.json", "{}")
        .with("README.md", "A model.\n")
        .with("training/log.txt", "step 1\n")
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/tiny/dense")
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let below = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_below(&entry.path()),
        _ => vec![entry.path()],
    });
    below.flatten().collect()
}

/// Whether the model can be found and is the one that was published.
fn runs(home: &Home, model: impl AsRef<OsStr>) -> bool {
    let mut command = home.calla(&["eval", "agree", "--json", "--precision", "exact"]);
    command.arg("--against").arg(data().join("golden.safetensors")).arg("--model").arg(model);
    let output = command.output().expect("the program starts");
    let agreement: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    agreement.is_some_and(|agreement| agreement["top1_agreement"] == 1.0)
}

//! Names where a folder was taken before, and a cache that other programs filled.

use std::{fs, os::unix::fs::symlink};

use crate::{
    COMMIT, Home,
    hub::{Hub, git_blob},
    runs, tiny,
};

#[test]
fn a_name_that_was_not_pulled_is_told_how() {
    let home = Home::new("not-pulled");
    for command in [&["tokens", "hi"][..], &["bench"], &["chat", "hi"], &["serve", "--port", "0"]] {
        let message = home.failure(&[command, &["--model", "someone/tiny"]].concat());
        assert!(message.contains("`calla pull someone/tiny`"), "{command:?}: {message}");
    }
    let message = home.failure(&["quantize", "someone/tiny@v1", "out"]);
    assert!(message.contains("`calla pull someone/tiny@v1`"), "{message}");
    // What is no name is a folder, as ever.
    let message = home.failure(&["bench", "--model", "some/where/else"]);
    assert!(!message.contains("calla pull"), "{message}");
}

#[test]
fn a_folder_of_that_name_wins() {
    let (home, repo) = (Home::new("folder-wins"), tiny());
    let folder = home.0.join(repo.name);
    fs::create_dir_all(&folder).expect("writable");
    for file in ["config.json", "model.safetensors"] {
        fs::write(folder.join(file), repo.file(file)).expect("writable");
    }
    // Nothing was pulled.
    assert!(runs(&home, repo.name));
    fs::remove_file(folder.join("config.json")).expect("removable");
    home.pulled(&Hub::of(repo.clone()), &[repo.name]);
    assert!(!runs(&home, repo.name));
    fs::remove_dir_all(folder).expect("removable");
    assert!(runs(&home, repo.name));
}

#[test]
fn the_environment_says_where_the_cache_is() {
    let (home, repo) = (Home::new("where"), tiny());
    let hub = Hub::of(repo.clone());
    let folder = "hub/models--someone--tiny/refs/main";
    let pull = |variables: &[(&str, &str)]| {
        let mut command = home.with_hub(&hub, &["pull", repo.name]);
        command.env_remove("HF_HOME").envs(variables.iter().copied());
        command.output().expect("it starts")
    };
    let root = home.0.to_str().expect("UTF-8");
    let told = String::from_utf8(pull(&[]).stderr).expect("UTF-8");
    assert!(told.contains("HF_HOME"), "{told}");
    assert!(pull(&[("HOME", root)]).status.success());
    assert!(home.0.join(".cache/huggingface").join(folder).is_file());
    assert!(pull(&[("HOME", root), ("XDG_CACHE_HOME", &format!("{root}/xdg"))]).status.success());
    assert!(home.0.join("xdg/huggingface").join(folder).is_file());
    assert!(pull(&[("HOME", root), ("HF_HOME", "~/home")]).status.success());
    assert!(home.0.join("home").join(folder).is_file());
    let direct = format!("{root}/direct/hub");
    assert!(pull(&[("HF_HOME", "/nowhere"), ("HF_HUB_CACHE", &direct)]).status.success());
    assert!(home.0.join("direct").join(folder).is_file());
}

#[test]
fn what_another_program_left_is_used_and_judged() {
    let (home, repo) = (Home::new("foreign"), tiny());
    let folder = home.folder(&repo);
    let snapshot = home.snapshot(&repo);
    fs::create_dir_all(&snapshot).expect("writable");
    fs::create_dir_all(folder.join("refs")).expect("writable");
    fs::create_dir_all(folder.join("blobs")).expect("writable");
    // Some link, some have no room for links and copy.
    let config = git_blob(repo.file("config.json"));
    fs::write(folder.join("blobs").join(&config), repo.file("config.json")).expect("writable");
    symlink(format!("../../blobs/{config}"), snapshot.join("config.json")).expect("writable");
    fs::write(snapshot.join("tokenizer.json"), repo.file("tokenizer.json")).expect("writable");
    fs::write(folder.join("refs/main"), COMMIT).expect("writable");

    let list = home.list();
    assert_eq!(list[0]["runs"], false);
    let problem = list[0]["problem"].as_str().expect("told");
    assert_eq!(problem, "model.safetensors is missing: `calla pull someone/tiny` downloads it");
    let message = home.failure(&["bench", "--model", repo.name]);
    assert!(message.contains("model.safetensors"), "{message}");

    let told = home.pulled(&Hub::of(repo.clone()), &[repo.name]);
    assert!(told.contains("kB downloaded"), "{told}");
    assert!(fs::symlink_metadata(snapshot.join("tokenizer.json")).expect("there").is_symlink());
    assert!(runs(&home, repo.name));
}

#[test]
fn the_list_tells_what_does_not_run_and_why() {
    let home = Home::new("list");
    let nothing = home.calla(&["list", "-v"]).output().expect("it starts");
    assert!(nothing.status.success() && nothing.stdout.is_empty());
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("calla pull"));

    home.pulled(&Hub::of(tiny()), &["someone/tiny"]);
    let llama = home.0.join("hub/models--else--llama/snapshots").join(COMMIT);
    fs::create_dir_all(&llama).expect("writable");
    fs::write(llama.join("config.json"), r#"{"model_type": "llama"}"#).expect("writable");
    // Not models, and not commits.
    fs::create_dir_all(home.0.join("hub/datasets--else--data")).expect("writable");
    fs::create_dir_all(llama.with_file_name("not-a-commit")).expect("writable");
    fs::write(home.0.join("hub/version.txt"), "1").expect("writable");

    let output = home.calla(&["list"]).output().expect("it starts");
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    let short = &COMMIT[..12];
    assert!(lines[0].starts_with(&format!("else/llama    {short}       ")), "{table}");
    assert!(lines[0].contains("no: config.json: field `model_type`: `llama`"), "{table}");
    assert!(lines[1].starts_with(&format!("someone/tiny  main {short}  ")), "{table}");
    assert!(lines[1].ends_with("  runs"), "{table}");
}

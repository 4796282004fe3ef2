//! What `calla remove` takes away, and what it must leave.

use std::{fs, os::unix::fs::symlink};

use crate::{
    COMMIT, Home,
    hub::{Hub, Repo, git_blob, sha256},
    runs, tiny,
};

/// The model a commit later: other words, the same weights.
fn later() -> Repo {
    let commit = COMMIT.chars().rev().collect();
    Repo { commit, ..tiny() }.with("README.md", "A better description.\n")
}

/// A home in which both commits were pulled; `main` means the later one.
fn with_both(test: &str) -> Home {
    let home = Home::new(test);
    home.pulled(&Hub::of(tiny()), &[&format!("someone/tiny@{COMMIT}")]);
    home.pulled(&Hub::of(later()), &["someone/tiny"]);
    home
}

fn remove(home: &Home, what: &str) -> String {
    let output = home.calla(&["remove", what, "--yes"]).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_revision_goes_with_the_blobs_that_it_alone_uses() {
    let home = with_both("remove-revision");
    let printed = remove(&home, "someone/tiny@main");
    assert_eq!(printed, "removed someone/tiny@main, 22 B on the disk\n");
    assert!(!runs(&home, "someone/tiny"));
    assert!(runs(&home, format!("someone/tiny@{COMMIT}")));
    let blob = |bytes: &[u8]| home.folder(&tiny()).join("blobs").join(git_blob(bytes));
    assert!(blob(tiny().file("README.md")).exists());
    assert!(!blob(later().file("README.md")).exists());
    assert!(!home.folder(&tiny()).join("refs/main").exists());
    // The last one takes the folder along.
    remove(&home, &format!("someone/tiny@{}", &COMMIT[..8]));
    assert!(!home.folder(&tiny()).exists());
    assert_eq!(home.list(), serde_json::json!([]));
}

#[test]
fn a_model_goes_with_all_its_revisions_and_parts() {
    let home = with_both("remove-all");
    let folder = home.folder(&tiny());
    fs::write(folder.join("blobs/0123.incomplete"), "part").expect("writable");
    fs::create_dir_all(folder.join("trees")).expect("writable");
    fs::write(folder.join("trees").join(format!("{COMMIT}.json")), "{}").expect("writable");
    let output = home.calla(&["remove", "someone/tiny", "--yes", "--json"]).output();
    let removed: serde_json::Value =
        serde_json::from_slice(&output.expect("it starts").stdout).expect("JSON");
    assert_eq!(removed["commits"].as_array().map(Vec::len), Some(2), "{removed}");
    let bytes = [tiny(), later()].iter().map(|repo| repo.file("README.md").len()).sum::<usize>()
        + ["config.json", "model.safetensors", "tokenizer.json"]
            .map(|file| tiny().file(file).len())
            .iter()
            .sum::<usize>()
        + "part".len();
    assert_eq!(removed["freed_bytes"], bytes);
    assert!(!folder.exists());
}

#[test]
fn parts_alone_can_be_removed() {
    let (home, folder) = (Home::new("remove-parts"), Home::new("remove-parts").folder(&tiny()));
    fs::create_dir_all(folder.join("blobs")).expect("writable");
    fs::write(folder.join("blobs/0123.incomplete"), "part").expect("writable");
    assert_eq!(home.list()[0]["size_bytes"], 4);
    remove(&home, "someone/tiny");
    assert!(!folder.exists());
}

#[test]
fn nothing_is_removed_without_a_yes_or_without_a_name_that_is_there() {
    let home = with_both("remove-not");
    let message = home.failure(&["remove", "someone/tiny"]);
    assert!(message.contains("--yes"), "{message}");
    assert!(runs(&home, "someone/tiny"));
    for absent in ["someone/else", "someone/tiny@v9", "someone/tiny@ffffffff"] {
        let message = home.failure(&["remove", absent, "--yes"]);
        assert!(message.contains("calla list"), "{message}");
    }
    assert!(runs(&home, "someone/tiny"));
}

#[test]
fn what_lies_outside_of_the_cache_is_never_touched() {
    let home = with_both("remove-outside");
    let outside = home.0.join("outside");
    fs::create_dir_all(&outside).expect("writable");
    let precious = ["precious", "blob", "config.json"].map(|name| outside.join(name));
    for file in &precious {
        fs::write(file, "precious").expect("writable");
    }
    // Links out of a snapshot, out of the blobs, and in place of a snapshot.
    let snapshot = home.snapshot(&later());
    symlink(&precious[0], snapshot.join("precious")).expect("writable");
    symlink(&outside, snapshot.join("folder")).expect("writable");
    let weights = home.folder(&tiny()).join("blobs").join(sha256(tiny().file("model.safetensors")));
    fs::remove_file(&weights).expect("removable");
    symlink(&precious[1], &weights).expect("writable");
    let other = "f".repeat(40);
    symlink(&outside, snapshot.with_file_name(&other)).expect("writable");
    fs::write(home.folder(&tiny()).join("notes.txt"), "not of the cache").expect("writable");
    let message = home.failure(&["remove", &format!("someone/tiny@{other}"), "--yes"]);
    assert!(message.contains("calla list"), "{message}");

    remove(&home, "someone/tiny");
    for file in precious {
        assert_eq!(fs::read_to_string(&file).expect("it stays"), "precious");
    }
    let left = home.contents(&tiny());
    assert_eq!(left, ["notes.txt".to_owned(), format!("snapshots/{other}")], "{left:?}");
}

#[test]
fn a_model_that_was_moved_elsewhere_is_left_to_its_owner() {
    let home = with_both("remove-moved");
    let (folder, elsewhere) = (home.folder(&tiny()), home.0.join("elsewhere"));
    fs::rename(&folder, &elsewhere).expect("movable");
    symlink(&elsewhere, &folder).expect("writable");
    assert!(runs(&home, "someone/tiny"));
    let message = home.failure(&["remove", "someone/tiny", "--yes"]);
    assert!(message.contains("remove it yourself"), "{message}");
    assert!(runs(&home, "someone/tiny"));
}

//! What arrives, and what happens when it does not arrive in one piece.

use std::{fs, path::Path, sync::atomic::AtomicUsize, sync::atomic::Ordering, time::Duration};

use crate::{
    Home, TOKEN,
    hub::{COMMIT, Hub, Reply, Repo, git_blob, sha256},
    runs, tiny,
};

#[test]
fn a_pulled_model_lies_where_other_programs_look_and_answers_by_its_name() {
    let (home, repo) = (Home::new("seedling"), seedling());
    let hub = Hub::of(repo.clone());
    let told = home.pulled(&hub, &[repo.name]);
    assert!(told.contains("someone/seedling: 11.6 MB at 0123456789ab"), "{told}");

    let snapshot = home.snapshot(&repo);
    let link = |file: &str| fs::read_link(snapshot.join(file)).expect("a link");
    let weights = format!("../../blobs/{}", sha256(repo.file("model.safetensors")));
    assert_eq!(link("model.safetensors"), Path::new(&weights));
    let config = format!("../../blobs/{}", git_blob(repo.file("config.json")));
    assert_eq!(link("config.json"), Path::new(&config));
    let main = home.folder(&repo).join("refs/main");
    assert_eq!(fs::read_to_string(main).expect("a ref"), COMMIT);
    for (file, bytes) in &repo.files {
        let is_needed = file != "exam.jsonl";
        assert_eq!(
            fs::read(snapshot.join(file)).ok().as_ref(),
            is_needed.then_some(bytes),
            "{file}"
        );
    }
    assert!(home.contents(&repo).iter().all(|file| !file.contains("incomplete")));

    let list = home.list();
    assert_eq!(list[0]["model"], "someone/seedling");
    assert_eq!(list[0]["revisions"][0], "main");
    assert_eq!(list[0]["runs"], true, "{list}");

    let mut chat = home.calla(&["chat", "--model", repo.name, "--no-think", "Hello"]);
    let answer = chat.args(["--max-tokens", "4"]).output().expect("it starts");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    assert!(!answer.stdout.is_empty());
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let (home, repo) = (Home::new("token"), tiny());
    let hub = Hub::of(repo.clone());
    home.pulled(&hub, &[repo.name]);
    let (on_store, on_hub): (Vec<_>, Vec<_>) =
        hub.seen().into_iter().partition(|request| request.on_store);
    assert!(!on_store.is_empty() && !on_hub.is_empty());
    let bearer = format!("Bearer {TOKEN}");
    assert!(on_hub.iter().all(|request| request.header("authorization") == Some(&bearer)));
    assert!(on_store.iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn a_token_may_stand_in_a_file() {
    let (home, repo) = (Home::new("token-file"), tiny());
    let hub = Hub::of(repo.clone());
    fs::write(home.0.join("token"), "from-a-file\n").expect("writable");
    let output = home.with_hub(&hub, &["pull", repo.name]).env_remove("HF_TOKEN").output();
    assert!(output.expect("it starts").status.success());
    assert_eq!(hub.seen()[0].header("authorization"), Some("Bearer from-a-file"));
}

#[test]
fn all_files_come_when_asked_for() {
    let (home, repo) = (Home::new("all"), tiny());
    let hub = Hub::of(repo.clone());
    home.pulled(&hub, &[repo.name]);
    assert!(!home.snapshot(&repo).join("training/log.txt").exists());
    let told = home.pulled(&hub, &[repo.name, "--all"]);
    assert!(told.contains("7 B downloaded"), "{told}");
    let log = home.snapshot(&repo).join("training/log.txt");
    assert_eq!(fs::read_to_string(&log).expect("it came"), "step 1\n");
    assert!(fs::read_link(&log).expect("a link").starts_with("../../../blobs"));
}

#[test]
fn shards_are_those_that_the_index_names() {
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let repo = (tiny().without("model.safetensors"))
        .with("model.safetensors.index.json", index)
        .with("model-1.safetensors", "1")
        .with("model-2.safetensors", "2")
        .with("other.safetensors", "3");
    let (home, hub) = (Home::new("shards"), Hub::of(repo.clone()));
    home.pulled(&hub, &[repo.name]);
    let there = |file: &str| home.snapshot(&repo).join(file).exists();
    assert!(there("model-1.safetensors") && there("model-2.safetensors"));
    assert!(!there("other.safetensors"));

    let (home, repo) = (Home::new("shards-missing"), repo.without("model-2.safetensors"));
    let message = home.refused(&Hub::of(repo.clone()), &[repo.name]);
    assert!(message.contains("`model-2.safetensors`"), "{message}");
}

#[test]
fn another_revision_has_its_own_ref() {
    let (home, repo) = (Home::new("revision"), tiny());
    let hub = Hub::of(repo.clone());
    let name = format!("{}@refs/pr/1", repo.name);
    home.pulled(&hub, &[&name]);
    assert!(home.folder(&repo).join("refs/refs/pr/1").is_file());
    assert!(!home.folder(&repo).join("refs/main").exists());
    assert!(runs(&home, &name));
    assert!(!runs(&home, repo.name));
    // A commit, or its beginning, needs none.
    home.pulled(&hub, &[&format!("{}@{COMMIT}", repo.name)]);
    assert!(runs(&home, format!("{}@{COMMIT}", repo.name)));
    assert!(runs(&home, format!("{}@{}", repo.name, &COMMIT[..7])));
    assert!(!home.folder(&repo).join("refs").join(COMMIT).exists());
}

#[test]
fn a_connection_that_is_cut_is_taken_up_where_it_broke() {
    let (home, repo) = (Home::new("cut"), tiny());
    let hub = Hub::with_rule(repo.clone(), |request, usual| {
        let is_first = request.is_weights() && request.start() < 200_000;
        is_first.then(|| Reply { cut: Some(100_000), ..usual.clone() })
    });
    home.pulled(&hub, &[repo.name]);
    assert_eq!(hub.weight_starts(), [0, 100_000, 200_000]);
    assert!(runs(&home, repo.name));
}

#[test]
fn a_server_that_ignores_ranges_begins_the_file_anew() {
    let (home, repo) = (Home::new("no-ranges"), tiny());
    let whole = repo.file("model.safetensors").to_vec();
    let asked = AtomicUsize::new(0);
    let hub = Hub::with_rule(repo.clone(), move |request, _| {
        let reply = Reply::status(200).body(whole.clone());
        let is_first = request.is_weights() && asked.fetch_add(1, Ordering::Relaxed) == 0;
        request.on_store.then(|| Reply { cut: is_first.then_some(100_000), ..reply })
    });
    home.pulled(&hub, &[repo.name]);
    assert_eq!(hub.weight_starts(), [0, 100_000]);
    assert!(runs(&home, repo.name));
}

#[test]
fn a_slow_server_is_waited_for() {
    let (home, repo) = (Home::new("drip"), tiny());
    let hub = Hub::with_rule(repo.clone(), |request, usual| {
        let drip = Some((10_000, Duration::from_millis(5)));
        request.is_weights().then(|| Reply { drip, ..usual.clone() })
    });
    home.pulled(&hub, &[repo.name]);
    assert_eq!(hub.weight_starts(), [0]);
    assert!(runs(&home, repo.name));
}

#[test]
fn a_busy_hub_is_asked_again_when_it_says() {
    let (home, repo) = (Home::new("busy"), tiny());
    let asked = AtomicUsize::new(0);
    let hub =
        Hub::with_rule(repo.clone(), move |_, _| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Reply::status(429).header("Retry-After", 0)),
            1 => Some(Reply::status(503).header("Retry-After", 1)),
            _ => None,
        });
    let told = home.pulled(&hub, &[repo.name]);
    assert!(told.contains("429") && told.contains("again in 0 s"), "{told}");
    assert!(told.contains("503") && told.contains("again in 1 s"), "{told}");
}

#[test]
fn a_hub_that_stays_busy_is_given_up() {
    let home = Home::new("busy-for-good");
    let hub = Hub::with_rule(tiny(), |_, _| Some(Reply::status(503).header("Retry-After", 0)));
    let message = home.refused(&hub, &["someone/tiny"]);
    assert!(message.contains("503") && message.contains("gave up"), "{message}");
    // An hour is not waited.
    let hub = Hub::with_rule(tiny(), |_, _| Some(Reply::status(429).header("Retry-After", 3600)));
    let message = home.refused(&hub, &["someone/tiny"]);
    assert!(message.contains("429") && message.contains("60 min"), "{message}");
    assert_eq!(hub.seen().len(), 1);
}

#[test]
fn a_model_that_moved_is_followed() {
    let (home, repo) = (Home::new("moved"), tiny());
    let hub = Hub::with_rule(repo.clone(), |request, _| {
        let moved = request.path.replace("/old/name", "/someone/tiny");
        (moved != request.path).then(|| Reply::status(307).header("Location", moved))
    });
    home.pulled(&hub, &["old/name"]);
    assert!(runs(&home, "old/name"));
}

#[test]
fn a_second_pull_downloads_nothing() {
    let (home, repo) = (Home::new("again"), tiny());
    let hub = Hub::of(repo.clone());
    home.pulled(&hub, &[repo.name]);
    let told = home.pulled(&hub, &[repo.name]);
    assert!(told.contains(" 0 B downloaded"), "{told}");
    assert_eq!(hub.weight_starts().len(), 1);
    // A blob of another length is no blob.
    let blob = home.folder(&repo).join("blobs").join(sha256(repo.file("model.safetensors")));
    fs::write(&blob, "cut").expect("writable");
    assert!(!runs(&home, repo.name));
    home.pulled(&hub, &[repo.name]);
    assert!(runs(&home, repo.name));
}

#[test]
fn offline_serves_what_is_there_and_asks_nobody() {
    let (home, repo) = (Home::new("offline"), tiny());
    let hub = Hub::of(repo.clone());
    let offline = || {
        let mut command = home.with_hub(&hub, &["pull", repo.name]);
        command.env("HF_HUB_OFFLINE", "1").output().expect("it starts")
    };
    let told = String::from_utf8(offline().stderr).expect("UTF-8");
    assert!(told.contains("HF_HUB_OFFLINE"), "{told}");
    assert!(hub.seen().is_empty());
    home.pulled(&hub, &[repo.name]);
    let asked = hub.seen().len();
    assert!(offline().status.success());
    assert_eq!(hub.seen().len(), asked);
}

/// The embedded model with everything that its folder holds.
fn seedling() -> Repo {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/seedling");
    let repo = Repo { name: "someone/seedling", commit: COMMIT.into(), files: Vec::new() };
    fs::read_dir(folder).expect("it is committed").flatten().fold(repo, |repo, entry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        repo.with(&name, fs::read(entry.path()).expect("readable"))
    })
}

/// A power cut must not leave a blob's name for bytes that were never written.
#[cfg(target_os = "linux")]
#[test]
fn weights_are_on_the_disk_before_they_have_their_name() {
    let (home, repo) = (Home::new("durable"), tiny());
    let hub = Hub::of(repo.clone());
    let folder = home.0.canonicalize().expect("made");
    let mut command = home.with_hub(&hub, &["pull", repo.name]);
    command.env("HF_HOME", &folder);
    let calls = crate::calls::Calls::of(&mut command, &folder);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let blobs = folder.join("hub/models--someone--tiny/blobs");
    let partial = blobs.join(format!("{}.incomplete", sha256(repo.file("model.safetensors"))));
    calls.assert_durable_before(std::slice::from_ref(&partial), &partial);
}

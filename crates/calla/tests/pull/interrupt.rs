//! Kills, damage and two programs at once: nothing looks whole that is not.

use std::{
    fs,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use crate::{
    Home,
    hub::{Hub, Reply, Repo, sha256},
    runs, tiny,
};

/// Long enough that the other program is there before it is over.
const DRIP: (usize, Duration) = (10_000, Duration::from_millis(30));

#[test]
fn a_killed_pull_leaves_nothing_that_looks_whole_and_goes_on_later() {
    let (home, repo) = (Home::new("killed"), tiny());
    let slow = slow_hub(&repo);
    let mut child = start(&home, &slow, repo.name);
    let incomplete =
        home.folder(&repo).join("blobs").join(format!("{}.incomplete", weights(&repo)));
    let there = || fs::metadata(&incomplete).map_or(0, |file| file.len());
    while there() == 0 {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended early");
        thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");

    let contents = home.contents(&repo);
    let is_blob = |path: &String| path.starts_with("blobs/");
    assert!(contents.iter().all(is_blob), "{contents:?}");
    assert!(!contents.contains(&format!("blobs/{}", weights(&repo))));
    let message = home.failure(&["bench", "--model", repo.name]);
    assert!(message.contains("calla pull someone/tiny"), "{message}");
    let list = home.list();
    assert_eq!(list[0]["runs"], false);
    assert!(list[0]["problem"].as_str().expect("told").contains("calla pull"), "{list}");

    let came = there();
    let hub = Hub::of(repo.clone());
    home.pulled(&hub, &[repo.name]);
    assert_eq!(hub.weight_starts(), [came]);
    assert!(runs(&home, repo.name));
}

#[test]
fn what_an_earlier_run_left_is_checked() {
    let (home, repo) = (Home::new("damaged"), tiny());
    let blobs = home.folder(&repo).join("blobs");
    fs::create_dir_all(&blobs).expect("writable");
    fs::write(blobs.join(format!("{}.incomplete", weights(&repo))), [0; 1000]).expect("writable");
    let hub = Hub::of(repo.clone());
    let told = home.pulled(&hub, &[repo.name]);
    assert!(told.contains("damaged"), "{told}");
    assert_eq!(hub.weight_starts(), [1000, 0]);
    assert!(runs(&home, repo.name));
    // More than there can be.
    fs::remove_dir_all(home.folder(&repo)).expect("removable");
    fs::create_dir_all(&blobs).expect("writable");
    let too_long = vec![0; repo.file("model.safetensors").len() + 1];
    fs::write(blobs.join(format!("{}.incomplete", weights(&repo))), too_long).expect("writable");
    home.pulled(&hub, &[repo.name]);
    assert!(runs(&home, repo.name));
}

#[test]
fn wrong_bytes_never_get_a_name() {
    let (home, repo) = (Home::new("wrong-hash"), tiny());
    let mut wrong = repo.file("model.safetensors").to_vec();
    *wrong.last_mut().expect("not empty") ^= 1;
    let hub = Hub::with_rule(repo.clone(), move |request, _| {
        request.on_store.then(|| Reply::status(200).body(wrong.clone()))
    });
    let message = home.refused(&hub, &[repo.name]);
    assert!(message.contains(&weights(&repo)), "{message}");
    nothing_but_small_blobs(&home, &repo);
    home.pulled(&Hub::of(repo.clone()), &[repo.name]);
    assert!(runs(&home, repo.name));
}

#[test]
fn a_wrong_length_is_told_with_both_numbers() {
    let (home, repo) = (Home::new("wrong-size"), tiny());
    let len = repo.file("model.safetensors").len();
    let hub = Hub::with_rule(repo.clone(), move |request, usual| {
        let is_short = request.is_weights();
        is_short.then(|| Reply { body: usual.body[..len - 7].to_vec(), ..usual.clone() })
    });
    let message = home.refused(&hub, &[repo.name]);
    let numbers = [(len - 7).to_string(), len.to_string()];
    assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
    nothing_but_small_blobs(&home, &repo);

    // Too much, from a server that does not say how much.
    let hub = Hub::with_rule(repo.clone(), |request, usual| {
        let body = [&usual.body[..], b"more"].concat();
        request.is_weights().then(|| Reply { body, length: false, ..usual.clone() })
    });
    let message = home.refused(&hub, &[repo.name]);
    assert!(message.contains("more than") && message.contains(&len.to_string()), "{message}");
    nothing_but_small_blobs(&home, &repo);
}

#[test]
fn a_download_that_stops_for_good_is_given_up_and_what_came_is_kept() {
    let (home, repo) = (Home::new("no-end"), tiny());
    let whole = repo.file("model.safetensors").to_vec();
    let hub = Hub::with_rule(repo.clone(), move |request, _| match request.is_weights() {
        true if request.start() == 0 => {
            Some(Reply { cut: Some(5000), ..Reply::status(200).body(whole.clone()) })
        }
        true => Some(Reply::status(503).header("Retry-After", 0)),
        false => None,
    });
    let message = home.refused(&hub, &[repo.name]);
    assert!(message.contains("gave up"), "{message}");
    nothing_but_small_blobs(&home, &repo);
    let hub = Hub::of(repo.clone());
    home.pulled(&hub, &[repo.name]);
    assert_eq!(hub.weight_starts(), [5000]);
}

#[test]
fn of_two_pulls_at_once_one_waits_for_the_other() {
    let (home, repo) = (Home::new("two"), tiny());
    let hub = slow_hub(&repo);
    let children = [0, 1].map(|_| start(&home, &hub, repo.name));
    let mut told = String::new();
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        told.push_str(&String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{told}");
    }
    assert_eq!(hub.weight_starts(), [0]);
    assert!(told.contains("another program downloads model.safetensors: waiting"), "{told}");
    assert!(runs(&home, repo.name));
}

#[test]
fn a_model_that_is_being_downloaded_is_not_removed() {
    let (home, repo) = (Home::new("remove-while-downloading"), tiny());
    let hub = slow_hub(&repo);
    let child = start(&home, &hub, repo.name);
    while hub.weight_starts().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    let message = home.failure(&["remove", repo.name, "--yes"]);
    assert!(message.contains("another program"), "{message}");
    assert!(child.wait_with_output().expect("it ends").status.success());
    assert!(runs(&home, repo.name));
}

fn slow_hub(repo: &Repo) -> Hub {
    Hub::with_rule(repo.clone(), |request, usual| {
        request.is_weights().then(|| Reply { drip: Some(DRIP), ..usual.clone() })
    })
}

fn start(home: &Home, hub: &Hub, model: &str) -> Child {
    let mut command = home.with_hub(hub, &["pull", "-v", model]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn weights(repo: &Repo) -> String {
    sha256(repo.file("model.safetensors"))
}

/// Neither a ref nor a snapshot, and of the weights at most a part.
fn nothing_but_small_blobs(home: &Home, repo: &Repo) {
    let contents = home.contents(repo);
    assert!(contents.iter().all(|path| path.starts_with("blobs/")), "{contents:?}");
    assert!(!contents.contains(&format!("blobs/{}", weights(repo))), "{contents:?}");
    assert!(!runs(home, repo.name));
}

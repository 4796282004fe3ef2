//! What is not downloaded, and what the user is told instead.

use std::{fs, path::Path};

use crate::{
    Home, TOKEN,
    hub::{COMMIT, Hub, Reply, Repo},
    tiny,
};

#[test]
fn each_refusal_of_the_hub_says_what_to_do() {
    let cases: [(Reply, &str); 9] = [
        (Reply::status(401), "does not accept the token"),
        (Reply::status(401).header("X-Error-Code", "GatedRepo"), "sign up"),
        (Reply::status(403).header("X-Error-Code", "GatedRepo"), "sign up"),
        (Reply::status(403).header("X-Error-Message", "no way"), "denied (no way)"),
        (Reply::status(404), "no such model"),
        (Reply::status(404).header("X-Error-Code", "RepoNotFound"), "no such model"),
        (Reply::status(404).header("X-Error-Code", "RevisionNotFound"), "no revision `main`"),
        (Reply::status(400), "400"),
        (Reply::status(200).body("<html>Please log in</html>"), "login page"),
    ];
    let home = Home::new("refusals");
    for (reply, words) in cases {
        let hub = Hub::with_rule(tiny(), move |_, _| Some(reply.clone()));
        let message = home.refused(&hub, &["someone/tiny"]);
        assert!(message.contains(words) && message.contains("someone/tiny"), "{message}");
        assert_eq!(hub.seen().len(), 1, "{message}");
    }
    assert!(home.contents(&tiny()).is_empty());
}

#[test]
fn without_a_token_a_stranger_is_told_how_to_give_one() {
    let home = Home::new("no-token");
    for (reply, words) in [
        (Reply::status(401), "no such model, or it is private"),
        (Reply::status(401).header("X-Error-Code", "GatedRepo"), "sign up"),
    ] {
        let hub = Hub::with_rule(tiny(), move |_, _| Some(reply.clone()));
        let mut command = home.with_hub(&hub, &["pull", "someone/tiny"]);
        let output = command.env_remove("HF_TOKEN").output().expect("it starts");
        let told = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(told.contains(words) && told.contains("HF_TOKEN"), "{told}");
        assert_eq!(hub.seen()[0].header("authorization"), None);
    }
}

#[test]
fn the_real_revision_is_asked_for() {
    let (home, hub) = (Home::new("no-revision"), Hub::of(tiny()));
    let message = home.refused(&hub, &["someone/tiny@v9"]);
    assert!(message.contains("no revision `v9`"), "{message}");
    assert_eq!(hub.seen()[0].path, "/api/models/someone/tiny/revision/v9");
}

#[test]
fn a_token_that_cannot_be_sent_is_not_shown() {
    let (home, hub) = (Home::new("bad-token"), Hub::of(tiny()));
    let bad = format!("{TOKEN} and more");
    let output = home.with_hub(&hub, &["pull", "someone/tiny"]).env("HF_TOKEN", bad).output();
    let told = String::from_utf8(output.expect("it starts").stderr).expect("UTF-8");
    assert!(told.contains("HF_TOKEN") && !told.contains(TOKEN), "{told}");
    assert!(hub.seen().is_empty());
}

#[test]
fn a_model_that_cannot_run_is_refused_before_its_weights() {
    let no_words = r#"{"model_type": "llama"}"#;
    let fp8 = with_quantization(r#"{"quant_method": "fp8"}"#);
    let three_bits = with_quantization(r#"{"bits": 3, "group_size": 64}"#);
    let gguf = tiny().without("config.json").with("model-q4.gguf", "GGUF");
    let cases = [
        (tiny().with("config.json", no_words), "`llama` is not of this family"),
        (tiny().with("config.json", fp8), "`fp8` is not supported"),
        (tiny().with("config.json", three_bits), "quantization.bits"),
        (tiny().with("config.json", "[]"), "not a JSON object"),
        (tiny().without("config.json"), "no config.json"),
        (gguf, "GGUF"),
        (tiny().without("tokenizer.json"), "tokenizer.json"),
        (tiny().without("model.safetensors"), "model.safetensors"),
        (unquantised(), "--unquantised"),
    ];
    let home = Home::new("cannot-run");
    for (repo, words) in cases {
        let hub = Hub::of(repo.clone());
        let message = home.refused(&hub, &[repo.name]);
        assert!(message.contains(words), "{message}");
        assert!(message.contains("MLX"), "no way out: {message}");
        assert!(hub.weight_starts().is_empty());
        assert!(!home.folder(&repo).exists(), "{message}");
    }
}

#[test]
fn unquantised_weights_come_when_asked_for_and_can_be_quantised() {
    let (home, repo) = (Home::new("unquantised"), unquantised());
    home.pulled(&Hub::of(repo.clone()), &[repo.name, "--unquantised"]);
    let made = home.calla(&["quantize", repo.name, "out"]).output().expect("it starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(home.0.join("out/config.json").is_file());
    // It is for those alone.
    let message = home.refused(&Hub::of(tiny()), &["someone/tiny", "--unquantised"]);
    assert!(message.contains("quantised already"), "{message}");
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused() {
    let home = Home::new("names");
    for name in ["../evil", "a/../../evil", "/etc/evil", "a\\..\\evil", "a/\u{1b}[2Jevil", ".."] {
        let repo = tiny().with(name, "evil");
        let message = home.refused(&Hub::of(repo.clone()), &[repo.name, "--all"]);
        assert!(message.contains("evil") || message.contains(".."), "{message}");
        assert!(message.contains("refused") && !message.contains('\u{1b}'), "{message:?}");
    }
    // The commit and the hash name folders and files too.
    let repo = Repo { commit: "../../evil".into(), ..tiny() };
    let message = home.refused(&Hub::of(repo.clone()), &[repo.name]);
    assert!(message.contains("commit"), "{message}");
    for etag in ["\"../../../evil\"", "\"\"", "\"evil\""] {
        let hub = Hub::with_rule(tiny(), move |request, usual| {
            (request.method == "HEAD").then(|| usual.clone().header("ETag", etag))
        });
        let message = home.refused(&hub, &["someone/tiny"]);
        assert!(message.contains("no hash"), "{message}");
    }
    let index = r#"{"weight_map": {"a": "../evil.safetensors"}}"#;
    let repo = tiny().with("model.safetensors.index.json", index);
    let message = home.refused(&Hub::of(repo.clone()), &[repo.name]);
    assert!(message.contains("../evil"), "{message}");
    assert!(!home.0.join("hub").exists());
}

#[test]
fn a_model_larger_than_the_disk_is_not_begun() {
    let (home, repo) = (Home::new("disk"), tiny());
    let hub = Hub::with_rule(repo.clone(), |request, usual| {
        let is_weights = request.path.ends_with("/model.safetensors");
        is_weights.then(|| usual.clone().header("X-Linked-Size", 1u64 << 60))
    });
    let message = home.refused(&hub, &[repo.name]);
    assert!(message.contains("free") && message.contains("1152921504.61 GB"), "{message}");
    assert!(message.contains("HF_HUB_CACHE"), "{message}");
    assert!(hub.weight_starts().is_empty());
    assert_eq!(home.list(), serde_json::json!([]));
}

#[test]
fn a_hub_that_cannot_be_reached_is_told_at_once() {
    let home = Home::new("unreachable");
    let mut command = home.calla(&["pull", "someone/tiny"]);
    // Nothing listens on port 1.
    let output = command.env("HF_ENDPOINT", "http://127.0.0.1:1").output().expect("it starts");
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(told.contains("cannot be reached") && told.contains("HF_ENDPOINT"), "{told}");
    for endpoint in ["huggingface.co", "ftp://hub", "http://", "https://hub/?a=b"] {
        let output = home.calla(&["pull", "a/b"]).env("HF_ENDPOINT", endpoint).output();
        let told = String::from_utf8(output.expect("it starts").stderr).expect("UTF-8");
        assert!(told.starts_with("calla: HF_ENDPOINT: "), "{endpoint}: {told}");
    }
}

#[test]
fn certificates_that_are_named_and_not_there_are_no_licence_to_use_others() {
    let (home, hub) = (Home::new("certificates"), Hub::of(tiny()));
    let mut command = home.with_hub(&hub, &["pull", "someone/tiny"]);
    let output = command.env("SSL_CERT_FILE", "/nowhere.pem").output().expect("it starts");
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(told.contains("SSL_CERT_FILE") && told.contains("/nowhere.pem"), "{told}");
    assert!(hub.seen().is_empty());
}

#[test]
fn redirects_without_end_end() {
    let home = Home::new("circle");
    let hub = Hub::with_rule(tiny(), |request, _| {
        Some(Reply::status(302).header("Location", &request.path))
    });
    let message = home.refused(&hub, &["someone/tiny"]);
    assert!(message.contains("redirects without end"), "{message}");
}

#[test]
fn what_is_no_name_is_a_mistake_in_the_flags() {
    let home = Home::new("no-name");
    for name in ["tiny", "a/b/c", "../b", "a/b@../x"] {
        for command in ["pull", "remove"] {
            let output = home.calla(&[command, name]).output().expect("it starts");
            let told = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(output.status.code(), Some(2), "{told}");
            assert!(told.contains(name), "{told}");
        }
    }
}

fn with_quantization(text: &str) -> String {
    let config = String::from_utf8(tiny().file("config.json").to_vec()).expect("UTF-8");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    let quantization: serde_json::Value = serde_json::from_str(text).expect("JSON");
    config["quantization"] = quantization;
    config.to_string()
}

fn unquantised() -> Repo {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/bf16/dense");
    let repo = Repo { name: "someone/bf16", commit: COMMIT.into(), files: Vec::new() };
    ["config.json", "model.safetensors", "tokenizer.json"].into_iter().fold(repo, |repo, name| {
        repo.with(name, fs::read(data.join(name)).expect("it is committed"))
    })
}

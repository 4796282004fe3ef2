//! What does not fit in memory is refused before it is loaded.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use serde_json::Value;

use crate::{calla, json, scratch, stdout, text};

/// The most tokens that a checkpoint may claim to hold. With the seedling's keys and values in
/// float32 they take 4.4 TB.
const ENDLESS: u64 = 1 << 30;

/// The seedling, claiming to hold as many.
fn endless(test: &str) -> PathBuf {
    let seedling = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/seedling");
    let folder = scratch(test).join("endless");
    fs::create_dir(&folder).expect("writable");
    for file in
        ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    {
        fs::copy(seedling.join(file), folder.join(file)).expect("writable");
    }
    let config = fs::read(seedling.join("config.json")).expect("committed");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["text_config"]["max_position_embeddings"] = Value::from(ENDLESS);
    fs::write(folder.join("config.json"), config.to_string()).expect("writable");
    folder
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_context_beyond_the_memory_is_refused_with_what_fits() {
    let model = endless("memory-refused");
    let exact = ["--model", text(&model), "--precision", "exact"];
    let report = json(&[&["inspect", "--json"][..], &exact].concat());
    let fits = report["context_fits"].as_u64().expect("Linux tells its memory");
    assert!(4096 < fits && fits < ENDLESS, "{fits}");
    let last = report["contexts"].as_array().expect("a list").last().expect("the longest");
    assert_eq!((&last["tokens"], &last["fits"]), (&Value::from(ENDLESS), &Value::from(false)));

    for arguments in [
        &["chat", "hi", "--max-context", "1073741824"][..],
        &["serve", "--port", "0", "--max-context", "1073741824"],
        &["bench", "--contexts", "1073740000"],
    ] {
        let output = calla(&[arguments, &exact].concat()).output().expect("it starts");
        let message = stderr(&output);
        let flag = arguments[arguments.len() - 2];
        assert_eq!(output.status.code(), Some(1), "{message}");
        for words in [flag, "KV cache", "weights", "tokens fit", "--no-memory-check"] {
            assert!(message.contains(words), "{arguments:?}: {words} is missing from {message}");
        }
    }
}

#[test]
fn without_a_context_as_many_tokens_are_taken_as_fit_and_it_is_told() {
    let model = endless("memory-longest");
    let answer = |flags: &[&str]| {
        let chat =
            ["chat", "hi", "--max-tokens", "1", "--precision", "exact", "--model", text(&model)];
        let output = calla(&[&chat[..], flags].concat()).output().expect("it starts");
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    assert!(answer(&[]).contains("memory has room for"), "{}", answer(&[]));
    // Nothing to tell where all fits, or nobody looks.
    for flags in [&["--max-context", "512"][..], &["--no-memory-check"]] {
        assert!(!answer(flags).contains("memory"), "{}", answer(flags));
    }
}

#[test]
fn the_preview_is_one_line_of_v() {
    let arguments = ["chat", "hi", "--max-tokens", "1", "--max-context", "512", "-v"];
    let output = calla(&arguments).output().expect("it starts");
    let told = stderr(&output);
    let preview: Vec<&str> =
        told.lines().filter(|line| line.starts_with("calla: memory for 512 tokens")).collect();
    assert!(preview.len() == 1 && preview[0].contains("KV cache"), "{told}");
}

#[test]
fn help_says_what_the_default_is() {
    assert!(stdout(&["chat", "--help"]).contains("the memory holds"));
}

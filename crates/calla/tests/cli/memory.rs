//! What does not fit in memory is refused before it is loaded.

use std::{fs, path::PathBuf, process::Output};

use serde_json::{Value, json};

use crate::{calla, failure, json, scratch, stdout, text, tiny};

/// Tokens that no machine has memory for.
const ENDLESS: &str = "100000000000000";

/// A tiny model that claims to hold as many.
fn endless(test: &str) -> PathBuf {
    let folder = scratch(test).join("endless");
    fs::create_dir(&folder).expect("writable");
    fs::copy(tiny("dense").join("model.safetensors"), folder.join("model.safetensors"))
        .expect("writable");
    let config = fs::read(tiny("dense").join("config.json")).expect("committed");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["text_config"]["max_position_embeddings"] = json!(100_000_000_000_000_u64);
    fs::write(folder.join("config.json"), config.to_string()).expect("writable");
    folder
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_context_beyond_the_memory_is_refused_with_what_fits() {
    let model = endless("memory-refused");
    let report = json(&["inspect", text(&model), "--json"]);
    let fits = report["context_fits"].as_u64().expect("Linux tells its memory");
    assert!(4096 < fits && fits < 100_000_000_000_000, "{fits}");
    let last = report["contexts"].as_array().expect("a list").last().expect("the longest");
    assert_eq!((&last["tokens"], &last["fits"]), (&json!(100_000_000_000_000_u64), &json!(false)));

    for arguments in [
        &["chat", "hi", "--max-context", ENDLESS][..],
        &["serve", "--port", "0", "--max-context", ENDLESS],
        &["bench", "--contexts", "99000000000000"],
    ] {
        let output = calla(&[arguments, &["--model", text(&model)]].concat()).output();
        let output = output.expect("it starts");
        let message = stderr(&output);
        let flag = arguments[arguments.len() - 2];
        assert_eq!(output.status.code(), Some(1), "{message}");
        for words in [flag, "KV cache", "weights", "tokens fit", "--no-memory-check"] {
            assert!(message.contains(words), "{arguments:?}: {words} is missing from {message}");
        }
    }
}

#[test]
fn the_check_can_be_left_out() {
    let model = endless("memory-unchecked");
    let flags = ["--model", text(&model), "--max-context", ENDLESS, "--no-memory-check"];
    // It goes on to what the folder lacks.
    let message = failure(&[&["chat", "hi"][..], &flags].concat(), 1);
    assert!(message.contains("tokenizer.json"), "{message}");
}

#[test]
fn without_a_context_as_many_tokens_are_taken_as_fit_and_it_is_told() {
    let model = endless("memory-longest");
    let message = failure(&["chat", "hi", "--model", text(&model)], 1);
    assert!(message.contains("memory has room for"), "{message}");
    // Where all fits there is nothing to tell.
    let output = calla(&["chat", "hi", "--max-tokens", "1"]).output().expect("it starts");
    assert!(!stderr(&output).contains("memory"), "{}", stderr(&output));
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

//! Mistakes: one clear line, the right exit code, and what to do instead.

use std::process::Stdio;

use crate::{calla, failure, scratch, stdout, text};

#[test]
fn a_mistake_in_the_flags_is_exit_code_2_and_names_the_flag() {
    for (arguments, word) in [
        (&["bench", "--contexts", "0"][..], "--contexts"),
        (&["bench", "--steps", "many"], "--steps"),
        (&["bench", "--backend", "abacus"], "abacus"),
        (&["bench", "--precision", "rough"], "exact"),
        (&["bench", "--threads", "0"], "--threads"),
        (&["synth", "--shape", "huge", "--out", "x"], "qwen3.6-35b-a3b"),
        (&["synth", "--shape", "tiny"], "--out"),
        (&["quantize", "a", "b", "--bits", "3"], "4, 8"),
        (&["quantize", "a"], "<DST>"),
        (&["chat", "--temperature", "3", "hi"], "from 0 to 2"),
        (&["chat", "--top-p", "nan", "hi"], "--top-p"),
        (&["serve", "--port", "70000"], "--port"),
        (&["serve", "--api-key", "a", "--api-key-file", "b"], "--api-key-file"),
        (&["eval", "agree"], "--against"),
        (&["eval", "agree", "--with", "cpu"], "--text"),
        (&["eval", "agree", "--with", "abacus", "--exam"], "abacus"),
        (&["eval", "agree", "--with", "cpu:rough", "--exam"], "default or exact"),
        (&["eval", "agree", "--against", "a", "--text", "b"], "--text"),
        (&["eval", "perplexity"], "--text"),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ] {
        let message = failure(arguments, 2);
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
}

#[test]
fn a_model_that_is_not_there_is_one_line_that_names_the_folder() {
    for arguments in [
        &["bench", "--contexts", "8"][..],
        &["tokens", "hi"],
        &["chat", "hi"],
        &["inspect"],
        &["eval", "agree", "--against", "/nowhere/golden.safetensors"],
    ] {
        let message = failure(&[arguments, &["--model", "/nowhere/model"]].concat(), 1);
        assert!(message.starts_with("calla: ") && message.contains("/nowhere/"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_folder_without_a_tokenizer_serves_what_needs_no_text() {
    let model = scratch("no-text").join("model");
    stdout(&["synth", "--shape", "tiny", "--out", text(&model)]);
    stdout(&["bench", "--model", text(&model), "--contexts", "4", "--repetitions", "1"]);
    for arguments in [&["chat", "hi"], &["tokens", "hi"]] {
        let message = failure(&[&arguments[..], &["--model", text(&model)]].concat(), 1);
        assert!(message.contains("tokenizer.json"), "{message}");
    }
}

#[test]
fn the_environment_stands_in_for_a_flag_and_the_flag_wins() {
    let with_model = |arguments: &[&str]| {
        let mut command = calla(arguments);
        let output = command.env("CALLA_MODEL", "/from/environment").output();
        String::from_utf8(output.expect("it starts").stderr).expect("UTF-8")
    };
    assert!(with_model(&["tokens", "hi"]).contains("/from/environment"));
    assert!(with_model(&["tokens", "hi", "--model", "/from/flag"]).contains("/from/flag"));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = calla(&["tokens", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, "word ".repeat(100_000).as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

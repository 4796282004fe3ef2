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
        (&["bench", "--threads", "0"], "at least 1"),
        (&["chat", "--threads", "20000", "hi"], "at most 1024"),
        (&["chat", "--max-context", "0", "hi"], "at least 1"),
        (&["synth", "--shape", "tiny", "--layers", "1000000", "--out", "x"], "at most 1024"),
        (&["synth", "--shape", "huge", "--out", "x"], "qwen3.6-35b-a3b"),
        (&["synth", "--shape", "tiny"], "--out"),
        (&["quantize", "a", "b", "--bits", "3"], "4, 8"),
        (&["quantize", "a"], "<DST>"),
        (&["chat", "--temperature", "3", "hi"], "from 0 to 2"),
        (&["chat", "--temperature", "-1", "hi"], "from 0 to 2"),
        (&["chat", "--presence-penalty", "-3", "hi"], "from -2 to 2"),
        (&["chat", "--top-p", "nan", "hi"], "--top-p"),
        (&["chat", "--top-p", "0", "hi"], "above 0, up to 1"),
        (&["chat", "--repetition-penalty", "0", "hi"], "above 0"),
        (&["config", "serve", "--port", "-1"], "0..=65535"),
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
fn a_context_that_the_model_cannot_hold_names_the_flag() {
    for tokens in ["1", "1000000"] {
        let message = failure(&["chat", "hi", "--max-context", tokens], 1);
        assert!(message.starts_with(&format!("calla: --max-context: {tokens} ")), "{message}");
    }
}

#[test]
#[cfg(unix)]
fn small_files_are_regular_files() {
    let folder = scratch("small-files");
    let pipe = folder.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
    assert!(made.success(), "{made}");
    // A program that opens the pipe gets something, so that this test ends.
    let fed = pipe.clone();
    std::thread::spawn(move || std::fs::write(fed, "key"));
    for path in [&pipe, &folder] {
        for (arguments, code) in
            [(["serve", "--api-key-file", text(path)], 1), (["config", "--config", text(path)], 2)]
        {
            let message = failure(&arguments, code);
            let expected = format!("{}: not a regular file", path.display());
            assert!(message.contains(&expected), "{message}");
        }
    }
}

#[test]
fn a_file_too_long_for_a_key_is_not_read() {
    let file = scratch("long-key").join("key");
    std::fs::write(&file, "k".repeat((64 << 10) + 1)).expect("writable");
    let message = failure(&["serve", "--api-key-file", text(&file)], 1);
    assert!(message.contains("holds more than 65536 bytes"), "{message}");
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

//! eval perplexity, and eval agree of two backends: what is read, and what comes out.

use std::fs;

use crate::{failure, json, pipe, scratch, stdout, success, text};

const TEXT: &str = "The tailor bought a violet scarf. Perzel lives next to the bakery, and \
                    every evening she walks to the river with her horse.\n";

fn number(report: &serde_json::Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {report}"))
}

#[test]
fn perplexity_is_the_same_by_file_by_pipe_and_by_the_logits_of_agree() {
    let file = scratch("perplexity").join("text.txt");
    fs::write(&file, TEXT).expect("writable");
    let report = json(&["eval", "perplexity", "--text", text(&file), "--json"]);
    let tokens = json(&["tokens", "--json", TEXT]);
    assert_eq!(report["tokens"], tokens["count"]);
    let scored = number(&report, "scored");
    assert_eq!(scored, number(&report, "tokens") - 1.0);
    assert_eq!((&report["window"], &report["stride"]), (&2048.into(), &1024.into()));
    let perplexity = number(&report, "perplexity");
    assert!((number(&report, "nll_mean").exp() / perplexity - 1.0).abs() < 1e-12, "{report}");
    assert!(number(&report, "tok_s") > 0.0);

    let piped = pipe(&["eval", "perplexity", "--text", "-"], TEXT);
    let table = success(&piped);
    assert!(table.contains(&format!("perplexity  {perplexity:.4}\n")), "{table}");

    let agreement =
        json(&["eval", "agree", "--with", "reference", "--text", text(&file), "--json"]);
    assert_eq!(agreement["positions"], report["tokens"]);
    assert!((number(&agreement, "perplexity") / perplexity - 1.0).abs() < 1e-9, "{agreement}");
    assert!(number(&agreement, "top1_agreement") > 0.9, "{agreement}");
    let error = number(&agreement, "rel_error");
    assert!(0.0 < error && error < 1e-2, "{agreement}");
}

#[test]
fn a_window_reads_no_more_than_it_says() {
    let report = |window: &str, stride: &str| {
        let flags = ["--window", window, "--stride", stride, "--json"];
        let output = pipe(&[&["eval", "perplexity", "--text", "-"][..], &flags].concat(), TEXT);
        serde_json::from_str::<serde_json::Value>(&success(&output)).expect("JSON")
    };
    let tokens = number(&report("4096", "4096"), "tokens");
    let pairs = report("2", "1");
    assert_eq!(number(&pairs, "scored"), tokens - 1.0);
    // Without overlap each window's first token has nothing before it.
    let apart = report("8", "8");
    assert_eq!(number(&apart, "scored"), tokens - (tokens / 8.0).ceil());
    // With one token of context the text is harder to expect than with all of it.
    assert!(number(&pairs, "perplexity") > number(&report("4096", "1"), "perplexity"));
}

#[test]
fn backends_and_precisions_are_compared_as_named() {
    let file = scratch("backends").join("text.txt");
    fs::write(&file, TEXT).expect("writable");
    let agree = |flags: &[&str]| {
        json(&[&["eval", "agree", "--text", text(&file), "--json"][..], flags].concat())
    };
    let same = agree(&["--with", "cpu"]);
    assert_eq!((number(&same, "rel_error"), number(&same, "kl_max")), (0.0, 0.0));
    assert_eq!(same["perplexity"], same["perplexity_theirs"]);
    let rounded = number(&agree(&["--with", "cpu:exact"]), "rel_error");
    let exact = number(
        &agree(&["--precision", "exact", "--with", "reference", "--window", "16"]),
        "rel_error",
    );
    assert!(0.0 < exact && exact < 1e-5 && 10.0 * exact < rounded, "{exact} {rounded}");
}

#[test]
fn a_text_that_cannot_be_judged_is_refused_by_name() {
    let folder = scratch("bad-text");
    let refused = |name: &str, bytes: &[u8]| {
        let file = folder.join(name);
        fs::write(&file, bytes).expect("writable");
        let message = failure(&["eval", "perplexity", "--text", text(&file)], 1);
        assert!(message.contains(name) && message.lines().count() == 1, "{message}");
        message
    };
    assert!(refused("empty.txt", b"").contains("no text"));
    assert!(refused("latin1.txt", b"caf\xe9").contains("UTF-8"));
    assert!(refused("short.txt", b"a").contains("at least 2"));
    let message = failure(&["eval", "perplexity", "--text", "/nowhere/a.txt"], 1);
    assert!(message.contains("/nowhere/a.txt"), "{message}");

    let output = pipe(&["eval", "perplexity", "--text", "-"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stdin: holds no text"));
}

#[test]
fn windows_that_cannot_be_read_are_refused_by_their_flag() {
    let file = scratch("bad-window").join("text.txt");
    fs::write(&file, TEXT).expect("writable");
    let refused = |command: &str, flags: &[&str]| {
        failure(&[&["eval", command, "--text", text(&file)], flags].concat(), 1)
    };
    let message = refused("perplexity", &["--window", "1"]);
    assert!(message.contains("--window"), "{message}");
    let message = refused("perplexity", &["--window", "90000"]);
    assert!(message.contains("--window") && message.contains("8192"), "{message}");
    let message = refused("perplexity", &["--window", "16", "--stride", "17"]);
    assert!(message.contains("--stride"), "{message}");
    let message = refused("agree", &["--with", "cpu", "--window", "90000"]);
    assert!(message.contains("--window") && message.contains("8192"), "{message}");
    // It is no error to ask for a window as large as the text or larger.
    stdout(&["eval", "perplexity", "--text", text(&file), "--window", "8192"]);
}

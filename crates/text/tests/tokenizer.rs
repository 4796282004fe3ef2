//! Token ids equal those of other implementations: always on a small committed vocabulary, and on
//! the family's whole one when `CALLA_QWEN_TOKENIZER` names the folder that
//! `tests/parity/tokenizer_ids.py full` wrote.

use std::path::Path;
use std::sync::Arc;

use calla_text::{Detokenizer, Tail, TextError, Tokenizer};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ordinary: Vec<u32>,
}

#[test]
fn ids_equal_python_tokenizers_on_a_small_vocabulary() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let count =
        compare(&folder.join("small_tokenizer.json"), &folder.join("small_tokenizer_ids.json"));
    assert!(count >= 500, "only {count} strings");
    println!("{count} strings equal tokenizers");

    if let Some(folder) = std::env::var_os("CALLA_QWEN_TOKENIZER") {
        let folder = Path::new(&folder);
        let count = compare(&folder.join("tokenizer.json"), &folder.join("tokenizer_ids.json"));
        assert!(count >= 2_000, "only {count} strings");
        println!("{count} strings equal qwen-tokenizer");
    }
}

/// Compares ids both ways, and what streaming them back gives; the count of strings.
fn compare(tokenizer_path: &Path, cases_path: &Path) -> usize {
    let tokenizer = Arc::new(Tokenizer::from_file(tokenizer_path).expect("a usable tokenizer"));
    let cases = std::fs::read(cases_path).expect("the golden ids");
    let cases: Vec<Case> = serde_json::from_slice(&cases).expect("valid golden ids");
    let mut differences = Vec::new();
    for Case { text, ids, ordinary } in &cases {
        let got = tokenizer.encode(text).expect("encodes");
        let got_ordinary = tokenizer.encode_ordinary(text).expect("encodes");
        if (&got, &got_ordinary) != (ids, ordinary) {
            differences
                .push(format!("{text:?}\n  {got:?} {got_ordinary:?}\n  {ids:?} {ordinary:?}"));
        }
        // Special tokens or not, the ids stand for one and the same text.
        assert_eq!(streamed(&tokenizer, ids), streamed(&tokenizer, ordinary), "{text:?}");
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    cases.len()
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|id| tokenizer.token_bytes(*id).expect("a known id"))
        .copied()
        .collect();
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text += &detokenizer.finish(Tail::Replace);
    assert_eq!(text, String::from_utf8_lossy(&bytes));
    text
}

#[test]
fn special_tokens_are_known_by_name() {
    let tokenizer = small();
    let end = tokenizer.id("<|im_end|>").expect("a special token");
    let think = tokenizer.id("<think>").expect("an added token");
    assert_eq!(tokenizer.token_bytes(end), Some(&b"<|im_end|>"[..]));
    assert!(tokenizer.is_special(end));
    assert!(!tokenizer.is_special(think) && !tokenizer.is_special(0));
    assert_eq!(tokenizer.encode("<think>").expect("encodes"), [think]);
    assert!(tokenizer.encode_ordinary("<think>").expect("encodes").len() > 1);
    assert_eq!(tokenizer.vocab_size(), 3_033);
    assert_eq!(tokenizer.token_bytes(3_033), None);
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
}

#[test]
fn a_character_cut_off_is_withheld_or_replaced() {
    let tokenizer = Arc::new(small());
    let ids = tokenizer.encode("ok 🦀").expect("encodes");
    let mut detokenizer = Detokenizer::new(tokenizer);
    let mut text = String::new();
    for id in &ids[..ids.len() - 1] {
        text += &detokenizer.push(*id);
    }
    assert_eq!(text.trim_end(), "ok");
    assert!(detokenizer.holds_partial());
    let mut replaced = detokenizer.clone();
    assert_eq!(detokenizer.finish(Tail::Withhold), "");
    assert_eq!(replaced.finish(Tail::Replace), "\u{FFFD}");
    assert!(!detokenizer.holds_partial() && !replaced.holds_partial());
}

/// The regex engine has a limit on steps back: passing it must neither fail nor spoil the rest.
#[test]
fn long_runs_are_encoded() {
    let tokenizer = small();
    let tail = tokenizer.encode(" two\nthree").expect("encodes");
    let runs = [(" ", 1_200_000), ("\n", 9_000), ("a", 9_000), ("!", 9_000), ("é", 9_000)];
    for (unit, count) in runs {
        for word in ["\nx", " x", "x"] {
            let text = unit.repeat(count) + word + " two\nthree";
            let ids = tokenizer.encode(&text).expect("encodes");
            assert!(ids.ends_with(&tail), "{count} times {unit:?}: {:?}", &ids[ids.len() - 8..]);
        }
    }
}

#[test]
fn unusable_files_are_refused() {
    assert!(matches!(Tokenizer::from_bytes(b"{"), Err(TextError::TokenizerFormat { .. })));
    let missing = Tokenizer::from_file(Path::new("no/such/tokenizer.json"));
    assert!(missing.expect_err("missing").to_string().contains("no/such/tokenizer.json"));

    let words = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "BPE",
        "vocab": {"▁a": 0}, "merges": []}}"#;
    let error = Tokenizer::from_bytes(words.as_bytes()).expect_err("not byte-level");
    assert!(error.to_string().contains('▁'), "{error}");

    let far = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "BPE",
        "vocab": {"a": 4294967295}, "merges": []}}"#;
    let error = Tokenizer::from_bytes(far.as_bytes()).expect_err("id too high");
    assert!(error.to_string().contains("4294967295"), "{error}");
}

#[test]
fn settings_that_would_shorten_or_pad_prompts_are_not_kept() {
    let mut file: serde_json::Value =
        serde_json::from_str(include_str!("data/small_tokenizer.json")).expect("valid JSON");
    file["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    });
    file["padding"] = serde_json::json!({
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    });
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).expect("usable");
    let text = "one two three four five";
    assert_eq!(tokenizer.encode(text).expect("encodes"), small().encode(text).expect("encodes"));
}

fn small() -> Tokenizer {
    Tokenizer::from_bytes(include_bytes!("data/small_tokenizer.json")).expect("usable")
}

//! chat and tokens with the embedded model. The conversation on a terminal is tested by
//! tests/cli/interactive.py.

use serde_json::Value;

use crate::{calla, json, pipe, stdout, success};

/// Enough to see an answer, few enough for the slowest backend.
const SHORT: [&str; 4] = ["--max-tokens", "12", "--temperature", "0"];

#[test]
fn a_prompt_gets_an_answer_without_any_file() {
    let output = calla(&[&["chat", "Hello"][..], &SHORT].concat()).current_dir("/").output();
    let answer = success(&output.expect("it starts"));
    assert!(answer.ends_with('\n') && !answer.trim().is_empty(), "{answer:?}");
    assert!(!answer.contains('\x1b'), "{answer:?}");
}

#[test]
fn thinking_is_framed_where_there_is_no_colour_and_absent_when_switched_off() {
    let thinking = stdout(&[&["chat", "Hello", "--think"][..], &SHORT].concat());
    assert!(thinking.starts_with("<think>\n") && thinking.contains("</think>"), "{thinking:?}");
    let direct = stdout(&[&["chat", "Hello", "--no-think"][..], &SHORT].concat());
    assert!(!direct.starts_with("<think>"), "{direct:?}");
}

#[test]
fn a_prompt_may_come_from_a_pipe_or_from_both() {
    let chat = |arguments: &[&str], stdin: &str| {
        let arguments = [&["chat", "--no-think"][..], arguments, &SHORT].concat();
        success(&pipe(&arguments, stdin))
    };
    let whole = chat(&["First.\n\nSecond."], "");
    assert_eq!(chat(&[], "First.\n\nSecond."), whole);
    assert_eq!(chat(&["First."], "Second."), whole);
    assert_ne!(chat(&["First."], ""), whole);
}

#[test]
fn nothing_to_ask_is_an_error() {
    let output = pipe(&["chat"], " \n");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("empty"));
}

#[test]
fn the_system_message_and_the_seed_reach_the_model() {
    let chat = |arguments: &[&str]| {
        stdout(&[&["chat", "Hello", "--no-think", "--max-tokens", "12"][..], arguments].concat())
    };
    assert_ne!(chat(&[]), chat(&["--system", "Speak of clouds."]));
    let seeded = |seed| chat(&["--temperature", "2", "--seed", seed]);
    assert_eq!(seeded("1"), seeded("1"));
    assert_ne!(seeded("1"), seeded("2"));
}

#[test]
fn the_cut_at_the_limit_is_told() {
    let arguments = [&["chat", "Hello", "--no-think"][..], &SHORT].concat();
    let output = calla(&arguments).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("--max-tokens"), "{told}");
}

#[test]
fn a_conversation_that_does_not_fit_is_refused_with_both_numbers() {
    let arguments = ["chat", "Hello there", "--max-context", "8"];
    let output = calla(&arguments).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains("holds 8"), "{told}");
}

#[test]
fn tokens_put_together_are_the_text() {
    let text = "fn size() -> usize { 42 } <|im_start|>\n\tx = [1, 2]";
    let cut = json(&["tokens", text, "--json"]);
    let pieces = cut["pieces"].as_array().expect("a list");
    assert_eq!(pieces.iter().filter_map(Value::as_str).collect::<String>(), text);
    assert!(pieces.iter().any(|piece| piece == "<|im_start|>"), "{cut}");
    assert_eq!(cut["ids"].as_array().expect("a list").len(), pieces.len());
    assert_eq!(cut["count"], pieces.len());
}

#[test]
fn tokens_come_one_a_line_and_from_stdin_too() {
    let lines = stdout(&["tokens", "a\nb"]);
    assert!(lines.contains("\\n"), "{lines}");
    assert_eq!(success(&pipe(&["tokens", "-"], "a\nb")), lines);
    let count = json(&["tokens", "a\nb", "--json"])["count"].as_u64();
    assert_eq!(Some(lines.lines().count() as u64), count);
}

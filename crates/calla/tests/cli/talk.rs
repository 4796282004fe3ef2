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

/// What it says is what the exam of the embedded model asks for.
#[test]
fn a_sum_is_right_and_thinking_shows_its_steps() {
    let answer = stdout(&["chat", "What is 48 + 75?"]);
    assert!(answer.contains("123"), "{answer}");
    let shown = stdout(&["chat", "--think", "What is 48 + 75?"]);
    let (thought, answer) = shown.split_once("</think>").expect("the thought ends");
    assert!(thought.contains("8 + 5 = 13"), "{shown}");
    assert!(answer.contains("123"), "{shown}");
}

#[test]
fn a_prompt_may_come_from_a_pipe_or_from_both() {
    let whole = prompt_tokens(&["First.\n\nSecond."], "");
    assert_eq!(prompt_tokens(&[], "First.\n\nSecond."), whole);
    assert_eq!(prompt_tokens(&["First."], "Second."), whole);
    assert!(prompt_tokens(&["First."], "") < whole);
}

#[test]
fn nothing_to_ask_is_an_error() {
    let output = pipe(&["chat"], " \n");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("empty"));
}

#[test]
fn the_system_message_and_the_way_to_think_reach_the_model() {
    let plain = prompt_tokens(&["Hello", "--no-think"], "");
    assert!(prompt_tokens(&["Hello", "--no-think", "--system", "Speak of clouds."], "") > plain);
    assert_ne!(prompt_tokens(&["Hello", "--think"], ""), plain);
    // The last word counts.
    assert_eq!(prompt_tokens(&["Hello", "--think", "--no-think"], ""), plain);
}

#[test]
fn the_seed_decides_what_chance_says() {
    let chat = |seed| {
        // Noise, in which no answer is the likely one.
        let all = ["--temperature", "2", "--top-k", "0", "--top-p", "1"];
        let sampling = ["--max-tokens", "30", "--seed", seed];
        stdout(&[&["chat", "Hello", "--think"][..], &all, &sampling].concat())
    };
    assert_eq!(chat("1"), chat("1"));
    assert_ne!(chat("1"), chat("2"));
}

#[test]
fn the_cut_at_the_limit_is_told() {
    let arguments = ["chat", "Hello", "--no-think", "--max-tokens", "1"];
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

/// Tokens of the prompt that the model would be given: the engine tells when they are too many.
fn prompt_tokens(arguments: &[&str], stdin: &str) -> u64 {
    let output = pipe(&[&["chat", "--max-context", "2"], arguments].concat(), stdin);
    let told = String::from_utf8_lossy(&output.stderr);
    let number = told.split_whitespace().find_map(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no number of tokens in {told}"))
}

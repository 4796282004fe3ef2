//! Prompts equal what Python's Jinja2, set up by transformers, makes of the same conversations
//! (`data/render.json`, written by `tests/parity/render.py`).

use calla_text::{ChatTemplate, Delta, OutputParser, RenderInput, TextError};
use serde_json::{Map, Value, json};

const PUBLISHED: &str = include_str!("data/qwen3.6.chat_template.jinja");

#[test]
fn prompts_equal_python() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("data/render.json")).expect("valid JSON");
    let mut differences = Vec::new();
    for case in &cases {
        let name = text(&case["name"]);
        let source = match text(&case["template"]) {
            "qwen3.6" => PUBLISHED,
            source => source,
        };
        let got = ChatTemplate::new(source).and_then(|template| render(&template, case));
        let same = match &got {
            Ok(prompt) => case["prompt"] == prompt.as_str(),
            Err(TextError::TemplateRaised { message }) => case["raised"] == message.as_str(),
            Err(TextError::TemplateRender { .. }) => case["fails"] == true,
            Err(_) => false,
        };
        if !same {
            let want = [&case["prompt"], &case["raised"], &case["fails"]];
            differences.push(format!("{name}\n  python {want:?}\n  calla  {got:?}"));
        }
    }
    assert!(cases.len() >= 60);
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    println!("{} conversations equal", cases.len());
}

/// What the model wrote, parsed and put into history, renders to the same text again: the frame
/// that the parser takes off is the one that the template puts on.
#[test]
fn a_parsed_turn_renders_back() {
    let template = ChatTemplate::new(PUBLISHED).expect("the published template compiles");
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "n": {"type": "integer"}, "on": {"type": "boolean"}, "o": {"type": "object"},
    }}}});
    let call = "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=on>\nTrue\n\
                </parameter>\n<parameter=o>\n{\"a\": [1, \"é\"]}\n</parameter>\n<parameter=s>\n\
                line 1\n\n  line \"2\"\n</parameter>\n</function>\n</tool_call>";
    let turns = [
        "why not\n</think>\n\nHello.".to_owned(),
        format!("hm\n</think>\n\n{call}"),
        format!("hm\n</think>\n\nLet me look.\n\n{call}\n{call}"),
        "\n</think>\n\nHello.".to_owned(),
    ];
    for turn in turns {
        let mut case = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]});
        let prompt = render(&template, &case).expect("renders");
        let mut parser = OutputParser::new(&prompt, case["tools"].as_array().expect("a list"));
        let mut deltas = parser.push(&turn);
        deltas.extend(parser.finish());
        let messages = case["messages"].as_array_mut().expect("a list");
        messages.push(message(deltas));
        case["variables"] = json!({"add_generation_prompt": false});
        let again = render(&template, &case).expect("renders");
        assert_eq!(again, format!("{prompt}{turn}<|im_end|>\n"));
    }
}

#[test]
fn broken_templates_are_refused_with_their_line() {
    let error = ChatTemplate::new("a\n{% if %}").expect_err("no condition");
    assert!(matches!(error, TextError::TemplateSyntax { .. }));
    assert!(error.to_string().contains("line 2"), "{error}");
    let template = ChatTemplate::new("a\n\n{{ nothing.more }}").expect("compiles");
    let error = render(&template, &json!({"messages": [], "tools": []})).expect_err("undefined");
    assert!(error.to_string().contains("line 3"), "{error}");
}

fn render(template: &ChatTemplate, case: &Value) -> Result<String, TextError> {
    let list = |field: &str| case[field].as_array().cloned().unwrap_or_default();
    let mut extra: Map<String, Value> = case["variables"].as_object().cloned().unwrap_or_default();
    let opens_turn = extra.remove("add_generation_prompt").is_none_or(|v| v == true);
    template.render(&RenderInput {
        messages: &list("messages"),
        tools: &list("tools"),
        add_generation_prompt: opens_turn,
        extra: &extra,
        bos_token: Some("<s>"),
        eos_token: Some("<|im_end|>"),
    })
}

/// The assistant's message as a client would send it back.
fn message(deltas: Vec<Delta>) -> Value {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::Content(text) => content += &text,
            Delta::Reasoning(text) => reasoning += &text,
            Delta::ToolCallStart { name, .. } => calls.push((name, String::new())),
            Delta::ToolCallArguments { index, delta } => calls[index].1 += &delta,
            Delta::ToolCallEnd { .. } => {}
        }
    }
    let calls: Vec<Value> = calls
        .into_iter()
        .map(|(name, arguments)| {
            let arguments: Value = serde_json::from_str(&arguments).expect("valid JSON");
            json!({"function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({
        "role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls,
    })
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

//! A chat template of any text, and a conversation rendered with it.
#![no_main]

use calla_text::{ChatTemplate, RenderInput};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, json};

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "What is 2 + 2?"}),
        json!({"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4", "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [2.0]}}},
        ]}),
        json!({"role": "tool", "content": "4"}),
        json!({"role": "user", "content": "Sure?"}),
    ];
    let tools = [json!({"type": "function", "function": {"name": "add", "parameters": {}}})];
    let _ = template.render(&RenderInput {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        extra: &Map::new(),
        bos_token: None,
        eos_token: Some("<|im_end|>"),
    });
});

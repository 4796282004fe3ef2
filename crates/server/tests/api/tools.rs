//! Tools rendered into the prompt, and calls read back.

use serde_json::{Value, json};

use crate::test_server::{TestServer, ask};

fn tools() -> Value {
    let properties = json!({ "city": { "type": "string" }, "days": { "type": "integer" } });
    json!([
        { "type": "function", "function": {
            "name": "weather", "description": "Forecast",
            "parameters": { "type": "object", "properties": properties } } },
        { "type": "function", "function": {
            "name": "run",
            "parameters": { "type": "object", "properties": { "code": { "type": "string" } } } } },
    ])
}

fn arguments(call: &Value) -> Value {
    let text = call["function"]["arguments"].as_str().expect("text");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn a_call_is_read_back_with_the_text_before_it() {
    let server = TestServer::start().await;
    let body = server.chat(ask("use one", json!({ "tools": tools() }))).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me look.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "weather");
    assert_eq!(arguments(call), json!({ "city": "Zürich", "days": 3 }));
    assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")));
}

#[tokio::test]
async fn a_call_after_thinking_has_null_content() {
    let server = TestServer::start().await;
    let fields = json!({ "tools": tools(), "enable_thinking": true });
    let body = server.chat(ask("use thinking", fields)).await.json();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "I need it.");
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn parallel_calls_keep_their_order_and_values() {
    let server = TestServer::start().await;
    let body = server.chat(ask("use three", json!({ "tools": tools() }))).await.json();
    let calls = body["choices"][0]["message"]["tool_calls"].as_array().expect("calls").clone();
    let read: Vec<Value> = calls.iter().map(arguments).collect();
    assert_eq!(read[0], json!({ "city": "Zürich", "days": 3 }));
    assert_eq!(read[1], json!({ "code": "if a < b:\n    print(\"<é>\")" }));
    assert_eq!(read[2], json!({ "city": "02134" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[tokio::test]
async fn without_parallel_calls_the_answer_ends_after_the_first() {
    let server = TestServer::start().await;
    let fields = json!({ "tools": tools(), "parallel_tool_calls": false });
    let body = server.chat(ask("use three", fields)).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
    assert_eq!(choice["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn streamed_arguments_join_to_json() {
    let server = TestServer::start().await;
    let fields = json!({ "tools": tools(), "stream": true });
    let chunks = server.chat(ask("use three", fields)).await.chunks();
    let mut calls: Vec<Value> = Vec::new();
    for chunk in &chunks {
        for delta in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = delta["index"].as_u64().expect("a number") as usize;
            if index == calls.len() {
                assert!(delta["id"].is_string() && delta["function"]["name"].is_string());
                calls.push(delta.clone());
            } else {
                assert_eq!(index, calls.len() - 1);
                let more = delta["function"]["arguments"].as_str().expect("text");
                let arguments = calls[index]["function"]["arguments"].as_str().expect("text");
                calls[index]["function"]["arguments"] = json!(format!("{arguments}{more}"));
            }
        }
        let content = &chunk["choices"][0]["delta"]["content"];
        assert!(!content.as_str().is_some_and(|text| text.contains('<')), "{content}");
    }
    assert_eq!(calls.len(), 3);
    assert_eq!(arguments(&calls[1]), json!({ "code": "if a < b:\n    print(\"<é>\")" }));
    assert_eq!(chunks.last().expect("chunks")["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn what_does_not_parse_comes_back_as_content() {
    let server = TestServer::start().await;
    let body = server.chat(ask("use broken", json!({ "tools": tools() }))).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["content"], "<tool_call>\nnothing that parses");
    assert_eq!(choice["finish_reason"], "stop");
}

#[tokio::test]
async fn without_tools_a_marker_is_text() {
    let server = TestServer::start().await;
    for fields in [json!({}), json!({ "tools": tools(), "tool_choice": "none" })] {
        let body = server.chat(ask("use one", fields)).await.json();
        let message = &body["choices"][0]["message"];
        assert!(
            message["content"].as_str().is_some_and(|text| text.contains("<function=weather>"))
        );
        assert!(message.get("tool_calls").is_none());
    }
}

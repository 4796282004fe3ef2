//! Whole answers of `/v1/chat/completions`.

use serde_json::{Value, json};

use crate::test_server::{TestServer, ask};

#[tokio::test]
async fn an_answer_has_the_shape_that_clients_expect() {
    let server = TestServer::start().await;
    let answer = server.chat(ask("say hello", json!({}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "scripted");
    assert!(body["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hello there");
    assert!(choice["message"].get("tool_calls").is_none());
    assert!(choice["message"].get("reasoning_content").is_none());
    let usage = &body["usage"];
    assert_eq!(usage["completion_tokens"], "Hello there".len());
    let prompt = usage["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(usage["total_tokens"], prompt + "Hello there".len() as u64);
}

#[tokio::test]
async fn reasoning_is_apart_from_content_and_counted() {
    let server = TestServer::start().await;
    let body = ask("say thinking", json!({ "enable_thinking": true }));
    let body = server.chat(body).await.json();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "I greet.");
    assert_eq!(message["content"], "Hello there");
    let reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    // The thought, the line end after it, and the closing marker, which is one token here.
    assert_eq!(reasoning, Some("I greet.\n".len() as u64 + 1));
}

#[tokio::test]
async fn every_conversation_that_clients_send_is_answered() {
    let server = TestServer::start().await;
    let question = json!({ "role": "user", "content": "say hello" });
    let call = json!({ "id": "c", "type": "function",
        "function": { "name": "f", "arguments": "" } });
    for messages in [
        json!([{ "role": "developer", "content": "Be brief." }, question]),
        json!([{ "role": "system", "content": "a" }, { "role": "system", "content": "b" }, question]),
        json!([question, { "role": "system", "content": "late" }]),
        json!([{ "role": "system", "content": "say hello" }]),
        json!([{ "role": "assistant", "content": "say hello" }]),
        json!([{ "role": "tool", "tool_call_id": "c", "content": "say hello" }]),
        json!([question, { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "c", "content": "42" }]),
        json!([question, { "role": "assistant", "content": "x", "reasoning": "y" }, question]),
        json!([{ "role": "user", "content": "" }, question]),
        json!([{ "role": "user", "content": [{ "type": "text", "text": "say " }, { "type": "text", "text": "hello" }] }]),
    ] {
        let body = json!({ "messages": messages, "enable_thinking": false });
        let answer = server.chat(body).await;
        assert_eq!(answer.status, 200, "{messages}: {}", answer.body);
        let content = &answer.json()["choices"][0]["message"]["content"];
        assert_eq!(content, "Hello there", "{messages}");
    }
}

#[tokio::test]
async fn stop_strings_are_cut_exactly() {
    let server = TestServer::start().await;
    for (question, stop, content) in [
        ("say stop", json!("END"), "one two "),
        ("say stop", json!(["three", "o"]), ""),
        ("say stop", json!(["nothing"]), "one two END three"),
        ("say almost", json!(["END"]), "one EN two E"),
        ("say wide", json!(["🦀"]), "日本語 "),
    ] {
        let body = server.chat(ask(question, json!({ "stop": stop }))).await.json();
        let choice = &body["choices"][0];
        assert_eq!(choice["message"]["content"], content, "{stop}");
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn a_limit_ends_the_answer_without_half_a_character() {
    let server = TestServer::start().await;
    for (limit, content) in [(2, ""), (3, "日"), (7, "日本"), (9, "日本語")] {
        let body = server.chat(ask("say wide", json!({ "max_tokens": limit }))).await.json();
        assert_eq!(body["choices"][0]["message"]["content"], content);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], limit);
    }
}

#[tokio::test]
async fn logprobs_are_those_of_the_content() {
    let server = TestServer::start().await;
    for (question, thinking) in [("say hello", false), ("say thinking", true)] {
        let fields = json!({ "logprobs": true, "top_logprobs": 2, "enable_thinking": thinking });
        let body = server.chat(ask(question, fields)).await.json();
        let tokens = body["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
        let text: String = tokens.iter().map(|t| t["token"].as_str().expect("text")).collect();
        assert_eq!(text, "Hello there");
        for token in &tokens {
            assert!(token["logprob"].as_f64().is_some_and(|p| p <= 0.0), "{token}");
            assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(2));
            assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
        }
    }
}

#[tokio::test]
async fn logprobs_of_a_cut_answer_stop_where_it_is_cut() {
    let server = TestServer::start().await;
    let fields = json!({ "logprobs": true, "stop": ["END"] });
    let body = server.chat(ask("say stop", fields)).await.json();
    let tokens = body["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    let text: String = tokens.iter().map(|t| t["token"].as_str().expect("text")).collect();
    assert_eq!(text, "one two ");
}

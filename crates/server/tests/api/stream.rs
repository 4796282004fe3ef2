//! Streamed answers of `/v1/chat/completions`.

use std::time::Duration;

use calla_server::ServerConfig;
use serde_json::{Value, json};

use crate::{
    http,
    support::Pace,
    test_server::{Options, TestServer, ask},
};

fn joined(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
}

#[tokio::test]
async fn chunks_join_to_the_whole_answer() {
    let server = TestServer::start().await;
    let fields = json!({ "stream": true, "enable_thinking": true });
    let answer = server.chat(ask("say thinking", fields)).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let chunks = answer.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(joined(&chunks, "reasoning_content"), "I greet.");
    assert_eq!(joined(&chunks, "content"), "Hello there");
    let reasons: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]["finish_reason"]).collect();
    let (last, earlier) = reasons.split_last().expect("chunks");
    assert_eq!(*last, "stop");
    assert!(earlier.iter().all(|reason| reason.is_null()));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn no_chunk_holds_half_a_character() {
    let server = TestServer::start().await;
    let chunks = server.chat(ask("say wide", json!({ "stream": true }))).await.chunks();
    let text = joined(&chunks, "content");
    assert_eq!(text, "日本語 🦀👩🏽 é");
    assert!(!text.contains(char::REPLACEMENT_CHARACTER));
}

#[tokio::test]
async fn nothing_of_a_stop_string_is_sent() {
    let server = TestServer::start().await;
    let fields = json!({ "stream": true, "stop": ["END"] });
    let chunks = server.chat(ask("say stop", fields)).await.chunks();
    assert_eq!(joined(&chunks, "content"), "one two ");
    let fields = json!({ "stream": true, "stop": ["END"] });
    let chunks = server.chat(ask("say almost", fields)).await.chunks();
    assert_eq!(joined(&chunks, "content"), "one EN two E");
}

#[tokio::test]
async fn an_empty_answer_is_a_whole_stream() {
    let server = TestServer::start().await;
    let chunks = server.chat(ask("say nothing", json!({ "stream": true }))).await.chunks();
    assert_eq!(joined(&chunks, "content"), "");
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks.last().expect("chunks")["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn usage_comes_last_when_asked_for() {
    let server = TestServer::start().await;
    let fields = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let chunks = server.chat(ask("say hello", fields)).await.chunks();
    let (last, earlier) = chunks.split_last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], "Hello there".len());
    assert!(earlier.iter().all(|chunk| chunk["usage"].is_null()));
}

#[tokio::test]
async fn streamed_logprobs_are_those_of_the_content() {
    let server = TestServer::start().await;
    let fields = json!({ "stream": true, "logprobs": true, "stop": ["END"] });
    let chunks = server.chat(ask("say stop", fields)).await.chunks();
    let tokens = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array());
    let text: String = tokens.flatten().map(|t| t["token"].as_str().expect("text")).collect();
    assert_eq!(text, "one two ");
}

#[tokio::test]
async fn an_error_before_the_first_token_is_an_ordinary_one() {
    let server = TestServer::start().await;
    let body = ask("say hello", json!({ "stream": true, "temperature": 9 }));
    let answer = server.chat(body).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "temperature");
}

#[tokio::test]
async fn headers_leave_and_comments_flow_while_the_prompt_is_computed() {
    let heartbeat = Duration::from_millis(20);
    let server = TestServer::start_with(Options {
        pace: Pace { step: Duration::ZERO, prompt_token: Duration::from_millis(5) },
        server: ServerConfig { heartbeat, ..ServerConfig::default() },
        ..Options::default()
    })
    .await;
    let answer = server.chat(ask("say hello", json!({ "stream": true }))).await;
    assert_eq!(answer.status, 200);
    let first_event = answer.body.find("data: ").expect("events");
    assert!(answer.body[..first_event].contains(": keep-alive"), "{}", answer.body);
    assert_eq!(joined(&answer.chunks(), "content"), "Hello there");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_generation() {
    let server = TestServer::start_with(Options {
        pace: Pace { step: Duration::from_millis(1), ..Pace::default() },
        ..Options::default()
    })
    .await;
    for stream in [true, false] {
        let body = ask("say long", json!({ "stream": stream })).to_string();
        let request = http::request("POST", "/v1/chat/completions", &[], &body);
        let mut connection = http::open(server.address, &request).await;
        if stream {
            connection.read_some().await;
        } else {
            while server.engine.stats().running == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        drop(connection);
        server.wait_until_idle().await;
        // The whole answer would have 15000 tokens.
        assert!(server.engine.stats().generated_tokens < 10_000);
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_frees_its_place() {
    // Before its headers have left, and after.
    for heartbeat in [Duration::from_secs(10), Duration::from_millis(1)] {
        let server = TestServer::start_with(Options {
            pace: Pace { step: Duration::from_millis(1), ..Pace::default() },
            server: ServerConfig { heartbeat, ..ServerConfig::default() },
            ..Options::default()
        })
        .await;
        let body = ask("say long", json!({ "stream": true })).to_string();
        let request = http::request("POST", "/v1/chat/completions", &[], &body);
        let mut first = http::open(server.address, &request).await;
        first.read_some().await;
        let mut second = http::open(server.address, &request).await;
        while server.engine.stats().waiting == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if heartbeat < Duration::from_secs(1) {
            second.read_some().await;
        }
        drop(second);
        while server.engine.stats().waiting > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(server.engine.stats().running, 1, "the first answer goes on");
        first.read_some().await;
    }
}

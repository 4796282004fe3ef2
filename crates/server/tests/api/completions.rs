//! `/v1/completions`: no template, nothing parsed.

use serde_json::json;

use crate::test_server::TestServer;

#[tokio::test]
async fn text_is_continued_as_it_comes() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": "say thinking", "max_tokens": 100 });
    let body = server.post("/v1/completions", &body).await.json();
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][0]["text"], "I greet.\n</think>\n\nHello there");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["prompt_tokens"], "say thinking".len());
}

#[tokio::test]
async fn ids_are_continued_like_their_text() {
    let server = TestServer::start().await;
    // In the tests' tokenizer the visible bytes follow one another from '!' on.
    let text = json!({ "prompt": "say\u{21}say", "max_tokens": 4 });
    let answer = server.post("/v1/completions", &text).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let tokens = json!({ "prompt": [[115, 97, 121]], "max_tokens": 4 });
    let answer = server.post("/v1/completions", &tokens).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn without_a_limit_sixteen_tokens_are_made() {
    let server = TestServer::start().await;
    let body = server.post("/v1/completions", &json!({ "prompt": "say long" })).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stream_joins_to_the_same_text() {
    let server = TestServer::start().await;
    let body = json!({
        "prompt": "say wide", "max_tokens": 100, "stream": true, "logprobs": 0,
        "stream_options": { "include_usage": true },
    });
    let chunks = server.post("/v1/completions", &body).await.chunks();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "日本語 🦀👩🏽 é");
    let last = chunks.last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], text.len());
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn logprobs_have_the_older_shape() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": "say hello", "max_tokens": 5, "logprobs": 1 });
    let body = server.post("/v1/completions", &body).await.json();
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["H", "e", "l", "l", "o"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4]));
    assert!(logprobs["top_logprobs"][0]["H"].is_number(), "{logprobs}");
}

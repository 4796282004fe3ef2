//! What is refused, with which status, and how the place is named.

use std::time::Duration;

use calla_server::ServerConfig;
use serde_json::{Value, json};

use crate::{
    http,
    test_server::{Options, TestServer, ask},
};

const CHAT: &str = "/v1/chat/completions";

fn assert_shape(body: &Value) {
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert!(error["type"].is_string(), "{body}");
    assert!(error.get("param").is_some() && error.get("code").is_some(), "{body}");
}

#[tokio::test]
async fn a_wrong_field_is_a_400_that_names_it() {
    let server = TestServer::start().await;
    for (fields, param) in [
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "king" }] }), "messages[0].role"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "top_p": 0 }), "top_p"),
        (json!({ "top_logprobs": 30, "logprobs": true }), "top_logprobs"),
        (json!({ "logit_bias": { "99999999": 1 } }), "logit_bias"),
        (json!({ "n": 2 }), "n"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "stream": 1 }), "stream"),
    ] {
        let answer = server.chat(ask("say hello", fields.clone())).await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
        let body = answer.json();
        assert_shape(&body);
        assert_eq!(body["error"]["param"], param, "{fields}");
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_a_400() {
    let server = TestServer::start().await;
    let deep = "[".repeat(100_000);
    for body in ["", "{", "[]", "3", "{\"messages\": [}", "\u{0}", &deep] {
        let answer = server.post_text(CHAT, body).await;
        assert_eq!(answer.status, 400, "{:?}", body.get(..20));
        assert_shape(&answer.json());
    }
}

/// As an object in the body, and as text inside it: both ways in which values reach the template.
#[tokio::test]
async fn values_that_are_nested_too_deeply_are_a_400() {
    let server = TestServer::start().await;
    let deep = |levels: usize| "{\"a\":[".repeat(levels / 2) + "1" + &"]}".repeat(levels / 2);
    let user = r#"{"role": "user", "content": "x"}"#;
    let call = |arguments: &str| {
        let call = format!(r#"{{"function": {{"name": "f", "arguments": {arguments}}}}}"#);
        format!(
            r#"{{"messages": [{user}, {{"role": "assistant", "tool_calls": [{call}]}}, {user}]}}"#
        )
    };
    for levels in [130, 5_002, 100_000] {
        let value = deep(levels);
        let text = Value::from(value.as_str()).to_string();
        let with = |rest: &str| format!(r#"{{"messages": [{user}], {rest}}}"#);
        let function = format!(r#"{{"name": "f", "parameters": {value}}}"#);
        for (body, says) in [
            (call(&value), "recursion limit"),
            (call(&text), "`messages[1].tool_calls[0].function.arguments`: not valid JSON"),
            (
                with(&format!(r#""tools": [{{"type": "function", "function": {function}}}]"#)),
                "recursion",
            ),
            (with(&format!(r#""chat_template_kwargs": {{"x": {value}}}"#)), "recursion limit"),
            (with(&format!(r#""unknown": {value}"#)), "recursion limit"),
            (
                format!(r#"{{"messages": [{{"role": "user", "content": {value}}}]}}"#),
                "recursion limit",
            ),
        ] {
            let answer = server.post_text(CHAT, &body).await;
            assert_eq!(answer.status, 400, "{says}: {levels}");
            let body = answer.json();
            assert_shape(&body);
            let message = body["error"]["message"].as_str().expect("text");
            assert!(message.contains(says), "{says}: {message}");
        }
    }
    let text = Value::from(deep(100)).to_string();
    assert_eq!(server.post_text(CHAT, &call(&text)).await.status, 200);
}

#[tokio::test]
async fn too_long_a_prompt_is_told_with_both_counts() {
    let server = TestServer::start().await;
    let answer = server.chat(ask(&"x".repeat(20_000), json!({ "stream": true }))).await;
    assert_eq!(answer.status, 400);
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("16384") && message.contains("200"), "{message}");
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_it_is_encoded() {
    let server = TestServer::start().await;
    // The tests' longest token has 15 bytes: four times that, 16384 times.
    let text = "x".repeat(15 * 4 * 16384);
    let completion = json!({ "prompt": text });
    for (answer, param) in [
        (server.chat(ask(&text, json!({}))).await, "messages"),
        (server.post("/v1/completions", &completion).await, "prompt"),
    ] {
        assert_eq!(answer.status, 400);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["param"], param);
        let message = error["message"].as_str().expect("text");
        assert!(message.contains("at least 163") && message.contains("holds 16384"), "{message}");
    }
}

#[tokio::test]
async fn a_wrong_type_is_told_in_plain_words() {
    let server = TestServer::start().await;
    for (fields, expected) in [
        (json!({ "max_tokens": "x" }), "expected a whole number, not negative"),
        (json!({ "top_k": 1.5 }), "expected a whole number"),
        (json!({ "temperature": [] }), "expected a number"),
        (json!({ "stream": 1 }), "expected true or false"),
        (json!({ "logit_bias": [] }), "expected an object"),
        (json!({ "stream_options": 1 }), "expected an object"),
    ] {
        let answer = server.chat(ask("say hello", fields.clone())).await;
        assert_eq!(answer.status, 400, "{fields}");
        let body = answer.json();
        let message = body["error"]["message"].as_str().expect("text");
        assert!(message.ends_with(expected), "{fields}: {message}");
    }
}

#[tokio::test]
async fn completions_blame_their_own_logprobs() {
    let server = TestServer::start().await;
    let answer = server.post("/v1/completions", &json!({ "prompt": "x", "logprobs": 21 })).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "logprobs");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told() {
    let server = TestServer::start().await;
    let missing = server.get("/v1/nothing").await;
    assert_eq!(missing.status, 404);
    assert_shape(&missing.json());
    let wrong = server.get(CHAT).await;
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.header("allow"), Some("POST"));
    assert_shape(&wrong.json());
    let model = server.get("/v1/models/other").await;
    assert_eq!(model.status, 404);
    assert_eq!(model.json()["error"]["code"], "model_not_found");
    let no_text = server.get("/v1/models/%ff%00").await;
    assert_eq!(no_text.status, 404);
    assert_eq!(no_text.json()["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn too_large_a_body_is_a_413() {
    let server = TestServer::start_with(Options {
        server: ServerConfig { body_bytes_max: 1000, ..ServerConfig::default() },
        ..Options::default()
    })
    .await;
    let answer = server.chat(ask(&"x".repeat(1000), json!({}))).await;
    assert_eq!(answer.status, 413);
    assert_shape(&answer.json());
    // The length alone is enough: no byte of the body is sent.
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: test\r\nContent-Length: 1001\r\n\r\n");
    let answer = http::send(server.address, &head).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["error"]["code"], "body_too_large");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_a_408() {
    let server = TestServer::start_with(Options {
        server: ServerConfig { body_timeout: Duration::from_millis(20), ..ServerConfig::default() },
        ..Options::default()
    })
    .await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{{");
    let answer = http::send(server.address, &head).await;
    assert_eq!(answer.status, 408);
    assert_shape(&answer.json());
    assert_eq!(answer.json()["error"]["code"], "body_timeout");
}

#[tokio::test]
async fn a_key_is_asked_for_everywhere_but_at_the_door() {
    let server = TestServer::start_with(Options {
        server: ServerConfig { api_key: Some("sésame".to_owned()), ..ServerConfig::default() },
        ..Options::default()
    })
    .await;
    assert_eq!(server.get("/health").await.status, 200);
    for path in ["/v1/models", "/props", "/v1/nothing"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    }
    for (header, status) in [
        ("Bearer sésame", 200),
        ("bearer sésame", 200),
        ("Bearer sésame ", 200),
        ("Bearer sesame", 401),
        ("Bearer", 401),
        ("sésame", 401),
        ("Basic sésame", 401),
    ] {
        let request = http::request("GET", "/v1/models", &[("Authorization", header)], "");
        assert_eq!(http::send(server.address, &request).await.status, status, "{header}");
    }
}

#[tokio::test]
async fn neutral_and_unknown_fields_do_not_disturb() {
    let server = TestServer::start().await;
    let fields = json!({
        "store": true, "metadata": { "a": "b" }, "user": "u", "service_tier": "auto", "n": 1,
        "stop": "", "logprobs": false, "some_new_field": { "x": [1] },
    });
    assert_eq!(server.chat(ask("say hello", fields)).await.status, 200);
}

#[tokio::test]
async fn what_is_served_can_be_asked() {
    let server = TestServer::start().await;
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "scripted");
    assert_eq!(server.get("/v1/models/scripted").await.json(), models["data"][0]);
    let props = server.get("/props").await.json();
    assert_eq!(props["context_tokens"], 16384);
    assert_eq!(props["sampling_source"], "greedy");
    assert_eq!(props["sampling"]["thinking"]["temperature"], 0.0);
}

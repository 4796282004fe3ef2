//! Loading, refusing, draining, ending.

use std::{net::Ipv4Addr, time::Duration};

use calla_engine::EngineConfig;
use calla_server::{Error, Server, ServerConfig};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    http,
    support::{Pace, backend::LOSE_DEVICE, scripted_model, standard_script},
    test_server::{Options, TestServer, ask},
};

const SLOW: Pace = Pace { step: Duration::from_millis(1), prompt_token: Duration::ZERO };

async fn bind() -> Server {
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    Server::bind(ServerConfig { address, ..ServerConfig::default() }).await.expect("a free port")
}

#[tokio::test]
async fn a_loading_server_says_so() {
    let server = bind().await;
    let address = server.address();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let (_stop, signals) = mpsc::channel(1);
    tokio::spawn(server.run(
        move || {
            wait.recv()?;
            Ok(scripted_model(&standard_script(), Pace::default(), EngineConfig::default()))
        },
        signals,
    ));
    let health = http::request("GET", "/health", &[], "");
    let answer = http::send(address, &health).await;
    assert_eq!((answer.status, &*answer.json()["status"].to_string()), (503, "\"loading\""));
    let chat = http::request("POST", "/v1/chat/completions", &[], "{}");
    let answer = http::send(address, &chat).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "model_loading");
    assert!(answer.header("retry-after").is_some());
    go_on.send(()).expect("the loader waits");
    while http::send(address, &health).await.status != 200 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_model_that_does_not_load_ends_the_server() {
    let (_stop, signals) = mpsc::channel(1);
    let ended = bind().await.run(|| Err("the file is damaged".into()), signals).await;
    let error = ended.expect_err("there is no model");
    assert!(matches!(error, Error::Load(_)));
    assert_eq!(error.to_string(), "the file is damaged");
}

#[tokio::test]
async fn a_lost_device_is_told_and_the_server_stays() {
    let server = TestServer::start().await;
    let answer = server.post("/v1/chat/completions", &ask(LOSE_DEVICE, json!({}))).await;
    assert_eq!(answer.status, 500);
    let error = answer.json()["error"]["message"].to_string();
    assert!(error.contains("it fell off the bus"), "{error}");
    let health = http::request("GET", "/health", &[], "");
    let answer = loop {
        // The request's end may be told before the engine has noted its own.
        let answer = http::send(server.address, &health).await;
        if answer.status != 200 {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!((answer.status, &*answer.json()["status"].to_string()), (503, "\"failed\""));
    assert!(answer.json()["error"].to_string().contains("it fell off the bus"));
    assert_eq!(answer.header("retry-after"), None);
    let answer = server.post("/v1/chat/completions", &ask("Hello", json!({}))).await;
    assert_eq!(answer.status, 500);
    assert!(answer.json()["error"]["message"].to_string().contains("must be restarted"));
}

#[tokio::test]
async fn a_taken_port_is_told() {
    let first = bind().await;
    let config = ServerConfig { address: first.address(), ..ServerConfig::default() };
    let error = Server::bind(config).await.err().expect("the port is taken");
    assert!(error.to_string().contains(&first.address().to_string()), "{error}");
}

#[tokio::test]
async fn a_full_queue_is_a_503_with_retry_after() {
    let options = Options { pace: SLOW, queue_max: Some(1), ..Options::default() };
    let server = TestServer::start_with(options).await;
    let body = ask("say long", json!({ "stream": true })).to_string();
    let request = http::request("POST", "/v1/chat/completions", &[], &body);
    let mut held = Vec::new();
    let refused = loop {
        let in_flight = server.engine.stats().running + server.engine.stats().waiting;
        if in_flight < held.len() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        if server.engine.stats().waiting == 1 {
            break http::send(server.address, &request).await;
        }
        held.push(http::open(server.address, &request).await);
    };
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    assert!(refused.header("retry-after").is_some());
}

#[tokio::test]
async fn a_draining_server_finishes_what_runs_and_takes_nothing_new() {
    let mut server = TestServer::start_with(Options { pace: SLOW, ..Options::default() }).await;
    let body = ask("say long", json!({ "stream": true, "max_tokens": 300 })).to_string();
    let request = http::request("POST", "/v1/chat/completions", &[], &body);
    let mut running = http::open(server.address, &request).await;
    running.read_some().await;

    server.ask_to_stop().await;
    let health = loop {
        let health = server.get("/health").await;
        if health.status == 503 {
            break health;
        }
    };
    assert_eq!(health.json()["status"], "draining");
    let refused = server.chat(ask("say hello", json!({}))).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["code"], "shutting_down");
    assert!(refused.header("retry-after").is_some());

    let rest = running.read_rest().await;
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"));
    server.ended().await.expect("a clean end");
}

#[tokio::test]
async fn after_the_grace_streams_end_with_an_error() {
    let mut server = TestServer::start_with(Options {
        pace: SLOW,
        server: ServerConfig { drain_grace: Duration::from_millis(30), ..ServerConfig::default() },
        ..Options::default()
    })
    .await;
    let body = ask("say long", json!({ "stream": true })).to_string();
    let request = http::request("POST", "/v1/chat/completions", &[], &body);
    let mut running = http::open(server.address, &request).await;
    running.read_some().await;
    server.ask_to_stop().await;
    let rest = running.read_rest().await;
    assert!(rest.contains("\"code\":\"shutting_down\""), "{rest}");
    assert!(!rest.contains("[DONE]"));
    server.ended().await.expect("a clean end");
}

#[tokio::test]
async fn an_idle_server_stops_at_once_also_with_open_connections() {
    let mut server = TestServer::start().await;
    let request = "GET /health HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut idle = http::open(server.address, request).await;
    idle.read_some().await;
    server.ask_to_stop().await;
    server.ended().await.expect("a clean end");
}

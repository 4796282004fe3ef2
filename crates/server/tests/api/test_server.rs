use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use calla_engine::{Engine, EngineConfig};
use calla_server::{Error, Server, ServerConfig};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    http::{self, Answer},
    support::{Pace, scripted_model, standard_script},
};

/// A server on a port of its own, ready to answer.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    stop: mpsc::Sender<()>,
    ended: JoinHandle<Result<(), Error>>,
}

/// How a test's server differs from an ordinary one.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) pace: Pace,
    pub(crate) queue_max: Option<usize>,
    pub(crate) server: ServerConfig,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        let engine = EngineConfig {
            queue_max: options.queue_max.unwrap_or(EngineConfig::default().queue_max),
            ..EngineConfig::default()
        };
        let model = scripted_model(&standard_script(), options.pace, engine);
        let engine = model.engine().clone();
        let config = ServerConfig { address: (Ipv4Addr::LOCALHOST, 0).into(), ..options.server };
        let server = Server::bind(config).await.expect("a free port");
        let address = server.address();
        let (stop, signals) = mpsc::channel(2);
        let ended = tokio::spawn(server.run(move || Ok(model), signals));
        let server = Self { address, engine, stop, ended };
        server.wait_until_ready().await;
        server
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        http::send(self.address, &http::request("GET", path, &[], "")).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> Answer {
        http::send(self.address, &http::request("POST", path, &[], body)).await
    }

    pub(crate) async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", &body).await
    }

    /// Asks the server to stop, as a signal would.
    pub(crate) async fn ask_to_stop(&self) {
        self.stop.send(()).await.expect("the server runs");
    }

    /// Waits for the server's own end.
    pub(crate) async fn ended(&mut self) -> Result<(), Error> {
        (&mut self.ended).await.expect("the server does not panic")
    }

    /// Waits until the engine computes nothing.
    pub(crate) async fn wait_until_idle(&self) {
        while self.engine.stats().running > 0 || self.engine.stats().waiting > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn wait_until_ready(&self) {
        while self.get("/health").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// The last handle of an engine waits for what runs: a test that leaves a long answer behind must
/// not.
impl Drop for TestServer {
    fn drop(&mut self) {
        self.engine.shutdown(Duration::ZERO);
    }
}

/// A chat body with one question and thinking off, and `fields` besides.
pub(crate) fn ask(question: &str, fields: Value) -> Value {
    let mut body = serde_json::json!({
        "messages": [{ "role": "user", "content": question }],
        "enable_thinking": false,
    });
    for (field, value) in fields.as_object().expect("fields") {
        body[field] = value.clone();
    }
    body
}

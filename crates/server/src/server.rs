use std::{future::Future, net::SocketAddr, time::Duration};

use calla_chat::Model;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};

use crate::{Error, ServerConfig, listener::serve_connections, routes, state::State};

/// Why a model did not load.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// After the drain's grace: time for streams to write their error before connections are cut.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A bound socket that does not answer yet.
pub struct Server {
    config: ServerConfig,
    listener: TcpListener,
    address: SocketAddr,
}

/// Binds, loads, serves, and returns after SIGTERM or SIGINT (Ctrl-C) once running answers have
/// ended. A second signal ends it at once.
///
/// # Errors
/// As [`Server::bind`] and [`Server::run`].
pub async fn serve<L>(config: ServerConfig, load: L) -> Result<(), Error>
where
    L: FnOnce() -> Result<Model, LoadError> + Send + 'static,
{
    Server::bind(config).await?.run(load, Signals::new()?).await
}

impl Server {
    /// Takes the port.
    ///
    /// # Errors
    /// [`Error::Bind`].
    pub async fn bind(config: ServerConfig) -> Result<Self, Error> {
        let bind_error = |source| Error::Bind { address: config.address, source };
        let listener = TcpListener::bind(config.address).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        Ok(Self { config, listener, address })
    }

    /// Where clients reach it; the port is never 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers 503 while `load` runs on a thread of its own, then serves until the first of
    /// `signals`. From then on new requests are refused; running ones have
    /// [`ServerConfig::drain_grace`] or until the second signal.
    ///
    /// # Errors
    /// [`Error::Load`] when there is no model to serve.
    pub async fn run<L>(self, load: L, mut signals: impl Shutdown) -> Result<(), Error>
    where
        L: FnOnce() -> Result<Model, LoadError> + Send + 'static,
    {
        tracing::info!(address = %self.address, "listening; the model loads");
        let (state, drained) = State::new(self.config.clone());
        let closing = watch::Sender::new(false);
        let connections = tokio::spawn(serve_connections(
            self.listener,
            routes::router(state.clone()),
            self.config.connections_max,
            closing.subscribe(),
        ));

        let loaded = tokio::select! {
            loaded = tokio::task::spawn_blocking(load) => Some(loaded),
            () = signals.requested() => None,
        };
        match loaded {
            // The loader cannot be stopped; it ends with the process.
            None => return Ok(()),
            Some(Ok(Ok(model))) => state.set_ready(model),
            Some(Ok(Err(error))) => return Err(Error::Load(error)),
            Some(Err(panic)) => return Err(Error::Load(Box::new(panic))),
        }
        tracing::info!(address = %self.address, "ready");

        signals.requested().await;
        tracing::info!(grace_s = self.config.drain_grace.as_secs(), "draining");
        drain(&state, drained, self.config.drain_grace, &mut signals).await;
        closing.send_replace(true);
        let _ = tokio::time::timeout(LAST_WORDS, connections).await;
        if let Ok(model) = state.model() {
            // Dropping the last handle would wait for the engine on this thread.
            model.engine().shutdown(Duration::ZERO);
            model.engine().stopped().await;
        }
        Ok(())
    }
}

/// Refuses new requests and waits for the running ones, as long as `grace` and `signals` allow.
async fn drain(
    state: &State,
    mut drained: mpsc::Receiver<()>,
    grace: Duration,
    signals: &mut impl Shutdown,
) {
    state.drain();
    tokio::select! {
        _ = drained.recv() => return,
        () = tokio::time::sleep(grace) => tracing::warn!("the grace is over: ending what runs"),
        () = signals.requested() => tracing::warn!("asked again: ending what runs"),
    }
    state.stop();
    let _ = tokio::time::timeout(LAST_WORDS, drained.recv()).await;
}

/// Where requests to stop come from.
pub trait Shutdown: Send {
    /// Returns at the next request to stop. May be dropped and called again.
    fn requested(&mut self) -> impl Future<Output = ()> + Send;
}

/// A channel, for programs that end the server themselves. A closed one never asks.
impl Shutdown for mpsc::Receiver<()> {
    async fn requested(&mut self) {
        if self.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// The operating system's signals.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> Result<Self, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

#[cfg(unix)]
impl Shutdown for Signals {
    async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The operating system's signals.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Result<Self, Error> {
        Ok(Self)
    }
}

#[cfg(not(unix))]
impl Shutdown for Signals {
    async fn requested(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

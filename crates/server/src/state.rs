use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use calla_chat::Model;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::{ServerConfig, error::ApiError, listener::turned};

/// Prompts that are rendered and encoded at a time: long ones take gigabytes for a while.
const PREPARED_AT_ONCE: usize = 2;

/// What every handler shares. Clones are handles to the same state.
#[derive(Clone)]
pub(crate) struct State {
    inner: Arc<Inner>,
}

struct Inner {
    config: ServerConfig,
    model: OnceLock<Model>,
    /// Copied into every admitted request; taken away when the server drains. Its channel closes
    /// when the last copy is gone.
    running: Mutex<Option<mpsc::Sender<()>>>,
    /// Turns true when the grace of a drain is over: streams end with an error.
    stopping: watch::Sender<bool>,
    preparing: Arc<Semaphore>,
}

/// A request that may run: the model, and a mark that holds a draining server until it is dropped.
pub(crate) struct Admitted {
    pub(crate) model: Model,
    pub(crate) running: Running,
}

/// The mark of a running request.
pub(crate) struct Running {
    _mark: mpsc::Sender<()>,
    stopping: watch::Receiver<bool>,
}

/// Where the server stands; what `/health` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Loading,
    Ready,
    /// The engine has failed for good.
    Failed,
    Draining,
}

impl State {
    /// A state that is loading, and the channel that closes when a drain is complete.
    pub(crate) fn new(config: ServerConfig) -> (Self, mpsc::Receiver<()>) {
        let (mark, drained) = mpsc::channel(1);
        let inner = Inner {
            config,
            model: OnceLock::new(),
            running: Mutex::new(Some(mark)),
            stopping: watch::Sender::new(false),
            preparing: Arc::new(Semaphore::new(PREPARED_AT_ONCE)),
        };
        (Self { inner: Arc::new(inner) }, drained)
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.inner.config
    }

    /// A permit of it must be held while a prompt is prepared.
    pub(crate) fn preparing(&self) -> Arc<Semaphore> {
        self.inner.preparing.clone()
    }

    /// Opens the API.
    pub(crate) fn set_ready(&self, model: Model) {
        // A server loads once: a second model could only be a mistake in this crate.
        assert!(self.inner.model.set(model).is_ok(), "a server loads one model");
    }

    pub(crate) fn phase(&self) -> Phase {
        match (self.running().is_some(), self.inner.model.get()) {
            (false, _) => Phase::Draining,
            (true, None) => Phase::Loading,
            (true, Some(model)) if model.engine().failure().is_some() => Phase::Failed,
            (true, Some(_)) => Phase::Ready,
        }
    }

    /// The model, once it is there.
    pub(crate) fn model(&self) -> Result<&Model, ApiError> {
        self.inner.model.get().ok_or(ApiError::Loading)
    }

    /// Lets a request in, unless the model is not there or the server drains.
    pub(crate) fn admit(&self) -> Result<Admitted, ApiError> {
        let mark = self.running().clone().ok_or(ApiError::Draining)?;
        let model = self.model()?.clone();
        let stopping = self.inner.stopping.subscribe();
        Ok(Admitted { model, running: Running { _mark: mark, stopping } })
    }

    /// Admits no more requests.
    pub(crate) fn drain(&self) {
        self.running().take();
    }

    /// Ends the streams that still run.
    pub(crate) fn stop(&self) {
        self.inner.stopping.send_replace(true);
    }

    fn running(&self) -> MutexGuard<'_, Option<mpsc::Sender<()>>> {
        // The lock only ever covers one assignment or clone, which leaves nothing half done.
        self.inner.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// Returns when the server will wait no longer.
    pub(crate) async fn stopped(&mut self) {
        turned(&mut self.stopping).await;
    }
}

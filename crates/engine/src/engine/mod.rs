//! The engine: what a caller talks to, and the thread behind it.
//!
//! Objects: an [`Engine`] is a handle; any number of clones talk to one thread, which owns the
//! backend and runs the step loop (`step.rs`: receive, retire, admit, schedule, forward, sample
//! and emit). An [`EventStream`] is one request seen from its caller. The two sides share nothing
//! but channels and a few counters: a slow caller never holds the loop up, and a caller that goes
//! away is noticed before the next forward pass.

mod check;
mod shared;
mod step;
mod stream;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, watch};

pub use shared::Stats;
pub use stream::EventStream;
pub(crate) use stream::{Job, pair};

use crate::{Error, Request, backend::Backend};
use shared::Shared;
use step::{Command, StepLoop};

/// What an engine can be told when it starts.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Tokens that a sequence may hold, prompt and answer together; at most the model's own
    /// `context_max`, which is taken when this is `None`.
    pub context_tokens: Option<usize>,
    /// Prompt tokens in one forward pass; what the backend would rather have
    /// ([`Backend::prefill_chunk_tokens`]) when this is `None`. A backend that takes fewer
    /// ([`Backend::batch_tokens_max`]) gets what it takes.
    pub prefill_chunk_tokens: Option<usize>,
    /// Bytes that kept sequences and snapshots may take; 0 keeps none.
    pub cache_bytes: usize,
    /// Requests that may wait while others run; one more is refused.
    pub queue_max: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            context_tokens: None,
            prefill_chunk_tokens: None,
            cache_bytes: 1 << 30,
            queue_max: 64,
        }
    }
}

/// A running engine. Clones are handles to the same one; when the last is dropped, the engine
/// finishes what runs and waits, and ends its thread. That drop blocks until then: async callers
/// call [`Engine::shutdown`] and await [`Engine::stopped`] first.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    alive: watch::Receiver<()>, // closed when the thread has ended
    thread: Mutex<Option<JoinHandle<()>>>,
    description: String,
    context_tokens: usize,
    vocab: usize,
}

impl Engine {
    /// Moves the backend to a thread of its own and starts the step loop there.
    ///
    /// # Errors
    /// [`Error::Engine`] when the configuration contradicts the model, or the thread cannot be
    /// started.
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Result<Self, Error> {
        let context_tokens = check::config(&config, backend.shape())?;
        let description = backend.description();
        let vocab = backend.shape().vocab;
        let shared = Arc::new(Shared::new(config.queue_max));
        let (commands, intake) = mpsc::unbounded_channel();
        let (alive_guard, alive) = watch::channel(());
        let step_loop =
            StepLoop::new(backend, intake, Arc::clone(&shared), &config, context_tokens);
        let thread = thread::Builder::new()
            .name("calla-engine".to_owned())
            .spawn(move || {
                step_loop.run();
                drop(alive_guard);
            })
            .map_err(|source| Error::Engine {
                field: "thread",
                problem: format!("the engine's thread cannot be started: {source}"),
            })?;
        let thread = Mutex::new(Some(thread));
        let inner = Inner { shared, commands, alive, thread, description, context_tokens, vocab };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Queues a request. Checked here: an empty or too long prompt, token ids beyond the
    /// vocabulary, sampling values out of range.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::ContextExceeded`], [`Error::QueueFull`],
    /// [`Error::ShuttingDown`], and [`Error::EngineFailed`] once the engine has failed.
    pub fn submit(&self, request: Request) -> Result<EventStream, Error> {
        let inner = &*self.inner;
        check::request(&request, inner.vocab, inner.context_tokens)?;
        inner.shared.reserve()?;
        let (job, stream) = pair(request);
        if inner.commands.send(Command::Submit(Box::new(job))).is_err() {
            inner.shared.give_back();
            return Err(inner.shared.refusal().unwrap_or(Error::ShuttingDown));
        }
        Ok(stream)
    }

    /// Why the engine has failed for good, if it has: every request ends with an error from then on.
    pub fn failure(&self) -> Option<&str> {
        self.inner.shared.failure()
    }

    /// Takes no more requests from now on. What runs and waits may go on for `grace` and is then
    /// cancelled. Returns at once; [`Engine::stopped`] and [`Engine::join`] wait for the end.
    pub fn shutdown(&self, grace: Duration) {
        self.inner.stop(Instant::now().checked_add(grace));
    }

    /// Waits until the engine's thread has ended: after [`Engine::shutdown`], or a failure.
    pub async fn stopped(&self) {
        let mut alive = self.inner.alive.clone();
        // Nothing is ever sent: an error is the sender's end, which is the thread's.
        while alive.changed().await.is_ok() {}
    }

    /// As [`Engine::stopped`], for threads outside an async runtime.
    pub fn join(&self) {
        self.inner.join();
    }

    /// What the engine does right now and has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.shared.stats()
    }

    /// One line for people: device, instruction set, threads, precision.
    pub fn description(&self) -> &str {
        &self.inner.description
    }

    /// Tokens that a sequence may hold, prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.inner.context_tokens
    }

    /// Size of the vocabulary: every token id is below it.
    pub fn vocab(&self) -> usize {
        self.inner.vocab
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { description, context_tokens, .. } = &*self.inner;
        f.debug_struct("Engine")
            .field("description", description)
            .field("context_tokens", context_tokens)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn stop(&self, cancel_at: Option<Instant>) {
        self.shared.stop();
        // The thread may have ended already; then there is nothing to stop.
        let _ = self.commands.send(Command::Stop { cancel_at });
    }

    fn join(&self) {
        // A poisoned lock only says that another caller panicked while it waited here.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine's thread panicked while it shut down");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop(None);
        self.join();
    }
}

//! The few values that both sides of the engine see: counters and whether it takes requests.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
};

use crate::{Error, scheduler::RUNNING_MAX};

/// What an engine does right now and has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests being computed.
    pub running: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests that have ended, for whatever reason.
    pub finished: u64,
    /// Prompt tokens of all admitted requests.
    pub prompt_tokens: u64,
    /// Of these, tokens whose state was reused.
    pub cached_tokens: u64,
    /// Tokens delivered.
    pub generated_tokens: u64,
    /// States that are kept for later prompts.
    pub cache_entries: usize,
    /// Bytes that they take.
    pub cache_bytes: usize,
}

/// Counters behind [`Stats`], and the gate at the engine's entrance.
pub(super) struct Shared {
    in_flight: AtomicUsize, // submitted and not ended
    in_flight_max: usize,
    stopping: AtomicBool,
    failure: OnceLock<String>,
    pub(super) running: AtomicUsize,
    pub(super) finished: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    pub(super) cache_entries: AtomicUsize,
    pub(super) cache_bytes: AtomicUsize,
}

impl Shared {
    pub(super) fn new(queue_max: usize) -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            in_flight_max: queue_max.saturating_add(RUNNING_MAX),
            stopping: AtomicBool::new(false),
            failure: OnceLock::new(),
            running: AtomicUsize::new(0),
            finished: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            cache_entries: AtomicUsize::new(0),
            cache_bytes: AtomicUsize::new(0),
        }
    }

    /// Takes a place for one request, or says why there is none.
    pub(super) fn reserve(&self) -> Result<(), Error> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        self.in_flight
            .fetch_update(SeqCst, SeqCst, |taken| (taken < self.in_flight_max).then(|| taken + 1))
            .map(|_| ())
            .map_err(|taken| Error::QueueFull { waiting: taken.saturating_sub(RUNNING_MAX) })
    }

    /// Gives the place of an ended request back.
    pub(super) fn give_back(&self) {
        self.in_flight.fetch_sub(1, SeqCst);
    }

    /// Why no request is taken, when none is.
    pub(super) fn refusal(&self) -> Option<Error> {
        match self.failure() {
            Some(message) => Some(Error::EngineFailed { message: message.to_owned() }),
            None => self.stopping.load(SeqCst).then_some(Error::ShuttingDown),
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, SeqCst);
    }

    /// Takes no request any more because of a failure; the first one counts.
    pub(super) fn fail(&self, message: String) {
        let _ = self.failure.set(message);
    }

    /// Why none is taken any more.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(super) fn stats(&self) -> Stats {
        let running = self.running.load(Relaxed);
        Stats {
            running,
            waiting: self.in_flight.load(Relaxed).saturating_sub(running),
            finished: self.finished.load(Relaxed),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            generated_tokens: self.generated_tokens.load(Relaxed),
            cache_entries: self.cache_entries.load(Relaxed),
            cache_bytes: self.cache_bytes.load(Relaxed),
        }
    }
}

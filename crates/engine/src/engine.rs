//! The step loop: admit, schedule, forward, sample, emit.

use crate::{Error, Event, Request, backend::Backend};

/// What an engine can be told when it starts.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Tokens that a sequence may hold, prompt and answer together; at most the model's own
    /// `context_max`, which is taken when this is `None`.
    pub context_tokens: Option<usize>,
    /// Prompt tokens in one forward pass.
    pub prefill_chunk_tokens: usize,
    /// Bytes that kept sequences and snapshots may take.
    pub cache_bytes: usize,
    /// Requests that may wait; one more is refused.
    pub queue_max: usize,
}

/// A running engine. Clones are handles to the same one; when the last is dropped, the engine
/// finishes what runs and ends its thread.
#[derive(Clone)]
pub struct Engine {}

/// The events of one request. Dropping it cancels the request.
pub struct EventStream {}

impl Engine {
    /// Moves the backend to a thread of its own and starts the step loop there.
    ///
    /// # Errors
    /// When the configuration contradicts the model, or the thread cannot be started.
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Result<Self, Error> {
        let _ = (backend, config);
        unimplemented!()
    }

    /// Queues a request. Checked here: an empty or too long prompt, token ids beyond the
    /// vocabulary, sampling values out of range.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::ContextExceeded`], [`Error::QueueFull`],
    /// [`Error::ShuttingDown`].
    pub fn submit(&self, request: Request) -> Result<EventStream, Error> {
        let _ = request;
        unimplemented!()
    }
}

impl EventStream {
    /// The next event; `None` after the end. For async callers.
    pub async fn next(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// The next event; `None` after the end. For threads outside an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// Ends the request: of the tokens delivered so far, the first `tokens_kept` count (a stop
    /// string cut the rest).
    pub fn finish(self, tokens_kept: usize) {
        let _ = tokens_kept;
        unimplemented!()
    }
}

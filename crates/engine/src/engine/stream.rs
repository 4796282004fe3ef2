//! One request, seen from both sides: [`EventStream`] is the caller's end, `Job` the engine's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::mpsc;

use crate::{Error, Event, FinishReason, Request, Usage};

/// The events of one request. Dropping it cancels the request.
///
/// Events are buffered: a slow reader holds nobody up, and a request has at most as many events
/// as its sequence has tokens, so the buffer is bounded by the context.
#[derive(Debug)]
pub struct EventStream {
    events: mpsc::UnboundedReceiver<Event>,
    tokens_kept: Arc<AtomicUsize>, // ALL_KEPT unless the caller has said otherwise
}

/// A submitted request, on the engine's side.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) submitted: Instant,
    events: mpsc::UnboundedSender<Event>,
    tokens_kept: Arc<AtomicUsize>,
    has_ended: bool,
}

const ALL_KEPT: usize = usize::MAX;

/// The two ends of a request.
pub(crate) fn pair(request: Request) -> (Job, EventStream) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let tokens_kept = Arc::new(AtomicUsize::new(ALL_KEPT));
    let job = Job {
        request,
        submitted: Instant::now(),
        events: sender,
        tokens_kept: Arc::clone(&tokens_kept),
        has_ended: false,
    };
    (job, EventStream { events: receiver, tokens_kept })
}

impl EventStream {
    /// The next event; `None` after the end. For async callers. Cancel safe: a dropped call loses
    /// no event.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event; `None` after the end. For threads outside an async runtime.
    ///
    /// # Panics
    /// When called inside an async runtime, which it would block.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Ends the request: of the tokens delivered so far, the first `tokens_kept` count (a stop
    /// string cut the rest). The engine keeps no state for later prompts that goes beyond them.
    pub fn finish(self, tokens_kept: usize) {
        self.tokens_kept.store(tokens_kept, Ordering::SeqCst);
    }
}

impl Job {
    /// Sends an event. A caller that is gone is noticed by [`Job::is_gone`], not here.
    pub(crate) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Sends the last event.
    pub(crate) fn end(mut self, reason: FinishReason, usage: Usage) {
        self.send(Event::End { reason, usage });
        self.has_ended = true;
    }

    /// The caller has dropped its stream.
    pub(crate) fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    /// The deadline has passed.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.request.limits.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Generated tokens that the caller counts; all, unless it has finished the request itself.
    pub(crate) fn tokens_kept(&self) -> usize {
        self.tokens_kept.load(Ordering::SeqCst)
    }
}

impl Drop for Job {
    /// No stream closes without an end, even when a panic takes the job out of the loop's hands.
    fn drop(&mut self) {
        if !self.has_ended {
            let message = "the request was lost in a panic".to_owned();
            let reason = FinishReason::Failed(Arc::new(Error::EngineFailed { message }));
            self.send(Event::End { reason, usage: Usage::default() });
        }
    }
}

//! The step loop: receive, retire, admit, schedule, forward, sample and emit.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use tokio::sync::mpsc;

use super::{EngineConfig, Job, shared::Shared};
use crate::{
    Error, FinishReason, Usage,
    backend::{Backend, Batch, Logits, Row, Scores, SequenceId},
    cache::{Hit, PrefixCache},
    sampler::{NeedsLogits, Workspace},
    scheduler::{Plan, Scheduler, Sequence},
};

/// What a handle asks of the loop.
pub(super) enum Command {
    /// Run this request.
    Submit(Box<Job>),
    /// Take no more; cancel what is left at `cancel_at`, or let everything end by itself.
    Stop { cancel_at: Option<Instant> },
}

/// Owns the backend and every sequence; lives on the engine's thread.
pub(super) struct StepLoop {
    backend: Box<dyn Backend>,
    intake: mpsc::UnboundedReceiver<Command>,
    shared: Arc<Shared>,
    scheduler: Scheduler,
    cache: PrefixCache,
    context_tokens: usize,
    cancel_at: Option<Instant>,
    // Kept between steps so that a step allocates nothing.
    plan: Plan,
    rows: Vec<Row<'static>>,
    logits: Logits,
    row: Vec<f32>, // [vocab] logits of a row whose candidates were not enough
    workspace: Workspace,
}

impl StepLoop {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        intake: mpsc::UnboundedReceiver<Command>,
        shared: Arc<Shared>,
        config: &EngineConfig,
        context_tokens: usize,
    ) -> Self {
        let chunk_tokens =
            config.prefill_chunk_tokens.unwrap_or_else(|| backend.prefill_chunk_tokens());
        let chunk_tokens = chunk_tokens.min(backend.batch_tokens_max());
        let cache = PrefixCache::new(&*backend, config.cache_bytes);
        Self {
            backend,
            cache,
            intake,
            shared,
            scheduler: Scheduler::new(chunk_tokens),
            context_tokens,
            cancel_at: None,
            plan: Plan::default(),
            rows: Vec::new(),
            logits: Logits::new(),
            row: Vec::new(),
            workspace: Workspace::default(),
        }
    }

    /// Runs until the last handle is gone, or a stop was asked for, and nothing is left to do.
    pub(super) fn run(mut self) {
        while self.receive() {
            // After a panic nobody knows what state the backend is in, and a device that failed has
            // lost it: every request gets a clear end, and none is taken any more.
            match catch_unwind(AssertUnwindSafe(|| self.step())) {
                Ok(Ok(())) => {}
                Ok(Err(lost)) => return self.fail_for_good(lost.to_string()),
                Err(panic) => return self.fail_for_good(panic_message(&*panic)),
            }
        }
        self.cache.clear(&mut *self.backend);
    }

    /// An error: the device is lost.
    fn step(&mut self) -> Result<(), Arc<Error>> {
        self.retire();
        self.admit()?;
        self.scheduler.plan(&mut self.plan);
        if let Err(error) = self.forward().and_then(|()| self.sample_and_emit()) {
            let error = Arc::new(error);
            self.fail_planned(&error);
            unless_lost(error)?;
        }
        self.publish();
        Ok(())
    }

    /// Takes in what was sent, and waits for it when there is nothing else to do. False: the end.
    fn receive(&mut self) -> bool {
        if self.scheduler.is_idle() {
            match self.intake.blocking_recv() {
                Some(command) => self.handle(command),
                None => return false,
            }
        }
        while let Ok(command) = self.intake.try_recv() {
            self.handle(command);
        }
        true
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(job) => self.scheduler.enqueue(*job),
            Command::Stop { cancel_at } => {
                self.intake.close();
                self.cancel_at = match (self.cancel_at, cancel_at) {
                    (Some(known), Some(new)) => Some(known.min(new)),
                    (known, new) => known.or(new),
                };
            }
        }
    }

    /// Ends what is finished, has lost its caller, or is out of time; queued requests included.
    fn retire(&mut self) {
        let now = Instant::now();
        let stopped = self.cancel_at.is_some_and(|cancel_at| now >= cancel_at);
        let verdict = |job: &Job| {
            if job.is_gone() || stopped {
                Some(FinishReason::Cancelled)
            } else {
                job.is_late(now).then_some(FinishReason::Deadline)
            }
        };
        while let Some((job, reason)) = self.scheduler.take_waiting(verdict) {
            self.end_waiting(job, reason);
        }
        while let Some((sequence, reason)) = self.scheduler.take_running(verdict) {
            self.end(sequence, reason);
        }
    }

    /// Opens sequences for the requests whose turn it is.
    fn admit(&mut self) -> Result<(), Arc<Error>> {
        while let Some(job) = self.scheduler.next_to_admit() {
            let admitted = Instant::now();
            match self.open(&job.request.prompt) {
                Ok((id, hit)) => {
                    let sequence = Sequence::new(job, admitted, id, hit, self.cache.is_on());
                    let usage = sequence.usage(Instant::now());
                    self.shared.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Relaxed);
                    self.shared.cached_tokens.fetch_add(usage.cached_tokens as u64, Relaxed);
                    self.scheduler.start(sequence);
                }
                Err(error) => {
                    let error = Arc::new(error);
                    self.end_waiting(job, FinishReason::Failed(Arc::clone(&error)));
                    unless_lost(error)?;
                }
            }
        }
        self.publish();
        self.scheduler.announce_positions();
        Ok(())
    }

    /// A sequence that holds as much of the prompt as the cache can give. What is kept makes room
    /// when the backend has none left.
    fn open(&mut self, prompt: &[u32]) -> Result<(SequenceId, Option<Hit>), Error> {
        loop {
            let hit = self.cache.lookup(prompt);
            let opened = match hit {
                Some(hit) => self.backend.restore(hit.snapshot),
                None => self.backend.open(self.context_tokens),
            };
            match opened {
                Ok(id) => return Ok((id, hit)),
                Err(error) if self.cache.evict_one(&mut *self.backend) => {
                    tracing::warn!(%error, "dropped a kept state to make room for a sequence");
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn forward(&mut self) -> Result<(), Error> {
        if self.plan.rows.is_empty() {
            return Ok(());
        }
        let mut rows = recycle(std::mem::take(&mut self.rows));
        rows.extend(self.plan.rows.iter().map(|planned| {
            let sequence = &self.scheduler.running()[planned.slot];
            let tokens = &sequence.pending()[..planned.tokens];
            Row { sequence: sequence.id(), tokens, wants: planned.wants }
        }));
        let outcome = self.backend.forward(&Batch { rows: &rows }, &mut self.logits);
        self.rows = recycle(rows);
        outcome
    }

    fn sample_and_emit(&mut self) -> Result<(), Error> {
        let vocab = self.backend.shape().vocab;
        let mut row = 0;
        for planned in &self.plan.rows {
            let sequence = &mut self.scheduler.running_mut()[planned.slot];
            sequence.advance(planned.tokens);
            if sequence.reached_place() {
                keep(&mut self.cache, &mut *self.backend, sequence);
            }
            let rows = planned.wants.rows(planned.tokens);
            if rows > 0 {
                let (workspace, context) = (&mut self.workspace, self.context_tokens);
                let taken = sequence.take_next(self.logits.scores(row), vocab, workspace, context);
                if let Err(NeedsLogits) = taken {
                    self.row.resize(vocab, 0.0);
                    self.backend.logits_row(row, &mut self.row)?;
                    let logits = Scores::Logits(&self.row);
                    let taken = sequence.take_next(logits, vocab, workspace, context);
                    taken.expect("logits always give a token");
                }
                row += rows;
            }
        }
        Ok(())
    }

    /// A forward pass that failed, or whose logits are lost, leaves its sequences good for nothing
    /// but to be closed.
    fn fail_planned(&mut self, error: &Arc<Error>) {
        for planned in &self.plan.rows {
            let sequence = &mut self.scheduler.running_mut()[planned.slot];
            sequence.finish(FinishReason::Failed(Arc::clone(error)));
        }
    }

    fn end(&mut self, mut sequence: Sequence, reason: FinishReason) {
        let usage = sequence.usage(Instant::now());
        if sequence.ends_well(&reason) {
            keep(&mut self.cache, &mut *self.backend, &mut sequence);
        } else if matches!(reason, FinishReason::NotANumber) {
            // Nobody knows where it went wrong.
            for &entry in sequence.kept() {
                self.cache.remove(&mut *self.backend, entry);
            }
        }
        if let Err(error) = self.backend.close(sequence.id()) {
            tracing::error!(%error, "a sequence could not be closed");
        }
        self.shared.generated_tokens.fetch_add(usage.completion_tokens as u64, Relaxed);
        self.publish();
        self.send_end(sequence.into_job(), reason, usage);
    }

    /// Shows what there is right now to [`super::Engine::stats`].
    fn publish(&self) {
        self.shared.running.store(self.scheduler.running().len(), Relaxed);
        self.shared.cache_entries.store(self.cache.len(), Relaxed);
        self.shared.cache_bytes.store(self.cache.bytes(), Relaxed);
    }

    fn end_waiting(&self, job: Job, reason: FinishReason) {
        let usage = Usage { prompt_tokens: job.request.prompt.len(), ..Usage::default() };
        self.send_end(job, reason, usage);
    }

    fn send_end(&self, job: Job, reason: FinishReason, usage: Usage) {
        tracing::debug!(?reason, ?usage, waited = ?job.submitted.elapsed(), "request ended");
        self.shared.finished.fetch_add(1, Relaxed);
        // First the place, then the event: who has seen the end may submit again at once.
        self.shared.give_back();
        job.end(reason, usage);
    }

    fn fail_for_good(mut self, message: String) {
        tracing::error!(message, "the engine has failed and takes no more requests");
        self.shared.fail(message.clone());
        let error = Arc::new(Error::EngineFailed { message });
        self.intake.close();
        while let Some(command) = self.intake.blocking_recv() {
            self.handle(command);
        }
        let reason = || FinishReason::Failed(Arc::clone(&error));
        while let Some((sequence, _)) = self.scheduler.take_running(|_| Some(reason())) {
            let usage = sequence.usage(Instant::now());
            self.send_end(sequence.into_job(), reason(), usage);
        }
        while let Some((job, _)) = self.scheduler.take_waiting(|_| Some(reason())) {
            self.end_waiting(job, reason());
        }
        self.shared.running.store(0, Relaxed);
    }
}

/// Passes an error on when nothing can be computed after it.
fn unless_lost(error: Arc<Error>) -> Result<(), Arc<Error>> {
    match *error {
        Error::Device { .. } => Err(error),
        _ => Ok(()),
    }
}

/// Keeps the state that the sequence is in for later prompts.
fn keep(cache: &mut PrefixCache, backend: &mut dyn Backend, sequence: &mut Sequence) {
    if cache.is_on() {
        let (tokens, ancestor) = (sequence.computed_tokens(), sequence.ancestor());
        if let Some(entry) = cache.keep(backend, sequence.id(), tokens, ancestor) {
            sequence.note_kept(entry);
        }
    }
}

/// The vector's memory for rows of another lifetime: collecting in place keeps the allocation.
fn recycle<'a>(mut rows: Vec<Row<'_>>) -> Vec<Row<'a>> {
    rows.clear();
    rows.into_iter().map(|_| unreachable!("the rows were cleared")).collect()
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Wants;

    #[test]
    fn recycled_rows_keep_their_memory() {
        let tokens = vec![1, 2, 3];
        let mut rows = Vec::with_capacity(8);
        rows.push(Row { sequence: SequenceId(1), tokens: &tokens, wants: Wants::Last });
        let memory = rows.as_ptr().addr();
        let recycled: Vec<Row<'static>> = recycle(rows);
        assert!(recycled.is_empty());
        assert_eq!((recycled.as_ptr().addr(), recycled.capacity()), (memory, 8));
    }
}

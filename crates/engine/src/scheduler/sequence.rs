use std::time::Instant;

use crate::{
    Event, FinishReason, Usage,
    backend::SequenceId,
    engine::Job,
    sampler::{Sampler, Workspace},
};

/// A running request.
///
/// Prefill and decode are one thing here: `tokens` is everything known, the first `computed` of
/// them are in the backend's state, and the rest is pending. A prompt's chunk takes many pending
/// tokens, a decode step the one that was sampled before.
#[derive(Debug)]
pub(crate) struct Sequence {
    job: Job,
    id: SequenceId,
    tokens: Vec<u32>, // the prompt, then the answer
    prompt_tokens: usize,
    computed: usize,
    cached: usize,
    sampler: Sampler,
    finished: Option<FinishReason>,
    admitted: Instant,
    prefilled: Option<Instant>,
}

impl Sequence {
    /// A request whose sequence has just been opened.
    pub(crate) fn new(mut job: Job, id: SequenceId) -> Self {
        let tokens = std::mem::take(&mut job.request.prompt);
        Self {
            id,
            prompt_tokens: tokens.len(),
            tokens,
            computed: 0,
            cached: 0,
            sampler: Sampler::new(job.request.sampling.clone(), job.request.logprobs),
            finished: None,
            admitted: Instant::now(),
            prefilled: None,
            job,
        }
    }

    pub(crate) fn id(&self) -> SequenceId {
        self.id
    }

    pub(crate) fn job(&self) -> &Job {
        &self.job
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Known tokens that are not in the state yet.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.computed..]
    }

    /// A part of the prompt is pending.
    pub(crate) fn is_prefilling(&self) -> bool {
        self.computed < self.prompt_tokens
    }

    /// How many pending tokens go into the next step, at most `room`; none once finished.
    pub(crate) fn next_chunk_tokens(&self, room: usize) -> usize {
        if self.finished.is_some() { 0 } else { self.pending().len().min(room) }
    }

    /// Why the sequence has come to its own end, when it has.
    pub(crate) fn finished(&self) -> Option<&FinishReason> {
        self.finished.as_ref()
    }

    /// Ends the sequence; the first reason counts.
    pub(crate) fn finish(&mut self, reason: FinishReason) {
        self.finished.get_or_insert(reason);
    }

    /// The next `tokens` pending tokens are in the state now.
    pub(crate) fn advance(&mut self, tokens: usize) {
        let prefilling = self.is_prefilling();
        self.computed += tokens;
        if prefilling {
            self.job.send(Event::Prefill { done: self.computed, total: self.prompt_tokens });
            if !self.is_prefilling() {
                self.prefilled = Some(Instant::now());
            }
        }
    }

    /// Chooses the next token from the logits [vocab] after the last known one, delivers it, and
    /// finishes the sequence when that was the last.
    pub(crate) fn take_next(
        &mut self,
        logits: &[f32],
        workspace: &mut Workspace,
        context_tokens: usize,
    ) {
        let tokens_max = self.job.request.limits.tokens_max;
        if tokens_max == Some(0) {
            return self.finish(FinishReason::Length);
        }
        let Some(token) = self.sampler.next(logits, workspace) else {
            return self.finish(FinishReason::NotANumber);
        };
        if self.job.request.stop_ids.contains(&token.id) {
            return self.finish(FinishReason::Stop(token.id));
        }
        self.tokens.push(token.id);
        self.job.send(Event::Token(token));
        if tokens_max.is_some_and(|tokens_max| self.generated() >= tokens_max) {
            self.finish(FinishReason::Length);
        } else if self.tokens.len() >= context_tokens {
            self.finish(FinishReason::ContextFull);
        }
    }

    /// Tokens delivered.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// What the request has taken up to `now`.
    pub(crate) fn usage(&self, now: Instant) -> Usage {
        let prefilled = self.prefilled.unwrap_or(now);
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached,
            completion_tokens: self.generated(),
            prefill: prefilled - self.admitted,
            decode: now - prefilled,
        }
    }
}

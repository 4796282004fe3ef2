use std::time::Instant;

use crate::{
    Event, FinishReason, Usage,
    backend::{Scores, SequenceId, Wants},
    cache::{EntryId, Hit},
    engine::Job,
    sampler::{NeedsLogits, Sampler, Workspace},
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
    places: Vec<usize>, // lengths at which the state is worth keeping, last one first
    ancestor: Option<EntryId>, // the cache entry that the state came by last
    kept: Vec<EntryId>, // entries made from this sequence
    sampler: Sampler,
    finished: Option<FinishReason>,
    admitted: Instant,
    prefilled: Option<Instant>,
}

impl Sequence {
    /// A request that was admitted at `admitted`, and its sequence, just opened or restored from
    /// `hit`. `keeps`: some of its states may be kept for later prompts.
    pub(crate) fn new(
        mut job: Job,
        admitted: Instant,
        id: SequenceId,
        hit: Option<Hit>,
        keeps: bool,
    ) -> Self {
        let tokens = std::mem::take(&mut job.request.prompt);
        let cached = hit.map_or(0, |hit| hit.tokens);
        assert!(
            cached < tokens.len(),
            "a hit is a strict prefix: the last token has to be computed"
        );
        let places = match keeps {
            true => places(&job.request.snapshot_at, tokens.len(), cached),
            false => Vec::new(),
        };
        Self {
            id,
            prompt_tokens: tokens.len(),
            tokens,
            computed: cached,
            cached,
            places,
            ancestor: hit.map(|hit| hit.entry),
            kept: Vec::new(),
            sampler: Sampler::new(job.request.sampling.clone(), job.request.logprobs),
            finished: None,
            admitted,
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

    pub(crate) fn into_job(self) -> Job {
        self.job
    }

    /// Known tokens that are not in the state yet.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.computed..]
    }

    /// A part of the prompt is pending.
    pub(crate) fn is_prefilling(&self) -> bool {
        self.computed < self.prompt_tokens
    }

    /// How many pending tokens go into the next step, at most `room`; none once finished. A chunk
    /// ends at each place that is worth keeping.
    pub(crate) fn next_chunk_tokens(&self, room: usize) -> usize {
        if self.finished.is_some() {
            return 0;
        }
        let to_place = self.places.last().map_or(usize::MAX, |place| place - self.computed);
        self.pending().len().min(room).min(to_place)
    }

    /// The history that is in the state.
    pub(crate) fn computed_tokens(&self) -> &[u32] {
        &self.tokens[..self.computed]
    }

    /// The state has just reached a place that is worth keeping; true once for each.
    pub(crate) fn reached_place(&mut self) -> bool {
        self.places.pop_if(|place| *place == self.computed).is_some()
    }

    /// The state at the end is worth keeping: it was computed without fault, and the caller counts
    /// every token in it.
    pub(crate) fn ends_well(&self, reason: &FinishReason) -> bool {
        let sound = !matches!(reason, FinishReason::Failed(_) | FinishReason::NotANumber);
        let fed = self.computed.saturating_sub(self.prompt_tokens);
        sound && self.computed > 0 && fed <= self.job.tokens_kept()
    }

    /// The cache entry that the state came by last: shares memory with this sequence.
    pub(crate) fn ancestor(&self) -> Option<EntryId> {
        self.ancestor
    }

    /// Notes that the state, as it is now, has become a cache entry.
    pub(crate) fn note_kept(&mut self, entry: EntryId) {
        self.ancestor = Some(entry);
        self.kept.push(entry);
    }

    /// Cache entries made from this sequence.
    pub(crate) fn kept(&self) -> &[EntryId] {
        &self.kept
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
            self.job.send(Event::Prefill {
                done: self.computed,
                cached: self.cached,
                total: self.prompt_tokens,
            });
            if !self.is_prefilling() {
                self.prefilled = Some(Instant::now());
            }
        }
    }

    /// What the forward pass should give of the last pending token.
    pub(crate) fn wants(&self) -> Wants {
        self.sampler.wants()
    }

    /// Chooses the next token from the scores after the last known one, whose logits are `vocab`
    /// long, delivers it, and finishes the sequence when that was the last.
    ///
    /// # Errors
    /// Those of [`Sampler::next`].
    pub(crate) fn take_next(
        &mut self,
        scores: Scores<'_>,
        vocab: usize,
        workspace: &mut Workspace,
        context_tokens: usize,
    ) -> Result<(), NeedsLogits> {
        let tokens_max = self.job.request.limits.tokens_max;
        if tokens_max == Some(0) {
            self.finish(FinishReason::Length);
            return Ok(());
        }
        let Some(token) = self.sampler.next(scores, vocab, workspace)? else {
            self.finish(FinishReason::NotANumber);
            return Ok(());
        };
        if self.job.request.stop_ids.contains(&token.id) {
            self.finish(FinishReason::Stop(token.id));
            return Ok(());
        }
        self.tokens.push(token.id);
        self.job.send(Event::Token(token));
        if tokens_max.is_some_and(|tokens_max| self.generated() >= tokens_max) {
            self.finish(FinishReason::Length);
        } else if self.tokens.len() >= context_tokens {
            self.finish(FinishReason::ContextFull);
        }
        Ok(())
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

/// The caller's places and one of the engine's own, ahead of `cached`, last one first. The
/// engine's is one token before the prompt's end, so that the same prompt again is a hit; the
/// end itself would serve no more than that.
fn places(asked: &[usize], prompt_tokens: usize, cached: usize) -> Vec<usize> {
    let own = prompt_tokens - 1;
    let asked = asked.iter().map(|&place| place.min(own));
    let mut places: Vec<usize> = asked.chain([own]).filter(|&place| place > cached).collect();
    places.sort_unstable_by(|a, b| b.cmp(a));
    places.dedup();
    places
}

//! Step 4: which sequences run in this step, and how many tokens of each.
//!
//! The scheduler holds the waiting requests and the running [`Sequence`]s and decides; it calls
//! no backend. A [`Plan`] is its only output: rows of a ragged batch. Requests are admitted first
//! come, first served. The plan is written for any number of sequences, each at its own place in
//! prompt or answer; [`RUNNING_MAX`] says how many there are today.

mod sequence;

use std::collections::VecDeque;

pub(crate) use sequence::Sequence;

use crate::{Event, FinishReason, backend::Wants, engine::Job};

/// Sequences that run at the same time.
pub(crate) const RUNNING_MAX: usize = 1;

/// What one step computes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) rows: Vec<PlannedRow>,
}

/// The next tokens of one sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PlannedRow {
    /// Index in [`Scheduler::running`].
    pub(crate) slot: usize,
    /// How many of its pending tokens.
    pub(crate) tokens: usize,
    pub(crate) wants: Wants,
}

/// Waiting and running requests.
#[derive(Debug)]
pub(crate) struct Scheduler {
    waiting: VecDeque<Waiting>,
    running: Vec<Sequence>, // oldest first
    chunk_tokens: usize,
}

#[derive(Debug)]
struct Waiting {
    job: Job,
    position: Option<usize>, // the last one announced
}

impl Scheduler {
    /// `chunk_tokens`: most tokens of one step, all rows together.
    pub(crate) fn new(chunk_tokens: usize) -> Self {
        Self { waiting: VecDeque::new(), running: Vec::new(), chunk_tokens }
    }

    /// Nothing waits and nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(crate) fn running(&self) -> &[Sequence] {
        &self.running
    }

    pub(crate) fn running_mut(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    /// Puts a request at the end of the queue.
    pub(crate) fn enqueue(&mut self, job: Job) {
        self.waiting.push_back(Waiting { job, position: None });
    }

    /// The request whose turn it is, when there is room for one more sequence.
    pub(crate) fn next_to_admit(&mut self) -> Option<Job> {
        if self.running.len() >= RUNNING_MAX {
            return None;
        }
        self.waiting.pop_front().map(|waiting| waiting.job)
    }

    pub(crate) fn start(&mut self, sequence: Sequence) {
        self.running.push(sequence);
    }

    /// Tells each waiting request how many come before it, when that has changed.
    pub(crate) fn announce_positions(&mut self) {
        for (index, waiting) in self.waiting.iter_mut().enumerate() {
            let position = self.running.len() + index;
            if waiting.position.replace(position) != Some(position) {
                waiting.job.send(Event::Queued { position });
            }
        }
    }

    /// Removes the first waiting request that `verdict` ends.
    pub(crate) fn take_waiting(
        &mut self,
        verdict: impl Fn(&Job) -> Option<FinishReason>,
    ) -> Option<(Job, FinishReason)> {
        let (index, reason) = self
            .waiting
            .iter()
            .enumerate()
            .find_map(|(index, waiting)| Some((index, verdict(&waiting.job)?)))?;
        self.waiting.remove(index).map(|waiting| (waiting.job, reason))
    }

    /// Removes the first sequence that has come to its own end or that `verdict` ends.
    pub(crate) fn take_running(
        &mut self,
        verdict: impl Fn(&Job) -> Option<FinishReason>,
    ) -> Option<(Sequence, FinishReason)> {
        let (index, reason) = self.running.iter().enumerate().find_map(|(index, sequence)| {
            let reason = sequence.finished().cloned().or_else(|| verdict(sequence.job()))?;
            Some((index, reason))
        })?;
        Some((self.running.remove(index), reason))
    }

    /// Decides the next step: every answer gets its next token, then prompts are prefilled in the
    /// order of their admission with what is left of the step's tokens.
    pub(crate) fn plan(&self, plan: &mut Plan) {
        plan.rows.clear();
        let mut left = self.chunk_tokens;
        let slots = || self.running.iter().enumerate();
        for prefill in [false, true] {
            for (slot, sequence) in slots().filter(|(_, one)| one.is_prefilling() == prefill) {
                let tokens = sequence.next_chunk_tokens(left);
                if tokens > 0 {
                    let last = tokens == sequence.pending().len();
                    let wants = if last { sequence.wants() } else { Wants::Nothing };
                    plan.rows.push(PlannedRow { slot, tokens, wants });
                    left -= tokens;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{
        Request,
        backend::{Scores, SequenceId},
        engine::pair,
        sampler::Workspace,
    };

    /// What a greedy request wants.
    const TOKEN: Wants = Wants::Candidates { temperature: 0.0 };

    /// A sequence with a prompt of `prompt_tokens`, of which `computed` are in the state. With all
    /// of them it has a first token to feed.
    fn sequence(prompt_tokens: usize, computed: usize) -> Sequence {
        let (job, _) = pair(Request { prompt: vec![1; prompt_tokens], ..Request::default() });
        let id = SequenceId(prompt_tokens as u64);
        let mut sequence = Sequence::new(job, Instant::now(), id, None, false);
        sequence.advance(computed);
        if computed == prompt_tokens {
            let scores = Scores::Logits(&[0.0, 1.0]);
            sequence.take_next(scores, 2, &mut Workspace::default(), 100).expect("the logits");
        }
        sequence
    }

    fn planned(chunk_tokens: usize, sequences: Vec<Sequence>) -> Vec<(usize, usize, Wants)> {
        let mut scheduler = Scheduler::new(chunk_tokens);
        sequences.into_iter().for_each(|sequence| scheduler.start(sequence));
        let mut plan = Plan::default();
        scheduler.plan(&mut plan);
        plan.rows.iter().map(|row| (row.slot, row.tokens, row.wants)).collect()
    }

    #[test]
    fn answers_go_first_and_prompts_share_what_is_left() {
        let sequences = || vec![sequence(30, 0), sequence(5, 5), sequence(20, 10), sequence(6, 6)];
        let answers = [(1, 1, TOKEN), (3, 1, TOKEN)];
        let all = [&answers[..], &[(0, 30, TOKEN), (2, 10, TOKEN)]].concat();
        assert_eq!(planned(100, sequences()), all);
        let some = [&answers[..], &[(0, 30, TOKEN), (2, 8, Wants::Nothing)]].concat();
        assert_eq!(planned(40, sequences()), some);
        let part = [&answers[..], &[(0, 14, Wants::Nothing)]].concat();
        assert_eq!(planned(16, sequences()), part);
        assert_eq!(planned(2, sequences()), answers);
    }

    #[test]
    fn a_finished_sequence_is_not_planned() {
        let mut finished = sequence(5, 5);
        finished.finish(FinishReason::Length);
        assert_eq!(planned(16, vec![finished]), []);
    }
}

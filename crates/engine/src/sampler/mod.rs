//! Step 7: from logits to the next token.
//!
//! [`Sampling`] is what a request may ask for; a `Sampler` is one request's state (its random
//! stream and what it has generated), a `Workspace` the memory that all of them share.
//!
//! A token can be chosen from a row's [`Candidates`] too. It is the token that the logits would
//! give, or the sampler says that it needs these.

mod certain;
mod draw;
mod largest;
mod logprobs;
mod random;
mod ranking;

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
};

use crate::{
    Error, Token,
    backend::{CANDIDATES_MAX, Candidates, Scores, Wants},
};
use certain::{Certain, CertainMemory};
use draw::Drawer;
pub use largest::largest;
use logprobs::LogSoftmax;
use random::Random;
use ranking::Ranking;

/// Most alternatives that [`crate::Request::logprobs`] may ask for.
pub const ALTERNATIVES_MAX: usize = 20;

/// How the next token is chosen. The order is fixed: logit bias, penalties, temperature, top-k,
/// top-p, min-p, then one draw from what is left. Temperature 0 takes the largest logit, the lower
/// id on a tie. Penalties count generated tokens only.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy. In [0, 2].
    pub temperature: f32,
    /// Keeps the k largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens with at least this probability together. In (0, 1].
    pub top_p: f32,
    /// Keeps tokens with at least this share of the largest probability. In [0, 1].
    pub min_p: f32,
    /// Subtracted once for each token that was generated before. In [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted for each time that a token was generated before. In [-2, 2].
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of generated tokens; 1 is off. Above 0.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens. In [-100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// Start of the random stream: the same seed and request give the same tokens. Without it the
    /// engine takes one at random.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// Checks every value against its range, for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// [`Error::Request`] naming the first field that is out of range.
    pub fn check(&self, vocab: usize) -> Result<(), Error> {
        let wrong = |field, problem| Err(Error::Request { field, problem });
        // Written so that NaN is out of every range.
        let ranges = [
            ("temperature", self.temperature, "in [0, 2]", (0.0..=2.0).contains(&self.temperature)),
            ("top_p", self.top_p, "in (0, 1]", self.top_p > 0.0 && self.top_p <= 1.0),
            ("min_p", self.min_p, "in [0, 1]", (0.0..=1.0).contains(&self.min_p)),
            (
                "presence_penalty",
                self.presence_penalty,
                "in [-2, 2]",
                (-2.0..=2.0).contains(&self.presence_penalty),
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                "in [-2, 2]",
                (-2.0..=2.0).contains(&self.frequency_penalty),
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                "above 0 and finite",
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
            ),
        ];
        for (field, value, expected, holds) in ranges {
            if !holds {
                return wrong(field, format!("{value}, expected {expected}"));
            }
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                let problem = format!("token {id} is outside the vocabulary of {vocab}");
                return wrong("logit_bias", problem);
            }
            if !(-100.0..=100.0).contains(&bias) {
                return wrong(
                    "logit_bias",
                    format!("{bias} for token {id}, expected in [-100, 100]"),
                );
            }
        }
        Ok(())
    }

    /// No logit is raised by anything that is asked for.
    fn only_lowers(&self) -> bool {
        self.repetition_penalty >= 1.0
            && self.presence_penalty >= 0.0
            && self.frequency_penalty >= 0.0
            && self.logit_bias.iter().all(|&(_, bias)| bias <= 0.0)
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// Chooses the tokens of one request.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    alternatives: Option<usize>,
    random: Random,
    generated: HashMap<u32, u32>, // token -> times, kept only when penalties need it
}

/// Memory for choosing a token, kept between steps.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    adjusted: Vec<f32>, // [vocab]
    ranking: Ranking,
    drawer: Drawer,
    certain: CertainMemory,
}

/// The candidates do not say which token it is: it has to be chosen from the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct NeedsLogits;

impl Sampler {
    /// For checked `sampling`; `alternatives` is [`crate::Request::logprobs`].
    pub(crate) fn new(sampling: Sampling, alternatives: Option<usize>) -> Self {
        // The hasher's own keys are the standard library's source of randomness.
        let seed = sampling.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let random = Random::new(seed);
        Self { sampling, alternatives, random, generated: HashMap::new() }
    }

    /// What a forward pass should give of the position before the next token: candidates, when
    /// these will do nearly always.
    pub(crate) fn wants(&self) -> Wants {
        match self.sampling.only_lowers() && self.sampling.top_k <= CANDIDATES_MAX {
            true => Wants::Candidates { temperature: self.sampling.temperature },
            false => Wants::Last,
        }
    }

    /// The token after the position of `scores`, whose logits are `vocab` long; `None` when one of
    /// these is infinite or not a number.
    ///
    /// # Errors
    /// [`NeedsLogits`] when candidates were given and are not enough: nothing has happened, and the
    /// logits give the token. Only candidates that [`Sampler::wants`] asked for will do.
    pub(crate) fn next(
        &mut self,
        scores: Scores<'_>,
        vocab: usize,
        workspace: &mut Workspace,
    ) -> Result<Option<Token>, NeedsLogits> {
        match scores {
            Scores::Logits(logits) => Ok(self.next_of_logits(logits, workspace)),
            Scores::Candidates(candidates) => self.next_of_candidates(candidates, vocab, workspace),
        }
    }

    fn next_of_logits(&mut self, logits: &[f32], workspace: &mut Workspace) -> Option<Token> {
        // No early exit: this way the loop is vectorised.
        if !logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
            return None;
        }
        let Workspace { adjusted, ranking, drawer, .. } = workspace;
        let adjusted = self.adjust(logits, adjusted);
        let id = if self.sampling.temperature == 0.0 {
            // A bias may have made all of them minus infinity.
            largest(adjusted).unwrap_or(0)
        } else {
            drawer.draw(adjusted, &self.sampling, self.random.next(), ranking)
        };
        self.note(id);
        let Some(count) = self.alternatives else { return Some(Token::new(id)) };
        let softmax = LogSoftmax::of(logits);
        let alternatives = match count {
            0 => Vec::new(),
            _ => softmax.of_each(ranking.top(logits, count)),
        };
        Some(Token { id, logprob: Some(softmax.at(logits[id as usize])), alternatives })
    }

    fn next_of_candidates(
        &mut self,
        candidates: &Candidates,
        vocab: usize,
        workspace: &mut Workspace,
    ) -> Result<Option<Token>, NeedsLogits> {
        if !candidates.is_finite() {
            return Ok(None);
        }
        let best = candidates.best();
        let few = self.alternatives.is_some_and(|count| count.min(vocab) > best.len());
        if !self.sampling.only_lowers() || few {
            return Err(NeedsLogits);
        }
        let Workspace { drawer, certain, .. } = workspace;
        let certain = Certain::new(self, candidates, vocab, certain);
        let id = if self.sampling.temperature == 0.0 {
            certain.ranked.first().map(|candidate| candidate.id).ok_or(NeedsLogits)?
        } else {
            // The stream moves on only when the draw counts.
            let mut random = self.random.clone();
            let drawn = drawer.draw_certain(&certain, &self.sampling, random.next());
            let id = drawn.ok_or(NeedsLogits)?;
            self.random = random;
            id
        };
        self.note(id);
        let Some(count) = self.alternatives else { return Ok(Some(Token::new(id))) };
        let softmax = LogSoftmax::new(best[0].logit, f64::from(candidates.sum()));
        let chosen = best.iter().find(|candidate| candidate.id == id);
        let logit = chosen.expect("a candidate was chosen").logit;
        let alternatives = softmax.of_each(&best[..count.min(best.len())]);
        Ok(Some(Token { id, logprob: Some(softmax.at(logit)), alternatives }))
    }

    /// Notes a chosen token for the penalties to come.
    fn note(&mut self, id: u32) {
        if self.sampling.penalises() {
            *self.generated.entry(id).or_insert(0) += 1;
        }
    }

    /// Logit bias, then penalties. Few tokens are concerned; the row is copied only if any is.
    fn adjust<'a>(&self, logits: &'a [f32], copy: &'a mut Vec<f32>) -> &'a [f32] {
        let logit_bias = &self.sampling.logit_bias;
        if logit_bias.is_empty() && self.generated.is_empty() {
            return logits;
        }
        copy.clear();
        copy.extend_from_slice(logits);
        for &(id, bias) in logit_bias {
            copy[id as usize] += bias;
        }
        for (&id, &times) in &self.generated {
            copy[id as usize] = self.penalised(copy[id as usize], times);
        }
        copy
    }

    /// The same for one token's logit.
    fn adjusted(&self, id: u32, logit: f32) -> f32 {
        let biases = self.sampling.logit_bias.iter().filter(|(token, _)| *token == id);
        let biased = biases.fold(logit, |logit, (_, bias)| logit + bias);
        self.generated.get(&id).map_or(biased, |&times| self.penalised(biased, times))
    }

    /// The logit of a token that was generated `times` times.
    fn penalised(&self, logit: f32, times: u32) -> f32 {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.sampling;
        let logit =
            if logit > 0.0 { logit / repetition_penalty } else { logit * repetition_penalty };
        logit - (presence_penalty + frequency_penalty * times as f32)
    }
}

#[cfg(test)]
mod tests;

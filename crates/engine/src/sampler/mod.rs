//! Step 7: from logits to the next token.
//!
//! [`Sampling`] is what a request may ask for; a `Sampler` is one request's state (its random
//! stream and what it has generated), a `Workspace` the memory that all of them share.

mod draw;
mod logprobs;
mod random;
mod ranking;

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
};

use crate::{Error, Token};
use draw::Drawer;
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
}

impl Sampler {
    /// For checked `sampling`; `alternatives` is [`crate::Request::logprobs`].
    pub(crate) fn new(sampling: Sampling, alternatives: Option<usize>) -> Self {
        // The hasher's own keys are the standard library's source of randomness.
        let seed = sampling.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let random = Random::new(seed);
        Self { sampling, alternatives, random, generated: HashMap::new() }
    }

    /// The token after the position of `logits` [vocab]; `None` when one of them is infinite or
    /// not a number.
    pub(crate) fn next(&mut self, logits: &[f32], workspace: &mut Workspace) -> Option<Token> {
        // No early exit: this way the loop is vectorised.
        if !logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
            return None;
        }
        let Workspace { adjusted, ranking, drawer } = workspace;
        let adjusted = self.adjust(logits, adjusted);
        let id = if self.sampling.temperature == 0.0 {
            largest(adjusted)
        } else {
            drawer.draw(adjusted, &self.sampling, self.random.next(), ranking)
        };
        if self.sampling.penalises() {
            *self.generated.entry(id).or_insert(0) += 1;
        }
        let (logprob, alternatives) = match self.alternatives {
            None => (None, Vec::new()),
            Some(count) => {
                let (logprob, alternatives) = logprobs::logprobs(logits, id, count, ranking);
                (Some(logprob), alternatives)
            }
        };
        Some(Token { id, logprob, alternatives })
    }

    /// Logit bias, then penalties. Few tokens are concerned; the row is copied only if any is.
    fn adjust<'a>(&self, logits: &'a [f32], copy: &'a mut Vec<f32>) -> &'a [f32] {
        let Sampling { logit_bias, presence_penalty, frequency_penalty, .. } = &self.sampling;
        if logit_bias.is_empty() && self.generated.is_empty() {
            return logits;
        }
        copy.clear();
        copy.extend_from_slice(logits);
        for &(id, bias) in logit_bias {
            copy[id as usize] += bias;
        }
        for (&id, &times) in &self.generated {
            let logit = &mut copy[id as usize];
            let repetition = self.sampling.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            *logit -= presence_penalty + frequency_penalty * times as f32;
        }
        copy
    }
}

/// The largest logit's token, the lowest id on a tie.
fn largest(logits: &[f32]) -> u32 {
    let mut best = (0_u32, f32::NEG_INFINITY);
    for (id, &logit) in (0_u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    best.0
}

#[cfg(test)]
mod tests;

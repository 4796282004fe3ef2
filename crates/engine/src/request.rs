//! What goes over the engine's border: a [`Request`] in, [`Event`]s out. Token ids only.

use std::time::{Duration, Instant};

use crate::{Error, Sampling};

/// A generation to run.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The prompt; at least one token. Any token list may be a prompt, also one that ends in the
    /// middle of an earlier answer.
    pub prompt: Vec<u32>,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Tokens that end the generation; they are not delivered.
    pub stop_ids: Vec<u32>,
    /// Bounds on the generation.
    pub limits: Limits,
    /// With `Some(n)`, each token carries its log-probability and those of the `n` most probable
    /// tokens. At most [`crate::sampler::ALTERNATIVES_MAX`].
    pub logprobs: Option<usize>,
    /// Prompt lengths after which the state is worth keeping for later prompts: the end of a
    /// system block, the last assistant opener. The engine keeps some places of its own too.
    pub snapshot_at: Vec<usize>,
}

/// Bounds on a generation.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Most tokens to deliver; `None`: until the context is full.
    pub tokens_max: Option<usize>,
    /// When to give up, waiting time included.
    pub deadline: Option<Instant>,
}

/// What happens to a request, in order: `Queued`*, `Prefill`*, `Token`*, then one `End`.
#[derive(Debug, Clone)]
pub enum Event {
    /// The request waits; `position` requests are before it.
    Queued {
        /// Requests that come first, the running one included.
        position: usize,
    },
    /// A part of the prompt has been computed.
    Prefill {
        /// Prompt tokens that are in the state by now, reused ones included.
        done: usize,
        /// Of these, tokens whose state was reused from an earlier request.
        cached: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// One generated token.
    Token(Token),
    /// The generation is over; nothing follows.
    End {
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability in the model's own distribution (before penalties,
    /// temperature and truncation), when asked for.
    pub logprob: Option<f32>,
    /// The most probable tokens and their log-probabilities, most probable first.
    pub alternatives: Vec<(u32, f32)>,
}

impl Token {
    /// A token without probabilities.
    pub(crate) fn new(id: u32) -> Self {
        Self { id, logprob: None, alternatives: Vec::new() }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone)]
pub enum FinishReason {
    /// This token of [`Request::stop_ids`] was chosen.
    Stop(u32),
    /// [`Limits::tokens_max`] was reached.
    Length,
    /// The context is full.
    ContextFull,
    /// The caller went away, or the engine was told to stop.
    Cancelled,
    /// [`Limits::deadline`] passed.
    Deadline,
    /// The model gave a logit that is infinite or not a number.
    NotANumber,
    /// The backend failed, or the engine did.
    Failed(std::sync::Arc<Error>),
}

/// What a generation took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was reused from an earlier request.
    pub cached_tokens: usize,
    /// Tokens delivered.
    pub completion_tokens: usize,
    /// From admission to the last prompt token's logits.
    pub prefill: Duration,
    /// From there to the end.
    pub decode: Duration,
}

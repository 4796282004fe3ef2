//! What a caller asks for.

use std::time::Instant;

use serde_json::{Map, Value};

use crate::{Message, SamplingOverrides};

/// An answer to a conversation.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// The conversation so far; at least one message.
    pub messages: Vec<Message>,
    /// Tools that the model may call, each as the client declared it:
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`.
    pub tools: Vec<Value>,
    /// Whether to think before answering; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Further variables for the template.
    pub template_kwargs: Map<String, Value>,
    /// End after the first tool call.
    pub single_tool_call: bool,
    /// How to generate.
    pub options: GenerationOptions,
}

/// The continuation of a text. No template, no parsing: the output is content as it comes.
#[derive(Debug, Clone, Default)]
pub struct CompletionRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// How to generate.
    pub options: GenerationOptions,
}

/// What a completion continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text. Special tokens written in it are taken as such.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl Default for Prompt {
    fn default() -> Self {
        Prompt::Text(String::new())
    }
}

/// How to generate, for both kinds of request.
#[derive(Debug, Clone, Default)]
pub struct GenerationOptions {
    /// Sampling values that differ from the defaults.
    pub sampling: SamplingOverrides,
    /// Most tokens to generate, reasoning included; `None`: until the context is full.
    pub tokens_max: Option<usize>,
    /// Texts that end the answer. They are looked for in content only and cut away whole.
    pub stop: Vec<String>,
    /// With `Some(n)`, the log-probability of each content token and of the `n` most probable ones.
    pub logprobs: Option<usize>,
    /// When to give up, waiting time included.
    pub deadline: Option<Instant>,
}

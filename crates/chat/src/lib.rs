//! A conversation in; reasoning, content and tool calls out. Steps 2 to 8 of a request's way, and
//! the only place where text and tokens meet.
//!
//! Objects: a [`Model`] is a loaded checkpoint ready to talk: its [`ModelText`] (tokenizer, chat
//! template, the defaults that its publisher gives) and a running engine. [`Model::chat`] takes a [`ChatRequest`],
//! [`Model::complete`] a [`CompletionRequest`]; both give a [`ChatStream`], which the caller owns.
//! Dropping it cancels the generation. Callers must not know the template, the markers in the
//! model's output or which token ids stand for what.
//!
//! The command line, the exam and the server all come through here, so the same conversation
//! means the same tokens everywhere.

mod answer;
mod error;
mod files;
mod id;
mod message;
mod model;
mod places;
mod renderer;
mod request;
mod sampling;
mod stream;

pub use answer::{Answer, AnswerCall};
pub use error::ChatError;
pub use id::random_id;
pub use message::{Message, Role, ToolCall};
pub use model::{Model, ModelText};
pub use renderer::Renderer;
pub use request::{ChatRequest, CompletionRequest, GenerationOptions, Prompt};
pub use sampling::{SamplingDefaults, SamplingOverrides, SamplingSource};
pub use stream::{ChatEvent, ChatStream, Finish, TokenLogprob, TokenText, Usage};

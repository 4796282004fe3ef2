//! Words to tokens and back: steps 2, 3 and 8 of a request.
//!
//! - Step 2, [`ChatTemplate`]: messages and tools become the prompt text, as Python would render it.
//! - Step 3, [`Tokenizer`]: prompt text becomes token ids.
//! - Step 8, [`Detokenizer`]: token ids become text that is always whole characters;
//!   [`OutputParser`] splits that text into reasoning, content and tool calls;
//!   [`StopStrings`] cuts content at a stop string.
//!
//! This crate knows no tensors, no HTTP and no async runtime. Everything incremental here gives the
//! same concatenated result however its input is cut into pieces.

mod chat_template;
mod detokenizer;
mod error;
mod output_parser;
mod python;
mod reasoning;
mod stop_strings;
#[cfg(test)]
mod testing;
mod tokenizer;
mod tool_call;
mod tool_schema;

pub use chat_template::{ChatTemplate, RenderInput, find_template};
pub use detokenizer::{Detokenizer, Tail};
pub use error::TextError;
pub use output_parser::{Delta, OutputParser};
pub use stop_strings::{StopStep, StopStrings};
pub use tokenizer::Tokenizer;

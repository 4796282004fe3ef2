use std::collections::VecDeque;

use calla_engine::Token;
use calla_text::Tokenizer;

use super::ChatEvent;

/// The log-probability of a token that was chosen, and of those that were most likely.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenText,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most probable tokens, most probable first.
    pub alternatives: Vec<(TokenText, f32)>,
}

/// What a token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenText {
    /// Its text; bytes that are not whole characters show as U+FFFD.
    pub text: String,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

/// Log-probabilities of tokens whose text is not delivered yet. They leave with it: a token that a
/// stop string cuts away, or that turns out to be a tool call, is never reported as content.
pub(super) struct HeldLogprobs {
    held: VecDeque<(usize, TokenLogprob)>, // where the token's text ends, in bytes of content
    taken: usize,                          // bytes of content that tokens have brought
    released: usize,                       // bytes of content that were delivered
    skips_frame: bool,                     // newlines before the first content belong to the frame
    parsed: bool,
}

impl HeldLogprobs {
    pub(super) fn new(parsed: bool) -> Self {
        Self { held: VecDeque::new(), taken: 0, released: 0, skips_frame: parsed, parsed }
    }

    /// Notes a token that may be content, when it carries its log-probability.
    pub(super) fn add(&mut self, token: &Token, tokenizer: &Tokenizer) {
        let Some(logprob) = token.logprob else { return };
        let text = |id| token_text(id, tokenizer);
        let alternatives = token.alternatives.iter().map(|&(id, p)| (text(id), p)).collect();
        let token = TokenLogprob { token: text(token.id), logprob, alternatives };
        if self.skips_frame && token.token.bytes.iter().all(|&byte| byte == b'\n') {
            return;
        }
        self.taken += token.token.bytes.len();
        self.held.push_back((self.taken, token));
    }

    /// The tokens whose text is whole once `text` is delivered.
    pub(super) fn release(&mut self, text: &str) -> Vec<ChatEvent> {
        self.skips_frame = false;
        self.released += text.len();
        let ready = self.held.iter().take_while(|(end, _)| *end <= self.released).count();
        self.held.drain(..ready).map(|(_, token)| ChatEvent::Logprob(token)).collect()
    }

    /// The tokens since the last content were something else.
    pub(super) fn leave_content(&mut self) {
        *self = Self::new(self.parsed);
    }

    /// The answer is over: the rest belongs to what was delivered.
    pub(super) fn finish(&mut self) -> Vec<ChatEvent> {
        self.held.drain(..).map(|(_, token)| ChatEvent::Logprob(token)).collect()
    }
}

fn token_text(id: u32, tokenizer: &Tokenizer) -> TokenText {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    TokenText { text: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}

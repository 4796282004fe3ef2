//! Step 8: token ids to text, never half a character.

use std::sync::Arc;

use crate::Tokenizer;

/// Turns a stream of token ids into text as it becomes whole.
///
/// Everything returned, joined, equals `String::from_utf8_lossy` of all the pieces' bytes, however
/// characters are spread over tokens.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    held: Vec<u8>, // the start of a character, at most 3 bytes
}

/// What [`Detokenizer::finish`] does with the first bytes of a character that never became whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Leave them out: the answer was cut by a limit and the next token would have completed them.
    Withhold,
    /// Write U+FFFD for them: the model ended its answer there.
    Replace,
}

impl Detokenizer {
    /// A detokenizer at the start of an answer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, held: Vec::new() }
    }

    /// The text that `id` makes whole, often empty within a character. Special tokens give their
    /// name: skip those with [`Tokenizer::is_special`] first. An id without a piece (a padding row
    /// of the embedding) gives nothing.
    pub fn push(&mut self, id: u32) -> String {
        let piece = self.tokenizer.token_bytes(id).unwrap_or_default();
        decode_whole(&mut self.held, piece)
    }

    /// Whether the start of a character waits for its rest.
    pub fn holds_partial(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends the answer; the detokenizer is as new afterwards.
    pub fn finish(&mut self, tail: Tail) -> String {
        let partial = std::mem::take(&mut self.held);
        match tail {
            Tail::Withhold => String::new(),
            Tail::Replace => String::from_utf8_lossy(&partial).into_owned(),
        }
    }
}

/// Decodes `held` followed by `bytes`; what may still become a character stays in `held`.
fn decode_whole(held: &mut Vec<u8>, bytes: &[u8]) -> String {
    held.extend_from_slice(bytes);
    let mut text = String::with_capacity(held.len());
    let mut rest = held.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(e) => {
                let (valid, after) = rest.split_at(e.valid_up_to());
                text.push_str(std::str::from_utf8(valid).expect("checked up to this byte"));
                rest = after;
                let Some(invalid) = e.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &rest[invalid..];
            }
        }
    }
    *held = rest.to_vec();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters of one to four bytes, lone continuation bytes, overlong forms, a surrogate, a
    /// start byte that nothing follows.
    const ALPHABET: [&[u8]; 12] = [
        b"a",
        "é".as_bytes(),
        "語".as_bytes(),
        "👩🏽".as_bytes(),
        b"\x80",
        b"\xC0\xAF",
        b"\xED\xA0\x80",
        b"\xF0\x9F",
        b"\xE2\x82",
        b"\xF4\x90\x80\x80",
        b"\xFF",
        b"\n",
    ];

    #[test]
    fn any_split_equals_decoding_the_whole() {
        let mut random = crate::testing::Lcg(7);
        for _ in 0..2_000 {
            let mut bytes = Vec::new();
            for _ in 0..random.below(12) {
                bytes.extend_from_slice(ALPHABET[random.below(ALPHABET.len())]);
            }
            let (mut held, mut text) = (Vec::new(), String::new());
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(1 + random.below(rest.len().min(4)));
                text.push_str(&decode_whole(&mut held, piece));
                assert!(held.len() <= 3, "holds {held:?}");
                rest = after;
            }
            text.push_str(&String::from_utf8_lossy(&held));
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:?}");
        }
    }

    #[test]
    fn a_character_is_held_until_whole() {
        let mut held = Vec::new();
        let emoji = "🦀".as_bytes();
        for byte in &emoji[..3] {
            assert_eq!(decode_whole(&mut held, &[*byte]), "");
        }
        assert_eq!(decode_whole(&mut held, &emoji[3..]), "🦀");
        assert!(held.is_empty());
    }
}

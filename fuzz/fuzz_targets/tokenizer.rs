//! A tokenizer.json of any bytes, and two texts encoded with it.
#![no_main]

use calla_text::Tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_bytes(bytes) else { return };
    for text in ["<|im_start|>user\nWhat is 2 + 2?", "\u{0}é🦀  \n\n"] {
        for id in tokenizer.encode(text).into_iter().flatten() {
            assert!(tokenizer.token_bytes(id).is_some(), "{id}");
        }
        let _ = tokenizer.encode_ordinary(text);
    }
});

//! A tokenizer in which every byte of ordinary text is a token, so that every character beyond
//! ASCII and every marker that is not a token of its own is spread over several.

use serde_json::{Map, Value, json};

/// Ends an answer.
pub(super) const END_OF_TURN: u32 = 257;
/// Tokens in all.
pub(super) const VOCAB: usize = 264;

/// The names that the model's family uses, and whether a token is a control token.
const ADDED: [(&str, bool); 8] = [
    ("<|endoftext|>", true),
    ("<|im_end|>", true),
    ("<|im_start|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
];

/// The content of `tokenizer.json`.
pub(super) fn json() -> Vec<u8> {
    let bytes = byte_alphabet().into_iter().enumerate();
    let vocab: Map<String, Value> = bytes.map(|(id, c)| (c.to_string(), json!(id))).collect();
    let added = ADDED.iter().zip(256..).map(|((content, special), id)| {
        json!({
            "id": id, "content": content, "special": special, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    });
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    tokenizer.to_string().into_bytes()
}

/// The character that stands for each byte in byte-level vocabularies: itself when it is visible,
/// else the next one from U+0100 on.
fn byte_alphabet() -> Vec<char> {
    let visible = |byte: u32| {
        (0x21..=0x7e).contains(&byte)
            || (0xa1..=0xac).contains(&byte)
            || (0xae..=0xff).contains(&byte)
    };
    let mut stand_ins = 0x100..;
    let code = |byte: u32| match visible(byte) {
        true => byte,
        false => stand_ins.next().expect("endless"),
    };
    (0..256).map(code).map(|code| char::from_u32(code).expect("far below the surrogates")).collect()
}

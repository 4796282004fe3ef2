//! `calla tokens`.

use serde_json::json;

use crate::{args::TokensArgs, error::Error, input, model, output};

pub(crate) fn run(args: &TokensArgs) -> Result<(), Error> {
    let tokenizer = model::tokenizer(&args.model.source()?)?;
    let text = match args.text.as_str() {
        "-" => input::stdin()?,
        text => text.to_owned(),
    };
    let ids = tokenizer.encode(&text)?;
    let bytes = |id: u32| tokenizer.token_bytes(id).unwrap_or_default();
    if args.output.json {
        let pieces: Vec<String> =
            ids.iter().map(|&id| printable(bytes(id), str::to_owned)).collect();
        return output::json(&json!({"count": ids.len(), "ids": ids, "pieces": pieces}));
    }
    let line = |&id: &u32| {
        let piece = printable(bytes(id), |text| text.escape_debug().to_string());
        format!("{id:>8}  \"{piece}\"\n")
    };
    output::text(&ids.iter().map(line).collect::<String>())
}

/// A token's text; bytes that are no whole character as `\xNN`.
fn printable(bytes: &[u8], text: impl Fn(&str) -> String) -> String {
    let mut printed = String::new();
    for chunk in bytes.utf8_chunks() {
        printed.push_str(&text(chunk.valid()));
        printed.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    printed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_characters_are_shown_byte_by_byte() {
        assert_eq!(printable("é".as_bytes(), str::to_owned), "é");
        assert_eq!(printable(b"a\xe4\xbd", str::to_owned), "a\\xe4\\xbd");
    }
}

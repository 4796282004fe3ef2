//! What is looked at in a `tokenizer.json` before a library reads it: the library takes other kinds of
//! model too, and gives an added token another id than the file says without a word.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::TextError;

/// What of the file can be checked against what the library made of it.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Model,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Longest rules that are believed; those of the family have 1 kB. A few bytes of a regular
/// expression can ask for megabytes.
const RULES_BYTES_MAX: usize = 4096;

/// Refuses what is no byte-level BPE tokenizer by its own words.
pub(super) fn check(bytes: &[u8]) -> Result<File<'_>, TextError> {
    let refuse = |reason: String| Err(TextError::TokenizerFormat { reason });
    if bytes.is_empty() {
        return refuse("it is empty: fetch it again".to_owned());
    }
    let file: File<'_> = match serde_json::from_slice(bytes) {
        Ok(file) => file,
        Err(error) => {
            return refuse(format!("{error}: cut short or damaged, fetch it again"));
        }
    };
    let rules = [
        ("normalizer", file.normalizer),
        ("pre_tokenizer", file.pre_tokenizer),
        ("post_processor", file.post_processor),
        ("decoder", file.decoder),
    ];
    for (field, rules) in rules {
        let bytes = rules.map_or(0, |rules| rules.get().len());
        if bytes > RULES_BYTES_MAX {
            return refuse(format!(
                "{field} has {bytes} bytes, where {RULES_BYTES_MAX} are more than enough: copy the \
                 file from the publisher's repository of the model"
            ));
        }
    }
    match file.model.kind.as_deref() {
        None | Some("BPE") => Ok(file),
        Some(other) => refuse(format!(
            "model.type is `{other}`, where `BPE` is expected: copy the file from the publisher's \
             repository of the model"
        )),
    }
}

impl File<'_> {
    /// Whether the added tokens have the ids that the file says.
    pub(super) fn check_ids(&self, inner: &tokenizers::Tokenizer) -> Result<(), TextError> {
        for Added { id, content } in &self.added_tokens {
            let found = inner.token_to_id(content);
            if found != Some(*id) {
                let found = found.map_or("none".to_owned(), |id| id.to_string());
                let reason = format!(
                    "the added token {content:?} has the id {id} in the file, and {found} by the \
                     vocabulary: the file is damaged, fetch it again"
                );
                return Err(TextError::TokenizerFormat { reason });
            }
        }
        Ok(())
    }
}

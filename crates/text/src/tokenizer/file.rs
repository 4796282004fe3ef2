//! What is looked at in a `tokenizer.json` before a library reads it: the library takes other kinds of
//! model too, and gives an added token another id than the file says without a word.

use std::collections::HashMap;

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::TextError;

/// What of the file can be checked against what the library made of it.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(borrow)]
    model: Model<'a>,
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
struct Model<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(borrow)]
    vocab: Option<&'a RawValue>,
    #[serde(borrow)]
    merges: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String), // "a b"
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
                "{field} has {bytes} bytes, where {RULES_BYTES_MAX} are more than enough: {ADVICE}"
            ));
        }
    }
    file.model.check().map_or_else(|reason| refuse(format!("{reason}: {ADVICE}")), |()| Ok(file))
}

const ADVICE: &str = "copy the file from the publisher's repository of the model";

impl Model<'_> {
    /// Refuses other kinds of model, and what makes the library take a text apart by chance, or fail.
    fn check(&self) -> Result<(), String> {
        let kind = self.kind.as_deref().unwrap_or("BPE");
        if kind != "BPE" {
            return Err(format!("model.type is `{kind}`, where `BPE` is expected"));
        }
        let affixes = [
            ("continuing_subword_prefix", &self.continuing_subword_prefix),
            ("end_of_word_suffix", &self.end_of_word_suffix),
        ];
        for (field, affix) in affixes {
            if affix.as_ref().is_some_and(|affix| !affix.is_empty()) {
                return Err(format!("model.{field} is not empty, as in a byte-level tokenizer"));
            }
        }
        if self.dropout.is_some_and(|dropout| dropout != 0.0) {
            return Err(
                "model.dropout is set: the same text would give other tokens each time".into()
            );
        }
        self.check_merges()
    }

    /// What merges make must be in the vocabulary; the library counts on nothing being longer.
    fn check_merges(&self) -> Result<(), String> {
        let vocab: HashMap<String, IgnoredAny> = read("model.vocab", self.vocab)?;
        let merges: Vec<Merge> = read("model.merges", self.merges)?;
        let longest = vocab.keys().map(String::len).max().unwrap_or(0);
        let made = |merge: &Merge| match merge {
            Merge::Pair(a, b) => a.len() + b.len(),
            Merge::Joined(pair) => pair.len().saturating_sub(1),
        };
        match merges.iter().position(|merge| made(merge) > longest) {
            None => Ok(()),
            Some(index) => {
                Err(format!("model.merges[{index}] makes a longer token than any of model.vocab"))
            }
        }
    }
}

fn read<'a, T: Deserialize<'a>>(field: &str, value: Option<&'a RawValue>) -> Result<T, String> {
    let value = value.ok_or_else(|| format!("{field} is missing"))?;
    serde_json::from_str(value.get()).map_err(|error| format!("{field}: {error}"))
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

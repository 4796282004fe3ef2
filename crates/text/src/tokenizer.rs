//! Step 3: text to token ids, and the bytes each id stands for.

use std::collections::HashMap;
use std::path::Path;

use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer,
};

use crate::TextError;

mod file;

/// A byte-level BPE tokenizer read from a `tokenizer.json`.
///
/// It adds nothing on its own (no begin-of-text token, no padding, no truncation): the chat template
/// writes every marker the model expects. Share it behind an `Arc`; it is immutable.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: PieceTable,
}

impl Tokenizer {
    /// Reads `tokenizer.json` from a file.
    ///
    /// # Errors
    /// [`TextError::TokenizerRead`] when the file cannot be read, else as [`Tokenizer::from_bytes`].
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let bytes = std::fs::read(path)
            .map_err(|source| TextError::TokenizerRead { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes)
    }

    /// Reads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::TokenizerFormat`] when the bytes do not parse, or the vocabulary is not
    /// byte-level (then pieces have no exact bytes and text could not be streamed safely).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        let file = file::check(bytes)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|e| TextError::TokenizerFormat { reason: e.to_string() })?;
        if !matches!(inner.get_model(), ModelWrapper::BPE(_)) {
            let reason = "model is no BPE model".to_owned();
            return Err(TextError::TokenizerFormat { reason });
        }
        file.check_ids(&inner)?;
        // A file may carry training-time settings that would shorten or pad prompts unseen.
        inner
            .with_truncation(None)
            .map_err(|e| TextError::TokenizerFormat { reason: e.to_string() })?;
        inner.with_padding(None);
        let pieces = PieceTable::new(&inner)?;
        Ok(Self { inner, pieces })
    }

    /// Token ids of `text`; special tokens written out in it become their ids.
    ///
    /// # Errors
    /// [`TextError::Encode`] when the file's own rules fail on this text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, false).map_err(encode_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of `text` with special tokens taken as plain text: for words that must never
    /// steer the model, whoever wrote them.
    ///
    /// # Errors
    /// [`TextError::Encode`] when the file's own rules fail on this text.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, TextError> {
        // The stages are run by hand because the library's own switch leaves out added tokens that
        // are not marked special, `<think>` and `<tool_call>` among them.
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.inner.get_normalizer() {
            normalizer.normalize(&mut normalized).map_err(encode_error)?;
        }
        let mut words = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words).map_err(encode_error)?;
        }
        let model = self.inner.get_model();
        words.tokenize(|word| model.tokenize(word.get())).map_err(encode_error)?;
        let encoding = words.into_encoding(None, 0, OffsetType::None).map_err(encode_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The bytes `id` stands for, not necessarily whole characters; a special token gives its name.
    /// `None` for an id the tokenizer does not know, such as the padding rows of an embedding.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.bytes_of(id)
    }

    /// Whether `id` is a control token (`<|im_end|>`), whose name is not part of any visible text.
    /// Tokens that frame reasoning and tool calls are not: they are text to the output parser.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.special.binary_search(&id).is_ok()
    }

    /// A number of tokens that no text of `bytes` bytes can stay below. Cheap, and far below what
    /// ordinary text has: it tells which texts are not worth encoding.
    pub fn tokens_min(&self, bytes: usize) -> usize {
        let token_bytes_max = self.pieces.bytes_max().saturating_mul(NORMALIZED_SHRINK_MAX);
        bytes.div_ceil(token_bytes_max.max(1))
    }

    /// The id of a token by its name as the file writes it: `"<|im_end|>"`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// One more than the highest id known. The model's logits may be wider (padding).
    pub fn vocab_size(&self) -> usize {
        self.pieces.spans.len()
    }
}

/// Composing characters (NFC) makes a text at most three times shorter; one more to be safe.
const NORMALIZED_SHRINK_MAX: usize = 4;

/// The bytes of every piece, end to end in one buffer.
#[derive(Debug)]
struct PieceTable {
    bytes: Vec<u8>,
    spans: Vec<Option<(u32, u32)>>, // [vocab] start and end in `bytes`; None: no such id
    special: Vec<u32>,              // sorted ids
    longest: usize,                 // bytes; usize::MAX when a token takes the blanks around it
}

/// A file of few tokens cannot ask for much memory: of its ids at least one in this many is used.
const IDS_PER_TOKEN_MAX: usize = 16;

/// Ids that are always good.
const IDS_FREE: usize = 4096;

impl PieceTable {
    fn new(inner: &tokenizers::Tokenizer) -> Result<Self, TextError> {
        let byte_of = byte_level_alphabet();
        let added = inner.get_added_tokens_decoder();
        let mut table =
            Self { bytes: Vec::new(), spans: Vec::new(), special: Vec::new(), longest: 0 };
        let vocabulary = inner.get_vocab(false);
        let ids_max = IDS_FREE + IDS_PER_TOKEN_MAX * (vocabulary.len() + added.len());
        for (piece, id) in vocabulary {
            if added.contains_key(&id) {
                continue;
            }
            let start = table.bytes.len();
            for c in piece.chars() {
                let byte = byte_of.get(&c).ok_or_else(|| TextError::TokenizerFormat {
                    reason: format!(
                        "token {id} {piece:?} holds {c:?}, which is outside the byte-level \
                         alphabet; only byte-level vocabularies are supported"
                    ),
                })?;
                table.bytes.push(*byte);
            }
            table.close_piece(id, start, ids_max)?;
        }
        for (id, token) in added {
            let start = table.bytes.len();
            table.bytes.extend_from_slice(token.content.as_bytes());
            table.close_piece(id, start, ids_max)?;
            if token.lstrip || token.rstrip {
                table.longest = usize::MAX;
            }
            if token.special {
                table.special.push(id);
            }
        }
        table.special.sort_unstable();
        Ok(table)
    }

    fn close_piece(&mut self, id: u32, start: usize, ids_max: usize) -> Result<(), TextError> {
        if id as usize >= ids_max {
            let reason = format!(
                "token id {id} is far above the number of tokens: the file is damaged, fetch it again"
            );
            return Err(TextError::TokenizerFormat { reason });
        }
        let span = u32::try_from(start).ok().zip(u32::try_from(self.bytes.len()).ok());
        let span = span.ok_or_else(|| TextError::TokenizerFormat {
            reason: "the vocabulary holds more than 4 GiB of text".to_owned(),
        })?;
        self.longest = self.longest.max(self.bytes.len() - start);
        let index = id as usize;
        if self.spans.len() <= index {
            self.spans.resize(index + 1, None);
        }
        if self.spans[index].replace(span).is_some() {
            let reason =
                format!("two tokens have the id {id}: the file is damaged, fetch it again");
            return Err(TextError::TokenizerFormat { reason });
        }
        Ok(())
    }

    fn bytes_max(&self) -> usize {
        self.longest
    }

    fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        let (start, end) = (*self.spans.get(id as usize)?)?;
        Some(&self.bytes[start as usize..end as usize])
    }
}

/// The printable stand-in of each byte in a byte-level vocabulary (GPT-2, `bytes_to_unicode`):
/// visible Latin-1 characters stand for themselves, the others follow from U+0100 on.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            let visible = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if visible {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).expect("codes stay below U+0200"), byte)
        })
        .collect()
}

fn encode_error(e: tokenizers::Error) -> TextError {
    TextError::Encode { reason: e.to_string() }
}

use std::path::PathBuf;

/// What can go wrong between words and tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer file could not be read.
    #[error("cannot read tokenizer file {}: {source}", path.display())]
    TokenizerRead {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are no `tokenizer.json` of a kind this crate can use.
    #[error("tokenizer.json is not usable: {reason}")]
    TokenizerFormat {
        /// What is wrong, with the place.
        reason: String,
    },
    /// A text could not be turned into token ids.
    #[error("cannot tokenize the text: {reason}")]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
    /// The chat template is no valid Jinja.
    #[error("chat template does not compile: {reason}")]
    TemplateSyntax {
        /// What is wrong, with the line.
        reason: String,
    },
    /// The template itself refused the conversation with `raise_exception`: the caller's messages
    /// are at fault and `message` is meant for whoever sent them.
    #[error("the chat template refused the conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// Rendering failed inside the template.
    #[error("chat template failed: {reason}")]
    TemplateRender {
        /// What is wrong, with the line.
        reason: String,
    },
    /// A checkpoint's template entry cannot be used.
    #[error("chat template not usable: {reason}")]
    TemplateSource {
        /// What was found and what is expected.
        reason: String,
    },
}

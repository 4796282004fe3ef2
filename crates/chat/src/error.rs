/// Everything that can go wrong between a conversation and its answer.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// A file of the checkpoint that text needs is missing.
    #[error("{file} is missing from the checkpoint: {advice}")]
    MissingFile {
        /// Name of the file.
        file: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A file of the checkpoint cannot be used.
    #[error("{file}: {problem}")]
    BadFile {
        /// Name of the file.
        file: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A request with a field that cannot be honoured.
    #[error("`{field}`: {problem}")]
    Request {
        /// Name of the field.
        field: &'static str,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// A prompt so long that it was not even encoded.
    #[error(
        "the prompt has at least {prompt_tokens_min} tokens, the context holds {context_tokens}: \
         shorten it, or raise the context limit"
    )]
    PromptTooLong {
        /// Tokens that a prompt of its length cannot stay below.
        prompt_tokens_min: usize,
        /// Tokens that a sequence may hold here.
        context_tokens: usize,
    },
    /// Rendering the conversation or encoding the prompt failed.
    #[error(transparent)]
    Text(#[from] calla_text::TextError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] calla_engine::Error),
}

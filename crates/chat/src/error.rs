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
    /// Rendering the conversation or encoding the prompt failed.
    #[error(transparent)]
    Text(#[from] calla_text::TextError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] calla_engine::Error),
}

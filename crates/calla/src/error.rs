use std::{
    io,
    path::{Path, PathBuf},
};

/// Everything that can go wrong in a command, with the place, the values and the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The engine or its checkpoint.
    #[error(transparent)]
    Engine(#[from] calla_engine::Error),
    /// The conversation, its template or its tokens.
    #[error(transparent)]
    Chat(#[from] calla_chat::ChatError),
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] calla_text::TextError),
    /// The server.
    #[error(transparent)]
    Server(#[from] calla_server::Error),
    /// A prompt that cannot be answered.
    #[error("the prompt {problem}")]
    Prompt { problem: String },
    /// An input that cannot be read.
    #[error("{input}: {problem}")]
    Input { input: &'static str, problem: String },
    /// An answer that the engine could not finish.
    #[error("the answer failed: {problem}")]
    Answer { problem: String },
    /// An item of the exam that could not be put to the model or not be answered.
    #[error("item {id}: {problem}")]
    Item { id: String, problem: String },
    /// The exam was failed.
    #[error("marks missed: {missed}")]
    Marks { missed: String },
    /// Threads for the answer could not be started.
    #[error("cannot start threads: {0}")]
    Runtime(io::Error),
    /// A file that the user named.
    #[error("{path}: {problem}", path = path.display())]
    File { path: PathBuf, problem: String },
    /// The hub, a model there, or one of its files.
    #[error("{subject}: {problem}")]
    Hub { subject: String, problem: String },
    /// An environment variable that has no flag.
    #[error("{variable}: {problem}")]
    Environment { variable: &'static str, problem: String },
    /// A flag whose value does not fit the model or the machine.
    #[error("--{flag}: {problem}")]
    Flag { flag: &'static str, problem: String },
    /// A model or a context for which there is not enough memory.
    #[error(
        "{subject} needs {need}, and a model may take {room} of the memory that is free: \
         {way_out}; --no-memory-check loads it all the same"
    )]
    Memory { subject: String, need: String, room: String, way_out: String },
    /// Something that `calla doctor` found.
    #[error("{problems}")]
    Unwell { problems: String, concerns_files: bool },
    /// The model gave something that is not a number.
    #[error("the logits at position {position} are not all numbers: the checkpoint may be damaged")]
    NotANumber { position: usize },
    /// Repetitions of a benchmark generated different tokens.
    #[error(
        "context {context}: repetitions generated different tokens (digests {digests}): the \
         backend is not deterministic, so its speed means nothing"
    )]
    Digest { context: usize, digests: String },
    /// Flags, variables or a config file that were to be shown.
    #[error(transparent)]
    Settings(#[from] crate::settings::Error),
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// What the operating system said about a file or folder.
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        let problem = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("{error}: make room and run it again")
            }
            _ => error.to_string(),
        };
        Self::File { path: path.to_owned(), problem }
    }

    /// Whether it may be about the model's files: then it helps to know who chose the model.
    pub(crate) fn concerns_files(&self) -> bool {
        match self {
            Error::Chat(error) => !matches!(error, calla_chat::ChatError::Request { .. }),
            Error::Engine(_)
            | Error::Text(_)
            | Error::Server(calla_server::Error::Load(_))
            | Error::File { .. }
            | Error::Hub { .. }
            | Error::Memory { .. } => true,
            Error::Unwell { concerns_files, .. } => *concerns_files,
            _ => false,
        }
    }

    /// Whether the reader of stdout has gone away.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

use std::{io, path::PathBuf};

use crate::backend::{SequenceId, SnapshotId};

/// Everything that can go wrong in this crate, with the place, the values and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be opened, read or mapped.
    #[error("{path}: {source}{advice}", path = path.display(), advice = advice(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A field of config.json is missing, of the wrong type, or contradicts another.
    #[error("{path}: field `{field}`: {problem}", path = path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// Dotted path of the field, as in `text_config.hidden_size`.
        field: String,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// A file of the checkpoint is not what its format demands.
    #[error("{path}: {problem}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A tensor is missing, unknown, or of the wrong dtype or shape.
    #[error("{path}: tensor `{tensor}`: {problem}", path = path.display())]
    Tensor {
        /// The file that holds it, or the checkpoint's folder when it is missing.
        path: PathBuf,
        /// Full tensor name.
        tensor: String,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// A device or a feature of it cannot be used here.
    #[error("backend `{backend}`: {problem}")]
    BackendUnavailable {
        /// Name given to `--backend`.
        backend: String,
        /// What is missing and what to do.
        problem: String,
    },
    /// A device failed at something that it should be able to do: its driver, its compiler or the
    /// work on it. What it holds may be lost.
    #[error("backend `{backend}`: {action}: {problem}")]
    Device {
        /// Name of the backend.
        backend: &'static str,
        /// What was tried.
        action: String,
        /// What the driver or compiler said.
        problem: String,
    },
    /// The memory for a sequence cannot be had.
    #[error("no memory for {bytes} bytes of {purpose}: close sequences or lower the context limit")]
    OutOfMemory {
        /// What was asked of the operating system.
        bytes: usize,
        /// What it was for.
        purpose: &'static str,
    },
    /// A sequence handle that was never opened or is closed.
    #[error("{0:?} is not open")]
    UnknownSequence(SequenceId),
    /// A snapshot handle that was never taken or is released.
    #[error("{0:?} does not exist")]
    UnknownSnapshot(SnapshotId),
    /// A batch that no forward pass can run.
    #[error("batch row {row}: {problem}")]
    Batch {
        /// Index of the row.
        row: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A prompt that leaves no room for an answer.
    #[error(
        "the prompt has {prompt_tokens} tokens, the context holds {context_tokens}: shorten it, or \
         raise the context limit"
    )]
    ContextExceeded {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// Tokens that a sequence may hold here.
        context_tokens: usize,
    },
    /// A request with a field that cannot be honoured.
    #[error("request field `{field}`: {problem}")]
    Request {
        /// Name of the field.
        field: &'static str,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// A field of [`crate::EngineConfig`] that cannot be honoured.
    #[error("engine setting `{field}`: {problem}")]
    Engine {
        /// Name of the field.
        field: &'static str,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// The engine's thread panicked, which is a bug in it or in the backend, or its device was lost.
    #[error("the engine failed and must be restarted: {message}")]
    EngineFailed {
        /// What the panic or the device said.
        message: String,
    },
    /// More requests wait than the engine accepts.
    #[error("{waiting} requests wait already: try again later")]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
    },
    /// The engine is stopping or its thread has ended.
    #[error("the engine takes no more requests")]
    ShuttingDown,
}

/// What to do where the system's words do not say it.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        // With a number of its own it is the system's; else it says more already.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            if error.raw_os_error().is_some() =>
        {
            ": make room and run it again"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_the_way_out() {
        for (source, ending) in [
            (io::Error::from_raw_os_error(libc::ENOSPC), "make room and run it again"),
            (io::Error::new(io::ErrorKind::StorageFull, "all full"), "out: all full"),
            (io::Error::from_raw_os_error(libc::EISDIR), "(os error 21)"),
        ] {
            let message = Error::Io { path: "out".into(), source }.to_string();
            assert!(message.ends_with(ending), "{message}");
        }
    }
}

//! The border between the engine and a device.
//!
//! Objects: a *backend* holds one model's weights on one device. A *sequence* is one token
//! history with all that the model remembers of it (KV pages, DeltaNet and convolution states);
//! the backend owns that memory, the engine holds a [`SequenceId`]. A *snapshot* is a frozen
//! sequence: it can be restored any number of times and never moves.
//!
//! The engine must not know how states are laid out, on which device they lie, or which kernels
//! run. A backend must not know why a sequence is opened or dropped.

mod batch;
mod candidates;
pub mod cpu;
pub mod cuda;
mod histories;
pub mod profile;
pub mod reference;
pub mod select;
mod self_test;

pub use batch::{Batch, Logits, Row, Scores, Wants};
pub use candidates::{CANDIDATES_MAX, Candidate, Candidates, SUM_ERROR};
pub use self_test::KernelCheck;

use self::profile::Profile;
use crate::{Error, model::Shape};

/// Handle of an open sequence. Never used twice by one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Handle of a snapshot. Never used twice by one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u64);

/// How the activations are held while they are multiplied with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// What docs/numerics.md gives for the device: as fast as its accuracy allows.
    #[default]
    Default,
    /// float32 everywhere, KV cache included: proves the wiring.
    Exact,
}

/// What a backend can be told when it is made.
#[derive(Debug, Clone, Default)]
pub struct BackendOptions {
    /// Precision of the activations.
    pub precision: Precision,
    /// Worker threads, or as many as the cores and the cgroup quota allow.
    pub threads: Option<usize>,
}

/// Memory that a sequence takes, in bytes; what [`Backend::bytes_for`] predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceBytes {
    /// DeltaNet and convolution states: the same at every length. A snapshot copies this part.
    pub state: usize,
    /// KV pages for the asked number of tokens. Forks and snapshots share full pages.
    pub kv: usize,
}

/// Memory that a model takes on a device besides its weights, known before it is put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Intermediate results of forward passes, taken when the backend is made.
    pub scratch: usize,
    /// One sequence: what [`Backend::bytes_for`] will say.
    pub sequence: SequenceBytes,
    /// Type of a cached key or value: `float16` or `float32`.
    pub kv_dtype: &'static str,
}

impl Footprint {
    /// All of it, in bytes.
    pub fn total(&self) -> usize {
        self.scratch.saturating_add(self.sequence.state).saturating_add(self.sequence.kv)
    }
}

/// What [`Backend::logits_row`] says where it has nothing.
const NO_CANDIDATES: &str = "the last pass gave no candidates of it";

/// One model on one device.
///
/// All calls come from one thread at a time. A failed call leaves every sequence as it was,
/// except that the sequences of a failed [`Backend::forward`] may only be closed.
pub trait Backend: Send {
    /// One line for people: device, instruction set, threads, precision.
    fn description(&self) -> String;

    /// The model's dimensions.
    fn shape(&self) -> &Shape;

    /// Most tokens that one [`Backend::forward`] takes, all rows together.
    fn batch_tokens_max(&self) -> usize;

    /// Prompt tokens in one [`Backend::forward`] that are well used, and over within a few seconds:
    /// nobody is answered, and nobody who has left is noticed, before it ends.
    fn prefill_chunk_tokens(&self) -> usize {
        256
    }

    /// Bytes that the device moves in a second, read and written together, measured now: what bounds
    /// decoding. `None` where the device shares the machine's memory.
    fn memory_bytes_s(&mut self) -> Option<f64> {
        None
    }

    /// Waits until all is done that the start has left to the background, such as bringing the weights
    /// into memory. Nothing needs it but who measures.
    fn settle(&mut self) {}

    /// An empty sequence that may grow to `context_tokens`.
    ///
    /// Address space or page tables for that many tokens are set up here; pages are taken as the
    /// sequence grows.
    ///
    /// # Errors
    /// [`Error::Request`] when `context_tokens` is more than the model's `context_max`
    /// ([`Shape::check_context`]), or no memory.
    fn open(&mut self, context_tokens: usize) -> Result<SequenceId, Error>;

    /// Gives the sequence's memory back.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    fn close(&mut self, sequence: SequenceId) -> Result<(), Error>;

    /// A second sequence with the same history: full KV pages are shared, states copied.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], or no memory.
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error>;

    /// Freezes the sequence as it is now.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], or no memory.
    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, Error>;

    /// A sequence that continues from the snapshot, which stays.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`], or no memory.
    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, Error>;

    /// Gives a snapshot's memory back.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`].
    fn release(&mut self, snapshot: SnapshotId) -> Result<(), Error>;

    /// Tokens in the sequence so far.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    fn len(&self, sequence: SequenceId) -> Result<usize, Error>;

    /// Predicts what a sequence of `tokens` tokens takes.
    fn bytes_for(&self, tokens: usize) -> SequenceBytes;

    /// Appends each row's tokens to its sequence and computes the logits that the rows want, or
    /// their [`Candidates`] where these will do ([`Batch::wants_candidates`]).
    ///
    /// The result is a pure function of each sequence's tokens: batch mates, chunking and thread
    /// count change no bit on reference and cpu. Once warm, this allocates nothing (the reference
    /// aside, which is there to be read).
    ///
    /// # Errors
    /// Those of [`Batch::check`], before any sequence is touched.
    fn forward(&mut self, batch: &Batch<'_>, logits: &mut Logits) -> Result<(), Error>;

    /// Writes the logits `[vocab]` of a row of which the last [`Backend::forward`] gave candidates:
    /// for whoever finds that they do not say enough. Rows count as in its [`Logits`].
    ///
    /// # Errors
    /// [`Error::Batch`] when it gave no candidates of such a row, or the device fails.
    fn logits_row(&mut self, row: usize, logits: &mut [f32]) -> Result<(), Error> {
        let _ = logits;
        Err(Error::Batch { row, problem: NO_CANDIDATES.into() })
    }

    /// Notes from now on where the time of [`Backend::forward`] goes, which makes it a little
    /// slower.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] of a backend that cannot.
    fn start_profile(&mut self) -> Result<(), Error> {
        Err(Error::BackendUnavailable {
            backend: self.description(),
            problem: "it does not measure where its time goes: choose another".into(),
        })
    }

    /// Ends that and says what was measured; nothing when it was not started.
    fn end_profile(&mut self) -> Option<Profile> {
        None
    }
}

//! Stage `head`: logits of the rows that want them, or what it takes to choose tokens.

#[cfg(all(
    test,
    feature = "cuda-emulator",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests;

use super::{
    arena::Arena,
    device::{Address, Kernel},
    pass::Pass,
    weights::DeviceWeights,
};
use crate::{
    Error,
    backend::{
        CANDIDATES_MAX, Candidates,
        profile::{Op, Stage},
    },
};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("head.cu");

/// Its kernels.
pub(super) const KERNELS: [&str; 2] = ["candidate_chunks", "candidates"];

/// Logits of a chunk, and chunks of a block: `CHUNK` and `CHUNK_WARPS` of the kernel file.
const CHUNK: usize = 256;
const CHUNK_WARPS: usize = 8;

/// Chunks that a warp looks through: `VISITS`.
const VISITS: usize = 2;

/// Bytes of a chunk's `ChunkSums`.
const CHUNK_BYTES: usize = 16;

/// Of stage `head`, besides the products.
pub(super) struct HeadKernels {
    chunks: Kernel,
    candidates: Kernel,
}

impl HeadKernels {
    /// In the order of [`KERNELS`].
    pub(super) fn new(kernels: &[Kernel]) -> Self {
        Self { chunks: kernels[0], candidates: kernels[1] }
    }
}

/// Of stage `head`.
pub(super) struct HeadScratch {
    pub(super) logits: Address,     // [rows, vocab]
    pub(super) candidates: Address, // [rows] Candidates
    chunks: Address,                // [rows, chunks] ChunkSums
}

impl HeadScratch {
    /// Room for the logits of `rows` rows, each `vocab` long.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn new(memory: &mut Arena, rows: usize, vocab: usize) -> Result<Self, Error> {
        Ok(Self {
            logits: memory.words(rows * vocab.next_multiple_of(super::dimensions::TILE_OUTPUTS))?,
            candidates: memory.bytes_of(rows * size_of::<Candidates>())?,
            chunks: memory.bytes_of(rows * chunks(vocab) * CHUNK_BYTES)?,
        })
    }
}

impl Pass<'_> {
    /// Logits of the wanted rows from `first` on, `rows` of them.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn head(
        &self,
        weights: &DeviceWeights,
        first: usize,
        rows: usize,
    ) -> Result<(), Error> {
        self.enter(Stage::Head);
        self.norm_rows(self.plan.pick.plus(4 * first).into(), rows, weights.norm)?;
        self.project(
            Op::Logits,
            &weights.head,
            self.scratch.normed,
            rows,
            self.scratch.head.logits,
            self.shape.vocab,
        )
    }

    /// Candidates of the first `rows` wanted rows, from their logits.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn candidates(&self, rows: usize) -> Result<(), Error> {
        let (kernels, scratch) = (&self.kernels.head, &self.scratch.head);
        let vocab = self.shape.vocab;
        let inputs = [scratch.logits.into(), self.plan.temperatures.into(), scratch.chunks.into()];
        let grid = [chunks(vocab).div_ceil(CHUNK_WARPS), rows, 1];
        self.launch(Op::Candidates, kernels.chunks, grid, CHUNK_WARPS * 32, 0, &inputs)?;
        let [logits, temperatures, chunks] = inputs;
        let arguments = [logits, temperatures, chunks, scratch.candidates.into()];
        self.launch(
            Op::Candidates,
            kernels.candidates,
            [rows, 1, 1],
            merge_threads(vocab),
            0,
            &arguments,
        )
    }
}

/// `CHUNKS` of the kernel file.
fn chunks(vocab: usize) -> usize {
    vocab.div_ceil(CHUNK)
}

/// `MERGE_THREADS` of the kernel file.
fn merge_threads(vocab: usize) -> usize {
    chunks(vocab).min(CANDIDATES_MAX).div_ceil(VISITS) * 32
}

/// Logits as the bytes that they are copied into.
pub(super) fn logit_bytes(logits: &mut [f32]) -> &mut [u8] {
    let len = size_of_val(logits);
    // SAFETY: the same memory, alone as long as the borrow; any bytes are floats.
    unsafe { std::slice::from_raw_parts_mut(logits.as_mut_ptr().cast(), len) }
}

/// Candidates as the bytes that they are copied into.
pub(super) fn candidate_bytes(candidates: &mut [Candidates]) -> &mut [u8] {
    let len = size_of_val(candidates);
    // SAFETY: the same memory, alone as long as the borrow; they are laid out as C does, numbers of
    // four bytes side by side, of which any bytes make some.
    unsafe { std::slice::from_raw_parts_mut(candidates.as_mut_ptr().cast(), len) }
}

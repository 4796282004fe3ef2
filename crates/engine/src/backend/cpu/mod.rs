//! The CPU backend: the default everywhere.
//!
//! Weights are used where the checkpoint is mapped; activations are laid out to suit them. A
//! forward pass is a chain of *stages* (`embed`, `delta_net`, `attention`, `moe` or `mlp`,
//! `head`: one file each), each a few jobs for the thread pool. `kernels` holds the inner loops
//! for each instruction set and knows neither sequences nor threads.
//!
//! Objects: `Pool` runs jobs. `Sequences` owns page tables, KV pages and recurrent states.
//! `Scratch` owns every intermediate result. `Pass` is what the stages of one forward pass share.
//!
//! Every sum has one order that depends on the model's dimensions alone, so the same tokens give
//! the same bits in any chunk of any batch with any number of threads: products sum along their
//! inputs, attention along spans anchored at absolute positions, experts in a token's own order.

mod attention;
mod clock;
mod delta_net;
mod embed;
mod forward;
mod head;
pub mod kernels;
mod kv;
mod math;
mod memory;
mod mlp;
mod moe;
mod pass;
mod pool;
mod residency;
mod rope;
mod scratch;
mod shared;
mod support;

use self::{
    kernels::Kernels, memory::HostMemory, pool::Pool, residency::Residency, scratch::Scratch,
};
use super::{
    Backend, BackendOptions, Batch, Footprint, Logits, Precision, SequenceBytes, SequenceId,
    SnapshotId,
    histories::{KvLayout, Sequences as Histories, StateLayout, bytes_for},
    profile::Profile,
};
use crate::{
    Error,
    model::{Shape, Weights},
};

/// The open and frozen histories of this backend.
type Sequences = Histories<HostMemory>;

/// Most tokens in one forward pass: enough rows for an expert's weights to be worth unpacking,
/// while the intermediate results stay near 150 MB for the 35B model.
const BATCH_TOKENS_MAX: usize = 512;

/// One model on this machine's cores.
pub struct Cpu {
    shape: Shape,
    weights: Weights,
    precision: Precision,
    kernels: &'static Kernels,
    pool: Pool,
    sequences: Sequences,
    scratch: Scratch,
    residency: Residency,
}

impl Cpu {
    /// A backend for `weights`, whose dimensions are `shape`'s.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when the operating system refuses the threads, or the model
    /// has a dimension that no kernel takes.
    pub fn new(shape: Shape, weights: Weights, options: &BackendOptions) -> Result<Self, Error> {
        support::check(&shape, &weights)?;
        let precision = options.precision;
        let pool = Pool::new(options.threads)
            .map_err(|error| unavailable(format!("cannot start its threads: {error}")))?;
        let (kv, state) = (KvLayout::new(&shape, precision), StateLayout::new(&shape));
        let memory = HostMemory::new(&kv, &state);
        Ok(Self {
            precision,
            kernels: Kernels::detect()?,
            sequences: Sequences::new(kv, state, memory),
            scratch: Scratch::new(&shape, &weights, precision, BATCH_TOKENS_MAX, pool.workers()),
            residency: Residency::start(&weights),
            pool,
            shape,
            weights,
        })
    }
}

/// Whether this processor and the kernels take the model.
///
/// # Errors
/// [`Error::BackendUnavailable`] with the dimension, or for a `CALLA_SIMD` that cannot be had.
pub(super) fn check(shape: &Shape, weights: &Weights) -> Result<(), Error> {
    support::check(shape, weights)?;
    Kernels::detect().map(drop)
}

/// Memory that a [`Cpu`] will take, one sequence of `tokens` tokens included.
pub(super) fn footprint(shape: &Shape, options: &BackendOptions, tokens: usize) -> Footprint {
    let precision = options.precision;
    let workers = options.threads.unwrap_or_else(pool::threads_allowed).max(1);
    let kv = KvLayout::new(shape, precision);
    Footprint {
        scratch: Scratch::bytes(shape, precision, BATCH_TOKENS_MAX, workers),
        sequence: bytes_for(&kv, &StateLayout::new(shape), tokens),
        kv_dtype: kv.dtype(),
    }
}

impl Backend for Cpu {
    fn description(&self) -> String {
        let threads = self.pool.workers();
        let plural = if threads == 1 { "" } else { "s" };
        let activations = match self.precision {
            Precision::Default => "int16",
            Precision::Exact => "float32",
        };
        format!("cpu ({}, {threads} thread{plural}, {activations} activations)", self.kernels.name)
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn batch_tokens_max(&self) -> usize {
        BATCH_TOKENS_MAX
    }

    fn settle(&mut self) {
        self.residency.wait();
    }

    fn open(&mut self, context_tokens: usize) -> Result<SequenceId, Error> {
        self.shape.check_context(context_tokens)?;
        self.sequences.open(context_tokens)
    }

    fn close(&mut self, sequence: SequenceId) -> Result<(), Error> {
        self.sequences.close(sequence)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error> {
        self.sequences.fork(sequence)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, Error> {
        self.sequences.snapshot(sequence)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, Error> {
        self.sequences.restore(snapshot)
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), Error> {
        self.sequences.release(snapshot)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, Error> {
        Ok(self.sequences.history(self.sequences.index(sequence)?).len)
    }

    fn bytes_for(&self, tokens: usize) -> SequenceBytes {
        self.sequences.bytes_for(tokens)
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut Logits) -> Result<(), Error> {
        self.sequences.check(batch, self.shape.vocab, BATCH_TOKENS_MAX)?;
        self.sequences.grow(batch)?;
        let out = logits.resize(batch.logit_rows(), self.shape.vocab);
        self.run(batch, out);
        Ok(())
    }

    fn start_profile(&mut self) -> Result<(), Error> {
        self.pool.start_profile();
        Ok(())
    }

    fn end_profile(&mut self) -> Option<Profile> {
        self.pool.end_profile()
    }
}

fn unavailable(problem: String) -> Error {
    Error::BackendUnavailable { backend: "cpu".into(), problem }
}

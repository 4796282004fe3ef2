//! The CUDA backend: kernels compiled at load with the model's dimensions as constants.
//!
//! A forward pass is a chain of launches, stage by stage (`embed`, `delta_net`, `attention`, `moe`
//! or `mlp`, `head`: one folder each, with the launcher and its kernel file side by side). A pass
//! with one new token a sequence is recorded once for each size of it and replayed as a
//! graph; what changes from step to step stands in device memory (`Plan`), not in arguments.
//!
//! Objects: `Device` is the driver, or an emulator that runs the same kernels on the CPU.
//! `Sequences` owns page tables, KV pages and recurrent states. `Scratch` owns every intermediate
//! result, `DeviceWeights` the repacked weights.
//!
//! Every sum has one order that depends on the model's dimensions and on the kind of pass (by how many
//! rows it has) alone, not on the other rows of the batch.

mod arena;
mod attention;
mod delta_net;
pub mod device;
mod dimensions;
mod embed;
mod forward;
mod head;
mod kernels;
mod matmul;
mod memory;
mod mlp;
mod moe;
mod norm;
mod pass;
mod plan;
mod profile;
mod scratch;
mod self_test;
mod support;
mod weights;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Instant,
};

pub use self::kernels::units;
use self::{
    arena::Arena,
    device::{Device, Graph, driver::Driver},
    dimensions::{Dimensions, GROUP_MIN},
    kernels::{KernelPlan, Kernels},
    memory::HistoryMemory,
    plan::{PlanSize, Planner},
    profile::{Amount, Meter, Note, Trace},
    scratch::Scratch,
    weights::DeviceWeights,
};
use super::{
    Backend, BackendOptions, Batch, Footprint, KernelCheck, Logits, NO_CANDIDATES, Precision,
    SequenceBytes, SequenceId, SnapshotId,
    histories::{KvLayout, Sequences, StateLayout, bytes_for},
    profile::Profile,
};
use crate::{
    Error,
    model::{ATTEND_FLOP, MixerKind, Shape, Weights},
};

/// Most tokens in one forward pass: experts of the 35B model get 128 rows each on average, and the
/// intermediate results stay near 1.5 GB for it.
const BATCH_TOKENS_MAX: usize = 4096;

/// Most sequences in one forward pass, and the largest recorded step.
const SEQUENCES_MAX: usize = 64;

/// One model on one CUDA device.
pub struct Cuda {
    shape: Shape,
    precision: Precision,
    device: Arc<dyn Device>,
    dimensions: Dimensions,
    kernel_plan: KernelPlan,
    chain: Chain,
    profiler: Option<Profiler>,
    weights: DeviceWeights,
    sequences: Sequences<HistoryMemory>,
    scratch: Scratch,
    planner: Planner,
    /// Rows of which the last pass gave candidates; their logits are still there.
    candidate_rows: usize,
}

/// One set of kernels, and the steps recorded with it.
struct Chain {
    kernels: Kernels,
    /// By size, and by whether they end in candidates.
    steps: HashMap<(PlanSize, bool), Step>,
}

/// A recorded step.
struct Step {
    graph: Graph,
    /// Its launches, where they are measured.
    notes: Vec<Note>,
}

/// What a profile is taken with. It is made for the first one and kept.
struct Profiler {
    chain: Chain,
    meter: Meter,
    running: bool,
}

impl Cuda {
    /// A backend for `weights`, whose dimensions are `shape`'s, on the driver's first device.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when there is no device that can run it, with what is
    /// missing; [`Error::Device`] when it fails.
    pub fn new(shape: Shape, weights: &Weights, options: &BackendOptions) -> Result<Self, Error> {
        support::check(&shape, weights)?;
        Self::on(Arc::new(Driver::open()?), shape, weights, options)
    }

    /// The same on a device that is open already.
    ///
    /// # Errors
    /// Those of [`Cuda::new`].
    pub fn on(
        device: Arc<dyn Device>,
        shape: Shape,
        weights: &Weights,
        options: &BackendOptions,
    ) -> Result<Self, Error> {
        support::check(&shape, weights)?;
        let precision = options.precision;
        let dimensions = Dimensions::new(&shape, weights, precision, device.shared_per_block());
        let (group, pieces) = (dimensions.group, dimensions.pieces);
        let rows = batch_tokens(&shape);
        let needed = weights::bytes(weights, group)
            + scratch::bytes(&shape, group, pieces, rows, SEQUENCES_MAX);
        support::check_memory(&*device, needed)?;
        let shared_per_block = device.shared_per_block();
        let kernel_plan = KernelPlan::new(&shape, weights, &dimensions, shared_per_block);
        let kernels = Kernels::compile(&*device, &kernel_plan, &shape, &dimensions, None)?;
        let memory = Arena::new(Arc::clone(&device), "intermediate results");
        let scratch = Scratch::new(memory, &shape, group, pieces, rows, SEQUENCES_MAX)?;
        let (kv, state) = (KvLayout::new(&shape, precision), state_layout(&shape));
        let memory = HistoryMemory::new(Arc::clone(&device), &kv, &state);
        Ok(Self {
            weights: DeviceWeights::load(&device, &kernels.matmul.repack, group, weights)?,
            sequences: Sequences::new(kv, state, memory),
            planner: Planner::default(),
            chain: Chain::new(kernels),
            profiler: None,
            kernel_plan,
            candidate_rows: 0,
            precision,
            shape,
            device,
            dimensions,
            scratch,
        })
    }

    /// Runs a checked batch whose sequences have their pages.
    ///
    /// Kernels may start before those in front of them have ended, and some read states and keys of
    /// earlier passes before they wait. The copy of the plan stands between two passes: it starts
    /// when the last one has ended, and the first kernel after it.
    fn run(&mut self, batch: &Batch<'_>, logits: &mut Logits) -> Result<(), Error> {
        let size = self.plan_size(batch);
        let attend = match &self.profiler {
            Some(Profiler { running: true, .. }) => self.attend_amount(batch),
            _ => Amount::default(),
        };
        let (Chain { kernels, steps }, meter) = match &mut self.profiler {
            Some(Profiler { chain, meter, running: true }) => (chain, Some(meter)),
            _ => (&mut self.chain, None),
        };
        if let Some(meter) = &meter {
            meter.begin()?;
        }
        let trace = meter.is_some().then(Trace::new);
        let plan =
            self.planner.write(batch, &self.sequences, size, &*self.device, self.scratch.plan)?;
        let pass = pass::Pass {
            device: &*self.device,
            shape: &self.shape,
            dimensions: &self.dimensions,
            kernels,
            scratch: &self.scratch,
            plan,
            trace: trace.as_ref(),
        };
        let (rows, vocab) = (batch.logit_rows(), self.shape.vocab);
        let candidates = batch.wants_candidates();
        let head = |first: usize, rows: usize| {
            pass.head(&self.weights, first, rows)?;
            if candidates {
                pass.candidates(rows)?;
            }
            pass.end()
        };
        let step = if is_step(batch) {
            let step = match steps.entry((size, candidates)) {
                Entry::Occupied(step) => step.into_mut(),
                Entry::Vacant(place) => {
                    let graph = self.device.record(&mut || {
                        pass.layers(&self.weights)?;
                        head(0, size.wanted)
                    })?;
                    let notes = trace.as_ref().map(Trace::take).unwrap_or_default();
                    place.insert(Step { graph, notes })
                }
            };
            self.device.replay(step.graph)?;
            Some(&*step)
        } else {
            pass.layers(&self.weights)?;
            if rows == 0 {
                pass.end()?;
            }
            None
        };
        if candidates {
            // No more than one a sequence.
            const { assert!(SEQUENCES_MAX <= scratch::LOGIT_ROWS) };
            if step.is_none() {
                head(0, rows)?;
            }
            self.candidate_rows = rows;
            let out = head::candidate_bytes(logits.resize_candidates(rows));
            self.device.download(self.scratch.head.candidates, out)?;
        } else {
            let out = logits.resize(rows, vocab);
            for (index, piece) in out.chunks_mut(scratch::LOGIT_ROWS * vocab).enumerate() {
                if step.is_none() {
                    head(index * scratch::LOGIT_ROWS, piece.len() / vocab)?;
                }
                self.device.download(self.scratch.head.logits, head::logit_bytes(piece))?;
            }
        }
        match (meter, step, &trace) {
            (Some(meter), Some(step), _) => meter.end(&step.notes, attend),
            (Some(meter), None, Some(trace)) => meter.end(&trace.take(), attend),
            _ => Ok(()),
        }
    }

    /// What attention does in all layers. Which bytes a prompt's tokens read together, is up to its
    /// kernels: they are counted where each sequence has one token.
    fn attend_amount(&self, batch: &Batch<'_>) -> Amount {
        let keys = batch.rows.iter().map(|row| {
            let index = self.sequences.index(row.sequence).expect("the batch was checked");
            let (start, count) = (self.sequences.history(index).len, row.tokens.len());
            count * start + count * (count + 1) / 2
        });
        let shape = &self.shape.attention;
        let elements = keys.sum::<usize>() * self.shape.layers_of(MixerKind::Attention);
        let read_alone = batch.rows.iter().all(|row| row.tokens.len() == 1);
        let element_bytes = self.sequences.pages().layout().element_bytes;
        Amount {
            bytes: match read_alone {
                true => (2 * elements * shape.kv_width() * element_bytes) as u64,
                false => 0,
            },
            flop: (ATTEND_FLOP * elements * shape.query_width()) as u64,
        }
    }

    /// The size of the batch's plan: a step is padded, so that few recordings serve all.
    fn plan_size(&self, batch: &Batch<'_>) -> PlanSize {
        let lengths = batch.rows.iter().map(|row| {
            let index = self.sequences.index(row.sequence).expect("the batch was checked");
            self.sequences.history(index).len + row.tokens.len()
        });
        let pages_max = PlanSize::pages_max_for(lengths.max().unwrap_or(0));
        if is_step(batch) {
            let rows = batch.rows.len().next_power_of_two();
            return PlanSize { rows, sequences: rows, pages_max, wanted: rows };
        }
        PlanSize {
            rows: batch.tokens(),
            sequences: batch.rows.len(),
            pages_max,
            wanted: batch.logit_rows(),
        }
    }
}

impl Chain {
    fn new(kernels: Kernels) -> Self {
        Self { kernels, steps: HashMap::new() }
    }
}

/// Whether every row appends one token and wants its logits: what generating does.
fn is_step(batch: &Batch<'_>) -> bool {
    !batch.rows.is_empty()
        && batch.rows.len() <= SEQUENCES_MAX
        && batch.rows.iter().all(|row| row.tokens.len() == 1 && row.wants.rows(1) == 1)
}

/// Rows of the largest pass.
fn batch_tokens(shape: &Shape) -> usize {
    BATCH_TOKENS_MAX.min(shape.context_max.max(SEQUENCES_MAX))
}

/// The convolution's last inputs are kept as delta_net.cu wants them.
fn state_layout(shape: &Shape) -> StateLayout {
    StateLayout { conv_len: delta_net::conv_state_len(shape), ..StateLayout::new(shape) }
}

/// Bytes a second of copies on the device, each byte counted as read and as written: the best of
/// several, after one that warms up.
fn bandwidth(device: &Arc<dyn Device>) -> Result<f64, Error> {
    const BYTES: usize = 256 << 20; // several times any cache
    const COPIES: u32 = 8;
    let mut memory = Arena::new(Arc::clone(device), "measuring the memory");
    let (from, to) = (memory.bytes_of(BYTES)?, memory.bytes_of(BYTES)?);
    device.zero(from, BYTES)?;
    device.copy(from, to, BYTES)?;
    let mut best = f64::INFINITY;
    for _ in 0..COPIES {
        device.wait()?;
        let start = Instant::now();
        device.copy(from, to, BYTES)?;
        device.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(2.0 * BYTES as f64 / best)
}

/// Whether this machine has a device at all.
///
/// # Errors
/// [`Error::BackendUnavailable`] with what is missing.
pub(super) fn probe() -> Result<(), Error> {
    Driver::probe()
}

/// Compares the kernels on the driver's first device with the reference.
///
/// # Errors
/// [`Error::BackendUnavailable`] with what is missing; [`Error::Device`] when it fails.
pub(super) fn self_test(options: &BackendOptions) -> Result<Vec<KernelCheck>, Error> {
    self_test::on(&(Arc::new(Driver::open()?) as _), options.precision)
}

/// Whether this machine has a device for the model; what can be known without setting it up.
///
/// # Errors
/// [`Error::BackendUnavailable`] with what is missing.
pub(super) fn check(shape: &Shape, weights: &Weights) -> Result<(), Error> {
    support::check(shape, weights)?;
    probe()
}

/// Whether the machine seems to have an NVIDIA GPU.
pub(super) fn present() -> bool {
    // Linux's devices, and WSL's.
    ["/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg"]
        .iter()
        .any(|path| std::path::Path::new(path).exists())
}

/// Free bytes of the device's memory.
pub(super) fn room() -> Option<usize> {
    Driver::open().and_then(|driver| driver.memory()).ok().map(|memory| memory.free)
}

/// Memory that a [`Cuda`] will take besides its weights, one sequence of `tokens` tokens included.
pub(super) fn footprint(shape: &Shape, options: &BackendOptions, tokens: usize) -> Footprint {
    let pieces = Dimensions::pieces_for(options.precision);
    let kv = KvLayout::new(shape, options.precision);
    Footprint {
        scratch: scratch::bytes(shape, GROUP_MIN, pieces, batch_tokens(shape), SEQUENCES_MAX),
        sequence: bytes_for(&kv, &state_layout(shape), tokens),
        kv_dtype: kv.dtype(),
    }
}

impl Backend for Cuda {
    fn description(&self) -> String {
        let activations = match self.precision {
            Precision::Default => "float16",
            Precision::Exact => "float32",
        };
        format!("cuda ({}, {activations} activations)", self.device.description())
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn batch_tokens_max(&self) -> usize {
        batch_tokens(&self.shape)
    }

    fn prefill_chunk_tokens(&self) -> usize {
        self.batch_tokens_max()
    }

    fn memory_bytes_s(&mut self) -> Option<f64> {
        bandwidth(&self.device).ok()
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
        self.sequences.check(batch, self.shape.vocab, self.batch_tokens_max())?;
        if batch.rows.len() > SEQUENCES_MAX {
            return Err(Error::Batch {
                row: SEQUENCES_MAX,
                problem: format!("a batch takes {SEQUENCES_MAX} sequences"),
            });
        }
        self.sequences.grow(batch)?;
        self.candidate_rows = 0;
        self.run(batch, logits)?;
        for row in batch.rows {
            let index = self.sequences.index(row.sequence)?;
            self.sequences.history_mut(index).len += row.tokens.len();
        }
        Ok(())
    }

    fn logits_row(&mut self, row: usize, logits: &mut [f32]) -> Result<(), Error> {
        if row >= self.candidate_rows {
            return Err(Error::Batch { row, problem: NO_CANDIDATES.into() });
        }
        let bytes = head::logit_bytes(logits);
        self.device.download(self.scratch.head.logits.plus(row * bytes.len()), bytes)
    }

    /// Compiles the kernels once more, the first time.
    fn start_profile(&mut self) -> Result<(), Error> {
        let profiler = match &mut self.profiler {
            Some(profiler) => profiler,
            none => {
                let (plan, shape, dimensions) = (&self.kernel_plan, &self.shape, &self.dimensions);
                let meter = Meter::new(&self.device)?;
                let stamps = Some(meter.stamps());
                let kernels = Kernels::compile(&*self.device, plan, shape, dimensions, stamps)?;
                none.insert(Profiler { chain: Chain::new(kernels), meter, running: false })
            }
        };
        profiler.meter.reset();
        profiler.running = true;
        Ok(())
    }

    fn end_profile(&mut self) -> Option<Profile> {
        let profiler = self.profiler.as_mut()?;
        std::mem::take(&mut profiler.running).then(|| profiler.meter.profile())
    }
}

//! Stage `delta_net`: in_proj, convolution, gates, state, gated norm, out_proj, residual.

#[cfg(all(
    test,
    feature = "cuda-emulator",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests;

use super::{
    device::{Address, Kernel},
    pass::{Pass, row_threads},
    profile::Amount,
    scratch::delta_net_width,
    state_layout,
    weights::DeviceDeltaNet,
};
use crate::{
    Error,
    backend::profile::Op,
    model::{DELTA_FLOP, DeltaNetShape, Shape},
};

/// The kernel files.
pub(super) const SOURCE: &str = concat!(include_str!("delta_net.cu"), include_str!("chunked.cu"));

/// The kernels of [`SOURCE`].
pub(super) const NAMES: [&str; 6] =
    ["conv_gates", "delta_step", "chunk_solve", "delta_chunk", "gated_norm", "delta_decode"];

/// `CONV_ROWS` of the kernel file.
const CONV_ROWS: usize = 8;

/// `CHUNK_MIN` of the kernel file: rows of a sequence whose recurrence goes in chunks.
pub(super) const CHUNK_MIN: usize = 16;

/// `CHUNK` of chunked.cu.
const CHUNK: usize = 32;

/// Halves of a token and value head that `chunk_solve` leaves: `SOLVED_HALVES` of chunked.cu.
pub(super) const SOLVED_HALVES: usize = 4 * CHUNK;

/// Value rows of a block of the recurrence.
const STEP_VALUES: usize = 32;

/// The stage's kernels.
pub(super) struct DeltaNetKernels {
    pub(super) conv_gates: Kernel,
    pub(super) delta_step: Kernel,
    pub(super) chunk_solve: Kernel,
    pub(super) delta_chunk: Kernel,
    pub(super) gated_norm: Kernel,
    pub(super) delta_decode: Kernel,
}

/// Floats of a layer's convolution state: a ring with one row more than the convolution looks
/// back, see delta_net.cu.
pub(super) fn conv_state_len(shape: &Shape) -> usize {
    shape.delta_net.conv_taps * shape.delta_net.conv_channels()
}

impl DeltaNetKernels {
    /// Those of [`NAMES`].
    pub(super) fn new(kernels: &[Kernel]) -> Self {
        let &[conv_gates, delta_step, chunk_solve, delta_chunk, gated_norm, delta_decode] = kernels
        else {
            panic!("{} kernels, not one for each name", kernels.len())
        };
        Self { conv_gates, delta_step, chunk_solve, delta_chunk, gated_norm, delta_decode }
    }
}

impl Pass<'_> {
    /// Runs the stage on the rows, normed with `gain`; `layer` counts the DeltaNet layers.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn delta_net(
        &self,
        weights: &DeviceDeltaNet,
        gain: Option<Address>,
        layer: usize,
    ) -> Result<(), Error> {
        // in_proj
        let projected = self.scratch.projected;
        let width = delta_net_width(self.shape);
        self.norm_project(Op::InProj, gain, &weights.input, projected, width)?;

        // conv, gates, state, gated norm
        let state_at = state_layout(self.shape).layer_at(layer) as u64;
        if self.one_row_each()
            && self.shape.delta_net.value_dim.is_multiple_of(self.dimensions.group)
        {
            self.delta_decode(weights, state_at)?;
        } else {
            self.delta_rows(weights, state_at)?;
        }

        // out_proj
        self.project_add(Op::OutProj, &weights.output, self.scratch.read, self.plan.rows)
    }

    fn delta_net_kernels(&self) -> &DeltaNetKernels {
        self.kernels.delta_net.as_ref().expect("made for this shape")
    }

    /// A single kernel for everything between the projections, one new token a sequence.
    fn delta_decode(&self, weights: &DeviceDeltaNet, state_at: u64) -> Result<(), Error> {
        let DeltaNetShape { value_heads, value_dim, key_dim, .. } = self.shape.delta_net;
        let arguments = [
            self.scratch.projected.into(),
            (delta_net_width(self.shape) as u32).into(),
            self.plan.row_sequence.into(),
            self.plan.row_position.into(),
            self.plan.states.into(),
            state_at.into(),
            weights.conv.into(),
            weights.a_log.into(),
            weights.dt_bias.into(),
            weights.norm.into(),
            self.scratch.read.into(),
        ];
        let kernel = self.delta_net_kernels().delta_decode;
        let work = (Op::DeltaDecode, self.states_amount(self.plan.sequences, self.plan.rows));
        // DECODE_THREADS and DECODE_BYTES of the kernel file
        let (block, shared) = (2 * value_dim, 4 * value_dim * key_dim);
        self.launch(work, kernel, [value_heads, self.plan.rows, 1], block, shared, &arguments)
    }

    /// Of the delta rule: a layer's states are read and written, and follow every row.
    fn states_amount(&self, sequences: usize, rows: usize) -> Amount {
        let elements = self.shape.delta_net.state_len();
        Amount {
            bytes: (2 * 4 * elements * sequences) as u64,
            flop: (DELTA_FLOP * elements * rows) as u64,
        }
    }

    /// The same for any number of new tokens.
    fn delta_rows(&self, weights: &DeviceDeltaNet, state_at: u64) -> Result<(), Error> {
        let shape = &self.shape.delta_net;
        let scratch = self.scratch.delta_net.as_ref().expect("made for this shape");
        let kernels = self.delta_net_kernels();
        let (projected, width) = (self.scratch.projected, delta_net_width(self.shape) as u32);
        let (plan, rows) = (&self.plan, self.plan.rows);
        self.launch(
            Op::Conv,
            kernels.conv_gates,
            [rows.div_ceil(CONV_ROWS), shape.key_heads, 1],
            shape.key_dim.max(shape.value_dim),
            0,
            &[
                projected.into(),
                width.into(),
                plan.row_sequence.into(),
                plan.row_position.into(),
                plan.first_row.into(),
                plan.states.into(),
                state_at.into(),
                weights.conv.into(),
                weights.a_log.into(),
                weights.dt_bias.into(),
                self.rows(),
                scratch.qkv.into(),
                scratch.factors.into(),
            ],
        )?;
        let (chunked, chunked_rows) = (plan.chunked_sequences, plan.chunked_rows);
        if chunked < plan.sequences {
            let amount = self.states_amount(plan.sequences - chunked, rows - chunked_rows);
            self.launch(
                (Op::State, amount),
                kernels.delta_step,
                [shape.value_width() / STEP_VALUES, plan.sequences, 1],
                128,
                0,
                &[
                    scratch.qkv.into(),
                    scratch.factors.into(),
                    projected.into(),
                    width.into(),
                    plan.row_position.into(),
                    plan.first_row.into(),
                    plan.states.into(),
                    state_at.into(),
                    scratch.read.into(),
                ],
            )?;
        }
        if chunked > 0 {
            self.delta_chunks(state_at)?;
        }
        self.launch(
            Op::GatedNorm,
            kernels.gated_norm,
            [rows, 1, 1],
            row_threads(shape.value_width()),
            0,
            &[
                scratch.read.into(),
                projected.into(),
                width.into(),
                plan.row_sequence.into(),
                weights.norm.into(),
                self.scratch.read.into(),
            ],
        )
    }

    /// The recurrence of the sequences with many new tokens, on what `conv_gates` left.
    fn delta_chunks(&self, state_at: u64) -> Result<(), Error> {
        let shape = &self.shape.delta_net;
        let scratch = self.scratch.delta_net.as_ref().expect("made for this shape");
        let (kernels, plan) = (self.delta_net_kernels(), &self.plan);
        self.launch(
            Op::Solve,
            kernels.chunk_solve,
            [plan.rows / CHUNK + plan.sequences, shape.key_heads, 1],
            128,
            0,
            &[
                plan.first_row.into(),
                (plan.sequences as u32).into(),
                scratch.factors.into(),
                scratch.qkv.into(),
                scratch.solved.into(),
                scratch.decays.into(),
            ],
        )?;
        self.launch(
            (Op::State, self.states_amount(plan.chunked_sequences, plan.chunked_rows)),
            kernels.delta_chunk,
            [shape.value_width() / STEP_VALUES, plan.sequences, 1],
            128,
            2 * stage_bytes(shape),
            &[
                scratch.qkv.into(),
                scratch.solved.into(),
                scratch.decays.into(),
                self.scratch.projected.into(),
                (delta_net_width(self.shape) as u32).into(),
                plan.row_position.into(),
                plan.first_row.into(),
                plan.states.into(),
                state_at.into(),
                scratch.read.into(),
            ],
        )
    }
}

/// `STAGE_BYTES` of chunked.cu: a chunk's keys, queries, solved rows, values and decays.
fn stage_bytes(shape: &DeltaNetShape) -> usize {
    CHUNK * (2 * 4 * shape.key_dim + 2 * SOLVED_HALVES + 4 * STEP_VALUES + 8)
}

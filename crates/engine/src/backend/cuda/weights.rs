//! The model's weights on the device: matrices repacked into tiles, vectors as they are.

use std::sync::Arc;

use super::{
    arena::Arena,
    device::{Address, Argument, Device, Kernel, Launch, Matrix},
    dimensions::{TILE_INPUTS, TILE_OUTPUTS},
    matmul::RepackKernels,
    profile::Amount,
};
use crate::{
    Error,
    model::{Experts, Layer, Linear, Mixer, Mlp, Swiglu, Weights},
};

/// Bytes of a matrix that are copied and repacked at a time.
const STAGED_BYTES: usize = 64 << 20;

/// Threads of a block that repacks.
const REPACK_THREADS: usize = 256;

/// [`Weights`] on the device.
pub(super) struct DeviceWeights {
    pub(super) embed: Embedding,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) norm: Address, // [hidden]
    pub(super) head: Projection,
    _memory: Arena,
}

/// The embedding matrix as the checkpoint has it.
pub(super) struct Embedding {
    pub(super) weight: Address,
    pub(super) scales: Address,
    pub(super) biases: Address,
    /// Of one row.
    pub(super) amount: Amount,
}

/// One layer.
pub(super) struct DeviceLayer {
    pub(super) input_norm: Address, // [hidden]
    pub(super) mixer: DeviceMixer,
    pub(super) post_norm: Address, // [hidden]
    pub(super) mlp: DeviceMlp,
}

/// A layer's mixer.
pub(super) enum DeviceMixer {
    DeltaNet(DeviceDeltaNet),
    Attention(DeviceAttention),
}

/// Weights of a Gated DeltaNet mixer.
pub(super) struct DeviceDeltaNet {
    pub(super) input: Projection, // qkv, z, b, a
    pub(super) conv: Address,     // [conv_channels, conv_taps]
    pub(super) a_log: Address,    // [value_heads]
    pub(super) dt_bias: Address,  // [value_heads]
    pub(super) norm: Address,     // [value_dim]
    pub(super) output: Projection,
}

/// Weights of a gated attention mixer.
pub(super) struct DeviceAttention {
    pub(super) input: Projection, // queries with gates, keys, values
    pub(super) q_norm: Address,   // [head_dim]
    pub(super) k_norm: Address,   // [head_dim]
    pub(super) output: Projection,
}

/// A layer's feed-forward part.
pub(super) enum DeviceMlp {
    Dense(DeviceSwiglu),
    Moe(DeviceMoe),
}

/// Weights of a mixture of experts.
pub(super) struct DeviceMoe {
    pub(super) router: Projection, // experts, shared gate
    pub(super) experts: DeviceSwiglu,
    pub(super) shared: DeviceSwiglu,
}

/// Gate, up and down; of routed experts stacks, one matrix after the other.
pub(super) struct DeviceSwiglu {
    pub(super) width: usize,
    /// Of gate and up.
    pub(super) bits: usize,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down_bits: usize,
    pub(super) down: Matrix,
    /// Of gate and up with one row; of routed experts, of one expert.
    pub(super) gate_up_amount: Amount,
    /// Of down likewise.
    pub(super) down_amount: Amount,
}

/// Matrices with the same input whose results stand side by side, each from a tile's start.
pub(super) struct Projection {
    /// Runs of matrices of the same bits, as one each.
    pub(super) parts: Vec<Part>,
}

/// Neighbours in a projection.
pub(super) struct Part {
    pub(super) matrix: Matrix,
    pub(super) inputs: usize,
    pub(super) bits: usize,
    /// First column of the result.
    pub(super) column: usize,
    /// Outputs, padding included.
    pub(super) outputs: usize,
    /// With one row.
    pub(super) amount: Amount,
}

/// Numbers that say how large a matrix's scales and biases are.
const RANGE_WORDS: usize = 2;

/// Bytes of [`DeviceWeights`], but for small vectors.
pub(super) fn bytes(weights: &Weights, group: usize) -> usize {
    let repacked = |linear: &Linear| {
        let elements = linear.outputs.next_multiple_of(TILE_OUTPUTS) * linear.inputs;
        elements * linear.bits / 8 + elements / group * 4
    };
    let matrices: usize = weights.products().map(|(_, linear)| repacked(linear)).sum();
    matrices + weights.embed.size_bytes() + STAGED_BYTES
}

impl DeviceWeights {
    /// Copies a model to the device.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device fails.
    pub(super) fn load(
        device: &Arc<dyn Device>,
        kernels: &RepackKernels,
        group: usize,
        weights: &Weights,
    ) -> Result<Self, Error> {
        let mut staging = Arena::new(Arc::clone(device), "copying weights");
        let mut loader = Loader {
            device: &**device,
            kernels,
            group,
            staged: staging.bytes_of(STAGED_BYTES)?,
            memory: Arena::new(Arc::clone(device), "weights"),
        };
        let embed = Embedding {
            weight: loader.memory.copy_of(&weights.embed.weight)?,
            scales: loader.memory.copy_of(&weights.embed.scales)?,
            biases: loader.memory.copy_of(&weights.embed.biases)?,
            amount: Amount { bytes: weights.embed.output_bytes() as u64, flop: 0 },
        };
        let layers = weights.layers.iter().map(|layer| loader.layer(layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = loader.memory.vector(&weights.norm)?;
        let head = loader.projection(&[&weights.head])?;
        device.wait()?;
        Ok(Self { embed, layers, norm, head, _memory: loader.memory })
    }
}

/// Puts matrices on the device.
struct Loader<'a> {
    device: &'a dyn Device,
    kernels: &'a RepackKernels,
    group: usize,
    /// Where a matrix lies before it is repacked: STAGED_BYTES.
    staged: Address,
    memory: Arena,
}

impl Loader<'_> {
    fn layer(&mut self, layer: &Layer) -> Result<DeviceLayer, Error> {
        Ok(DeviceLayer {
            input_norm: self.memory.vector(&layer.input_norm)?,
            mixer: match &layer.mixer {
                Mixer::DeltaNet(mixer) => DeviceMixer::DeltaNet(DeviceDeltaNet {
                    input: self.projection(&[
                        &mixer.in_proj_qkv,
                        &mixer.in_proj_z,
                        &mixer.in_proj_b,
                        &mixer.in_proj_a,
                    ])?,
                    conv: self.memory.vector(&mixer.conv)?,
                    a_log: self.memory.vector(&mixer.a_log)?,
                    dt_bias: self.memory.vector(&mixer.dt_bias)?,
                    norm: self.memory.vector(&mixer.norm)?,
                    output: self.projection(&[&mixer.out_proj])?,
                }),
                Mixer::Attention(mixer) => DeviceMixer::Attention(DeviceAttention {
                    input: self.projection(&[&mixer.q_proj, &mixer.k_proj, &mixer.v_proj])?,
                    q_norm: self.memory.vector(&mixer.q_norm)?,
                    k_norm: self.memory.vector(&mixer.k_norm)?,
                    output: self.projection(&[&mixer.o_proj])?,
                }),
            },
            post_norm: self.memory.vector(&layer.post_norm)?,
            mlp: match &layer.mlp {
                Mlp::Dense(mlp) => DeviceMlp::Dense(self.swiglu(mlp)?),
                Mlp::Moe(moe) => DeviceMlp::Moe(DeviceMoe {
                    router: self.projection(&[&moe.router, &moe.shared_gate])?,
                    experts: self.experts(&moe.experts)?,
                    shared: self.swiglu(&moe.shared)?,
                }),
            },
        })
    }

    fn projection(&mut self, matrices: &[&Linear]) -> Result<Projection, Error> {
        let (mut parts, mut column) = (Vec::new(), 0);
        for run in matrices.chunk_by(|a, b| a.bits == b.bits) {
            let matrix = self.stack(run)?;
            let outputs =
                run.iter().map(|linear| linear.outputs.next_multiple_of(TILE_OUTPUTS)).sum();
            let Linear { inputs, bits, .. } = *run[0];
            let amount = Amount::of_product(run);
            parts.push(Part { matrix, inputs, bits, column, outputs, amount });
            column += outputs;
        }
        Ok(Projection { parts })
    }

    fn swiglu(&mut self, mlp: &Swiglu) -> Result<DeviceSwiglu, Error> {
        Ok(DeviceSwiglu {
            width: mlp.gate.outputs,
            bits: mlp.gate.bits,
            gate: self.stack(&[&mlp.gate])?,
            up: self.stack(&[&mlp.up])?,
            down_bits: mlp.down.bits,
            down: self.stack(&[&mlp.down])?,
            gate_up_amount: Amount::of_product(&[&mlp.gate, &mlp.up]),
            down_amount: Amount::of_product(&[&mlp.down]),
        })
    }

    fn experts(&mut self, experts: &Experts) -> Result<DeviceSwiglu, Error> {
        let mut stack = |matrices: &[Linear]| self.stack(&matrices.iter().collect::<Vec<_>>());
        Ok(DeviceSwiglu {
            width: experts.gate[0].outputs,
            bits: experts.gate[0].bits,
            gate: stack(&experts.gate)?,
            up: stack(&experts.up)?,
            down_bits: experts.down[0].bits,
            down: stack(&experts.down)?,
            gate_up_amount: Amount::of_product(&[&experts.gate[0], &experts.up[0]]),
            down_amount: Amount::of_product(&[&experts.down[0]]),
        })
    }

    /// Matrices of the same inputs, bits and group, one below the other, each from a tile's start.
    fn stack(&mut self, matrices: &[&Linear]) -> Result<Matrix, Error> {
        let first = matrices[0];
        let rows: usize =
            matrices.iter().map(|linear| linear.outputs.next_multiple_of(TILE_OUTPUTS)).sum();
        let words = self.memory.bytes_of(rows * first.row_bytes())?;
        let pairs = rows * (first.inputs / self.group);
        let affine = self.memory.words(pairs + RANGE_WORDS)?;
        let matrix = Matrix { words, affine, range: affine.plus(4 * pairs) };
        self.device.zero(matrix.range, 4 * RANGE_WORDS)?;
        // Matrices that end with a tile can be repacked together: a launch each costs more than
        // the work of a small one.
        let together = matrices.chunk_by(|above, below| {
            above.outputs.is_multiple_of(TILE_OUTPUTS) && above.group == below.group
        });
        let mut row = 0;
        for run in together {
            row = self.repack(run, &matrix, row)?;
        }
        Ok(matrix)
    }

    /// Copies the rows of matrices piece by piece and repacks each piece; they start at `row` of
    /// `to`, a tile's start. Gives the row behind them.
    fn repack(
        &mut self,
        matrices: &[&Linear],
        to: &Matrix,
        mut row: usize,
    ) -> Result<usize, Error> {
        let first = matrices[0];
        let (row_bytes, groups) = (first.row_bytes(), first.groups());
        // A piece's words, then its scales, then its biases; each starts at a multiple of 256.
        let rows_max = (STAGED_BYTES - 768) / (row_bytes + 4 * groups);
        let rows_max = rows_max / TILE_OUTPUTS * TILE_OUTPUTS;
        let scales = self.staged.plus((rows_max * row_bytes).next_multiple_of(256));
        let biases = scales.plus((2 * rows_max * groups).next_multiple_of(256));

        let mut staged = 0;
        let total: usize = matrices.iter().map(|linear| linear.outputs).sum();
        let mut left = total;
        for linear in matrices {
            let mut done = 0;
            while done < linear.outputs {
                let rows = (rows_max - staged).min(linear.outputs - done);
                let words = done * row_bytes..(done + rows) * row_bytes;
                let affine = 2 * done * groups..2 * (done + rows) * groups;
                let affine_at = 2 * staged * groups;
                self.device.upload(self.staged.plus(staged * row_bytes), &linear.weight[words])?;
                self.device.upload(scales.plus(affine_at), &linear.scales[affine.clone()])?;
                self.device.upload(biases.plus(affine_at), &linear.biases[affine])?;
                done += rows;
                staged += rows;
                left -= rows;
                if staged == rows_max || left == 0 {
                    self.repack_staged(first, [scales, biases], staged, to, row)?;
                    row += staged.next_multiple_of(TILE_OUTPUTS);
                    staged = 0;
                }
            }
        }
        Ok(row)
    }

    /// Repacks the `rows` rows that have been copied.
    fn repack_staged(
        &self,
        like: &Linear,
        [scales, biases]: [Address; 2],
        rows: usize,
        to: &Matrix,
        row: usize,
    ) -> Result<(), Error> {
        let dimension = |value: usize| Argument::from(value as u32);
        let padded = rows.next_multiple_of(TILE_OUTPUTS);
        let quads = padded / TILE_OUTPUTS * (like.inputs / TILE_INPUTS) * 32 * (like.bits / 4);
        self.launch(
            self.kernels.words,
            quads,
            &[
                self.staged.into(),
                dimension(rows),
                dimension(like.inputs),
                dimension(like.bits),
                to.words.plus(row * like.row_bytes()).into(),
            ],
        )?;
        let groups = like.inputs / self.group;
        self.launch(
            self.kernels.affine,
            padded * groups,
            &[
                scales.into(),
                biases.into(),
                dimension(rows),
                dimension(like.inputs),
                dimension(like.group),
                dimension(like.bits),
                to.affine.plus(4 * row * groups).into(),
                to.range.into(),
            ],
        )
    }

    /// A thread for each of `count` results.
    fn launch(&self, kernel: Kernel, count: usize, arguments: &[Argument]) -> Result<(), Error> {
        self.device.launch(&Launch {
            kernel,
            grid: [count.div_ceil(REPACK_THREADS) as u32, 1, 1],
            block: REPACK_THREADS as u32,
            shared_bytes: 0,
            arguments,
        })
    }
}

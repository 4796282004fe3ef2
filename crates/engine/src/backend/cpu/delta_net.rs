//! Stage `delta_net`: in_proj, convolution, gates, state, gated norm, out_proj.
//!
//! After the projections one task does everything for one key head of one sequence: the
//! convolution of its channels, then token by token the states of the value heads that share the
//! key. It goes through a long row in runs of tokens whose intermediate results stay in the
//! second-level cache.

use std::ops::Range;

use super::{
    clock::Worker,
    kernels::{Activations, DeltaRun, Kernels},
    math::{sigmoid, softplus},
    pass::{Pass, Product, RowPlan},
    scratch::{Residual, zeros},
    shared::{Cells, Shared},
};
use crate::{
    backend::profile::Op,
    model::{DELTA_FLOP, DeltaNet, DeltaNetShape, Mixer, Shape, Weights},
};

/// Tokens of a run.
const RUN_TOKENS: usize = 64;

/// Intermediate results of the stage.
pub(super) struct DeltaNetScratch {
    /// Convolution weights of each layer, a tap at a time [conv_taps, conv_channels].
    taps: Vec<Vec<f32>>,
    qkv: Vec<f32>,  // [tokens, conv_channels] raw
    z: Vec<f32>,    // [tokens, value_width]
    b: Vec<f32>,    // [tokens, value_heads]
    a: Vec<f32>,    // [tokens, value_heads]
    runs: Vec<f32>, // [workers, run_len]
    read: Vec<f32>, // [tokens, value_width] normed and gated
}

impl DeltaNetScratch {
    pub(super) fn new(
        shape: &DeltaNetShape,
        weights: &Weights,
        tokens: usize,
        workers: usize,
    ) -> Self {
        Self {
            taps: taps_of(shape, weights),
            qkv: zeros(tokens * shape.conv_channels()),
            z: zeros(tokens * shape.value_width()),
            b: zeros(tokens * shape.value_heads),
            a: zeros(tokens * shape.value_heads),
            runs: zeros(workers * run_len(shape)),
            read: zeros(tokens * shape.value_width()),
        }
    }
}

/// Floats that a worker needs for a run of tokens of one key head: the channels after the
/// convolution, and what the state of a value head gave.
pub(super) fn run_len(shape: &DeltaNetShape) -> usize {
    RUN_TOKENS * (head_channels(shape) + shape.value_dim)
}

/// Channels of the convolution that belong to a key head: query, key, and its value heads' values.
fn head_channels(shape: &DeltaNetShape) -> usize {
    shape.conv_channels() / shape.key_heads
}

/// See [`DeltaNetScratch::taps`].
fn taps_of(shape: &DeltaNetShape, weights: &Weights) -> Vec<Vec<f32>> {
    let (taps, channels) = (shape.conv_taps, shape.conv_channels());
    let transposed = |conv: &[f32]| {
        (0..taps * channels).map(|at| conv[at % channels * taps + at / channels]).collect()
    };
    let mixers = weights.layers.iter().map(|layer| &layer.mixer);
    mixers
        .filter_map(|mixer| match mixer {
            Mixer::DeltaNet(mixer) => Some(transposed(&mixer.conv)),
            Mixer::Attention(_) => None,
        })
        .collect()
}

/// Runs the stage on the normed activations `x`; the result is the residual's update.
pub(super) fn delta_net(
    pass: &mut Pass<'_>,
    weights: &DeltaNet,
    layer: usize, // among the DeltaNet layers
    x: &Activations,
    scratch: &mut DeltaNetScratch,
    read: &mut Activations,
    residual: &mut Residual,
) {
    // in_proj
    let all = pass.tokens;
    pass.products(
        [
            Product::new(Op::InProj, &weights.in_proj_qkv, &mut scratch.qkv),
            Product::new(Op::InProj, &weights.in_proj_z, &mut scratch.z),
            Product::new(Op::InProj, &weights.in_proj_b, &mut scratch.b),
            Product::new(Op::InProj, &weights.in_proj_a, &mut scratch.a),
        ],
        x,
        all,
    );

    // conv, gates, state, gated norm
    let (key_heads, rows) = (pass.shape.delta_net.key_heads, pass.rows);
    let head = Head {
        shape: pass.shape,
        kernels: pass.kernels,
        weights,
        taps: &scratch.taps[layer],
        qkv: &scratch.qkv,
        z: &scratch.z,
        b: &scratch.b,
        a: &scratch.a,
        runs: Shared::new(&mut scratch.runs),
        read: Shared::new(&mut scratch.read),
    };
    let sequences = pass.sequences;
    let layout = sequences.state_layout();
    pass.pool.run(Op::Conv, rows.len() * key_heads, |task, worker| {
        let (row, key_head) = (&rows[task / key_heads], task % key_heads);
        let state = &sequences.history(row.sequence).state;
        // SAFETY: each task has a sequence and a key head, hence channels and value heads, of its
        // own, in the states as in the scratch.
        unsafe { head.run(worker, row, key_head, state, layout.layer_at(layer)) };
    });

    // out_proj
    let width = pass.shape.delta_net.value_width();
    pass.prepare(&scratch.read[..all.len() * width], width, read);
    pass.products([Product::new(Op::OutProj, &weights.out_proj, &mut residual.update)], read, all);
}

/// Everything that the tasks of one layer share.
struct Head<'a> {
    shape: &'a Shape,
    kernels: &'a Kernels,
    weights: &'a DeltaNet,
    taps: &'a [f32],       // [conv_taps, conv_channels]
    qkv: &'a [f32],        // [tokens, conv_channels]
    z: &'a [f32],          // [tokens, value_width]
    b: &'a [f32],          // [tokens, value_heads]
    a: &'a [f32],          // [tokens, value_heads]
    runs: Shared<'a, f32>, // [workers, run_len]
    read: Shared<'a, f32>, // [tokens, value_width]
}

impl<'a> Head<'a> {
    /// One key head of one row: its channels of the convolution, then its value heads.
    ///
    /// # Safety
    /// Nobody else touches this head's channels, value heads and states of this row.
    unsafe fn run(
        &self,
        worker: Worker<'_>,
        row: &RowPlan,
        key_head: usize,
        state: &Cells,
        layer_at: usize,
    ) {
        let shape = &self.shape.delta_net;
        let conv_at = layer_at + shape.state_len();
        let heads_a_key = shape.value_heads / shape.key_heads;
        let elements = shape.value_dim * shape.key_dim;
        let channels = [
            Channels { start: key_head * shape.key_dim, len: shape.key_dim, at: 0 },
            Channels {
                start: shape.key_width() + key_head * shape.key_dim,
                len: shape.key_dim,
                at: shape.key_dim,
            },
            Channels {
                start: 2 * shape.key_width() + key_head * heads_a_key * shape.value_dim,
                len: heads_a_key * shape.value_dim,
                at: 2 * shape.key_dim,
            },
        ];
        let end = row.first + row.len;
        let head_channels = head_channels(shape);
        // SAFETY: each worker has a run of its own.
        let buffer = unsafe { self.runs.part(worker.index * run_len(shape), run_len(shape)) };
        // [run, head_channels] after the convolution: query, key, values; and [run, value_dim].
        let (mixed, raw) = buffer.split_at_mut(RUN_TOKENS * head_channels);
        for first in (row.first..end).step_by(RUN_TOKENS) {
            let run = first..end.min(first + RUN_TOKENS);
            worker.at(Op::Conv);
            for channels in &channels {
                // SAFETY: passed on from the caller.
                unsafe { self.convolve(row, run.clone(), channels, state, conv_at, mixed) };
            }
            for mixed in mixed.chunks_exact_mut(head_channels).take(run.len()) {
                let (query, key) = mixed[..2 * shape.key_dim].split_at_mut(shape.key_dim);
                self.kernels.l2_norm(query, L2_EPS, (shape.key_dim as f32).sqrt().recip());
                self.kernels.l2_norm(key, L2_EPS, 1.0);
            }
            for value_head in key_head * heads_a_key..(key_head + 1) * heads_a_key {
                worker.at(Op::Gates);
                let gates = self.gates(run.clone(), value_head);
                worker.at(Op::State);
                worker.moves(2 * elements * size_of::<f32>(), DELTA_FLOP * elements * run.len());
                // SAFETY: passed on from the caller.
                unsafe {
                    let state = state.part(layer_at + value_head * elements, elements);
                    self.advance(value_head, &gates, run.len(), state, mixed, raw);
                    worker.at(Op::GatedNorm);
                    self.gate(run.clone(), value_head, raw);
                }
            }
        }
        worker.at(Op::Conv);
        for channels in &channels {
            // SAFETY: passed on from the caller.
            unsafe { self.keep_inputs(row, channels, state, conv_at) };
        }
    }

    /// Raw inputs of some channels by age: the state's vectors first, then the row's tokens.
    ///
    /// # Safety
    /// Nobody writes these channels of the state while the inputs are in use.
    unsafe fn input<'s>(
        &'s self,
        row: &RowPlan,
        channels: &Channels,
        state: &'s Cells,
        conv_at: usize,
        age: usize,
    ) -> &'s [f32] {
        let shape = &self.shape.delta_net;
        let width = shape.conv_channels();
        match age.checked_sub(shape.conv_taps - 1) {
            Some(token) => {
                &self.qkv[(row.first + token) * width + channels.start..][..channels.len]
            }
            // SAFETY: passed on from the caller.
            None => unsafe { &*state.part(conv_at + age * width + channels.start, channels.len) },
        }
    }

    /// `mixed = silu(conv(qkv))` for a run of tokens.
    ///
    /// # Safety
    /// Nobody else touches these channels of this row.
    unsafe fn convolve(
        &self,
        row: &RowPlan,
        run: Range<usize>,
        channels: &Channels,
        state: &Cells,
        conv_at: usize,
        mixed: &mut [f32], // [run, head_channels]
    ) {
        let shape = &self.shape.delta_net;
        let width = shape.conv_channels();
        for (token, mixed) in run.zip(mixed.chunks_exact_mut(head_channels(shape))) {
            let mut taps = [(&[][..], &[][..]); TAPS_MAX];
            let taps = &mut taps[..shape.conv_taps];
            for (tap, pair) in taps.iter_mut().enumerate() {
                let weights = &self.taps[tap * width + channels.start..][..channels.len];
                let age = token - row.first + tap;
                // SAFETY: passed on from the caller.
                *pair = (weights, unsafe { self.input(row, channels, state, conv_at, age) });
            }
            self.kernels.conv_silu(taps, &mut mixed[channels.at..][..channels.len]);
        }
    }

    /// The last raw inputs go to the state.
    ///
    /// # Safety
    /// Nobody else touches these channels of this row.
    unsafe fn keep_inputs(
        &self,
        row: &RowPlan,
        channels: &Channels,
        state: &Cells,
        conv_at: usize,
    ) {
        let shape = &self.shape.delta_net;
        for age in 0..shape.conv_taps - 1 {
            // SAFETY: passed on from the caller; what is read is younger, hence another vector.
            unsafe {
                let kept = self.input(row, channels, state, conv_at, row.len + age);
                let at = conv_at + age * shape.conv_channels() + channels.start;
                state.part(at, channels.len).copy_from_slice(kept);
            }
        }
    }

    /// Decays `exp(-exp(a_log)·softplus(a + dt_bias))` and write strengths `sigmoid(b)` of a run.
    fn gates(&self, run: Range<usize>, value_head: usize) -> Gates {
        let rate = self.weights.a_log[value_head].exp();
        let bias = self.weights.dt_bias[value_head];
        let mut gates = Gates { decays: [0.0; RUN_TOKENS], betas: [0.0; RUN_TOKENS] };
        for (i, token) in run.enumerate() {
            let at = token * self.shape.delta_net.value_heads + value_head;
            gates.decays[i] = (-rate * softplus(self.a[at] + bias)).exp();
            gates.betas[i] = sigmoid(self.b[at]);
        }
        gates
    }

    /// Takes one value head's state through a run of `tokens` tokens.
    fn advance(
        &self,
        value_head: usize,
        gates: &Gates,
        tokens: usize,
        state: &mut [f32], // [value_dim, key_dim]
        mixed: &[f32],     // [run, head_channels]
        raw: &mut [f32],   // [run, value_dim]
    ) {
        let shape = &self.shape.delta_net;
        let place = value_head % (shape.value_heads / shape.key_heads);
        let run = DeltaRun {
            queries: mixed,
            keys: &mixed[shape.key_dim..],
            values: &mixed[2 * shape.key_dim + place * shape.value_dim..],
            stride: head_channels(shape),
            key_dim: shape.key_dim,
            decays: &gates.decays[..tokens],
            betas: &gates.betas[..tokens],
        };
        self.kernels.delta_run(&run, state, raw, shape.value_dim);
    }

    /// Norms and gates what a value head's state gave.
    ///
    /// # Safety
    /// Nobody else touches this value head.
    unsafe fn gate(&self, run: Range<usize>, value_head: usize, raw: &[f32]) {
        let shape = &self.shape.delta_net;
        let value_dim = shape.value_dim;
        for (token, raw) in run.zip(raw.chunks_exact(value_dim)) {
            let at = (token * shape.value_heads + value_head) * value_dim;
            // SAFETY: passed on from the caller.
            let read = unsafe { self.read.part(at, value_dim) };
            self.kernels.rms_norm(raw, &self.weights.norm, self.shape.norm_eps, read);
            self.kernels.mul_silu(read, &self.z[at..][..value_dim]);
        }
    }
}

/// Of a value head and a run of tokens.
struct Gates {
    decays: [f32; RUN_TOKENS],
    betas: [f32; RUN_TOKENS],
}

/// A run of the convolution's channels that belongs to one key head.
struct Channels {
    start: usize,
    len: usize,
    /// Where they stand among the head's.
    at: usize,
}

/// Most taps that a convolution may have.
pub(super) const TAPS_MAX: usize = 16;

/// Added to the squared length of queries and keys, whatever the model's own epsilon.
const L2_EPS: f32 = 1e-6;

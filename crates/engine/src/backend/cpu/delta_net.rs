//! Stage `delta_net`: in_proj, convolution, gates, state, gated norm, out_proj.
//!
//! After the projections one task does everything for one key head of one sequence: the
//! convolution of its channels, then token by token the states of the value heads that share the
//! key. It goes through a long row in runs of tokens whose intermediate results stay in the
//! second-level cache. States are worked on in blocks of value rows that stay in the first-level
//! cache for all tokens of a run; rows of a state do not depend on each other.

use std::ops::Range;

use super::{
    clock::Worker,
    kernels::{Activations, DeltaStep, Kernels},
    math::{sigmoid, softplus},
    pass::{Pass, Product, RowPlan},
    scratch::{Residual, zeros},
    shared::{Cells, Shared},
};
use crate::{
    backend::profile::Op,
    model::{DELTA_FLOP, DeltaNet, DeltaNetShape, Mixer, Shape, Weights},
};

/// Rows of a head's state [value_dim, key_dim] that are taken through a run at a time: 16 KB with
/// keys of 128.
const STATE_ROWS: usize = 32;

/// Tokens of a run.
const RUN_TOKENS: usize = 64;

/// Intermediate results of the stage.
pub(super) struct DeltaNetScratch {
    /// Convolution weights of each layer, a tap at a time [conv_taps, conv_channels].
    taps: Vec<Vec<f32>>,
    qkv: Vec<f32>,  // [tokens, conv_channels] raw
    z: Vec<f32>,    // [tokens, value_width]
    b: Vec<f32>,    // [tokens, value_heads], then the write strength β
    a: Vec<f32>,    // [tokens, value_heads], then the decay g
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
    RUN_TOKENS * (shape.conv_channels() / shape.key_heads + shape.value_dim)
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
        b: Shared::new(&mut scratch.b),
        a: Shared::new(&mut scratch.a),
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
    b: Shared<'a, f32>,    // [tokens, value_heads]
    a: Shared<'a, f32>,    // [tokens, value_heads]
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
        let head_channels = shape.conv_channels() / shape.key_heads;
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
                // SAFETY: passed on from the caller.
                unsafe {
                    worker.at(Op::Gates);
                    self.open_gates(run.clone(), value_head);
                    worker.at(Op::State);
                    worker
                        .moves(2 * elements * size_of::<f32>(), DELTA_FLOP * elements * run.len());
                    self.advance(run.clone(), value_head, state, layer_at, mixed, raw);
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
        for (token, mixed) in run.zip(mixed.chunks_exact_mut(width / shape.key_heads)) {
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

    /// Decay `exp(-exp(a_log)·softplus(a + dt_bias))` and write strength `sigmoid(b)`, in place.
    ///
    /// # Safety
    /// Nobody else touches this value head.
    unsafe fn open_gates(&self, run: Range<usize>, value_head: usize) {
        let rate = self.weights.a_log[value_head].exp();
        let bias = self.weights.dt_bias[value_head];
        for token in run {
            let at = token * self.shape.delta_net.value_heads + value_head;
            // SAFETY: passed on from the caller.
            let (a, b) = unsafe { (&mut self.a.part(at, 1)[0], &mut self.b.part(at, 1)[0]) };
            *a = (-rate * softplus(*a + bias)).exp();
            *b = sigmoid(*b);
        }
    }

    /// Takes one value head's state through a run of tokens.
    ///
    /// # Safety
    /// Nobody else touches this value head and its state.
    unsafe fn advance(
        &self,
        run: Range<usize>,
        value_head: usize,
        state: &Cells,
        layer_at: usize,
        mixed: &[f32],   // [run, head_channels]
        raw: &mut [f32], // [run, value_dim]
    ) {
        let shape = &self.shape.delta_net;
        let (heads, value_dim, key_dim) = (shape.value_heads, shape.value_dim, shape.key_dim);
        let head_channels = shape.conv_channels() / shape.key_heads;
        let place = value_head % (heads / shape.key_heads);
        let state_at = layer_at + value_head * value_dim * key_dim;
        for first in (0..value_dim).step_by(STATE_ROWS) {
            let len = STATE_ROWS.min(value_dim - first);
            // SAFETY: passed on from the caller.
            let state = unsafe { state.part(state_at + first * key_dim, len * key_dim) };
            let tokens = mixed.chunks_exact(head_channels).zip(raw.chunks_exact_mut(value_dim));
            for (token, (mixed, raw)) in run.clone().zip(tokens) {
                let gate = token * heads + value_head;
                let value = 2 * key_dim + place * value_dim + first;
                // SAFETY: passed on from the caller; nobody writes these any more.
                let (decay, beta) = unsafe { (self.a.part(gate, 1)[0], self.b.part(gate, 1)[0]) };
                let step = DeltaStep {
                    q: &mixed[..key_dim],
                    k: &mixed[key_dim..2 * key_dim],
                    v: &mixed[value..value + len],
                    decay,
                    beta,
                };
                self.kernels.delta_step(&step, state, &mut raw[first..first + len]);
            }
        }
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

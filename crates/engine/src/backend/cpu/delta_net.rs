//! Stage `delta_net`: in_proj, convolution, gates, state, gated norm, out_proj.
//!
//! After the projections one task does everything for one key head of one sequence: the
//! convolution of its channels, then token by token the states of the value heads that share the
//! key. States are worked on in blocks of value rows that stay in the first-level cache for all
//! tokens of the pass; rows do not depend on each other.

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

/// Rows of a head's state [value_dim, key_dim] that are taken through all tokens at a time:
/// 16 KB with keys of 128.
const STATE_ROWS: usize = 32;

/// Intermediate results of the stage.
pub(super) struct DeltaNetScratch {
    /// Convolution weights of each layer, a tap at a time [conv_taps, conv_channels].
    taps: Vec<Vec<f32>>,
    qkv: Vec<f32>,   // [tokens, conv_channels] raw
    mixed: Vec<f32>, // [tokens, conv_channels] after the convolution: queries, keys, values
    z: Vec<f32>,     // [tokens, value_width]
    b: Vec<f32>,     // [tokens, value_heads], then the write strength β
    a: Vec<f32>,     // [tokens, value_heads], then the decay g
    raw: Vec<f32>,   // [tokens, value_width] what the states gave
    read: Vec<f32>,  // [tokens, value_width] normed and gated
}

impl DeltaNetScratch {
    pub(super) fn new(shape: &DeltaNetShape, weights: &Weights, tokens: usize) -> Self {
        Self {
            taps: taps_of(shape, weights),
            qkv: zeros(tokens * shape.conv_channels()),
            mixed: zeros(tokens * shape.conv_channels()),
            z: zeros(tokens * shape.value_width()),
            b: zeros(tokens * shape.value_heads),
            a: zeros(tokens * shape.value_heads),
            raw: zeros(tokens * shape.value_width()),
            read: zeros(tokens * shape.value_width()),
        }
    }
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
        mixed: Shared::new(&mut scratch.mixed),
        raw: Shared::new(&mut scratch.raw),
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
    taps: &'a [f32],        // [conv_taps, conv_channels]
    qkv: &'a [f32],         // [tokens, conv_channels]
    z: &'a [f32],           // [tokens, value_width]
    b: Shared<'a, f32>,     // [tokens, value_heads]
    a: Shared<'a, f32>,     // [tokens, value_heads]
    mixed: Shared<'a, f32>, // [tokens, conv_channels]
    raw: Shared<'a, f32>,   // [tokens, value_width]
    read: Shared<'a, f32>,  // [tokens, value_width]
}

impl Head<'_> {
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
        let runs = [
            (key_head * shape.key_dim, shape.key_dim),
            (shape.key_width() + key_head * shape.key_dim, shape.key_dim),
            (
                2 * shape.key_width() + key_head * heads_a_key * shape.value_dim,
                heads_a_key * shape.value_dim,
            ),
        ];
        for (start, len) in runs {
            // SAFETY: passed on from the caller.
            unsafe { self.convolve(row, start, len, state, conv_at) };
        }
        for token in row.first..row.first + row.len {
            let at = token * shape.conv_channels() + key_head * shape.key_dim;
            // SAFETY: passed on from the caller.
            let (query, key) = unsafe {
                (
                    self.mixed.part(at, shape.key_dim),
                    self.mixed.part(at + shape.key_width(), shape.key_dim),
                )
            };
            self.kernels.l2_norm(query, L2_EPS, (shape.key_dim as f32).sqrt().recip());
            self.kernels.l2_norm(key, L2_EPS, 1.0);
        }
        for value_head in key_head * heads_a_key..(key_head + 1) * heads_a_key {
            // SAFETY: passed on from the caller.
            unsafe {
                worker.at(Op::Gates);
                self.open_gates(row, value_head);
                worker.at(Op::State);
                worker.moves(2 * elements * size_of::<f32>(), DELTA_FLOP * elements * row.len);
                self.advance(row, key_head, value_head, state, layer_at);
                worker.at(Op::GatedNorm);
                self.gate(row, value_head);
            }
        }
    }

    /// `mixed = silu(conv(qkv))` for a run of channels, and the last raw inputs to the state.
    ///
    /// # Safety
    /// Nobody else touches these channels of this row.
    unsafe fn convolve(
        &self,
        row: &RowPlan,
        start: usize,
        len: usize,
        state: &Cells,
        conv_at: usize,
    ) {
        let shape = &self.shape.delta_net;
        let (channels, before) = (shape.conv_channels(), shape.conv_taps - 1);
        // Inputs by age: the state's vectors first, then the new ones.
        let input = |age: usize| match age.checked_sub(before) {
            Some(token) => &self.qkv[(row.first + token) * channels + start..][..len],
            // SAFETY: passed on from the caller; read only until the loop below.
            None => unsafe { &*state.part(conv_at + age * channels + start, len) },
        };
        for token in 0..row.len {
            // SAFETY: passed on from the caller.
            let out = unsafe { self.mixed.part((row.first + token) * channels + start, len) };
            let mut taps = [(&[][..], &[][..]); TAPS_MAX];
            let taps = &mut taps[..shape.conv_taps];
            for (tap, pair) in taps.iter_mut().enumerate() {
                let weights = &self.taps[tap * channels + start..][..len];
                *pair = (weights, input(token + tap));
            }
            self.kernels.conv_silu(taps, out);
        }
        for age in 0..before {
            let kept = input(row.len + age);
            // SAFETY: passed on from the caller; what is read is younger, hence another vector.
            unsafe { state.part(conv_at + age * channels + start, len) }.copy_from_slice(kept);
        }
    }

    /// Decay `exp(-exp(a_log)·softplus(a + dt_bias))` and write strength `sigmoid(b)`, in place.
    ///
    /// # Safety
    /// Nobody else touches this value head.
    unsafe fn open_gates(&self, row: &RowPlan, value_head: usize) {
        let rate = self.weights.a_log[value_head].exp();
        let bias = self.weights.dt_bias[value_head];
        for token in row.first..row.first + row.len {
            let at = token * self.shape.delta_net.value_heads + value_head;
            // SAFETY: passed on from the caller.
            let (a, b) = unsafe { (&mut self.a.part(at, 1)[0], &mut self.b.part(at, 1)[0]) };
            *a = (-rate * softplus(*a + bias)).exp();
            *b = sigmoid(*b);
        }
    }

    /// Takes one value head's state through the row's tokens.
    ///
    /// # Safety
    /// Nobody else touches this value head and its state.
    unsafe fn advance(
        &self,
        row: &RowPlan,
        key_head: usize,
        value_head: usize,
        state: &Cells,
        layer_at: usize,
    ) {
        let shape = &self.shape.delta_net;
        let (heads, value_dim) = (shape.value_heads, shape.value_dim);
        let state_at = layer_at + value_head * value_dim * shape.key_dim;
        for first in (0..value_dim).step_by(STATE_ROWS) {
            let len = STATE_ROWS.min(value_dim - first);
            // SAFETY: passed on from the caller.
            let state =
                unsafe { state.part(state_at + first * shape.key_dim, len * shape.key_dim) };
            for token in row.first..row.first + row.len {
                let gate = token * heads + value_head;
                let mixed = token * shape.conv_channels();
                let (query, value) = (key_head * shape.key_dim, value_head * value_dim + first);
                // SAFETY: passed on from the caller; nobody writes these any more.
                let step = unsafe {
                    DeltaStep {
                        q: self.mixed.part(mixed + query, shape.key_dim),
                        k: self.mixed.part(mixed + shape.key_width() + query, shape.key_dim),
                        v: self.mixed.part(mixed + 2 * shape.key_width() + value, len),
                        decay: self.a.part(gate, 1)[0],
                        beta: self.b.part(gate, 1)[0],
                    }
                };
                // SAFETY: passed on from the caller.
                let raw = unsafe { self.raw.part(gate * value_dim + first, len) };
                self.kernels.delta_step(&step, state, raw);
            }
        }
    }

    /// Norms and gates what a value head's state gave.
    ///
    /// # Safety
    /// Nobody else touches this value head.
    unsafe fn gate(&self, row: &RowPlan, value_head: usize) {
        let shape = &self.shape.delta_net;
        let (heads, value_dim) = (shape.value_heads, shape.value_dim);
        for token in row.first..row.first + row.len {
            let at = (token * heads + value_head) * value_dim;
            // SAFETY: passed on from the caller.
            let (raw, read) =
                unsafe { (self.raw.part(at, value_dim), self.read.part(at, value_dim)) };
            self.kernels.rms_norm(raw, &self.weights.norm, self.shape.norm_eps, read);
            self.kernels.mul_silu(read, &self.z[at..][..value_dim]);
        }
    }
}

/// Most taps that a convolution may have.
pub(super) const TAPS_MAX: usize = 16;

/// Added to the squared length of queries and keys, whatever the model's own epsilon.
const L2_EPS: f32 = 1e-6;

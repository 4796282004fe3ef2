//! The ops between a DeltaNet layer's projections.

use calla_engine::{backend::cpu::kernels::DeltaStep, model::DELTA_FLOP};
use divan::Bencher;

use crate::{SHAPE, counted, kernels, memory::Turns, vectors::vector};

/// Rows of a state that are taken through all tokens of a pass at a time.
const STATE_ROWS: usize = 32;

/// Tokens of a prompt that a pass takes through a state.
const PREFILL_TOKENS: usize = 512;

/// One token's states of a layer, all heads: read from memory and written.
#[divan::bench]
fn delta_decode(bencher: Bencher<'_, '_>) {
    let net = &SHAPE.delta_net;
    let elements = net.value_heads * net.value_dim * net.key_dim;
    let bytes = elements * size_of::<f32>();
    let mut turns = Turns::of(bytes);
    let mut states = vec![0.01f32; turns.count() * elements];
    let mut heads = Inputs::new(1);
    counted(bencher, 2 * bytes, DELTA_FLOP * elements)
        .with_inputs(|| turns.next())
        .bench_local_values(|turn| {
            let states = &mut states[turn * elements..][..elements];
            states.chunks_exact_mut(net.value_dim * net.key_dim).for_each(|state| {
                state.chunks_exact_mut(STATE_ROWS * net.key_dim).for_each(|rows| heads.step(rows));
            });
        });
}

/// A prompt's tokens through one head's state, which stays in the first-level cache.
#[divan::bench]
fn delta_prefill(bencher: Bencher<'_, '_>) {
    let net = &SHAPE.delta_net;
    let mut state = vec![0.01f32; net.value_dim * net.key_dim];
    let mut head = Inputs::new(PREFILL_TOKENS);
    counted(bencher, 2 * size_of_val(&*state), DELTA_FLOP * state.len() * PREFILL_TOKENS)
        .bench_local(|| {
            state.chunks_exact_mut(STATE_ROWS * net.key_dim).for_each(|rows| head.step(rows));
        });
}

/// One token of the convolution, all channels.
#[divan::bench]
fn conv(bencher: Bencher<'_, '_>) {
    let (taps, channels) = (SHAPE.delta_net.conv_taps, SHAPE.delta_net.conv_channels());
    let (weights, inputs) = (vector(taps * channels), vector(taps * channels));
    let pairs: Vec<(&[f32], &[f32])> =
        weights.chunks_exact(channels).zip(inputs.chunks_exact(channels)).collect();
    let mut out = vec![0.0; channels];
    let floats = 2 * taps * channels + channels;
    counted(bencher, floats * size_of::<f32>(), 2 * taps * channels)
        .bench_local(|| kernels().conv_silu(divan::black_box(&pairs), &mut out));
}

/// What tokens bring to a head's state.
struct Inputs {
    queries: Vec<f32>, // [tokens, key_dim]
    keys: Vec<f32>,    // [tokens, key_dim]
    values: Vec<f32>,  // [tokens, STATE_ROWS]
    out: [f32; STATE_ROWS],
}

impl Inputs {
    fn new(tokens: usize) -> Self {
        let dim = SHAPE.delta_net.key_dim;
        let mut keys = vector(tokens * dim);
        for key in keys.chunks_exact_mut(dim) {
            kernels().l2_norm(key, 1e-6, 1.0);
        }
        let values = vector(tokens * STATE_ROWS);
        Self { queries: keys.clone(), keys, values, out: [0.0; STATE_ROWS] }
    }

    /// Takes some rows of a state through all tokens.
    fn step(&mut self, rows: &mut [f32]) {
        let dim = SHAPE.delta_net.key_dim;
        let vectors = self.queries.chunks_exact(dim).zip(self.keys.chunks_exact(dim));
        for ((q, k), v) in vectors.zip(self.values.chunks_exact(STATE_ROWS)) {
            let step = DeltaStep { q, k, v, decay: 0.9, beta: 0.5 };
            kernels().delta_step(&step, rows, &mut self.out);
        }
    }
}

//! The ops between a DeltaNet layer's projections.

use calla_engine::{backend::cpu::kernels::DeltaRun, model::DELTA_FLOP};
use divan::Bencher;

use crate::{SHAPE, counted, kernels, memory::Turns, vectors::vector};

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
            let states = states.chunks_exact_mut(net.value_dim * net.key_dim);
            states.for_each(|state| heads.run(state));
        });
}

/// A prompt's tokens through one head's state.
#[divan::bench]
fn delta_prefill(bencher: Bencher<'_, '_>) {
    let net = &SHAPE.delta_net;
    let mut state = vec![0.01f32; net.value_dim * net.key_dim];
    let mut head = Inputs::new(PREFILL_TOKENS);
    counted(bencher, 2 * size_of_val(&*state), DELTA_FLOP * state.len() * PREFILL_TOKENS)
        .bench_local(|| head.run(&mut state));
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
    vectors: Vec<f32>, // [tokens, key_dim + value_dim], keys are queries too
    decays: Vec<f32>,
    betas: Vec<f32>,
    out: Vec<f32>, // [tokens, value_dim]
}

impl Inputs {
    fn new(tokens: usize) -> Self {
        let net = &SHAPE.delta_net;
        let stride = net.key_dim + net.value_dim;
        let mut vectors = vector(tokens * stride);
        for token in vectors.chunks_exact_mut(stride) {
            kernels().l2_norm(&mut token[..net.key_dim], 1e-6, 1.0);
        }
        let out = vec![0.0; tokens * net.value_dim];
        Self { vectors, decays: vec![0.9; tokens], betas: vec![0.5; tokens], out }
    }

    /// Takes a state through all tokens.
    fn run(&mut self, state: &mut [f32]) {
        let net = &SHAPE.delta_net;
        let run = DeltaRun {
            queries: &self.vectors,
            keys: &self.vectors,
            values: &self.vectors[net.key_dim..],
            stride: net.key_dim + net.value_dim,
            key_dim: net.key_dim,
            decays: &self.decays,
            betas: &self.betas,
        };
        kernels().delta_run(&run, state, &mut self.out, net.value_dim);
    }
}

//! The least time a decoded token can take: the bytes it touches over the memory's bandwidth.

use std::{hint::black_box, thread, time::Instant};

use calla_engine::{
    backend::Backend,
    model::{Linear, Mixer, Mlp, MlpShape, Swiglu, Weights},
};

/// Buffer that the bandwidth is measured on: far more than any cache.
const BUFFER_BYTES: usize = 1 << 30;
/// Passes over the buffer; the fastest counts.
const PASSES: usize = 5;

/// Bytes that one token of a sequence of `tokens` tokens reads and writes: each weight it is
/// multiplied with (of the experts only those it visits), its state twice, its KV cache once.
pub(super) fn token_bytes(backend: &dyn Backend, weights: &Weights, tokens: usize) -> u64 {
    let sequence = backend.bytes_for(tokens);
    let embedding_row = weights.embed.size_bytes() / weights.embed.outputs;
    let layers: usize = (weights.layers.iter())
        .map(|layer| mixer_bytes(&layer.mixer) + mlp_bytes(&layer.mlp, &backend.shape().mlp))
        .sum();
    let weights = embedding_row + layers + weights.head.size_bytes();
    (weights + 2 * sequence.state + sequence.kv) as u64
}

fn mixer_bytes(mixer: &Mixer) -> usize {
    match mixer {
        Mixer::DeltaNet(net) => {
            let vectors = net.conv.len() + net.a_log.len() + net.dt_bias.len() + net.norm.len();
            total(&[
                &net.in_proj_qkv,
                &net.in_proj_z,
                &net.in_proj_b,
                &net.in_proj_a,
                &net.out_proj,
            ]) + 4 * vectors
        }
        Mixer::Attention(attention) => {
            total(&[&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj])
        }
    }
}

fn mlp_bytes(mlp: &Mlp, shape: &MlpShape) -> usize {
    let moe = match mlp {
        Mlp::Dense(swiglu) => return swiglu_bytes(swiglu),
        Mlp::Moe(moe) => moe,
    };
    let visited = match *shape {
        MlpShape::Dense { .. } => 0,
        MlpShape::Moe { experts_per_token, .. } => experts_per_token,
    };
    let expert = total(&[&moe.experts.gate[0], &moe.experts.up[0], &moe.experts.down[0]]);
    total(&[&moe.router, &moe.shared_gate]) + swiglu_bytes(&moe.shared) + visited * expert
}

fn swiglu_bytes(swiglu: &Swiglu) -> usize {
    total(&[&swiglu.gate, &swiglu.up, &swiglu.down])
}

fn total(matrices: &[&Linear]) -> usize {
    matrices.iter().map(|matrix| matrix.size_bytes()).sum()
}

/// Read bandwidth of the memory with this many threads, in bytes a second.
pub(super) fn read_bytes_s(threads: usize) -> f64 {
    let words = vec![1u64; BUFFER_BYTES / 8];
    let part = words.len().div_ceil(threads.max(1));
    let pass = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(move || {
                    black_box(part.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
                });
            }
        });
        start.elapsed().as_secs_f64()
    };
    let fastest_s = (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min);
    BUFFER_BYTES as f64 / fastest_s
}

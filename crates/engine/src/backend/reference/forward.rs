//! Step 5: the model, from token ids to logits.

use super::{
    ops::{
        DeltaInputs, add, attend, conv_silu, decay_log, delta_recurrent, expand_row, expert,
        head_gate, l2norm, linear, rmsnorm, rope, route, sigmoid, silu, split_gate, split_qkv,
        swiglu,
    },
    sequence::{Memory, Sequence},
};
use crate::model::{
    Attention, AttentionShape, DeltaNet, DeltaNetShape, Mixer, Mlp, MlpShape, Moe, Shape, Weights,
};

/// Appends `tokens` to the sequence and writes the logits of the last `logits.len() / vocab` of
/// them.
///
/// Every activation is a matrix with one row for each new token.
pub(super) fn forward(
    shape: &Shape,
    weights: &Weights,
    sequence: &mut Sequence,
    tokens: &[u32],     // [tokens]
    logits: &mut [f32], // [wanted, vocab]
) {
    let start = sequence.tokens;

    // embed: each token's row of the embedding matrix starts the residual stream
    let mut x = embed(shape, weights, tokens); // [tokens, hidden]

    for (layer, memory) in weights.layers.iter().zip(&mut sequence.layers) {
        // delta_net or attention: look at earlier tokens and add what was found
        let normed = rmsnorm(&x, &layer.input_norm, shape.norm_eps);
        let mixed = match (&layer.mixer, memory) {
            (Mixer::DeltaNet(weights), Memory::DeltaNet { conv, state }) => {
                delta_net(&shape.delta_net, shape.norm_eps, weights, &normed, conv, state)
            }
            (Mixer::Attention(weights), Memory::Attention { keys, values }) => {
                let cache = KvCache { start, keys, values };
                attention(&shape.attention, shape.norm_eps, weights, &normed, cache)
            }
            _ => unreachable!("a sequence has the kind of memory that each layer's mixer needs"),
        };
        add(&mut x, &mixed);

        // moe or mlp: work on each token alone and add the result
        let normed = rmsnorm(&x, &layer.post_norm, shape.norm_eps);
        let fed = match &layer.mlp {
            Mlp::Dense(weights) => swiglu(weights, &normed),
            Mlp::Moe(weights) => moe(&shape.mlp, weights, &normed),
        };
        add(&mut x, &fed);
    }
    sequence.tokens += tokens.len();

    // head: one score for each word of the vocabulary, where somebody asked for it
    let wanted = logits.len() / shape.vocab;
    if wanted > 0 {
        let last = &x[(tokens.len() - wanted) * shape.hidden..];
        let normed = rmsnorm(last, &weights.norm, shape.norm_eps);
        logits.copy_from_slice(&linear(&weights.head, &normed));
    }
}

fn embed(shape: &Shape, weights: &Weights, tokens: &[u32]) -> Vec<f32> {
    let mut x = vec![0.0; tokens.len() * shape.hidden];
    for (row, &token) in x.chunks_exact_mut(shape.hidden).zip(tokens) {
        expand_row(&weights.embed, token as usize, row);
    }
    x
}

/// Gated DeltaNet: a matrix for each head is the memory. A token lets it fade, corrects what it
/// holds under the token's key, and reads it with the token's query.
fn delta_net(
    shape: &DeltaNetShape,
    norm_eps: f32,
    weights: &DeltaNet,
    x: &[f32],         // [tokens, hidden]
    conv: &mut [f32],  // [conv_taps - 1, conv_channels]
    state: &mut [f32], // [value_heads, value_dim, key_dim]
) -> Vec<f32> {
    // in_proj: everything that is linear in the input
    let qkv = linear(&weights.in_proj_qkv, x); // [tokens, conv_channels]
    let z = linear(&weights.in_proj_z, x); // [tokens, value_width]
    let b = linear(&weights.in_proj_b, x); // [tokens, value_heads]
    let a = linear(&weights.in_proj_a, x); // [tokens, value_heads]

    // conv: each channel sees its own last few values
    let qkv = conv_silu(&qkv, &weights.conv, conv, shape.conv_taps);
    let (queries, keys, values) = split_qkv(shape, &qkv);

    // gates: how far the state fades, and how strongly the token is written
    let inputs = DeltaInputs {
        queries: l2norm(&queries, shape.key_dim, (shape.key_dim as f32).sqrt().recip()),
        keys: l2norm(&keys, shape.key_dim, 1.0),
        values,
        decay_log: decay_log(&a, &weights.a_log, &weights.dt_bias),
        beta: b.iter().map(|&b| sigmoid(b)).collect(),
    };

    // state: fade, correct, read
    let read = delta_recurrent(shape, &inputs, state); // [tokens, value_heads, value_dim]

    // gated norm, out_proj
    let mut read = rmsnorm(&read, &weights.norm, norm_eps);
    for (read, z) in read.iter_mut().zip(z) {
        *read *= silu(z);
    }
    linear(&weights.out_proj, &read)
}

/// The keys and values of one attention layer, to which new tokens are appended.
struct KvCache<'a> {
    start: usize,             // tokens in it before this step
    keys: &'a mut Vec<f32>,   // [tokens, kv_heads, head_dim]
    values: &'a mut Vec<f32>, // [tokens, kv_heads, head_dim]
}

/// Gated attention: each token compares its query with the keys of all tokens up to itself and
/// takes the average of their values, weighted by the likeness.
fn attention(
    shape: &AttentionShape,
    norm_eps: f32,
    weights: &Attention,
    x: &[f32], // [tokens, hidden]
    cache: KvCache<'_>,
) -> Vec<f32> {
    // qkv: one query and one output gate a head; fewer keys and values, shared by several heads
    let (queries, gates) = split_gate(shape, &linear(&weights.q_proj, x));
    let keys = linear(&weights.k_proj, x); // [tokens, kv_heads, head_dim]
    let values = linear(&weights.v_proj, x); // [tokens, kv_heads, head_dim]

    // qk-norm, RoPE: positions enter as rotations, so only distances matter
    let mut queries = rmsnorm(&queries, &weights.q_norm, norm_eps); // [tokens, heads, head_dim]
    let mut keys = rmsnorm(&keys, &weights.k_norm, norm_eps);
    rope(shape, &mut queries, shape.heads, cache.start);
    rope(shape, &mut keys, shape.kv_heads, cache.start);

    // KV write, attend
    cache.keys.extend_from_slice(&keys);
    cache.values.extend_from_slice(&values);
    let mut read = attend(shape, &queries, cache.keys, cache.values, cache.start);

    // gate, o_proj
    head_gate(&mut read, &gates);
    linear(&weights.o_proj, &read)
}

/// Mixture of experts: the router sends each token to a few experts, and a shared expert sees all.
fn moe(
    shape: &MlpShape,
    weights: &Moe,
    x: &[f32], // [tokens, hidden]
) -> Vec<f32> {
    let &MlpShape::Moe { experts, experts_per_token, renormalise, .. } = shape else {
        unreachable!("a checkpoint's shape and weights agree on the kind of its layers")
    };
    let hidden = weights.router.inputs;

    // route
    let router = linear(&weights.router, x); // [tokens, experts]

    // shared expert, scaled by one gate a token
    let mut y = swiglu(&weights.shared, x); // [tokens, hidden]
    let gates = linear(&weights.shared_gate, x); // [tokens, 1]
    for (y, gate) in y.chunks_exact_mut(hidden).zip(gates) {
        y.iter_mut().for_each(|y| *y *= sigmoid(gate));
    }

    // experts, combine
    for (token, y) in y.chunks_exact_mut(hidden).enumerate() {
        let x = &x[token * hidden..][..hidden];
        let logits = &router[token * experts..][..experts];
        for (chosen, score) in route(logits, experts_per_token, renormalise) {
            let out = expert(&weights.experts, chosen, x);
            y.iter_mut().zip(out).for_each(|(y, out)| *y += score * out);
        }
    }
    y
}

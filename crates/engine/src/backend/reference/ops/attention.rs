use super::{dot, sigmoid};
use crate::model::AttentionShape;

/// Takes apart what q_proj gives: the queries and the output gates, each [tokens, heads,
/// head_dim].
pub fn split_gate(
    shape: &AttentionShape,
    projected: &[f32], // [tokens, heads, 2, head_dim]
) -> (Vec<f32>, Vec<f32>) {
    assert!(projected.len().is_multiple_of(2 * shape.query_width()));
    let (mut queries, mut gates) = (Vec::new(), Vec::new());
    for head in projected.chunks_exact(2 * shape.head_dim) {
        let (query, gate) = head.split_at(shape.head_dim);
        queries.extend_from_slice(query);
        gates.extend_from_slice(gate);
    }
    (queries, gates)
}

/// Rotary position embedding in place; the first token stands at position `start`.
///
/// Dimensions i and i + R/2 of the R rotary ones turn together by `position * theta^(-2i/R)`. The
/// angle is taken in f64: at position 200,000 a float32 product would be off by 0.01 radians.
pub fn rope(
    shape: &AttentionShape,
    x: &mut [f32], // [tokens, heads, head_dim]
    heads: usize,
    start: usize,
) {
    assert!(x.len().is_multiple_of(heads * shape.head_dim));
    let half = shape.rotary_dims / 2;
    for (token, x) in x.chunks_exact_mut(heads * shape.head_dim).enumerate() {
        for i in 0..half {
            let exponent = -2.0 * i as f64 / shape.rotary_dims as f64;
            let angle = (start + token) as f64 * shape.rope_theta.powf(exponent);
            let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
            for head in x.chunks_exact_mut(shape.head_dim) {
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = a * sin + b * cos;
            }
        }
    }
}

/// Causal softmax attention of the tokens from position `start` on, whose own keys and values are
/// the last ones: `softmax(q·kᵀ / sqrt(head_dim))·v` for each head.
pub fn attend(
    shape: &AttentionShape,
    queries: &[f32], // [tokens, heads, head_dim]
    keys: &[f32],    // [start + tokens, kv_heads, head_dim]
    values: &[f32],  // [start + tokens, kv_heads, head_dim]
    start: usize,
) -> Vec<f32> {
    let tokens = queries.len() / shape.query_width();
    assert_eq!(queries.len(), tokens * shape.query_width());
    assert_eq!(keys.len(), (start + tokens) * shape.kv_width());
    assert_eq!(values.len(), keys.len());
    let mut out = vec![0.0; queries.len()]; // [tokens, heads, head_dim]
    let heads = queries.chunks_exact(shape.head_dim).zip(out.chunks_exact_mut(shape.head_dim));
    for (index, (query, out)) in heads.enumerate() {
        let (token, head) = (index / shape.heads, index % shape.heads);
        let kv_head = head / (shape.heads / shape.kv_heads);
        let seen = start + token + 1;
        attend_one(shape, query, keys, values, seen, kv_head, out);
    }
    out
}

/// Scales what attention read by the sigmoid of the output gates, in place.
pub fn head_gate(
    read: &mut [f32], // [tokens, heads, head_dim]
    gates: &[f32],    // [tokens, heads, head_dim]
) {
    assert_eq!(read.len(), gates.len());
    read.iter_mut().zip(gates).for_each(|(read, &gate)| *read *= sigmoid(gate));
}

/// One query against the first `seen` positions of one KV head.
fn attend_one(
    shape: &AttentionShape,
    query: &[f32],  // [head_dim]
    keys: &[f32],   // [positions, kv_heads, head_dim]
    values: &[f32], // [positions, kv_heads, head_dim]
    seen: usize,
    kv_head: usize,
    out: &mut [f32], // [head_dim], zeros
) {
    let at = |position: usize| position * shape.kv_width() + kv_head * shape.head_dim;
    let scale = (shape.head_dim as f32).sqrt().recip();
    let mut weights: Vec<f32> = (0..seen)
        .map(|position| dot(query, &keys[at(position)..][..shape.head_dim]) * scale)
        .collect();

    // the largest score becomes exp(0), so nothing overflows
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
    let sum: f32 = weights.iter().sum();

    for (position, weight) in weights.iter().enumerate() {
        let value = &values[at(position)..][..shape.head_dim];
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / sum * value);
    }
}

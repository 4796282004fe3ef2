use super::{linear, silu};
use crate::model::{Experts, Linear, Swiglu};

/// `down(silu(gate(x)) * up(x))`.
pub fn swiglu(
    weights: &Swiglu,
    x: &[f32], // [tokens, hidden]
) -> Vec<f32> {
    gated(&weights.gate, &weights.up, &weights.down, x)
}

/// [`swiglu`] with the weights of one routed expert.
pub fn expert(
    weights: &Experts,
    expert: usize,
    x: &[f32], // [tokens, hidden]
) -> Vec<f32> {
    gated(&weights.gate[expert], &weights.up[expert], &weights.down[expert], x)
}

/// The experts that one token visits and their scores, highest first: softmax over all experts,
/// the `count` most probable, scaled to sum 1 when `renormalise`. Of equal probabilities the
/// higher index comes first, as in mlx-lm on a CPU.
pub fn route(
    logits: &[f32], // [experts]
    count: usize,
    renormalise: bool,
) -> Vec<(usize, f32)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    let mut ranked: Vec<(usize, f32)> = exps.iter().map(|exp| exp / sum).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    ranked.truncate(count);
    if renormalise {
        let sum: f32 = ranked.iter().map(|(_, score)| score).sum();
        ranked.iter_mut().for_each(|(_, score)| *score /= sum);
    }
    ranked
}

fn gated(gate: &Linear, up: &Linear, down: &Linear, x: &[f32]) -> Vec<f32> {
    let mut inner = linear(gate, x); // [tokens, width]
    for (inner, up) in inner.iter_mut().zip(linear(up, x)) {
        *inner = silu(*inner) * up;
    }
    linear(down, &inner) // [tokens, hidden]
}

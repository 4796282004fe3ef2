use super::mlp::gated;
use crate::model::Experts;

/// [`super::swiglu`] with the weights of one routed expert.
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

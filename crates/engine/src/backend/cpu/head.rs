//! Stage `head`: the last norm and the output matrix, for the tokens that want logits.

use super::{
    kernels::Activations,
    pass::{Pass, Product},
    scratch::Residual,
};
use crate::{backend::profile::Op, model::Weights};

/// Writes the logits of the wanted tokens.
pub(super) fn head(
    pass: &mut Pass<'_>,
    weights: &Weights,
    wanted: &[u32], // numbers of tokens in the batch
    residual: &mut Residual,
    x: &mut Activations,
    logits: &mut [f32], // [wanted, vocab]
) {
    if wanted.is_empty() {
        return;
    }
    pass.add_and_norm(residual, &weights.norm, wanted, x);
    let rows = &pass.tokens[..wanted.len()];
    pass.products([Product::new(Op::Logits, &weights.head, logits)], x, rows);
}

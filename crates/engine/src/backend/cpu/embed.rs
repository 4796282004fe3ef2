//! Stage `embed`: each token's row of the embedding matrix.

use super::{pass::Pass, scratch::Residual, shared::Shared};
use crate::{
    backend::{Batch, profile::Op},
    model::Linear,
};

/// Starts the residual stream: zero, with the embeddings as its first update.
pub(super) fn embed(
    pass: &mut Pass<'_>,
    batch: &Batch<'_>,
    matrix: &Linear, // [vocab, hidden]
    residual: &mut Residual,
) {
    let (hidden, kernels) = (pass.shape.hidden, pass.kernels);
    residual.x[..pass.tokens.len() * hidden].fill(0.0);
    let update = Shared::new(&mut residual.update);
    for (row, plan) in batch.rows.iter().zip(pass.rows) {
        pass.pool.run(Op::Rows, row.tokens.len(), |token, worker| {
            worker.moves(matrix.output_bytes(), 0);
            // SAFETY: each task has a token of its own.
            let out = unsafe { update.part((plan.first + token) * hidden, hidden) };
            kernels.dequantize_row(matrix, row.tokens[token] as usize, out);
        });
    }
}

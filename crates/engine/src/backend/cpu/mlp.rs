//! Stage `mlp` of the dense members of the family: one SwiGLU.

use super::{
    kernels::Activations,
    pass::{Pass, Product},
    scratch::{Residual, zeros},
    shared::Shared,
};
use crate::{backend::profile::Op, model::Swiglu};

/// Intermediate results of a SwiGLU of all tokens.
pub(super) struct SwigluScratch {
    width: usize,
    pub(super) gate: Vec<f32>, // [tokens, width]
    pub(super) up: Vec<f32>,   // [tokens, width]
    pub(super) inner: Activations,
}

impl SwigluScratch {
    pub(super) fn new(width: usize, tokens: usize, precision: crate::backend::Precision) -> Self {
        Self {
            width,
            gate: zeros(tokens * width),
            up: zeros(tokens * width),
            inner: Activations::with_capacity(tokens, width, precision),
        }
    }

    /// `inner = silu(gate) * up`, ready to multiply with.
    pub(super) fn activate(&mut self, pass: &mut Pass<'_>) {
        let (width, kernels) = (self.width, pass.kernels);
        self.inner.reset(pass.tokens.len(), width);
        let (gate, up, inner) = (Shared::new(&mut self.gate), &self.up, &self.inner);
        pass.each_token(Op::Activate, |token, _| {
            // SAFETY: each task has a token of its own.
            let gate = unsafe { gate.part(token * width, width) };
            kernels.silu_mul(gate, &up[token * width..][..width]);
            // SAFETY: the same for the activation rows.
            unsafe { kernels.prepare(inner, token, gate) };
        });
    }
}

/// Runs the stage on the normed activations `x`; the result is the residual's update.
pub(super) fn mlp(
    pass: &mut Pass<'_>,
    weights: &Swiglu,
    x: &Activations,
    scratch: &mut SwigluScratch,
    residual: &mut Residual,
) {
    let all = pass.tokens;
    let gate = Product::new(Op::GateUp, &weights.gate, &mut scratch.gate);
    let up = Product::new(Op::GateUp, &weights.up, &mut scratch.up);
    pass.products([gate, up], x, all);
    scratch.activate(pass);
    let down = Product::new(Op::Down, &weights.down, &mut residual.update);
    pass.products([down], &scratch.inner, all);
}

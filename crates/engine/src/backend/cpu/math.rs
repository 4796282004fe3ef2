//! Scalar functions; the vector ones are kernels.

/// `ln(1 + exp(x))`, exact for large `x` too.
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `1 / (1 + exp(-x))`
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

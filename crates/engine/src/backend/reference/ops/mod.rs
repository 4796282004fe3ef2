//! The arithmetic of the model, one plain function an op: the definition that other backends are
//! measured against, and callable from their tests.
//!
//! Matrices are slices in row-major order, outermost dimension first: `[tokens, hidden]` is one
//! row of `hidden` floats for each token. The number of tokens follows from the length. An op
//! panics when lengths do not fit its dimensions.

mod attention;
mod delta_net;
mod linear;
mod mlp;
mod moe;
mod norm;

pub use attention::{attend, head_gate, rope, split_gate};
pub use delta_net::{
    CHUNK_TOKENS, DeltaInputs, conv_silu, decay_log, delta_chunked, delta_recurrent, split_qkv,
};
pub use linear::{dot, expand_row, linear};
pub use mlp::swiglu;
pub use moe::{expert, route};
pub use norm::{l2norm, rmsnorm};

/// `x + y` in place.
pub fn add(
    x: &mut [f32], // [n]
    y: &[f32],     // [n]
) {
    assert_eq!(x.len(), y.len());
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

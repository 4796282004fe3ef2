use super::{linear, silu};
use crate::model::{Linear, Swiglu};

/// `down(silu(gate(x)) * up(x))`.
pub fn swiglu(
    weights: &Swiglu,
    x: &[f32], // [tokens, hidden]
) -> Vec<f32> {
    gated(&weights.gate, &weights.up, &weights.down, x)
}

/// [`swiglu`] with its three matrices by themselves, as experts hold them.
pub(super) fn gated(gate: &Linear, up: &Linear, down: &Linear, x: &[f32]) -> Vec<f32> {
    let mut inner = linear(gate, x); // [tokens, width]
    for (inner, up) in inner.iter_mut().zip(linear(up, x)) {
        *inner = silu(*inner) * up;
    }
    linear(down, &inner) // [tokens, hidden]
}

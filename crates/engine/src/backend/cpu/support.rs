//! What the kernels ask of a model, checked once so that no forward pass can fail on it.

use super::{delta_net::TAPS_MAX, kernels, unavailable};
use crate::{
    Error,
    model::{MixerKind, Shape, Weights},
};

/// Refuses models with a matrix, a head or a convolution that no kernel takes.
///
/// # Errors
/// [`Error::BackendUnavailable`] with the dimension.
pub(super) fn check(shape: &Shape, weights: &Weights) -> Result<(), Error> {
    let head_dim = shape.attention.head_dim;
    if shape.layers_of(MixerKind::Attention) > 0 && !head_dim.is_multiple_of(16) {
        return Err(unavailable(format!("attention heads of {head_dim}: takes multiples of 16")));
    }
    let taps = shape.delta_net.conv_taps;
    if taps > TAPS_MAX {
        return Err(unavailable(format!("convolutions of {taps} taps: takes up to {TAPS_MAX}")));
    }
    for (role, matrix) in [("embedding", &weights.embed)].into_iter().chain(weights.products()) {
        kernels::supports(matrix).map_err(|problem| unavailable(format!("{role}: {problem}")))?;
    }
    Ok(())
}

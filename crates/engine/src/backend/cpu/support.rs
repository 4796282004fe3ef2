//! What the kernels ask of a model, checked once so that no forward pass can fail on it.

use super::{delta_net::TAPS_MAX, kernels, unavailable};
use crate::{
    Error,
    model::{Linear, Mixer, MixerKind, Mlp, Shape, Swiglu, Weights},
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
    let mut result = Ok(());
    each_matrix(weights, |role, matrix| {
        if let (Ok(()), Err(problem)) = (&result, kernels::supports(matrix)) {
            result = Err(unavailable(format!("{role}: {problem}")));
        }
    });
    result
}

/// Calls `visit` with every matrix and its role.
fn each_matrix(weights: &Weights, mut visit: impl FnMut(&str, &Linear)) {
    visit("embedding", &weights.embed);
    visit("head", &weights.head);
    for layer in &weights.layers {
        match &layer.mixer {
            Mixer::DeltaNet(mixer) => {
                visit("in_proj_qkv", &mixer.in_proj_qkv);
                visit("in_proj_z", &mixer.in_proj_z);
                visit("in_proj_b", &mixer.in_proj_b);
                visit("in_proj_a", &mixer.in_proj_a);
                visit("out_proj", &mixer.out_proj);
            }
            Mixer::Attention(mixer) => {
                visit("q_proj", &mixer.q_proj);
                visit("k_proj", &mixer.k_proj);
                visit("v_proj", &mixer.v_proj);
                visit("o_proj", &mixer.o_proj);
            }
        }
        let mut visit_swiglu = |Swiglu { gate, up, down }: &Swiglu| {
            visit("gate_proj", gate);
            visit("up_proj", up);
            visit("down_proj", down);
        };
        match &layer.mlp {
            Mlp::Dense(mlp) => visit_swiglu(mlp),
            Mlp::Moe(moe) => {
                visit_swiglu(&moe.shared);
                visit("router", &moe.router);
                visit("shared_expert_gate", &moe.shared_gate);
                let experts = [&moe.experts.gate, &moe.experts.up, &moe.experts.down];
                experts.into_iter().flatten().for_each(|matrix| visit("switch_mlp", matrix));
            }
        }
    }
}

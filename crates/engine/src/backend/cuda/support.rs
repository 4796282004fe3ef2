//! What the kernels ask of a model and of a device, checked once so that no forward pass can fail
//! on it.

use super::{
    device::{Device, unavailable},
    dimensions::TILE_INPUTS,
};
use crate::{
    Error,
    model::{Linear, MixerKind, Mlp, MlpShape, Shape, Swiglu, Weights},
};

/// Most taps of a convolution.
const TAPS_MAX: usize = 8;
/// Most routed experts.
const EXPERTS_MAX: usize = 512;
/// Most experts that a token visits.
const TOP_K_MAX: usize = 16;

/// Refuses models with a dimension that no kernel takes.
///
/// # Errors
/// [`Error::BackendUnavailable`] with the dimension.
pub(super) fn check(shape: &Shape, weights: &Weights) -> Result<(), Error> {
    let refuse = |problem: String| Err(unavailable(problem));
    let head_dim = shape.attention.head_dim;
    if shape.layers_of(MixerKind::Attention) > 0 && (!head_dim.is_multiple_of(32) || head_dim > 256)
    {
        return refuse(format!("attention heads of {head_dim}: takes multiples of 32, up to 256"));
    }
    let net = &shape.delta_net;
    if shape.layers_of(MixerKind::DeltaNet) > 0 {
        for (name, dim) in [("key", net.key_dim), ("value", net.value_dim)] {
            if ![32, 64, 128].contains(&dim) {
                return refuse(format!("DeltaNet {name} heads of {dim}: takes 32, 64 or 128"));
            }
        }
        if net.conv_taps > TAPS_MAX {
            let taps = net.conv_taps;
            return refuse(format!("convolutions of {taps} taps: takes up to {TAPS_MAX}"));
        }
    }
    if let MlpShape::Moe { experts, experts_per_token, .. } = shape.mlp {
        if experts > EXPERTS_MAX {
            return refuse(format!("{experts} experts: takes up to {EXPERTS_MAX}"));
        }
        if experts_per_token > TOP_K_MAX {
            return refuse(format!("{experts_per_token} experts a token: takes up to {TOP_K_MAX}"));
        }
    }
    for (role, linear) in weights.products() {
        if !linear.inputs.is_multiple_of(TILE_INPUTS) {
            return refuse(format!(
                "{role} with {} inputs: takes multiples of {TILE_INPUTS}",
                linear.inputs
            ));
        }
    }
    for layer in &weights.layers {
        match &layer.mlp {
            Mlp::Dense(mlp) => check_pair(mlp)?,
            Mlp::Moe(moe) => {
                check_pair(&moe.shared)?;
                let experts = &moe.experts;
                check_alike("experts' gate and up", experts.gate.iter().chain(&experts.up))?;
                check_alike("experts' down", experts.down.iter())?;
            }
        }
    }
    Ok(())
}

/// Refuses a device without `needed` free bytes.
///
/// # Errors
/// [`Error::BackendUnavailable`] with what is needed and what is there.
pub(super) fn check_memory(device: &dyn Device, needed: usize) -> Result<(), Error> {
    let memory = device.memory()?;
    if needed <= memory.free {
        return Ok(());
    }
    let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
    Err(unavailable(format!(
        "the model needs {:.1} GiB before its first token, {} has {:.1} GiB free of {:.1}: free \
         some, or take `--backend cpu`",
        gib(needed),
        device.description(),
        gib(memory.free),
        gib(memory.total)
    )))
}

fn check_pair(mlp: &Swiglu) -> Result<(), Error> {
    check_alike("gate and up", [&mlp.gate, &mlp.up].into_iter())
}

/// Matrices that one kernel multiplies with together.
fn check_alike<'a>(
    what: &str,
    mut matrices: impl Iterator<Item = &'a Linear>,
) -> Result<(), Error> {
    let first = matrices.next().map(|linear| linear.bits);
    match matrices.find(|linear| Some(linear.bits) != first) {
        None => Ok(()),
        Some(other) => Err(unavailable(format!(
            "{what} of {} and of {} bits in one layer: takes them alike",
            first.unwrap_or(0),
            other.bits
        ))),
    }
}

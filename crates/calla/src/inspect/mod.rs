//! `calla inspect`: what a model is, what it takes, and what fits here.

mod text;

use calla_engine::{
    checkpoint::Checkpoint,
    model::{AttentionShape, DeltaNetShape, Figures, MixerKind, MlpShape, RoleFigures, Shape},
};
use serde::Serialize;

use crate::{
    args::{InspectArgs, ModelArgs},
    error::Error,
    fit::{Fit, Need},
    machine::Memory,
    output,
};

pub(crate) fn run(args: &InspectArgs) -> Result<(), Error> {
    let folder = args.folder.clone().or_else(|| args.model.model.clone());
    let model = ModelArgs { model: folder };
    let checkpoint = Checkpoint::open(&model.source()?)?;
    let fit = Fit::new(&checkpoint, &args.device)?;
    let report = Report::new(model.name(), &checkpoint, &fit, args.tensors);
    match args.output.json {
        true => output::json(&report),
        false => output::text(&report.to_string()),
    }
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    shape: Dimensions,
    parameters: u64,
    /// Weights that one token is computed with.
    parameters_active: u64,
    /// Of the tensors that the model uses, in its files.
    bytes: u64,
    unused: Unused,
    roles: Vec<RoleReport>,
    cost: Cost,
    memory: Memory,
    /// What of the free memory a model may take.
    room_bytes: Option<u64>,
    /// The longest sequence that this has room for; `None` when the model does not fit, or the
    /// system does not tell its memory.
    context_fits: Option<usize>,
    contexts: Vec<Context>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<Tensor>>,
}

/// The dimensions of the model.
#[derive(Debug, Serialize)]
struct Dimensions {
    /// Kind of each layer's mixer.
    layers: Vec<&'static str>,
    hidden: usize,
    vocab: usize,
    context_max: usize,
    tied_embeddings: bool,
    attention: AttentionReport,
    delta_net: DeltaNetReport,
    mlp: MlpReport,
}

#[derive(Debug, Serialize)]
struct AttentionReport {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotary_dims: usize,
    rope_theta: f64,
}

#[derive(Debug, Serialize)]
struct DeltaNetReport {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    conv_taps: usize,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum MlpReport {
    Dense { width: usize },
    Moe { experts: usize, experts_per_token: usize, expert_width: usize, shared_width: usize },
}

/// Tensors in the files that the model does not use.
#[derive(Debug, Serialize)]
struct Unused {
    tensors: usize,
    bytes: usize,
}

/// Weights of one role.
#[derive(Debug, Serialize)]
struct RoleReport {
    role: &'static str,
    parameters: u64,
    parameters_active: u64,
    bytes: u64,
    /// Scales and biases included.
    bits_per_weight: f64,
    formats: Vec<Format>,
}

/// Bits of an element, and the elements that share a scale and a bias where it is quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Format {
    bits: usize,
    group: Option<usize>,
}

/// What tokens and sequences cost on the device that would run the model.
#[derive(Debug, Serialize)]
struct Cost {
    backend: &'static str,
    /// Weights that a decoded token reads.
    decode_weight_bytes: u64,
    /// Operations of a prefilled token, besides attention.
    prefill_flop: u64,
    /// Operations of attention for each token attended to.
    attend_flop: u64,
    kv_dtype: &'static str,
    /// Keys and values of a token.
    kv_token_bytes: u64,
    /// DeltaNet and convolution states of a sequence.
    state_bytes: u64,
    /// Intermediate results of forward passes.
    scratch_bytes: u64,
}

/// A length of sequence.
#[derive(Debug, Serialize)]
struct Context {
    tokens: usize,
    kv_bytes: u64,
    /// Weights, states, intermediate results and KV cache.
    need_bytes: u64,
    /// What a token decoded here reads and writes: the floor of `calla bench`.
    decode_bytes: u64,
    /// `None` where the system does not tell its memory.
    fits: Option<bool>,
}

/// One tensor; of a quantised one its three parts together.
#[derive(Debug, Serialize)]
struct Tensor {
    name: String,
    role: &'static str,
    shape: Vec<usize>,
    bits: usize,
    group: Option<usize>,
    bytes: usize,
}

/// The shortest sequence of the table; each further one is twice as long.
const CONTEXT_FIRST: usize = 4096;

impl Report {
    fn new(model: String, checkpoint: &Checkpoint, fit: &Fit<'_>, tensors: bool) -> Self {
        let figures = checkpoint.figures();
        let memory = Memory::here();
        let room_bytes = fit.room_bytes(&memory);
        let shape = &checkpoint.shape;
        Report {
            model,
            shape: Dimensions::of(shape),
            parameters: figures.parameters,
            parameters_active: figures.parameters_active,
            bytes: figures.bytes,
            unused: Unused { tensors: checkpoint.unused.tensors, bytes: checkpoint.unused.bytes },
            roles: figures.roles.iter().map(RoleReport::of).collect(),
            cost: Cost::of(&figures, fit),
            memory,
            room_bytes,
            context_fits: room_bytes.and_then(|room| fit.longest(room)),
            contexts: contexts(shape.context_max)
                .map(|tokens| Context::of(tokens, &figures, fit, room_bytes))
                .collect(),
            tensors: tensors.then(|| tensor_list(checkpoint)),
        }
    }
}

/// The lengths of the table, the model's longest last.
fn contexts(context_max: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(CONTEXT_FIRST), |tokens| tokens.checked_mul(2));
    doubled.take_while(move |&tokens| tokens < context_max).chain([context_max])
}

fn tensor_list(checkpoint: &Checkpoint) -> Vec<Tensor> {
    let tensors = checkpoint.tensors.iter().map(|tensor| Tensor {
        name: tensor.name.clone(),
        role: tensor.role.name(),
        shape: tensor.shape.clone(),
        bits: tensor.bits,
        group: tensor.group,
        bytes: tensor.bytes,
    });
    tensors.collect()
}

impl Dimensions {
    fn of(shape: &Shape) -> Self {
        let AttentionShape { heads, kv_heads, head_dim, rotary_dims, rope_theta } = shape.attention;
        let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, conv_taps } =
            shape.delta_net;
        let layers = shape.mixers.iter().map(|mixer| match mixer {
            MixerKind::DeltaNet => "delta_net",
            MixerKind::Attention => "attention",
        });
        Dimensions {
            layers: layers.collect(),
            hidden: shape.hidden,
            vocab: shape.vocab,
            context_max: shape.context_max,
            tied_embeddings: shape.tied_embeddings,
            attention: AttentionReport { heads, kv_heads, head_dim, rotary_dims, rope_theta },
            delta_net: DeltaNetReport { key_heads, value_heads, key_dim, value_dim, conv_taps },
            mlp: match shape.mlp {
                MlpShape::Dense { width } => MlpReport::Dense { width },
                MlpShape::Moe {
                    experts, experts_per_token, expert_width, shared_width, ..
                } => MlpReport::Moe { experts, experts_per_token, expert_width, shared_width },
            },
        }
    }
}

impl RoleReport {
    fn of(figures: &RoleFigures) -> Self {
        let formats = figures.formats.iter().map(|&(bits, group)| Format { bits, group });
        RoleReport {
            role: figures.role.name(),
            parameters: figures.parameters,
            parameters_active: figures.parameters_active,
            bytes: figures.bytes,
            bits_per_weight: figures.bits_per_weight(),
            formats: formats.collect(),
        }
    }
}

impl Cost {
    fn of(figures: &Figures, fit: &Fit<'_>) -> Self {
        let Need { state_bytes, scratch_bytes, .. } = fit.need(0);
        Cost {
            backend: fit.choice.name(),
            decode_weight_bytes: figures.decode_weight_bytes,
            prefill_flop: figures.prefill_flop,
            attend_flop: figures.attend_flop,
            kv_dtype: fit.kv_dtype(),
            kv_token_bytes: fit.kv_token_bytes(),
            state_bytes,
            scratch_bytes,
        }
    }
}

impl Context {
    fn of(tokens: usize, figures: &Figures, fit: &Fit<'_>, room_bytes: Option<u64>) -> Self {
        let need = fit.need(tokens);
        Context {
            tokens,
            kv_bytes: need.kv_bytes,
            need_bytes: need.total_bytes(),
            decode_bytes: figures.decode_bytes(fit.sequence(tokens)),
            fits: room_bytes.map(|room| need.total_bytes() <= room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_double_up_to_the_model_s_own() {
        assert_eq!(contexts(262_144).collect::<Vec<_>>()[..2], [4096, 8192]);
        assert_eq!(contexts(262_144).last(), Some(262_144));
        assert_eq!(contexts(10_000).collect::<Vec<_>>(), [4096, 8192, 10_000]);
        assert_eq!(contexts(512).collect::<Vec<_>>(), [512]);
    }
}

//! The numbers that kernels are compiled with, and the source that the compiler sees.

use std::collections::HashSet;

use super::device::Unit;
use crate::{
    backend::{CANDIDATES_MAX, Precision, histories::PAGE_TOKENS},
    model::{MixerKind, MlpShape, Shape, Weights},
};

/// What every kernel file starts with.
pub(super) const PRELUDE: &str = include_str!("prelude.cu");

/// Outputs of a tile of a repacked matrix: parts of a projection start at multiples of it.
pub(super) const TILE_OUTPUTS: usize = 16;

/// Inputs of a tile.
pub(super) const TILE_INPUTS: usize = 64;

/// Largest run of inputs that share a scale and a bias.
const GROUP_MAX: usize = 64;

/// The smallest.
pub(super) const GROUP_MIN: usize = 32;

/// Shared memory of a block from which on a device counts as having much: as data center cards have
/// from compute 9.0 on.
const SHARED_LARGE: usize = 200 << 10;

/// Everything about a model that kernels have as constants.
#[derive(Debug, Clone)]
pub(super) struct Dimensions {
    pub(super) precision: Precision,
    /// Inputs that share a scale and a bias.
    pub(super) group: usize,
    /// Halves that make up an activation.
    pub(super) pieces: usize,
    /// Width of the residual stream.
    pub(super) hidden: usize,
    /// Shared memory that a block may ask for.
    pub(super) shared_per_block: usize,
    /// Steps of inputs that a block for more than 64 rows holds in shared memory.
    pub(super) wide_stages: usize,
    /// Name and value of every constant.
    constants: Vec<(&'static str, String)>,
}

impl Dimensions {
    /// For a device whose blocks may ask for so much shared memory.
    pub(super) fn new(
        shape: &Shape,
        weights: &Weights,
        precision: Precision,
        shared_per_block: usize,
    ) -> Self {
        let wide_stages = if shared_per_block >= SHARED_LARGE { 5 } else { 3 };
        let group = weights.products().map(|(_, linear)| linear.group).min().unwrap_or(GROUP_MAX);
        let group = group.min(GROUP_MAX);
        let pieces = Self::pieces_for(precision);
        let kv_float = (precision == Precision::Exact).into();
        let (attention, delta_net) = (&shape.attention, &shape.delta_net);
        let [experts, top_k, expert_width, shared_width, renormalise] = match shape.mlp {
            MlpShape::Dense { width } => [0, 0, 0, width, 0],
            MlpShape::Moe {
                experts,
                experts_per_token,
                expert_width,
                shared_width,
                renormalise,
            } => [experts, experts_per_token, expert_width, shared_width, renormalise.into()],
        };
        let [qkv, z, b, a] = delta_net_columns(shape);
        let [q, k, v] = attention_columns(shape);
        let values = [
            ("HIDDEN", shape.hidden),
            ("VOCAB", shape.vocab),
            ("CANDIDATES", CANDIDATES_MAX),
            ("HEADS", attention.heads),
            ("KV_HEADS", attention.kv_heads),
            ("HEAD_DIM", attention.head_dim),
            ("ROTARY_DIMS", attention.rotary_dims),
            ("KEY_HEADS", delta_net.key_heads),
            ("VALUE_HEADS", delta_net.value_heads),
            ("KEY_DIM", delta_net.key_dim),
            ("VALUE_DIM", delta_net.value_dim),
            ("CONV_TAPS", delta_net.conv_taps),
            ("CONV_CHANNELS", delta_net.conv_channels()),
            ("EXPERTS", experts),
            ("TOPK", top_k),
            ("EXPERT_WIDTH", expert_width),
            ("SHARED_WIDTH", shared_width),
            ("RENORMALISE", renormalise),
            ("PAGE_TOKENS", PAGE_TOKENS),
            ("ATTENTION_LAYERS", shape.layers_of(MixerKind::Attention)),
            ("DELTA_LAYERS", shape.layers_of(MixerKind::DeltaNet)),
            ("GROUP", group),
            ("PIECES", pieces),
            ("KV_FLOAT", kv_float),
            ("WIDE_STAGES", wide_stages),
            ("EMBED_BITS", weights.embed.bits),
            ("EMBED_GROUP", weights.embed.group),
            ("COLUMN_QKV", qkv),
            ("COLUMN_Z", z),
            ("COLUMN_B", b),
            ("COLUMN_A", a),
            ("COLUMN_Q", q),
            ("COLUMN_K", k),
            ("COLUMN_V", v),
        ];
        let mut constants = Vec::from(values.map(|(name, value)| (name, value.to_string())));
        constants.push(("NORM_EPS", format!("{:e}f", shape.norm_eps)));
        Self {
            precision,
            group,
            pieces,
            hidden: shape.hidden,
            shared_per_block,
            wide_stages,
            constants,
        }
    }

    /// Halves that make up an activation.
    pub(super) fn pieces_for(precision: Precision) -> usize {
        match precision {
            Precision::Default => 1,
            Precision::Exact => 2,
        }
    }

    /// A kernel file as a unit. `instances` are lines that stand behind it; what they make, and the
    /// file's own kernels, are in `kernels`.
    ///
    /// Constants that the code does not name are left out: models that differ in those alone share
    /// what is compiled.
    pub(super) fn unit(
        &self,
        name: &'static str,
        file: &str,
        instances: &str,
        kernels: Vec<String>,
    ) -> Unit {
        let code = [PRELUDE, file, instances].join("\n");
        let named = words(&code);
        let mut source = String::new();
        for (name, value) in &self.constants {
            if named.contains(name) {
                source.push_str(&format!("#define {name} {value}\n"));
            }
        }
        source.push_str(&code);
        Unit { name, source, kernels, stamps: None }
    }
}

/// The words of some code, comments aside.
fn words(code: &str) -> HashSet<&str> {
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).collect()
}

/// Where the parts of a DeltaNet projection start in its row: qkv, z, b, a.
pub(super) fn delta_net_columns(shape: &Shape) -> [usize; 4] {
    let delta_net = &shape.delta_net;
    columns([
        delta_net.conv_channels(),
        delta_net.value_width(),
        delta_net.value_heads,
        delta_net.value_heads,
    ])
}

/// Where the parts of an attention projection start in its row: queries with gates, keys, values.
pub(super) fn attention_columns(shape: &Shape) -> [usize; 3] {
    let attention = &shape.attention;
    columns([2 * attention.query_width(), attention.kv_width(), attention.kv_width()])
}

/// Starts of parts that stand side by side, each beginning with a tile.
pub(super) fn columns<const N: usize>(widths: [usize; N]) -> [usize; N] {
    let mut at = 0;
    widths.map(|width| {
        let start = at;
        at += width.next_multiple_of(TILE_OUTPUTS);
        start
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_holds_the_constants_that_its_code_names() {
        let constant = |name, value: &str| (name, value.to_owned());
        let dimensions = Dimensions {
            precision: Precision::Default,
            group: 64,
            pieces: 1,
            hidden: 256,
            shared_per_block: 0,
            wide_stages: 3,
            constants: vec![constant("VOCAB", "320"), constant("A_VOCAB", "1"), constant("B", "2")],
        };
        let unit = dimensions.unit("test", "x[VOCAB]; // not B\n", "", Vec::new());
        assert!(unit.source.starts_with("#define VOCAB 320\n//"), "{}", &unit.source[..100]);
    }
}

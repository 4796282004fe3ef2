use crate::model::{AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape};

/// Dimensions that a made-up checkpoint can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Qwen3.6-35B-A3B: 40 layers, 256 experts, 19.5 GB.
    Qwen36Moe35bA3b,
    /// A mixture of experts for tests: 4 layers, under a megabyte.
    Tiny,
    /// A dense member with tied embeddings for tests: 4 layers, under a megabyte.
    TinyDense,
}

/// Every 4th layer has full attention.
const ATTENTION_INTERVAL: usize = 4;

impl Preset {
    /// All presets, as a command line lists them.
    pub const ALL: [Preset; 3] = [Preset::Qwen36Moe35bA3b, Preset::Tiny, Preset::TinyDense];

    /// The name people type.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Qwen36Moe35bA3b => "qwen3.6-35b-a3b",
            Preset::Tiny => "tiny",
            Preset::TinyDense => "tiny-dense",
        }
    }

    /// The dimensions, with another number of layers when asked for; `None` for zero layers.
    pub fn shape(self, layers: Option<usize>) -> Option<Shape> {
        let shape = match self {
            Preset::Qwen36Moe35bA3b => qwen36_35b_a3b(layers.unwrap_or(40)),
            Preset::Tiny => tiny(layers.unwrap_or(4)),
            Preset::TinyDense => Shape {
                mlp: MlpShape::Dense { width: 192 },
                tied_embeddings: true,
                ..tiny(layers.unwrap_or(4))
            },
        };
        (shape.layers() > 0).then_some(shape)
    }
}

fn qwen36_35b_a3b(layers: usize) -> Shape {
    Shape {
        hidden: 2048,
        vocab: 248_320,
        mixers: mixers(layers),
        attention: AttentionShape {
            heads: 16,
            kv_heads: 2,
            head_dim: 256,
            rotary_dims: 64,
            rope_theta: 1e7,
        },
        delta_net: DeltaNetShape {
            key_heads: 16,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            conv_taps: 4,
        },
        mlp: MlpShape::Moe {
            experts: 256,
            experts_per_token: 8,
            expert_width: 512,
            shared_width: 512,
            renormalise: true,
        },
        norm_eps: 1e-6,
        context_max: 262_144,
        tied_embeddings: false,
        eos: vec![248_046, 248_044],
    }
}

fn tiny(layers: usize) -> Shape {
    Shape {
        hidden: 128,
        vocab: 320,
        mixers: mixers(layers),
        attention: AttentionShape {
            heads: 2,
            kv_heads: 1,
            head_dim: 64,
            rotary_dims: 16,
            rope_theta: 1e7,
        },
        delta_net: DeltaNetShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 32,
            value_dim: 32,
            conv_taps: 4,
        },
        mlp: MlpShape::Moe {
            experts: 8,
            experts_per_token: 3,
            expert_width: 64,
            shared_width: 64,
            renormalise: true,
        },
        norm_eps: 1e-6,
        context_max: 4096,
        tied_embeddings: false,
        eos: vec![0],
    }
}

fn mixers(layers: usize) -> Vec<MixerKind> {
    let kind = |i: usize| match (i + 1) % ATTENTION_INTERVAL {
        0 => MixerKind::Attention,
        _ => MixerKind::DeltaNet,
    };
    (0..layers).map(kind).collect()
}

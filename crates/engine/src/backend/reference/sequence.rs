use crate::{
    backend::SequenceBytes,
    model::{MixerKind, Shape},
};

/// What the model remembers of one token history.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    /// Tokens so far.
    pub(super) tokens: usize,
    /// Tokens that it may hold.
    pub(super) context_tokens: usize,
    /// One memory a layer.
    pub(super) layers: Vec<Memory>,
}

/// What one layer's mixer remembers.
#[derive(Debug, Clone)]
pub(super) enum Memory {
    /// A fixed size, whatever the length of the history.
    DeltaNet {
        conv: Vec<f32>,  // [conv_taps - 1, conv_channels], oldest first
        state: Vec<f32>, // [value_heads, value_dim, key_dim]
    },
    /// The KV cache: one key and one value for each token and KV head.
    Attention {
        keys: Vec<f32>,   // [tokens, kv_heads, head_dim]
        values: Vec<f32>, // [tokens, kv_heads, head_dim]
    },
}

impl Sequence {
    /// An empty history: DeltaNet starts from zeros, attention from nothing.
    pub(super) fn new(shape: &Shape, context_tokens: usize) -> Self {
        let layers = shape.mixers.iter().map(|mixer| match mixer {
            MixerKind::DeltaNet => Memory::DeltaNet {
                conv: vec![0.0; shape.delta_net.conv_state_len()],
                state: vec![0.0; shape.delta_net.state_len()],
            },
            MixerKind::Attention => Memory::Attention { keys: Vec::new(), values: Vec::new() },
        });
        Self { tokens: 0, context_tokens, layers: layers.collect() }
    }

    /// Bytes of a sequence of `tokens` tokens, spare capacity not counted.
    pub(super) fn bytes_for(shape: &Shape, tokens: usize) -> SequenceBytes {
        let state_floats = shape.delta_net.conv_state_len() + shape.delta_net.state_len();
        let kv_floats = tokens.saturating_mul(2 * shape.attention.kv_width());
        SequenceBytes {
            state: shape.layers_of(MixerKind::DeltaNet) * state_floats * size_of::<f32>(),
            kv: kv_floats.saturating_mul(shape.layers_of(MixerKind::Attention) * size_of::<f32>()),
        }
    }
}

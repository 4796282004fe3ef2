//! How one sequence's memory is laid out.

use super::pages::{PAGE_TOKENS, pages_for};
use crate::{
    backend::{Precision, SequenceBytes},
    model::{MixerKind, Shape},
};

/// Memory of a history of `tokens` tokens.
pub(crate) fn bytes_for(kv: &KvLayout, state: &StateLayout, tokens: usize) -> SequenceBytes {
    SequenceBytes {
        state: state.len() * size_of::<f32>(),
        kv: pages_for(tokens).saturating_mul(kv.page_bytes()),
    }
}

/// Where keys and values lie in a page; see [`super::pages`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvLayout {
    /// Attention layers.
    pub layers: usize,
    /// KV heads in a layer.
    pub kv_heads: usize,
    /// Elements of a key or a value.
    pub head_dim: usize,
    /// 2 for f16, 4 for f32.
    pub element_bytes: usize,
}

impl KvLayout {
    pub(crate) fn new(shape: &Shape, precision: Precision) -> Self {
        Self {
            layers: shape.layers_of(MixerKind::Attention),
            kv_heads: shape.attention.kv_heads,
            head_dim: shape.attention.head_dim,
            element_bytes: match precision {
                Precision::Default => 2,
                Precision::Exact => 4,
            },
        }
    }

    /// What an element is.
    pub(crate) fn dtype(&self) -> &'static str {
        match self.element_bytes {
            2 => "float16",
            _ => "float32",
        }
    }

    /// Bytes of one head's keys (or values) for a page's tokens.
    pub(crate) fn run_bytes(&self) -> usize {
        PAGE_TOKENS * self.head_dim * self.element_bytes
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.layers * self.kv_heads * 2 * self.run_bytes()
    }

    /// Offset of a head's keys in a page; its values follow [`KvLayout::run_bytes`] later.
    pub(crate) fn keys_at(&self, layer: usize, kv_head: usize) -> usize {
        (layer * self.kv_heads + kv_head) * 2 * self.run_bytes()
    }
}

/// Where a sequence's DeltaNet and convolution states lie in its block of f32:
/// [DeltaNet layer][state [value_heads, value_dim, key_dim], then the last raw qkv vectors
/// [conv_taps - 1, conv_channels]].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateLayout {
    /// DeltaNet layers.
    pub layers: usize,
    /// Floats of a layer's recurrent state.
    pub state_len: usize,
    /// Floats of a layer's convolution state.
    pub conv_len: usize,
}

impl StateLayout {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            layers: shape.layers_of(MixerKind::DeltaNet),
            state_len: shape.delta_net.state_len(),
            conv_len: shape.delta_net.conv_state_len(),
        }
    }

    /// Floats of the whole block.
    pub(crate) fn len(&self) -> usize {
        self.layers * (self.state_len + self.conv_len)
    }

    /// Offset of a layer's recurrent state; its convolution state follows `state_len` later.
    pub(crate) fn layer_at(&self, layer: usize) -> usize {
        layer * (self.state_len + self.conv_len)
    }
}

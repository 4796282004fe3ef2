use crate::Error;

/// Every dimension of a model of the family, checked: values that no forward pass could run are
/// refused when `config.json` is read ([`crate::checkpoint`]), so backends may rely on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding matrix and of the head. May exceed what the tokenizer knows.
    pub vocab: usize,
    /// Kind of each layer's mixer, in order; its length is the number of layers.
    pub mixers: Vec<MixerKind>,
    /// Dimensions of the full-attention mixer.
    pub attention: AttentionShape,
    /// Dimensions of the Gated DeltaNet mixer.
    pub delta_net: DeltaNetShape,
    /// Dimensions of the feed-forward part.
    pub mlp: MlpShape,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f32,
    /// Tokens a sequence may hold (`max_position_embeddings`).
    pub context_max: usize,
    /// The head is the embedding matrix.
    pub tied_embeddings: bool,
    /// Token ids that end a generation according to `config.json`.
    pub eos: Vec<u32>,
}

/// Which mixer a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MixerKind {
    /// Gated DeltaNet: a recurrent state of fixed size.
    DeltaNet,
    /// Softmax attention with an output gate: a KV cache that grows with the context.
    Attention,
}

/// Dimensions of the full-attention mixer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading dimensions of a head that RoPE turns; even, at most `head_dim`.
    pub rotary_dims: usize,
    /// Base of the RoPE angles.
    pub rope_theta: f64,
}

/// Dimensions of the Gated DeltaNet mixer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`. Value head h uses key head h / (value/key heads).
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution, the current token's included.
    pub conv_taps: usize,
}

/// Dimensions of the feed-forward part, the same in every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MlpShape {
    /// One SwiGLU.
    Dense {
        /// Its inner width.
        width: usize,
    },
    /// Routed experts and a gated shared expert.
    Moe {
        /// Number of routed experts.
        experts: usize,
        /// Experts that each token visits; at most `experts`.
        experts_per_token: usize,
        /// Inner width of a routed expert.
        expert_width: usize,
        /// Inner width of the shared expert.
        shared_width: usize,
        /// Scale the chosen experts' probabilities to sum 1.
        renormalise: bool,
    },
}

impl Shape {
    /// Refuses a sequence longer than the model was made for.
    ///
    /// # Errors
    /// [`Error::Request`] when `tokens` is more than `context_max`.
    pub fn check_context(&self, tokens: usize) -> Result<(), Error> {
        if tokens <= self.context_max {
            return Ok(());
        }
        Err(Error::Request {
            field: "context_tokens",
            problem: format!("{tokens}, the model takes at most {}", self.context_max),
        })
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.mixers.len()
    }

    /// Number of layers with the given mixer.
    pub fn layers_of(&self, kind: MixerKind) -> usize {
        self.mixers.iter().filter(|&&mixer| mixer == kind).count()
    }
}

impl AttentionShape {
    /// Width of all query heads side by side (also of the output gate).
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads side by side (also of the values).
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl DeltaNetShape {
    /// Width of all query heads side by side (also of the keys).
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all value heads side by side (also of the output gate z).
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values side by side.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Floats in one sequence's recurrent state of one layer: [value_heads, value_dim, key_dim].
    pub fn state_len(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }

    /// Floats in one sequence's convolution state of one layer: [conv_taps - 1, conv_channels].
    pub fn conv_state_len(&self) -> usize {
        (self.conv_taps - 1) * self.conv_channels()
    }
}

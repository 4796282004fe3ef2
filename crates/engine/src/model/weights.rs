use std::{ops::Deref, sync::Arc};

/// A model's weights by role. Large matrices stay where the checkpoint has them ([`Bytes`]);
/// vectors are small and are expanded to f32 when the checkpoint is opened.
///
/// Norm gains are stored ready to multiply with: where a checkpoint stores `gain - 1`, loading
/// has added the one.
#[derive(Debug, Clone)]
pub struct Weights {
    /// Token embeddings [vocab, hidden]: a row is expanded, never multiplied.
    pub embed: Linear,
    /// The layers in order.
    pub layers: Vec<Layer>,
    /// Gain of the last norm `[hidden]`.
    pub norm: Vec<f32>,
    /// Output head [vocab, hidden]; the embedding matrix itself when tied.
    pub head: Linear,
}

impl Weights {
    /// Every matrix that is multiplied with, and its role as checkpoints name it: all but
    /// [`Weights::embed`].
    pub fn products(&self) -> impl Iterator<Item = (&'static str, &Linear)> {
        let layers = self.layers.iter().flat_map(|layer| {
            let mut all = match &layer.mixer {
                Mixer::DeltaNet(mixer) => vec![
                    ("in_proj_qkv", &mixer.in_proj_qkv),
                    ("in_proj_z", &mixer.in_proj_z),
                    ("in_proj_b", &mixer.in_proj_b),
                    ("in_proj_a", &mixer.in_proj_a),
                    ("out_proj", &mixer.out_proj),
                ],
                Mixer::Attention(mixer) => vec![
                    ("q_proj", &mixer.q_proj),
                    ("k_proj", &mixer.k_proj),
                    ("v_proj", &mixer.v_proj),
                    ("o_proj", &mixer.o_proj),
                ],
            };
            let swiglu = match &layer.mlp {
                Mlp::Dense(mlp) => mlp,
                Mlp::Moe(moe) => {
                    all.extend([("router", &moe.router), ("shared_expert_gate", &moe.shared_gate)]);
                    let Experts { gate, up, down } = &moe.experts;
                    let experts = gate.iter().chain(up).chain(down);
                    all.extend(experts.map(|matrix| ("switch_mlp", matrix)));
                    &moe.shared
                }
            };
            all.extend([
                ("gate_proj", &swiglu.gate),
                ("up_proj", &swiglu.up),
                ("down_proj", &swiglu.down),
            ]);
            all
        });
        layers.chain([("head", &self.head)])
    }
}

/// One layer: `h = x + mixer(norm(x))`, `y = h + mlp(norm(h))`.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Gain before the mixer `[hidden]`.
    pub input_norm: Vec<f32>,
    /// The mixer.
    pub mixer: Mixer,
    /// Gain before the feed-forward part `[hidden]`.
    pub post_norm: Vec<f32>,
    /// The feed-forward part.
    pub mlp: Mlp,
}

/// A layer's mixer.
#[derive(Debug, Clone)]
pub enum Mixer {
    /// Gated DeltaNet.
    DeltaNet(DeltaNet),
    /// Gated softmax attention.
    Attention(Attention),
}

/// Weights of a Gated DeltaNet mixer.
#[derive(Debug, Clone)]
pub struct DeltaNet {
    /// Queries, keys and values side by side [conv_channels, hidden].
    pub in_proj_qkv: Linear,
    /// Output gate [value_width, hidden].
    pub in_proj_z: Linear,
    /// Write strength β before its sigmoid [value_heads, hidden].
    pub in_proj_b: Linear,
    /// Decay input a [value_heads, hidden].
    pub in_proj_a: Linear,
    /// Depthwise taps [conv_channels, conv_taps]; the last tap weighs the current token.
    pub conv: Vec<f32>,
    /// Logarithm of the decay rate `[value_heads]`.
    pub a_log: Vec<f32>,
    /// Bias of the decay input `[value_heads]`.
    pub dt_bias: Vec<f32>,
    /// Gain of the gated output norm `[value_dim]`; a plain gain in every checkpoint.
    pub norm: Vec<f32>,
    /// Output projection [hidden, value_width].
    pub out_proj: Linear,
}

/// Weights of a gated attention mixer.
#[derive(Debug, Clone)]
pub struct Attention {
    /// Per head: query, then output gate [heads * 2 * head_dim, hidden].
    pub q_proj: Linear,
    /// Keys [kv_heads * head_dim, hidden].
    pub k_proj: Linear,
    /// Values [kv_heads * head_dim, hidden].
    pub v_proj: Linear,
    /// Gain of the query norm `[head_dim]`.
    pub q_norm: Vec<f32>,
    /// Gain of the key norm `[head_dim]`.
    pub k_norm: Vec<f32>,
    /// Output projection [hidden, heads * head_dim].
    pub o_proj: Linear,
}

/// A layer's feed-forward part.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one a layer, all of the same variant")]
pub enum Mlp {
    /// One SwiGLU.
    Dense(Swiglu),
    /// Routed experts and a shared one.
    Moe(Moe),
}

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug, Clone)]
pub struct Swiglu {
    /// [width, hidden]
    pub gate: Linear,
    /// [width, hidden]
    pub up: Linear,
    /// [hidden, width]
    pub down: Linear,
}

/// Weights of a mixture of experts.
#[derive(Debug, Clone)]
pub struct Moe {
    /// Router [experts, hidden].
    pub router: Linear,
    /// The routed experts.
    pub experts: Experts,
    /// The shared expert.
    pub shared: Swiglu,
    /// Gate of the shared expert [1, hidden].
    pub shared_gate: Linear,
}

/// The routed experts of a layer: three stacks, one matrix an expert.
#[derive(Debug, Clone)]
pub struct Experts {
    /// For each expert [expert_width, hidden].
    pub gate: Vec<Linear>,
    /// For each expert [expert_width, hidden].
    pub up: Vec<Linear>,
    /// For each expert [hidden, expert_width].
    pub down: Vec<Linear>,
}

/// A quantised matrix in MLX's affine format: `value = scale * q + bias`, with one scale and one
/// bias for each run of `group` inputs. Element `j` of a 32-bit word stands at bits `j * bits`,
/// low first, along the inputs.
///
/// The byte lengths agree with the dimensions; alignment is not promised.
#[derive(Debug, Clone)]
pub struct Linear {
    /// Rows: the width of the result.
    pub outputs: usize,
    /// Columns: the width of the input; a multiple of `group`.
    pub inputs: usize,
    /// Bits of an element: 4 or 8.
    pub bits: usize,
    /// Inputs that share a scale and a bias: 32, 64 or 128.
    pub group: usize,
    /// Packed elements [outputs, inputs * bits / 32] u32, little endian.
    pub weight: Bytes,
    /// [outputs, inputs / group] bf16, little endian.
    pub scales: Bytes,
    /// [outputs, inputs / group] bf16, little endian.
    pub biases: Bytes,
}

impl Linear {
    /// Bytes of packed elements in a row.
    pub fn row_bytes(&self) -> usize {
        self.inputs * self.bits / 8
    }

    /// Groups in a row.
    pub fn groups(&self) -> usize {
        self.inputs / self.group
    }

    /// Bytes of one output's elements, scales and biases.
    pub fn output_bytes(&self) -> usize {
        self.row_bytes() + 4 * self.groups()
    }

    /// Bytes that a product with this matrix reads.
    pub fn size_bytes(&self) -> usize {
        self.weight.len() + self.scales.len() + self.biases.len()
    }
}

/// A slice of a checkpoint file that keeps the file mapped.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// The whole of `owner`.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let len = (*owner).as_ref().len();
        Self { owner, start: 0, len }
    }

    /// A part of this slice, or nothing when the range does not lie inside it.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        Some(Self {
            owner: Arc::clone(&self.owner),
            start: self.start + range.start,
            len: range.end - range.start,
        })
    }

    /// The whole file, and where in it this slice lies.
    pub(crate) fn place(&self) -> (Self, std::ops::Range<usize>) {
        (Self::new(Arc::clone(&self.owner)), self.start..self.start + self.len)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({} at {})", self.len, self.start)
    }
}

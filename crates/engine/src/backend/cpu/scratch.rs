//! Every intermediate result of a forward pass, allocated and touched once.

use super::{
    attention::{AttentionScratch, softmax_len},
    delta_net::{DeltaNetScratch, run_len},
    kernels::Activations,
    mlp::SwigluScratch,
    moe::MoeScratch,
    pass::RowPlan,
};
use crate::{
    backend::Precision,
    model::{MixerKind, MlpShape, Shape, Weights},
};

/// What the stages of a pass write, apart from sequences and logits.
pub(super) struct Scratch {
    /// The batch's rows in the present pass.
    pub rows: Vec<RowPlan>,
    /// Tokens that want logits.
    pub wanted: Vec<u32>,
    /// 0, 1, 2, … [tokens]
    pub numbers: Vec<u32>,
    pub residual: Residual,
    /// Normed residual stream [tokens, hidden].
    pub normed: Activations,
    /// What a mixer read, before its output projection [tokens, value_width or query_width].
    pub read: Activations,
    pub delta_net: Option<DeltaNetScratch>,
    pub attention: Option<AttentionScratch>,
    pub mlp: MlpScratch,
}

/// The residual stream.
pub(super) struct Residual {
    pub x: Vec<f32>,      // [tokens, hidden]
    pub update: Vec<f32>, // [tokens, hidden] the last stage's result, not yet added to x
    pub normed: Vec<f32>, // [workers, hidden]
}

/// Of the feed-forward part.
pub(super) enum MlpScratch {
    Dense(SwigluScratch),
    Moe(Box<MoeScratch>),
}

impl Scratch {
    /// Room for passes of up to `tokens` tokens.
    pub(super) fn new(
        shape: &Shape,
        weights: &Weights,
        precision: Precision,
        tokens: usize,
        workers: usize,
    ) -> Self {
        let read_width = shape.delta_net.value_width().max(shape.attention.query_width());
        let has = |kind| shape.layers_of(kind) > 0;
        Self {
            rows: Vec::with_capacity(tokens),
            wanted: Vec::with_capacity(tokens),
            numbers: (0..tokens as u32).collect(),
            residual: Residual {
                x: zeros(tokens * shape.hidden),
                update: zeros(tokens * shape.hidden),
                normed: zeros(workers * shape.hidden),
            },
            normed: Activations::with_capacity(tokens, shape.hidden, precision),
            read: Activations::with_capacity(tokens, read_width, precision),
            delta_net: has(MixerKind::DeltaNet)
                .then(|| DeltaNetScratch::new(&shape.delta_net, weights, tokens, workers)),
            attention: has(MixerKind::Attention)
                .then(|| AttentionScratch::new(&shape.attention, tokens, workers)),
            mlp: match shape.mlp {
                MlpShape::Dense { width } => {
                    MlpScratch::Dense(SwigluScratch::new(width, tokens, precision))
                }
                MlpShape::Moe { .. } => {
                    MlpScratch::Moe(Box::new(MoeScratch::new(shape, tokens, precision)))
                }
            },
        }
    }
}

impl Scratch {
    /// Memory of [`Scratch::new`], but for small tables.
    pub(super) fn bytes(
        shape: &Shape,
        precision: Precision,
        tokens: usize,
        workers: usize,
    ) -> usize {
        let activations = |rows, width| Activations::bytes(rows, width, precision);
        let (net, attention) = (&shape.delta_net, &shape.attention);
        let read_width = net.value_width().max(attention.query_width());
        let (nets, attentions) =
            (shape.layers_of(MixerKind::DeltaNet), shape.layers_of(MixerKind::Attention));
        let swiglu = |width| 8 * tokens * width + activations(tokens, width);
        let mut floats = (2 * tokens + workers) * shape.hidden;
        if nets > 0 {
            floats += tokens * (net.conv_channels() + 2 * net.value_width());
            floats += workers * run_len(net);
            floats += 2 * tokens * net.value_heads + nets * net.conv_taps * net.conv_channels();
        }
        if attentions > 0 {
            floats += tokens * (4 * attention.query_width() + 3 * attention.kv_width());
            floats += tokens * attention.rotary_dims + softmax_len(attention, workers);
        }
        let mlp = match shape.mlp {
            MlpShape::Dense { width } => swiglu(width),
            MlpShape::Moe { experts, experts_per_token, expert_width, shared_width, .. } => {
                let visits = tokens * experts_per_token;
                floats += tokens * (experts + 1 + shape.hidden);
                floats += visits * (2 * expert_width + shape.hidden + 4);
                swiglu(shared_width) + activations(visits, expert_width)
            }
        };
        4 * floats + mlp + activations(tokens, shape.hidden) + activations(tokens, read_width)
    }
}

/// Zeros whose memory is there: written now, so that no pass takes page faults.
pub(super) fn zeros(len: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(len);
    values.resize_with(len, || std::hint::black_box(0.0));
    values
}

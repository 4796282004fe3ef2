//! Every intermediate result of a forward pass, allocated and touched once.

use super::{
    attention::AttentionScratch, delta_net::DeltaNetScratch, kernels::Activations,
    mlp::SwigluScratch, moe::MoeScratch, pass::RowPlan,
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
                .then(|| DeltaNetScratch::new(&shape.delta_net, weights, tokens)),
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

/// Zeros whose memory is there: written now, so that no pass takes page faults.
pub(super) fn zeros(len: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(len);
    values.resize_with(len, || std::hint::black_box(0.0));
    values
}

//! Every intermediate result of a forward pass, allocated once.

use super::{
    arena::Arena,
    delta_net::SOLVED_HALVES,
    device::{Activations, Address},
    dimensions::{TILE_OUTPUTS, attention_columns, delta_net_columns},
    head::HeadScratch,
    plan::PlanSize,
};
use crate::{
    Error,
    model::{MixerKind, MlpShape, Shape},
};

/// Rows whose logits are computed at a time.
pub(super) const LOGIT_ROWS: usize = 64;

/// What the stages of a pass write, apart from sequences.
pub(super) struct Scratch {
    pub(super) plan: Address,       // PlanSize::bytes
    pub(super) x: Address,          // [rows, hidden] residual stream
    pub(super) normed: Activations, // [rows, hidden]
    pub(super) projected: Address,  // [rows, projection's width] what a mixer's first matrices give
    pub(super) read: Activations,   // [rows, value_width or query_width]
    pub(super) head: HeadScratch,   // of LOGIT_ROWS rows
    pub(super) delta_net: Option<DeltaNetScratch>,
    pub(super) attention: Option<AttentionScratch>,
    pub(super) mlp: MlpScratch,
    _memory: Arena,
}

/// Of stage `delta_net`.
pub(super) struct DeltaNetScratch {
    pub(super) qkv: Address,     // [rows, conv_channels]
    pub(super) factors: Address, // [rows, value_heads] 8 f32
    pub(super) solved: Address,  // [rows, value_heads, SOLVED_HALVES] f16
    pub(super) decays: Address,  // [rows, value_heads] 2 f32
    pub(super) read: Address,    // [rows, value_width]
}

/// Of stage `attention`.
pub(super) struct AttentionScratch {
    pub(super) frequencies: Address, // [rotary_dims / 2] f64
    pub(super) turns: Address,       // [rows, rotary_dims / 2] (cos, sin)
    pub(super) queries: Address,     // [rows, heads, head_dim]
    pub(super) partial: Address,     // [PARTIALS, heads, head_dim]
    pub(super) stats: Address,       // [PARTIALS, heads] (max, sum)
}

/// Of stages `mlp` and `moe`.
pub(super) struct MlpScratch {
    pub(super) inner: Activations, // [rows, width] of the dense part or the shared expert
    pub(super) moe: Option<MoeScratch>,
}

/// Of stage `moe`.
pub(super) struct MoeScratch {
    pub(super) logits: Address,    // [rows, experts and shared gate, in tiles]
    pub(super) experts: Address,   // [rows, top k] u32
    pub(super) scores: Address,    // [rows, top k + 1]
    pub(super) inner: Activations, // [rows * (top k + 1), expert_width]: visits, then the shared expert
    pub(super) down: Address, // [rows * (top k + 1), hidden] alike, or [rows, top k + 1, expert_width]
    pub(super) visits: Address, // tables of rows by expert, see moe.cu
}

/// Spans of attention, times rows, whose results are kept apart until they are merged.
pub(super) const PARTIALS: usize = 8192;

impl Scratch {
    /// Room for passes of up to `rows` rows of up to `sequences` sequences.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn new(
        mut memory: Arena,
        shape: &Shape,
        group: usize,
        pieces: usize,
        rows: usize,
        sequences: usize,
    ) -> Result<Self, Error> {
        let plan = PlanSize {
            rows,
            sequences,
            pages_max: PlanSize::pages_max_for(shape.context_max),
            wanted: rows,
        };
        let (net, attention) = (&shape.delta_net, &shape.attention);
        let has = |kind| shape.layers_of(kind) > 0;
        let input_width = delta_net_width(shape).max(attention_width(shape));
        let read_width = net.value_width().max(attention.query_width());
        Ok(Self {
            plan: memory.bytes_of(plan.bytes())?,
            x: memory.words(rows * shape.hidden)?,
            normed: memory.activations(rows, shape.hidden, group, pieces)?,
            projected: memory.words(rows * input_width)?,
            read: memory.activations(rows, read_width, group, pieces)?,
            head: HeadScratch::new(&mut memory, rows.min(LOGIT_ROWS), shape.vocab)?,
            delta_net: if has(MixerKind::DeltaNet) {
                Some(DeltaNetScratch {
                    qkv: memory.words(rows * net.conv_channels())?,
                    factors: memory.words(8 * rows * net.value_heads)?,
                    solved: memory.words(rows * net.value_heads * SOLVED_HALVES / 2)?,
                    decays: memory.words(2 * rows * net.value_heads)?,
                    read: memory.words(rows * net.value_width())?,
                })
            } else {
                None
            },
            attention: if has(MixerKind::Attention) {
                Some(AttentionScratch {
                    frequencies: memory.copy_of(&frequencies(shape))?,
                    turns: memory.words(rows * attention.rotary_dims)?,
                    queries: memory.words(rows * attention.query_width())?,
                    partial: memory.words(PARTIALS * attention.query_width())?,
                    stats: memory.words(2 * PARTIALS * attention.heads)?,
                })
            } else {
                None
            },
            mlp: match shape.mlp {
                MlpShape::Dense { width } => {
                    MlpScratch { inner: memory.activations(rows, width, group, pieces)?, moe: None }
                }
                MlpShape::Moe {
                    experts, experts_per_token, expert_width, shared_width, ..
                } => {
                    let visits = rows * experts_per_token;
                    let with_shared = visits + rows;
                    MlpScratch {
                        inner: memory.activations(rows, shared_width, group, pieces)?,
                        moe: Some(MoeScratch {
                            logits: memory.words(rows * router_width(experts))?,
                            experts: memory.words(visits)?,
                            scores: memory.words(rows * (experts_per_token + 1))?,
                            inner: memory.activations(with_shared, expert_width, group, pieces)?,
                            down: memory.words(with_shared * shape.hidden.max(expert_width))?,
                            visits: memory.words(super::moe::table_words(experts, visits))?,
                        }),
                    }
                }
            },
            _memory: memory,
        })
    }
}

/// Bytes that [`Scratch::new`] takes.
pub(super) fn bytes(
    shape: &Shape,
    group: usize,
    pieces: usize,
    rows: usize,
    sequences: usize,
) -> usize {
    let scratch = Scratch::new(Arena::counting(), shape, group, pieces, rows, sequences);
    scratch.expect("counting takes no memory")._memory.bytes()
}

/// Columns of a DeltaNet layer's projection.
pub(super) fn delta_net_width(shape: &Shape) -> usize {
    let [.., a] = delta_net_columns(shape);
    a + shape.delta_net.value_heads.next_multiple_of(TILE_OUTPUTS)
}

/// Columns of an attention layer's projection.
pub(super) fn attention_width(shape: &Shape) -> usize {
    let [.., v] = attention_columns(shape);
    v + shape.attention.kv_width().next_multiple_of(TILE_OUTPUTS)
}

/// Columns of a router's projection: the experts, then the shared expert's gate.
pub(super) fn router_width(experts: usize) -> usize {
    experts.next_multiple_of(TILE_OUTPUTS) + TILE_OUTPUTS
}

/// `theta^(-2i / rotary_dims)` for each pair of dimensions.
fn frequencies(shape: &Shape) -> Vec<u8> {
    let attention = &shape.attention;
    let frequency = |pair: usize| {
        attention.rope_theta.powf(-2.0 * pair as f64 / attention.rotary_dims as f64).to_le_bytes()
    };
    (0..attention.rotary_dims / 2).flat_map(frequency).collect()
}

//! Stage `attention`: qkv, qk-norm, RoPE, KV write, attend, gate, o_proj, residual.

use super::{
    device::Kernel,
    pass::Pass,
    scratch::{PARTIALS, attention_width},
    weights::DeviceAttention,
};
use crate::{Error, model::AttentionShape};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("attention.cu");

/// Heads of a block of `queries_keys`.
const BLOCK_HEADS: usize = 4;

/// Columns of a block of `attend_merge`.
const MERGE_COLUMNS: usize = 64;

/// The stage's kernels.
pub(super) struct AttentionKernels {
    pub(super) queries_keys: Kernel,
    pub(super) attend: Kernel,
    pub(super) attend_merge: Kernel,
}

impl Pass<'_> {
    /// Runs the stage on the normed rows; `layer` counts the attention layers.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn attention(&self, weights: &DeviceAttention, layer: usize) -> Result<(), Error> {
        // qkv
        let projected = self.scratch.projected;
        let width = attention_width(self.shape);
        self.project(&weights.input, self.scratch.normed, self.plan.rows, projected, width)?;

        // qk-norm, RoPE, KV write
        self.queries_keys(weights, layer)?;

        // attend, gate
        let splits = splits(&self.shape.attention, self.plan.pages_max);
        let rows = self.plan.rows;
        for first in (0..rows).step_by(PARTIALS / splits) {
            self.attend(layer, first, (rows - first).min(PARTIALS / splits), splits)?;
        }

        // o_proj
        self.project_add(&weights.output, self.scratch.read, rows)
    }

    fn attention_kernels(&self) -> &AttentionKernels {
        self.kernels.attention.as_ref().expect("made for this shape")
    }

    fn queries_keys(&self, weights: &DeviceAttention, layer: usize) -> Result<(), Error> {
        let shape = &self.shape.attention;
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let heads = shape.heads + 2 * shape.kv_heads;
        self.launch(
            self.attention_kernels().queries_keys,
            [heads.div_ceil(BLOCK_HEADS), self.plan.rows, 1],
            32 * BLOCK_HEADS,
            0,
            &[
                self.scratch.projected.into(),
                (attention_width(self.shape) as u32).into(),
                weights.q_norm.into(),
                weights.k_norm.into(),
                scratch.turns.into(),
                self.plan.row_sequence.into(),
                self.plan.row_position.into(),
                self.plan.pages.into(),
                (self.plan.pages_max as u32).into(),
                (layer as u32).into(),
                scratch.queries.into(),
            ],
        )
    }

    /// What `rows` rows from `first` on read, each span of its keys by a block of its own.
    fn attend(&self, layer: usize, first: usize, rows: usize, splits: usize) -> Result<(), Error> {
        let shape = &self.shape.attention;
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let (row_sequence, row_position) =
            (self.plan.row_sequence.plus(4 * first), self.plan.row_position.plus(4 * first));
        let shared_by = shape.heads / shape.kv_heads;
        self.launch(
            self.attention_kernels().attend,
            [splits, shape.kv_heads * shared_by.div_ceil(shared_by.min(8)), rows],
            128,
            0,
            &[
                scratch.queries.plus(4 * first * shape.query_width()).into(),
                row_sequence.into(),
                row_position.into(),
                self.plan.pages.into(),
                (self.plan.pages_max as u32).into(),
                (layer as u32).into(),
                scratch.partial.into(),
                scratch.stats.into(),
            ],
        )?;
        let width = attention_width(self.shape);
        let group = self.dimensions.group;
        self.launch(
            self.attention_kernels().attend_merge,
            [shape.query_width().div_ceil(MERGE_COLUMNS), rows, 1],
            256,
            0,
            &[
                scratch.partial.into(),
                scratch.stats.into(),
                (splits as u32).into(),
                self.scratch.projected.plus(4 * first * width).into(),
                (width as u32).into(),
                row_sequence.into(),
                row_position.into(),
                self.scratch.read.from_row(first, shape.query_width(), group).into(),
            ],
        )
    }
}

/// Spans that a row's keys are cut into at most, `SPLITS_MAX` of the kernel file or fewer.
fn splits(shape: &AttentionShape, pages: usize) -> usize {
    let most = match shape.kv_heads {
        ..=2 => 128,
        3..=4 => 64,
        _ => 32,
    };
    pages.min(most)
}

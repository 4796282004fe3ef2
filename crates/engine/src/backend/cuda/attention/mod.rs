//! Stage `attention`: qkv, qk-norm, RoPE, KV write, attend, gate, o_proj, residual.

use super::{
    device::{Address, Kernel},
    pass::Pass,
    scratch::{PARTIALS, attention_width},
    weights::DeviceAttention,
};
use crate::{
    Error,
    backend::{Precision, histories::PAGE_TOKENS, profile::Op},
    model::{AttentionShape, Shape},
};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("attention.cu");

/// Heads of a block of `queries_keys`.
const BLOCK_HEADS: usize = 4;

/// Columns of a block of `attend_merge`.
const MERGE_COLUMNS: usize = 64;

/// Rows that a sequence must have on average for `attend_tiles`: fewer leave most of a tile idle.
const TILE_ROWS_MIN: usize = 4;

/// The stage's kernels.
pub(super) struct AttentionKernels {
    queries_keys: Kernel,
    attend: Kernel,
    attend_merge: Kernel,
    /// Where keys and values are cached as half.
    attend_decode: Option<Kernel>,
    attend_tiles: Option<(Tiles, Kernel)>,
}

/// How `attend_tiles` cuts its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    warps: usize,
    /// New tokens of a block.
    tokens: usize,
    shared_bytes: usize,
}

impl Tiles {
    /// The largest blocks that fit in a device's shared memory; nothing where the kernel does not
    /// exist.
    pub(super) fn new(
        shape: &Shape,
        precision: Precision,
        group: usize,
        shared_per_block: usize,
    ) -> Option<Self> {
        let &AttentionShape { heads, kv_heads, head_dim, .. } = &shape.attention;
        let fits = precision == Precision::Default
            && head_dim.is_multiple_of(64)
            && head_dim.is_multiple_of(group);
        [8, 4].into_iter().find_map(|warps| {
            let rows = 16 * warps;
            let shared_bytes = (rows + 2 * PAGE_TOKENS) * (head_dim + 8) * 2;
            let tokens = rows / (heads / kv_heads);
            (fits && tokens > 0 && shared_bytes <= shared_per_block).then_some(Self {
                warps,
                tokens,
                shared_bytes,
            })
        })
    }
}

/// The stage's source and the names of its kernels, as [`AttentionKernels::new`] wants them.
pub(super) fn instances(precision: Precision, tiles: Option<Tiles>) -> (String, Vec<String>) {
    let mut names = vec!["queries_keys", "attend", "attend_merge"];
    let mut source = SOURCE.to_owned();
    if precision == Precision::Default {
        names.push("attend_decode");
    }
    if let Some(tiles) = tiles {
        names.push("attend_tiles");
        source = format!("#define ATTEND_WARPS {}\n{SOURCE}", tiles.warps);
    }
    (source, names.into_iter().map(str::to_owned).collect())
}

impl AttentionKernels {
    /// From the kernels that [`instances`] has named.
    pub(super) fn new(precision: Precision, tiles: Option<Tiles>, kernels: &[Kernel]) -> Self {
        let mut kernels = kernels.iter().copied();
        let mut next = || kernels.next().expect("as many kernels as names");
        Self {
            queries_keys: next(),
            attend: next(),
            attend_merge: next(),
            attend_decode: (precision == Precision::Default).then(&mut next),
            attend_tiles: tiles.map(|tiles| (tiles, next())),
        }
    }
}

impl Pass<'_> {
    /// Runs the stage on the rows, normed with `gain`; `layer` counts the attention layers.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn attention(
        &self,
        weights: &DeviceAttention,
        gain: Option<Address>,
        layer: usize,
    ) -> Result<(), Error> {
        // qkv
        let projected = self.scratch.projected;
        let width = attention_width(self.shape);
        self.norm_project(Op::Qkv, gain, &weights.input, projected, width)?;

        // qk-norm, RoPE, KV write, attend, gate
        let rows = self.plan.rows;
        let kernels = self.attention_kernels();
        match kernels.attend_tiles {
            Some((tiles, kernel)) if rows >= TILE_ROWS_MIN * self.plan.sequences => {
                self.queries_keys(weights, layer)?;
                self.attend_tiles(layer, tiles, kernel)?;
            }
            _ => {
                let splits = splits(&self.shape.attention, self.plan.pages_max);
                let fused = kernels.attend_decode.filter(|_| self.one_row_each());
                if fused.is_none() {
                    self.queries_keys(weights, layer)?;
                }
                for first in (0..rows).step_by(PARTIALS / splits) {
                    let part = Part { first, rows: (rows - first).min(PARTIALS / splits), splits };
                    match fused {
                        Some(kernel) => self.attend_decode(weights, layer, part, kernel)?,
                        None => self.attend(layer, part)?,
                    }
                    self.attend_merge(part)?;
                }
            }
        }

        // o_proj
        self.project_add(Op::OProj, &weights.output, self.scratch.read, rows)
    }

    fn attention_kernels(&self) -> &AttentionKernels {
        self.kernels.attention.as_ref().expect("made for this shape")
    }

    fn queries_keys(&self, weights: &DeviceAttention, layer: usize) -> Result<(), Error> {
        let shape = &self.shape.attention;
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let heads = shape.heads + 2 * shape.kv_heads;
        self.launch(
            Op::KvWrite,
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

    /// What rows read, each span of their keys by a block of its own.
    fn attend(&self, layer: usize, part: Part) -> Result<(), Error> {
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let width = self.shape.attention.query_width();
        self.launch(
            Op::Attend,
            self.attention_kernels().attend,
            part.grid(&self.shape.attention),
            128,
            0,
            &[
                scratch.queries.plus(4 * part.first * width).into(),
                self.plan.row_sequence.plus(4 * part.first).into(),
                self.plan.row_position.plus(4 * part.first).into(),
                self.plan.pages.into(),
                (self.plan.pages_max as u32).into(),
                (layer as u32).into(),
                scratch.partial.into(),
                scratch.stats.into(),
            ],
        )
    }

    /// The same from the projections on, one new token a sequence.
    fn attend_decode(
        &self,
        weights: &DeviceAttention,
        layer: usize,
        part: Part,
        kernel: Kernel,
    ) -> Result<(), Error> {
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let width = attention_width(self.shape);
        let turn_bytes = 8 * self.shape.attention.rotary_dims / 2;
        self.launch(
            Op::Attend,
            kernel,
            part.grid(&self.shape.attention),
            128,
            0,
            &[
                self.scratch.projected.plus(4 * part.first * width).into(),
                (width as u32).into(),
                weights.q_norm.into(),
                weights.k_norm.into(),
                scratch.turns.plus(part.first * turn_bytes).into(),
                self.plan.row_sequence.plus(4 * part.first).into(),
                self.plan.row_position.plus(4 * part.first).into(),
                self.plan.pages.into(),
                (self.plan.pages_max as u32).into(),
                (layer as u32).into(),
                scratch.partial.into(),
                scratch.stats.into(),
            ],
        )
    }

    /// Spans become rows, which are gated.
    fn attend_merge(&self, part: Part) -> Result<(), Error> {
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let (width, read) = (attention_width(self.shape), self.shape.attention.query_width());
        self.launch(
            Op::Merge,
            self.attention_kernels().attend_merge,
            [read.div_ceil(MERGE_COLUMNS), part.rows, 1],
            256,
            0,
            &[
                scratch.partial.into(),
                scratch.stats.into(),
                (part.splits as u32).into(),
                self.scratch.projected.plus(4 * part.first * width).into(),
                (width as u32).into(),
                self.plan.row_sequence.plus(4 * part.first).into(),
                self.plan.row_position.plus(4 * part.first).into(),
                self.scratch.read.from_row(part.first, read, self.dimensions.group).into(),
            ],
        )
    }

    /// What all rows read, on matrix units.
    fn attend_tiles(&self, layer: usize, tiles: Tiles, kernel: Kernel) -> Result<(), Error> {
        let scratch = self.scratch.attention.as_ref().expect("made for this shape");
        let plan = &self.plan;
        // At least as many as there are: the kernel finds out which ones.
        let count = plan.rows / tiles.tokens + plan.sequences;
        self.launch(
            Op::Attend,
            kernel,
            [self.shape.attention.kv_heads, count, 1],
            32 * tiles.warps,
            tiles.shared_bytes,
            &[
                scratch.queries.into(),
                self.scratch.projected.into(),
                (attention_width(self.shape) as u32).into(),
                plan.row_position.into(),
                plan.first_row.into(),
                (plan.sequences as u32).into(),
                plan.pages.into(),
                (plan.pages_max as u32).into(),
                (layer as u32).into(),
                self.scratch.read.into(),
            ],
        )
    }
}

/// Rows whose spans lie in the scratch at a time.
#[derive(Debug, Clone, Copy)]
struct Part {
    first: usize,
    rows: usize,
    splits: usize,
}

impl Part {
    /// Blocks of `attend` and `attend_decode`.
    fn grid(self, shape: &AttentionShape) -> [usize; 3] {
        let shared_by = shape.heads / shape.kv_heads;
        [self.splits, shape.kv_heads * shared_by.div_ceil(shared_by.min(8)), self.rows]
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

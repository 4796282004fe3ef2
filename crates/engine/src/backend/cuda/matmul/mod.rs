//! Products with quantised matrices.
//!
//! A pass of few rows reads each matrix once and is bound by memory; one of many rows is bound by
//! the matrix units. They have kernels of their own, which sum in different orders.

#[cfg(all(
    test,
    feature = "cuda-emulator",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests;

use std::{collections::BTreeMap, fmt::Write};

use super::{
    device::{Activations, Address, Argument, Device, Kernel},
    dimensions::{Dimensions, TILE_INPUTS, TILE_OUTPUTS},
    pass::Pass,
    profile::Amount,
    weights::{DeviceSwiglu, Part, Projection},
};
use crate::{Error, backend::profile::Op};

/// The kernel files; those of a single row norm it by themselves.
pub(super) const SOURCE: &str = concat!(
    include_str!("../norm/row.cu"),
    "\n",
    include_str!("matrix.cu"),
    "\n",
    include_str!("few.cu"),
    "\n",
    include_str!("many.cu"),
    "\n",
    include_str!("hopper.cu")
);

/// Most rows of a pass of few rows.
pub(super) const FEW_ROWS_MAX: usize = 64;

/// The same for a matrix that fills the device anyhow, and is read once for more rows.
const FEW_ROWS_MAX_TALL: usize = 16;

/// Rows that a kernel for few rows takes at once; the last only where an activation is a single half.
const FEW_ROWS: [usize; 4] = [1, 8, 16, 32];

/// The same of a SwiGLU, and most rows for which these are better.
const SWIGLU_FEW_ROWS_MAX: usize = 16;
const SWIGLU_FEW_ROWS: [usize; 3] = [1, 8, 16];

/// Blocks of the kernels for many rows, smallest first; the last only where an activation is a single
/// half.
const MANY_BLOCKS: [ManyBlock; 3] = [
    ManyBlock { rows: 32, warps: 4, resident: 4 },
    ManyBlock { rows: 64, warps: 4, resident: 3 },
    ManyBlock { rows: 128, warps: 8, resident: 1 },
];

/// Warps of a block for many rows, at most, where a SwiGLU's width is not a multiple of 128.
const MANY_WARPS_NARROW: usize = 4;

/// What a round of blocks takes on a multiprocessor apart from its products, in units of a row of a
/// warp's products: loads, barriers, the conversion of weights.
const MANY_ROUND: usize = 400;

/// Parts into which a SwiGLU of few rows cuts the inputs.
const SWIGLU_SPLIT: usize = 4;

/// Rows that a kernel takes at once which holds them in shared memory, parts into which it cuts the inputs, and
/// pairs of tiles of outputs of its block: on 132 multiprocessors all blocks of a mixer's first matrix run at
/// once.
const HELD_ROWS: usize = 32;
const HELD_SPLIT: usize = 4;
const HELD_PAIRS: usize = 3;

/// Tiles of outputs from which on the matrix alone fills the device.
const TALL_TILES: usize = 4096;

/// Tiles of outputs from which on a block for a single row takes two, so that all blocks of a large
/// device run at once.
const MIDDLE_TILES: usize = 512;

/// Halves of a row that a kernel norms by itself, at most: they lie in shared memory.
const NORM_HALVES: usize = 8192;

/// What tells the kernels of one matrix from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) inputs: usize,
    pub(super) bits: usize,
    height: Height,
}

/// How many outputs a matrix has, as far as blocks for few rows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Height {
    Low,
    /// From [`MIDDLE_TILES`] on.
    Middle,
    /// From [`TALL_TILES`] on: a block need not cut the inputs finely.
    Tall,
}

/// Kernels of this folder.
pub(super) struct MatmulKernels {
    pub(super) repack: RepackKernels,
    linear: BTreeMap<Key, Variants>,
    swiglu: BTreeMap<SwigluKey, Variants>,
}

/// What puts a matrix into tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepackKernels {
    pub(super) words: Kernel,
    pub(super) affine: Kernel,
}

/// What tells a SwiGLU's kernels from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SwigluKey {
    pub(super) inputs: usize,
    pub(super) bits: usize,
    /// The width is not a multiple of 128.
    pub(super) narrow: bool,
}

/// One kernel for each of [`few_rows`] and of [`many_blocks`].
#[derive(Debug)]
struct Variants {
    few: Vec<(Kernel, usize)>,
    /// For a single row that it norms by itself.
    norm: Option<Kernel>,
    /// For up to [`HELD_ROWS`], which it holds.
    held: Option<Kernel>,
    many: Vec<(Kernel, ManyBlock)>,
}

/// A block of a kernel for many rows.
#[derive(Debug, Clone, Copy)]
struct ManyBlock {
    rows: usize,
    /// 32 outputs each; in a SwiGLU 16 of either matrix.
    warps: usize,
    /// Blocks that a multiprocessor holds at a time.
    resident: usize,
}

impl ManyBlock {
    /// Blocks across the outputs.
    fn columns(self, outputs: usize) -> usize {
        outputs.div_ceil(32 * self.warps)
    }

    /// What a product takes with this block, in [`MANY_ROUND`]'s units.
    fn time(self, outputs: usize, rows: usize, multiprocessors: usize) -> usize {
        let blocks = self.columns(outputs) * rows.div_ceil(self.rows);
        let each = blocks.div_ceil(multiprocessors);
        each * self.rows.min(rows) * self.warps + each.div_ceil(self.resident) * MANY_ROUND
    }
}

impl Key {
    pub(super) fn new(inputs: usize, bits: usize, outputs: usize) -> Self {
        let height = match outputs.div_ceil(TILE_OUTPUTS) {
            TALL_TILES.. => Height::Tall,
            MIDDLE_TILES.. => Height::Middle,
            _ => Height::Low,
        };
        Self { inputs, bits, height }
    }

    /// Warps of a block for few rows: enough parts of the inputs that small matrices fill the
    /// device, each of several tiles.
    fn few_warps(self) -> usize {
        let steps = self.inputs / TILE_INPUTS;
        match self.height {
            Height::Tall => (steps / 8).clamp(1, 4),
            Height::Low | Height::Middle => (steps / 4).clamp(1, 16),
        }
    }

    /// The rows that its kernels for few rows take at once, apart from one that holds them.
    fn few_rows(self, dimensions: &Dimensions) -> &'static [usize] {
        let wide = dimensions.pieces == 1 && self.height != Height::Tall && !self.holds(dimensions);
        &FEW_ROWS[..FEW_ROWS.len() - usize::from(!wide)]
    }

    /// Most rows for which a kernel of these is the better one.
    fn few_rows_max(self) -> usize {
        if self.height == Height::Tall { FEW_ROWS_MAX_TALL } else { FEW_ROWS_MAX }
    }

    /// Tiles of outputs of a block for few rows, `rows` of them at once.
    fn few_tiles(self, rows: usize) -> usize {
        match self.height {
            Height::Tall => 2,
            Height::Middle if rows == 1 => 2,
            Height::Low | Height::Middle => 1,
        }
    }

    /// Whether there is a kernel that norms its only row by itself.
    fn norms(self, dimensions: &Dimensions) -> bool {
        self.inputs == dimensions.hidden
            && self.height != Height::Tall
            && self.inputs * dimensions.pieces <= NORM_HALVES
    }

    /// Whether there is a kernel that holds the rows in shared memory.
    fn holds(self, dimensions: &Dimensions) -> bool {
        self.height == Height::Middle
            && dimensions.pieces == 1
            && self.inputs.is_multiple_of(HELD_SPLIT * 2 * TILE_INPUTS)
            && self.held_bytes(dimensions.group) <= dimensions.shared_per_block
    }

    /// Shared memory of its block: rows, and the weights that its warps have under way.
    fn held_bytes(self, group: usize) -> usize {
        let depth = (16 / self.bits).min(self.inputs / TILE_INPUTS / HELD_SPLIT);
        let tile = 128 * self.bits + 64 * (TILE_INPUTS / group);
        held_bytes(self.inputs, HELD_ROWS, group, 1) + HELD_SPLIT * HELD_PAIRS * depth * 2 * tile
    }

    /// What its kernels' names start with.
    fn name(self) -> String {
        let Self { inputs, bits, height } = self;
        let height = match height {
            Height::Low => "",
            Height::Middle => "_middle",
            Height::Tall => "_tall",
        };
        format!("linear_{inputs}_{bits}{height}")
    }
}

impl SwigluKey {
    pub(super) fn new(inputs: usize, bits: usize, width: usize) -> Self {
        Self { inputs, bits, narrow: !width.is_multiple_of(128) }
    }

    /// The block as it is for this pair.
    fn block(self, block: ManyBlock) -> ManyBlock {
        let warps = if self.narrow { block.warps.min(MANY_WARPS_NARROW) } else { block.warps };
        ManyBlock { warps, ..block }
    }

    fn split(self) -> usize {
        SWIGLU_SPLIT.min(self.inputs / TILE_INPUTS)
    }
}

/// Lines that make the kernels for these matrices, and the kernels' names in the order in which
/// [`MatmulKernels::new`] wants them. Of a SwiGLU it says whether there are ever few rows for it.
pub(super) fn instances(
    linear: &[Key],
    swiglu: &BTreeMap<SwigluKey, bool>,
    dimensions: &Dimensions,
) -> (String, Vec<String>) {
    let mut lines = String::new();
    let mut names = vec!["repack_words".to_owned(), "repack_affine".to_owned()];
    let mut add = |name: String, what: &str, parameters: [usize; 5]| {
        let used: Vec<_> =
            parameters.iter().filter(|&&number| number > 0).map(usize::to_string).collect();
        writeln!(lines, "{what}({name}, {})", used.join(", ")).expect("into a string");
        names.push(name);
    };
    for key in linear {
        let (name, Key { inputs, bits, .. }) = (key.name(), *key);
        for &rows in key.few_rows(dimensions) {
            let parameters = [inputs, bits, rows, key.few_warps(), key.few_tiles(rows)];
            add(format!("{name}_few_{rows}"), "LINEAR_FEW", parameters);
        }
        if key.norms(dimensions) {
            let parameters = [bits, key.few_warps(), key.few_tiles(1), 0, 0];
            add(format!("{name}_few_norm"), "LINEAR_FEW_NORM", parameters);
        }
        if key.holds(dimensions) {
            let parameters = [inputs, bits, HELD_ROWS, HELD_SPLIT, HELD_PAIRS];
            add(format!("{name}_held"), "LINEAR_HELD", parameters);
        }
        for &ManyBlock { rows, warps, .. } in many_blocks(dimensions) {
            add(format!("{name}_many_{rows}"), "LINEAR_MANY", [inputs, bits, rows, warps, 0]);
        }
    }
    for (key, &few) in swiglu {
        let &SwigluKey { inputs, bits, narrow } = key;
        let width = if narrow { "_narrow" } else { "" };
        for &rows in swiglu_few_rows(few) {
            let name = format!("swiglu_{inputs}_{bits}{width}_few_{rows}");
            add(name, "SWIGLU_FEW", [inputs, bits, rows, key.split(), 0]);
        }
        for &block in many_blocks(dimensions) {
            let ManyBlock { rows, warps, .. } = key.block(block);
            let name = format!("swiglu_{inputs}_{bits}{width}_many_{rows}");
            add(name, "SWIGLU_MANY", [inputs, bits, rows, warps, 0]);
        }
    }
    (lines, names)
}

/// The rows that a SwiGLU's kernels for few rows take at once, if it has any.
fn swiglu_few_rows(few: bool) -> &'static [usize] {
    if few { &SWIGLU_FEW_ROWS } else { &[] }
}

/// The blocks for many rows.
fn many_blocks(dimensions: &Dimensions) -> &'static [ManyBlock] {
    &MANY_BLOCKS[..=MANY_BLOCKS.len() - dimensions.pieces]
}

/// `HeldRows::BYTES` of the kernel file: shared memory for the activations of so many rows.
pub(super) fn held_bytes(inputs: usize, rows: usize, group: usize, pieces: usize) -> usize {
    rows * (pieces * (2 * inputs + 64) + 4 * (inputs / group + 1))
}

/// `MANY_BYTES` of the kernel file: shared memory of a block for many rows.
pub(super) fn many_bytes(dimensions: &Dimensions, bits: usize, rows: usize, warps: usize) -> usize {
    let &Dimensions { group, pieces, wide_stages, .. } = dimensions;
    let stages = match rows {
        ..=32 => 4,
        33..=64 => 3,
        _ => wide_stages,
    };
    let stage = rows * 128 * pieces + warps * (1024 * (bits / 4) + 8192 / group);
    stages * stage.next_multiple_of(1024)
}

impl MatmulKernels {
    /// From the kernels that [`instances`] has named.
    pub(super) fn new(
        linear: &[Key],
        swiglu: &BTreeMap<SwigluKey, bool>,
        dimensions: &Dimensions,
        kernels: &[Kernel],
    ) -> Self {
        let mut kernels = kernels.iter().copied();
        let mut next = || kernels.next().expect("as many kernels as names");
        Self {
            repack: RepackKernels { words: next(), affine: next() },
            linear: linear
                .iter()
                .map(|&key| {
                    let blocks = many_blocks(dimensions).iter().copied();
                    let few = key.few_rows(dimensions);
                    let single = [key.norms(dimensions), key.holds(dimensions)];
                    (key, Variants::new(few, single, blocks, &mut next))
                })
                .collect(),
            swiglu: swiglu
                .iter()
                .map(|(&key, &few)| {
                    let blocks = many_blocks(dimensions).iter().map(|&block| key.block(block));
                    (key, Variants::new(swiglu_few_rows(few), [false; 2], blocks, &mut next))
                })
                .collect(),
        }
    }
}

impl Variants {
    fn new(
        few: &[usize],
        [norms, holds]: [bool; 2],
        blocks: impl Iterator<Item = ManyBlock>,
        next: &mut impl FnMut() -> Kernel,
    ) -> Self {
        Self {
            few: few.iter().map(|&rows| (next(), rows)).collect(),
            norm: norms.then(&mut *next),
            held: holds.then(&mut *next),
            many: blocks.map(|block| (next(), block)).collect(),
        }
    }

    /// The kernel for few rows, and the rows that it takes at once; nothing where more than `most` are
    /// too many for it.
    fn few(&self, rows: usize, most: usize) -> Option<(Kernel, usize)> {
        let fits = self.few.iter().find(|(_, size)| rows <= *size);
        fits.or(self.few.last()).filter(|_| rows <= most).copied()
    }

    /// The kernel for many rows that is through first, and its block. Of those whose `shared` bytes
    /// the device has: the smallest of all asks for no more than any device offers.
    fn many(
        &self,
        outputs: usize,
        rows: usize,
        device: &dyn Device,
        shared: impl Fn(ManyBlock) -> usize,
    ) -> (Kernel, ManyBlock) {
        let multiprocessors = device.multiprocessors() as usize;
        self.many
            .iter()
            .filter(|(_, block)| shared(*block) <= device.shared_per_block())
            .min_by_key(|(_, block)| block.time(outputs, rows, multiprocessors))
            .copied()
            .unwrap_or(self.many[0])
    }
}

impl Pass<'_> {
    /// `out[row, output] = Σ_i matrix[output, i] * x[row, i]` for the first `rows` rows; rows of
    /// `out` are `width` long.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn project(
        &self,
        op: Op,
        projection: &Projection,
        x: Activations,
        rows: usize,
        out: Address,
        width: usize,
    ) -> Result<(), Error> {
        projection
            .parts
            .iter()
            .try_for_each(|part| self.linear(op, part, x, rows, (out, width), false))
    }

    /// [`Pass::project`] of the RMSNorm of the residual stream, which also goes to `scratch.normed`;
    /// without a gain it is there already.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn norm_project(
        &self,
        op: Op,
        gain: Option<Address>,
        projection: &Projection,
        out: Address,
        width: usize,
    ) -> Result<(), Error> {
        let rows = self.plan.rows;
        if let Some(gain) = gain {
            let norms = |part| self.product(part, width).2.norm.is_some();
            if rows == 1 && projection.parts.iter().all(norms) {
                let mut parts = projection.parts.iter();
                return parts.try_for_each(|part| self.linear_norm(op, part, gain, out, width));
            }
            self.norm(gain)?;
        }
        self.project(op, projection, self.scratch.normed, rows, out, width)
    }

    /// The outputs that count where rows of the result are `width` long, and the kernels for them.
    fn product(&self, part: &Part, width: usize) -> (usize, Key, &Variants) {
        let outputs = part.outputs.min(width - part.column);
        let key = Key::new(part.inputs, part.bits, outputs);
        (outputs, key, &self.kernels.matmul.linear[&key])
    }

    /// The only row, which the kernel norms by itself.
    fn linear_norm(
        &self,
        op: Op,
        part: &Part,
        gain: Address,
        out: Address,
        width: usize,
    ) -> Result<(), Error> {
        let (outputs, key, kernels) = self.product(part, width);
        let kernel = kernels.norm.expect("made for this matrix");
        let tiles = outputs.div_ceil(TILE_OUTPUTS).div_ceil(key.few_tiles(1));
        let arguments = [
            part.matrix.into(),
            self.scratch.x.into(),
            gain.into(),
            self.scratch.normed.into(),
            out.into(),
            (width as u32).into(),
            (part.column as u32).into(),
            (outputs as u32).into(),
        ];
        self.launch((op, part.amount), kernel, [tiles, 1, 1], 32 * key.few_warps(), 0, &arguments)
    }

    /// Adds the product to the residual stream.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn project_add(
        &self,
        op: Op,
        projection: &Projection,
        x: Activations,
        rows: usize,
    ) -> Result<(), Error> {
        let out = (self.scratch.x, self.shape.hidden);
        projection.parts.iter().try_for_each(|part| self.linear(op, part, x, rows, out, true))
    }

    fn linear(
        &self,
        op: Op,
        part: &Part,
        x: Activations,
        rows: usize,
        (out, width): (Address, usize),
        add: bool,
    ) -> Result<(), Error> {
        let (outputs, key, kernels) = self.product(part, width);
        let arguments = [
            part.matrix.into(),
            x.into(),
            (rows as u32).into(),
            out.into(),
            (width as u32).into(),
            (part.column as u32).into(),
            (outputs as u32).into(),
            u32::from(add).into(),
        ];
        let work = (op, part.amount.rows(rows));
        let tiles = outputs.div_ceil(TILE_OUTPUTS);
        if let Some(kernel) = kernels.held
            && (FEW_ROWS[2] + 1..=FEW_ROWS_MAX).contains(&rows)
        {
            let grid = [tiles.div_ceil(2 * HELD_PAIRS), rows.div_ceil(HELD_ROWS), 1];
            let shared = key.held_bytes(self.dimensions.group);
            let block = 32 * HELD_SPLIT * HELD_PAIRS;
            return self.launch(work, kernel, grid, block, shared, &arguments);
        }
        if let Some((kernel, at_once)) = kernels.few(rows, key.few_rows_max()) {
            let grid = [tiles.div_ceil(key.few_tiles(at_once)), rows.div_ceil(at_once), 1];
            return self.launch(work, kernel, grid, 32 * key.few_warps(), 0, &arguments);
        }
        self.launch_many(work, kernels, part.bits, [outputs, rows], &arguments)
    }

    /// Many rows, with the block that suits them.
    fn launch_many(
        &self,
        work: (Op, Amount),
        kernels: &Variants,
        bits: usize,
        [outputs, rows]: [usize; 2],
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let shared = |block: ManyBlock| many_bytes(self.dimensions, bits, block.rows, block.warps);
        let (kernel, block) = kernels.many(outputs, rows, self.device, shared);
        let grid = [block.columns(outputs), rows.div_ceil(block.rows), 1];
        self.launch(work, kernel, grid, 32 * block.warps, shared(block), arguments)
    }

    /// `inner = silu(gate(x)) * up(x)` for every row.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn swiglu(
        &self,
        op: Op,
        weights: &DeviceSwiglu,
        x: Activations,
        inner: Activations,
    ) -> Result<(), Error> {
        let rows = self.plan.rows;
        let key = SwigluKey::new(self.shape.hidden, weights.bits, weights.width);
        let kernels = &self.kernels.matmul.swiglu[&key];
        let arguments = [
            weights.gate.into(),
            weights.up.into(),
            x.into(),
            self.rows(),
            (weights.width as u32).into(),
            inner.into(),
        ];
        let work = (op, weights.gate_up_amount.rows(rows));
        if let Some((kernel, at_once)) = kernels.few(rows, SWIGLU_FEW_ROWS_MAX) {
            let grid = [weights.width / TILE_INPUTS, rows.div_ceil(at_once), 1];
            return self.launch(work, kernel, grid, 128 * key.split(), 0, &arguments);
        }
        self.launch_many(work, kernels, weights.bits, [2 * weights.width, rows], &arguments)
    }

    /// The last matrix of a SwiGLU: into `out` [rows, hidden], or added to it.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn project_down(
        &self,
        op: Op,
        weights: &DeviceSwiglu,
        inner: Activations,
        out: Address,
        add: bool,
    ) -> Result<(), Error> {
        let hidden = self.shape.hidden;
        let part = Part {
            matrix: weights.down,
            inputs: weights.width,
            bits: weights.down_bits,
            column: 0,
            outputs: hidden,
            amount: weights.down_amount,
        };
        self.linear(op, &part, inner, self.plan.rows, (out, hidden), add)
    }
}

//! Quantised matrix times 16-bit activations.
//!
//! `y = Σ_blocks (scale_w · scale_x) · Σ q·x̂  +  Σ_groups bias · Σ x`
//!
//! A result's operations have one order, whatever else is computed beside it: blocks in
//! ascending order into one vector of partial sums, then the sum of its lanes, then the biases.
//! So one row and many rows, and any split of the outputs over threads, give the same bits.

use std::ops::Range;

use super::{
    activations::{Activations, BLOCK},
    simd::Simd,
};
use crate::model::Linear;

/// Blocks whose scales are combined at a time when one row is multiplied.
const CHUNK: usize = 8;
/// Outputs whose weights are unpacked together when many rows are multiplied.
const PANEL_OUTPUTS: usize = 8;
/// Blocks of such a panel: 8 outputs × 16 blocks × 64 i16 are 16 KiB, half of a small L1.
const PANEL_BLOCKS: usize = 16;
/// Rows that pass over a panel: their activations should stay in L2.
const PANEL_ROWS: usize = 64;

/// Fills one row: quantises it in blocks and takes the sums.
///
/// # Safety
/// `x` is as wide as the activations, and nobody else touches the row meanwhile.
#[inline(always)]
pub(super) unsafe fn prepare<S: Simd>(to: &Activations, row: usize, x: &[f32]) {
    let (quants, scales) = (to.quants(row), to.scales(row));
    for (block, values) in x.chunks_exact(BLOCK).enumerate() {
        // SAFETY: a block has 64 readable values; `reset` made room for 64 integers and one
        // scale a block.
        unsafe {
            let mut peak = S::splat(0.0);
            for at in (0..BLOCK).step_by(S::LANES) {
                peak = S::max(peak, S::abs(S::load(values.as_ptr().add(at))));
            }
            let peak = S::largest(peak);
            // Below this the factor would overflow; such a block counts as zeros.
            let factor = if peak < 1e-33 { 0.0 } else { 32767.0 / peak };
            S::quantize(values.as_ptr(), factor, quants.add(block * BLOCK));
            *scales.add(block) = if peak < 1e-33 { 0.0 } else { peak / 32767.0 };
        }
    }
}

/// Sums of a row's values in runs of 32, 64 and 128.
///
/// # Safety
/// As for [`prepare`].
#[inline(always)]
pub(super) unsafe fn prepare_sums<S: Simd>(to: &Activations, row: usize, x: &[f32]) {
    let [fine, middle, coarse] = [32, 64, 128].map(|group| to.sums(row, group));
    for (index, values) in x.chunks_exact(32).enumerate() {
        // SAFETY: a run has 32 readable values; there is room for inputs / 32 sums.
        unsafe {
            let mut sum = S::load(values.as_ptr());
            for at in (S::LANES..32).step_by(S::LANES) {
                sum = S::add(sum, S::load(values.as_ptr().add(at)));
            }
            *fine.add(index) = S::sum(sum);
        }
    }
    for index in 0..x.len() / 64 {
        // SAFETY: each sum of 64 joins two of 32 that were written above.
        unsafe { *middle.add(index) = *fine.add(2 * index) + *fine.add(2 * index + 1) }
    }
    for index in 0..x.len() / 128 {
        // SAFETY: each sum of 128 joins two of 64 that were written above.
        unsafe { *coarse.add(index) = *middle.add(2 * index) + *middle.add(2 * index + 1) }
    }
}

/// `y[i * stride + o] = Σ w[o]·x[rows[i]]` for the given outputs.
///
/// # Safety
/// `supports(w)` holds with BITS and GROUP as in `w`, rows are prepared, `y` is writable at
/// every place named above and touched by nobody else.
#[inline(always)]
pub(super) unsafe fn matmul<S: Simd, const BITS: usize, const GROUP: usize>(
    w: &Linear,
    x: &Activations,
    rows: &[u32],
    outputs: Range<usize>,
    y: *mut f32, // [rows, stride]
    stride: usize,
) {
    let matrix = Matrix::new(w);
    // SAFETY: passed on from the caller; the loops stay inside `outputs` and `rows`.
    unsafe {
        if let [row] = rows {
            return gemv::<S, BITS, GROUP>(&matrix, x, *row as usize, outputs, y);
        }
        for first in (0..rows.len()).step_by(PANEL_ROWS) {
            let rows = &rows[first..rows.len().min(first + PANEL_ROWS)];
            gemm::<S, BITS, GROUP>(
                &matrix,
                x,
                rows,
                outputs.clone(),
                y.add(first * stride),
                stride,
            );
        }
    }
}

/// A matrix as raw places: slices of the file would be looked up through their owner each time.
pub(super) struct Matrix {
    weight: *const u8,
    scales: *const u16,
    biases: *const u16,
    row_bytes: usize,
    pub(super) groups: usize,
    pub(super) inputs: usize,
}

impl Matrix {
    pub(super) fn new(w: &Linear) -> Self {
        Self {
            weight: w.weight.as_ptr(),
            scales: w.scales.as_ptr().cast(),
            biases: w.biases.as_ptr().cast(),
            row_bytes: w.row_bytes(),
            groups: w.groups(),
            inputs: w.inputs,
        }
    }

    /// Packed elements of an output row.
    pub(super) fn weight(&self, output: usize) -> *const u8 {
        self.weight.wrapping_add(output * self.row_bytes)
    }

    /// Scales of an output row [groups] bf16, perhaps unaligned.
    pub(super) fn scales(&self, output: usize) -> *const u16 {
        self.scales.wrapping_add(output * self.groups)
    }

    /// Biases of an output row [groups] bf16, perhaps unaligned.
    pub(super) fn biases(&self, output: usize) -> *const u16 {
        self.biases.wrapping_add(output * self.groups)
    }
}

/// One row: weights are unpacked in registers, the activations shared by a few outputs.
#[inline(always)]
unsafe fn gemv<S: Simd, const BITS: usize, const GROUP: usize>(
    w: &Matrix,
    x: &Activations,
    row: usize,
    outputs: Range<usize>,
    y: *mut f32,
) {
    let mut output = outputs.start;
    // SAFETY: passed on from the caller.
    unsafe {
        while outputs.end - output >= 4 && S::GEMV_OUTPUTS == 4 {
            gemv_tile::<S, BITS, GROUP, 4>(w, x, row, output, y);
            output += 4;
        }
        while output < outputs.end {
            gemv_tile::<S, BITS, GROUP, 1>(w, x, row, output, y);
            output += 1;
        }
    }
}

#[inline(always)]
unsafe fn gemv_tile<S: Simd, const BITS: usize, const GROUP: usize, const OUTPUTS: usize>(
    w: &Matrix,
    x: &Activations,
    row: usize,
    output: usize,
    y: *mut f32,
) {
    let block_bytes = BLOCK * BITS / 8;
    let blocks = w.inputs / BLOCK;
    let (quants, scales_x) = (x.quants(row).cast_const(), x.scales(row).cast_const());
    // SAFETY: `output + OUTPUTS` rows exist; each has `blocks` blocks and `groups` scales, and
    // the activation row has `blocks` blocks. Prefetched addresses need not exist.
    unsafe {
        let mut acc = [S::splat(0.0); OUTPUTS];
        let mut first = 0;
        while first < blocks {
            let count = CHUNK.min(blocks - first);
            let mut scales = [[0.0f32; 2 * CHUNK]; OUTPUTS];
            for (i, scales) in scales.iter_mut().enumerate() {
                let scales_w = w.scales(output + i);
                combine_scales::<GROUP>(scales_w, scales_x, first, count, scales);
            }
            for block in first..first + count {
                for (i, acc) in acc.iter_mut().enumerate() {
                    let packed = w.weight(output + i).wrapping_add(block * block_bytes);
                    S::prefetch(packed.wrapping_add(OUTPUTS * w.row_bytes));
                    let scale = scales[i].as_ptr().add(scale_index::<GROUP>(block - first));
                    let x = quants.add(block * BLOCK);
                    *acc = dot::<S, GROUP>(*acc, unpack::<S, BITS>(packed), x, scale);
                }
            }
            first += count;
        }
        for (i, acc) in acc.iter().enumerate() {
            let bias = bias_dot::<S>(w.biases(output + i), x.sums(row, GROUP), w.groups);
            *y.add(output + i) = S::sum(*acc) + bias;
        }
    }
}

/// Many rows: a panel of weights is unpacked into L1, every row passes over it.
#[inline(always)]
unsafe fn gemm<S: Simd, const BITS: usize, const GROUP: usize>(
    w: &Matrix,
    x: &Activations,
    rows: &[u32],
    outputs: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    let mut output = outputs.start;
    // SAFETY: passed on from the caller.
    unsafe {
        while outputs.end - output >= PANEL_OUTPUTS {
            gemm_panel::<S, BITS, GROUP, PANEL_OUTPUTS>(w, x, rows, output, y, stride);
            output += PANEL_OUTPUTS;
        }
        while output < outputs.end {
            gemm_panel::<S, BITS, GROUP, 1>(w, x, rows, output, y, stride);
            output += 1;
        }
    }
}

#[repr(C, align(64))]
struct Panel<const OUTPUTS: usize> {
    weights: [[[i16; BLOCK]; OUTPUTS]; PANEL_BLOCKS],
    scales: [[f32; OUTPUTS]; 2 * PANEL_BLOCKS], // one or two a block
}

#[inline(always)]
unsafe fn gemm_panel<S: Simd, const BITS: usize, const GROUP: usize, const OUTPUTS: usize>(
    w: &Matrix,
    x: &Activations,
    rows: &[u32],
    output: usize,
    y: *mut f32,
    stride: usize,
) {
    let blocks = w.inputs / BLOCK;
    let mut panel = Panel {
        weights: [[[0; BLOCK]; OUTPUTS]; PANEL_BLOCKS],
        scales: [[0.0; OUTPUTS]; 2 * PANEL_BLOCKS],
    };
    // SAFETY: `rows` has at most PANEL_ROWS rows; the rest is passed on from the caller.
    unsafe {
        let mut acc = [[S::splat(0.0); OUTPUTS]; PANEL_ROWS];
        let mut first = 0;
        while first < blocks {
            let count = PANEL_BLOCKS.min(blocks - first);
            fill_panel::<S, BITS, GROUP, OUTPUTS>(w, output, first, count, &mut panel);
            for (acc, &row) in acc.iter_mut().zip(rows) {
                let quants = x.quants(row as usize).add(first * BLOCK);
                let scales = x.scales(row as usize).add(first);
                pass_panel::<S, GROUP, OUTPUTS>(&panel, quants, scales, count, acc);
            }
            first += count;
        }
        for (i, (acc, &row)) in acc.iter().zip(rows).enumerate() {
            let sums = x.sums(row as usize, GROUP);
            for (o, acc) in acc.iter().enumerate() {
                let bias = bias_dot::<S>(w.biases(output + o), sums, w.groups);
                *y.add(i * stride + output + o) = S::sum(*acc) + bias;
            }
        }
    }
}

#[inline(always)]
unsafe fn fill_panel<S: Simd, const BITS: usize, const GROUP: usize, const OUTPUTS: usize>(
    w: &Matrix,
    output: usize,
    first: usize,
    count: usize,
    panel: &mut Panel<OUTPUTS>,
) {
    for o in 0..OUTPUTS {
        let packed = w.weight(output + o).wrapping_add(first * BLOCK * BITS / 8);
        let scales = w.scales(output + o);
        for block in 0..count {
            // SAFETY: the row has `first + count` blocks and the scales that belong to them.
            unsafe {
                let unpacked = unpack::<S, BITS>(packed.add(block * BLOCK * BITS / 8));
                S::store_block(panel.weights[block][o].as_mut_ptr(), unpacked);
                for half in 0..scales_in_block::<GROUP>() {
                    panel.scales[scale_index::<GROUP>(block) + half][o] =
                        bf16(scales.add(group_index::<GROUP>(first + block) + half));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn pass_panel<S: Simd, const GROUP: usize, const OUTPUTS: usize>(
    panel: &Panel<OUTPUTS>,
    quants: *const i16,
    scales: *const f32,
    count: usize,
    kept: &mut [S::Floats; OUTPUTS],
) {
    let mut acc = *kept;
    for block in 0..count {
        // SAFETY: the row has `count` blocks from here on, each with a scale.
        unsafe {
            let scale_x = *scales.add(block);
            let mut combined = [[0.0f32; 2]; OUTPUTS];
            for half in 0..scales_in_block::<GROUP>() {
                let scales_w = &panel.scales[scale_index::<GROUP>(block) + half];
                for o in 0..OUTPUTS {
                    combined[o][half] = scales_w[o] * scale_x;
                }
            }
            let x = S::load_block(quants.add(block * BLOCK));
            for o in 0..OUTPUTS {
                let weights = panel.weights[block][o].as_ptr();
                acc[o] = dot::<S, GROUP>(acc[o], x, weights, combined[o].as_ptr());
            }
        }
    }
    *kept = acc;
}

/// Products of weight and activation scales for `count` blocks from `first` on.
#[inline(always)]
unsafe fn combine_scales<const GROUP: usize>(
    scales_w: *const u16,
    scales_x: *const f32,
    first: usize,
    count: usize,
    out: &mut [f32; 2 * CHUNK],
) {
    for block in 0..count {
        // SAFETY: the caller's rows have `first + count` blocks.
        unsafe {
            let scale_x = *scales_x.add(first + block);
            for half in 0..scales_in_block::<GROUP>() {
                let scale_w = bf16(scales_w.add(group_index::<GROUP>(first + block) + half));
                out[scale_index::<GROUP>(block) + half] = scale_w * scale_x;
            }
        }
    }
}

/// `Σ bias · sum of inputs` over a row's groups.
#[inline(always)]
pub(super) unsafe fn bias_dot<S: Simd>(biases: *const u16, sums: *const f32, groups: usize) -> f32 {
    // SAFETY: both rows have `groups` elements.
    unsafe {
        let mut acc = S::splat(0.0);
        let mut group = 0;
        while group + S::LANES <= groups {
            acc = S::fma(S::load_bf16(biases.add(group)), S::load(sums.add(group)), acc);
            group += S::LANES;
        }
        let mut rest = 0.0;
        while group < groups {
            rest += bf16(biases.add(group)) * *sums.add(group);
            group += 1;
        }
        S::sum(acc) + rest
    }
}

#[inline(always)]
unsafe fn dot<S: Simd, const GROUP: usize>(
    acc: S::Floats,
    a: S::Block,
    b: *const i16,
    scale: *const f32,
) -> S::Floats {
    // SAFETY: passed on from the caller.
    unsafe {
        if GROUP == 32 {
            S::dot::<true>(acc, a, b, scale)
        } else {
            S::dot::<false>(acc, a, b, scale)
        }
    }
}

#[inline(always)]
unsafe fn unpack<S: Simd, const BITS: usize>(packed: *const u8) -> S::Block {
    // SAFETY: the caller gives a whole block of BITS-bit elements.
    unsafe { if BITS == 4 { S::unpack4(packed) } else { S::unpack8(packed) } }
}

const fn scales_in_block<const GROUP: usize>() -> usize {
    if GROUP == 32 { 2 } else { 1 }
}

/// Group in which a block begins.
const fn group_index<const GROUP: usize>(block: usize) -> usize {
    block * BLOCK / GROUP
}

/// Where a block's scales stand in a run of blocks: group 128 repeats its scale for both.
const fn scale_index<const GROUP: usize>(block: usize) -> usize {
    block * scales_in_block::<GROUP>()
}

/// # Safety
/// `p` is readable; no alignment is asked for.
#[inline(always)]
pub(super) unsafe fn bf16(p: *const u16) -> f32 {
    // SAFETY: the caller's promise. Files are little endian.
    f32::from_bits(u32::from(u16::from_le(unsafe { p.read_unaligned() })) << 16)
}

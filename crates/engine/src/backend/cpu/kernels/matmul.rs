//! Quantised matrix times 16-bit activations.
//!
//! `y = Σ_blocks scale_w · (scale_x · Σ q·x̂)  +  Σ_groups bias · Σ x`
//!
//! A result's operations have one order, whatever else is computed beside it: blocks in
//! ascending order into one vector of partial sums, then the sum of its lanes, then the biases.
//! So one row and many rows, and any split of the outputs over threads, give the same bits.

use std::{mem::MaybeUninit, ops::Range};

use super::{
    activations::{Activations, BLOCK},
    simd::Simd,
};
use crate::model::Linear;

/// Outputs whose weights are unpacked together when many rows are multiplied.
const PANEL_OUTPUTS: usize = 8;
/// Blocks of such a panel: 8 outputs × 16 blocks × 64 i16 are 16 KiB, half of a small L1.
const PANEL_BLOCKS: usize = 16;
/// Rows that pass over a panel: their activations should stay in L2.
const PANEL_ROWS: usize = 64;

/// Fills one row: quantises it in blocks. The sums are those of the quantised values, so that a
/// product is exactly that of the weights with the rounded row.
///
/// # Safety
/// `x` is as wide as the activations, and nobody else touches the row meanwhile.
#[inline(always)]
pub(super) unsafe fn prepare<S: Simd>(to: &Activations, row: usize, x: &[f32]) {
    let (quants, scales) = (to.quants(row), to.scales(row));
    let sums = to.sums(row, 32);
    for (block, values) in x.chunks_exact(BLOCK).enumerate() {
        // SAFETY: a block has 64 readable values; `reset` made room for 64 integers, one scale
        // and two sums a block.
        unsafe {
            let quants = quants.add(block * BLOCK);
            let peak = peak::<S>(values);
            // Below this the factor would overflow; such a block counts as zeros.
            let zero = peak < 1e-33;
            let factor = if zero { 0.0 } else { 32767.0 / peak };
            let scale = if zero { 0.0 } else { peak / 32767.0 };
            S::quantize(values.as_ptr(), factor, quants);
            *scales.add(block) = scale;
            for half in 0..2 {
                let evens = quants.add(16 * half).cast::<[i16; 16]>().read_unaligned();
                let odds = quants.add(32 + 16 * half).cast::<[i16; 16]>().read_unaligned();
                let mut sum = 0;
                for i in 0..16 {
                    sum += i32::from(evens[i]) + i32::from(odds[i]);
                }
                *sums.add(2 * block + half) = scale * sum as f32;
            }
        }
    }
}

/// Largest |x| of a block; NaN or infinite when a value is.
#[inline(always)]
unsafe fn peak<S: Simd>(values: &[f32]) -> f32 {
    // SAFETY: the caller gives 64 values.
    unsafe {
        let (mut peak, mut broken) = (S::splat(0.0), S::splat(0.0));
        for at in (0..BLOCK).step_by(S::LANES) {
            let x = S::load(values.as_ptr().add(at));
            peak = S::max(peak, S::abs(x));
            // 0 · x is zero, or NaN when x is not finite; a maximum may lose a NaN.
            broken = S::fma(x, S::splat(0.0), broken);
        }
        S::largest(peak) + S::sum(broken)
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
    #[inline(always)]
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
    let (quants, scales_x) = (x.quants(row).cast_const(), x.scales(row).cast_const());
    // SAFETY: `output + OUTPUTS` rows exist; each has inputs / 64 blocks and `groups` scales, and
    // the activation row has as many blocks. Prefetched addresses need not exist.
    unsafe {
        let nibbles = S::nibbles();
        let mut acc = [S::splat(0.0); OUTPUTS];
        let mut group = 0;
        while group < w.groups {
            let groups = S::LANES.min(w.groups - group);
            let mut scales = [[0.0f32; 16]; OUTPUTS];
            for (i, scales) in scales.iter_mut().enumerate() {
                widen::<S>(w.scales(output + i).add(group), groups, scales);
            }
            let first = group * GROUP / BLOCK;
            for block in first..first + groups * GROUP / BLOCK {
                let scale_x = S::splat(*scales_x.add(block));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let packed = w.weight(output + i).wrapping_add(block * block_bytes);
                    S::prefetch(packed.wrapping_add(OUTPUTS * w.row_bytes));
                    let weights = unpack::<S, BITS>(packed, nibbles);
                    let scale_w = scales[i].as_ptr().add(block * BLOCK / GROUP - group);
                    let x = quants.add(block * BLOCK);
                    *acc = dot::<S, GROUP>(*acc, weights, x, scale_x, scale_w);
                }
            }
            group += groups;
        }
        for (i, acc) in acc.iter().enumerate() {
            let bias = bias_dot::<S>(w.biases(output + i), x.sums(row, GROUP), w.groups);
            *y.add(output + i) = S::sum(*acc) + bias;
        }
    }
}

/// Widens `count` bf16, at most LANES.
#[inline(always)]
unsafe fn widen<S: Simd>(p: *const u16, count: usize, out: &mut [f32; 16]) {
    // SAFETY: the caller gives `count` readable values.
    unsafe {
        if count == S::LANES {
            S::store(out.as_mut_ptr(), S::load_bf16(p));
        } else {
            for (i, out) in out.iter_mut().enumerate().take(count) {
                *out = bf16(p.add(i));
            }
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
    scales: [[[f32; 2]; OUTPUTS]; PANEL_BLOCKS], // the second for groups of 32
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
    let mut panel = MaybeUninit::<Panel<OUTPUTS>>::uninit();
    let mut acc = MaybeUninit::<[[S::Floats; OUTPUTS]; PANEL_ROWS]>::uninit();
    // SAFETY: `rows` has at most PANEL_ROWS rows, and as many accumulators are set before they
    // are read; a panel's first `count` blocks are filled before rows pass over them. The rest
    // is passed on from the caller.
    unsafe {
        let panel = panel.as_mut_ptr();
        let acc = acc.as_mut_ptr().cast::<[S::Floats; OUTPUTS]>();
        for i in 0..rows.len() {
            acc.add(i).write([S::splat(0.0); OUTPUTS]);
        }
        let acc = std::slice::from_raw_parts_mut(acc, rows.len());
        let mut first = 0;
        while first < blocks {
            let count = PANEL_BLOCKS.min(blocks - first);
            fill_panel::<S, BITS, GROUP, OUTPUTS>(w, output, first, count, panel);
            for (acc, &row) in acc.iter_mut().zip(rows) {
                let quants = x.quants(row as usize).add(first * BLOCK);
                let scales = x.scales(row as usize).add(first);
                pass_panel::<S, GROUP, OUTPUTS>(panel, quants, scales, count, acc);
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
    panel: *mut Panel<OUTPUTS>,
) {
    // SAFETY: the rows have `first + count` blocks and the scales that belong to them.
    unsafe {
        let nibbles = S::nibbles();
        for o in 0..OUTPUTS {
            let packed = w.weight(output + o).add(first * BLOCK * BITS / 8);
            let scales = w.scales(output + o);
            for block in 0..count {
                let unpacked = unpack::<S, BITS>(packed.add(block * BLOCK * BITS / 8), nibbles);
                S::store_block((&raw mut (*panel).weights[block][o]).cast(), unpacked);
                let group = (first + block) * BLOCK / GROUP;
                let second = if GROUP == 32 { bf16(scales.add(group + 1)) } else { 0.0 };
                (*panel).scales[block][o] = [bf16(scales.add(group)), second];
            }
        }
    }
}

#[inline(always)]
unsafe fn pass_panel<S: Simd, const GROUP: usize, const OUTPUTS: usize>(
    panel: *const Panel<OUTPUTS>,
    quants: *const i16,
    scales: *const f32,
    count: usize,
    kept: &mut [S::Floats; OUTPUTS],
) {
    let mut acc = *kept;
    for block in 0..count {
        // SAFETY: the row has `count` blocks from here on, each with a scale, and the panel too.
        unsafe {
            let scale_x = S::splat(*scales.add(block));
            let x = S::load_block(quants.add(block * BLOCK));
            for o in 0..OUTPUTS {
                let weights = (&raw const (*panel).weights[block][o]).cast();
                let scale_w = (&raw const (*panel).scales[block][o]).cast();
                acc[o] = dot::<S, GROUP>(acc[o], x, weights, scale_x, scale_w);
            }
        }
    }
    *kept = acc;
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
    scale_x: S::Floats,
    scale_w: *const f32,
) -> S::Floats {
    // SAFETY: passed on from the caller.
    unsafe {
        match GROUP {
            32 => S::dot::<true>(acc, a, b, scale_x, scale_w),
            _ => S::dot::<false>(acc, a, b, scale_x, scale_w),
        }
    }
}

#[inline(always)]
unsafe fn unpack<S: Simd, const BITS: usize>(packed: *const u8, nibbles: S::Nibbles) -> S::Block {
    // SAFETY: the caller gives a whole block of BITS-bit elements.
    unsafe { if BITS == 4 { S::unpack4(packed, nibbles) } else { S::unpack8(packed) } }
}

/// # Safety
/// `p` is readable; no alignment is asked for.
#[inline(always)]
pub(super) unsafe fn bf16(p: *const u16) -> f32 {
    // SAFETY: the caller's promise. Files are little endian.
    f32::from_bits(u32::from(u16::from_le(unsafe { p.read_unaligned() })) << 16)
}

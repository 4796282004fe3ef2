//! Many rows: a panel of transposed weights stays in the first-level cache while rows pass over it.
//!
//! Where additions are cheap (`Simd::PAIRED`) two inputs take one product instead of two, as in
//! Winograd's inner product (1968): `(x₀ + w₁)·(x₁ + w₀) = x₀·w₀ + x₁·w₁ + x₀·x₁ + w₀·w₁`. The last
//! two are known once for a row and once for a panel, and all of it is exact modulo 2^32, so the
//! sums of a unit are the same to the bit.

use std::{hint::black_box, mem::MaybeUninit, ops::Range};

use super::{Matrix, prefetch, spread};
use crate::backend::cpu::kernels::{
    activations::{Activations, BLOCK},
    simd::Simd,
};

/// Words of activations for eight inputs, an octet: word i holds inputs i and i + 4 as i16.
const STEPS: usize = 4;

/// Vectors of outputs that a panel holds side by side.
const COLUMNS: usize = 2;
/// Blocks of 64 inputs in a panel: with 16 lanes and 4 bits 8 KiB of weights, which leaves room
/// in the first-level cache for a tile's activations and sums.
const PANEL_BLOCKS: usize = 8;
/// Rows that pass over a panel: their activations should stay in the second-level cache.
const PANEL_ROWS: usize = 64;

/// Weights and their factors, lanes innermost.
#[repr(C, align(64))]
struct Panel {
    words: [u32; PANEL_BLOCKS * 16 * COLUMNS * 16], // [block, word, column, lane]
    scales: [f32; PANEL_BLOCKS * 2 * COLUMNS * 16], // [group, column, lane]
    biases: [f32; PANEL_BLOCKS * 2 * COLUMNS * 16], // [group, column, lane]
    pairs: [u32; PANEL_BLOCKS * 2 * COLUMNS * 16],  // [unit, column, lane], where PAIRED
}

/// Float sums, `[row, column, lane]`.
#[repr(C, align(64))]
struct Sums([f32; PANEL_ROWS * COLUMNS * 16]);

/// `y[i * stride + o] = w[o]·x[rows[i]]`; returns the outputs that are left, fewer than a panel's.
///
/// # Safety
/// As for [`super::matmul`].
#[inline(always)]
pub(super) unsafe fn gemm<S: Simd, const BITS: usize, const UNIT: usize>(
    w: &Matrix,
    x: &Activations,
    rows: &[u32],
    outputs: Range<usize>,
    y: *mut f32, // [rows, stride]
    stride: usize,
) -> Range<usize> {
    let wide = COLUMNS * S::LANES;
    let whole = (outputs.end - outputs.start) / wide * wide;
    let end = outputs.start + whole;
    for (part, rows) in rows.chunks(PANEL_ROWS).enumerate() {
        for output in (outputs.start..end).step_by(wide) {
            // SAFETY: passed on from the caller.
            unsafe {
                let y = y.add(part * PANEL_ROWS * stride + output);
                if S::PAIRED && rows.len() >= PAIRED_ROWS {
                    column::<S, BITS, UNIT, true>(w, x, rows, output, y, stride);
                } else {
                    column::<S, BITS, UNIT, false>(w, x, rows, output, y, stride);
                }
            }
        }
    }
    end..outputs.end
}

/// A panel's outputs for at most PANEL_ROWS rows.
#[inline(always)]
unsafe fn column<S: Simd, const BITS: usize, const UNIT: usize, const PAIRED: bool>(
    w: &Matrix,
    x: &Activations,
    rows: &[u32],
    output: usize,
    y: *mut f32, // [rows, stride], from the first output on
    stride: usize,
) {
    let mut panel = MaybeUninit::<Panel>::uninit();
    let mut sums = MaybeUninit::<Sums>::uninit();
    let blocks = w.inputs / BLOCK;
    let wide = COLUMNS * S::LANES;
    let row_floats = wide;
    // SAFETY: the sums of all rows are set before they are read, and a panel's first blocks are
    // filled before rows pass over them. The rest is passed on from the caller.
    unsafe {
        let (panel, sums) = (panel.as_mut_ptr(), sums.as_mut_ptr().cast::<f32>());
        for at in (0..rows.len() * row_floats).step_by(S::LANES) {
            S::store(sums.add(at), S::splat(0.0));
        }
        for first in (0..blocks).step_by(PANEL_BLOCKS) {
            let count = PANEL_BLOCKS.min(blocks - first);
            fill::<S, BITS, UNIT, PAIRED>(w, output, first, count, panel);
            // While rows pass over this panel, the same share of the next outputs comes near, some
            // lines with every unit: memory answers only so many requests at a time.
            let share = wide * BLOCK * BITS / 8;
            let mut next = w.weight(output + wide).wrapping_add(first * share);
            let end = next.wrapping_add(count * share);
            let units = rows.len().div_ceil(S::TILE_ROWS) * count * BLOCK / UNIT;
            let ahead = (count * share).div_ceil(64 * units) * 64;
            let mut row = 0;
            macro_rules! rows_of {
                ($($rows:literal)*) => {$(
                    while $rows <= S::TILE_ROWS && rows.len() - row >= $rows {
                        let tile = Tile::<$rows>::new(x, &rows[row..], first, UNIT);
                        let sums = sums.add(row * row_floats);
                        let ahead = if next < end { ahead } else { 0 };
                        tile.pass::<S, BITS, UNIT, PAIRED>(w, panel, count, sums, next, ahead);
                        next = next.wrapping_add(count * BLOCK / UNIT * ahead);
                        row += $rows;
                    }
                )*};
            }
            rows_of!(8 7 6 5 4 3 2 1);
        }
        for i in 0..rows.len() {
            for column in 0..COLUMNS {
                let at = i * row_floats + column * S::LANES;
                S::store(y.add(i * stride + column * S::LANES), S::load(sums.add(at)));
            }
        }
    }
}

/// Transposes `count` blocks of the panel's outputs.
#[inline(always)]
unsafe fn fill<S: Simd, const BITS: usize, const UNIT: usize, const PAIRED: bool>(
    w: &Matrix,
    output: usize,
    first: usize,
    count: usize,
    panel: *mut Panel,
) {
    let group = w.group(first * BLOCK);
    let apart = COLUMNS * S::LANES;
    // SAFETY: the rows have `first + count` blocks and the scales that belong to them.
    unsafe {
        let words = (&raw mut (*panel).words).cast::<u32>();
        for column in 0..COLUMNS {
            let output = output + column * S::LANES;
            let packed = w.weight(output).add(first * BLOCK * BITS / 8);
            for part in 0..count * BITS / 4 {
                let transposed = S::transpose::<true>(packed.add(32 * part), w.row_bytes, 8);
                for i in 0..8 {
                    let at = ((part * 8 + i) * COLUMNS + column) * S::LANES;
                    S::store_ints(words.add(at), transposed[i]);
                }
            }
            if PAIRED {
                pairs_of::<S, BITS, UNIT>(column, count, panel);
            }
            let groups = w.group(count * BLOCK);
            for (from, to) in [
                (w.scales(output), (&raw mut (*panel).scales).cast::<f32>()),
                (w.biases(output), (&raw mut (*panel).biases).cast::<f32>()),
            ] {
                let to = to.add(column * S::LANES);
                spread::<S>(from.add(group), w.groups, groups, to, apart);
            }
        }
    }
}

/// Rows from which on the sums of paired weights are worth their own cost.
const PAIRED_ROWS: usize = 6;

/// What the pairs of a panel's weights add to every product, negated.
#[inline(always)]
unsafe fn pairs_of<S: Simd, const BITS: usize, const UNIT: usize>(
    column: usize,
    count: usize,
    panel: *mut Panel,
) {
    // SAFETY: `count` blocks of the column are filled.
    unsafe {
        let words = (&raw const (*panel).words).cast::<u32>();
        let pairs = (&raw mut (*panel).pairs).cast::<u32>();
        for unit in 0..count * BLOCK / UNIT {
            let mut sum = S::zero();
            for octet in unit * UNIT / 8..(unit + 1) * UNIT / 8 {
                let octet = octet_of::<S, BITS>(words, octet, column);
                if BITS == 4 {
                    sum = S::dot_nibbles(sum, octet[0]);
                    continue;
                }
                for step in (0..STEPS).step_by(2) {
                    let odd = unpacked::<S, BITS>(octet, step + 1);
                    sum = S::dot_words(sum, unpacked::<S, BITS>(octet, step), odd);
                }
            }
            let at = (unit * COLUMNS + column) * S::LANES;
            S::store_ints(pairs.add(at), S::sub_ints(S::zero(), sum));
        }
    }
}

/// Words of a column's octet.
#[inline(always)]
unsafe fn octet_of<S: Simd, const BITS: usize>(
    words: *const u32,
    octet: usize,
    column: usize,
) -> [S::Ints; 2] {
    // SAFETY: the caller's octet is in the panel.
    unsafe {
        let mut octet_words = [S::zero(); 2];
        for i in 0..BITS / 4 {
            let at = ((octet * (BITS / 4) + i) * COLUMNS + column) * S::LANES;
            octet_words[i] = S::load_ints(words.add(at));
        }
        octet_words
    }
}

/// A row's words [inputs / 8 * STEPS], aligned to their elements only.
fn words_of(x: &Activations, row: usize) -> *const u32 {
    x.quants(row).cast_const().cast()
}

/// Weights that belong to word `step` of an octet, for all lanes. The octet's elements stand in
/// `words[0]`, or in both with 8 bits.
///
/// # Safety
/// The processor has the instruction set; `step` is below STEPS.
#[inline(always)]
unsafe fn unpacked<S: Simd, const BITS: usize>(words: [S::Ints; 2], step: usize) -> S::Ints {
    // SAFETY: passed on from the caller.
    unsafe {
        if BITS == 4 {
            return S::shift_and(words[0], 4 * step as u32, 0x000F_000F);
        }
        let low = S::shift_and(words[0], 8 * step as u32, 0xFF);
        let high = S::shift_and(words[1], 8 * step as u32, 0xFF);
        S::join(low, high)
    }
}

/// Rows that pass over a panel together, from the panel's first block on.
struct Tile<const ROWS: usize> {
    words: [*const u32; ROWS],
    scales: [*const f32; ROWS],
    sums: [*const f32; ROWS],
    pairs: [*const u32; ROWS],
}

impl<const ROWS: usize> Tile<ROWS> {
    #[inline(always)]
    unsafe fn new(x: &Activations, rows: &[u32], first: usize, unit: usize) -> Self {
        let row = |i: usize| rows[i] as usize;
        // SAFETY: the rows are prepared and have more than `first` blocks.
        unsafe {
            Self {
                words: std::array::from_fn(|i| words_of(x, row(i)).add(first * 8 * STEPS)),
                scales: std::array::from_fn(|i| x.scales(row(i)).cast_const().add(first)),
                sums: std::array::from_fn(|i| {
                    x.sums(row(i), unit).cast_const().add(first * BLOCK / unit)
                }),
                pairs: std::array::from_fn(|i| {
                    x.pairs(row(i), unit).cast_const().cast::<u32>().add(first * BLOCK / unit)
                }),
            }
        }
    }

    /// Adds `blocks` blocks' products to `sums` [ROWS, COLUMNS, LANES], and with each unit asks for
    /// `ahead` bytes from `next` on.
    #[inline(always)]
    unsafe fn pass<S: Simd, const BITS: usize, const UNIT: usize, const PAIRED: bool>(
        &self,
        w: &Matrix,
        panel: *const Panel,
        blocks: usize,
        sums: *mut f32,
        next: *const u8,
        ahead: usize,
    ) {
        let octets = UNIT / 8;
        // SAFETY: rows and panel have as many blocks, each with its scales; the sums were set.
        unsafe {
            let words = (&raw const (*panel).words).cast::<u32>();
            let scales = (&raw const (*panel).scales).cast::<f32>();
            let biases = (&raw const (*panel).biases).cast::<f32>();
            let pairs = (&raw const (*panel).pairs).cast::<u32>();
            for unit_at in 0..blocks * BLOCK / UNIT {
                prefetch::<S, false>(next.wrapping_add(unit_at * ahead), ahead);
                let mut ints = [[S::zero(); COLUMNS]; ROWS];
                if PAIRED {
                    for row in 0..ROWS {
                        let own = S::broadcast(self.pairs[row].add(unit_at));
                        for column in 0..COLUMNS {
                            let at = (unit_at * COLUMNS + column) * S::LANES;
                            ints[row][column] = S::add_ints(S::load_ints(pairs.add(at)), own);
                        }
                    }
                }
                for octet in unit_at * octets..(unit_at + 1) * octets {
                    let mut octet_words = [[S::zero(); 2]; COLUMNS];
                    for column in 0..COLUMNS {
                        octet_words[column] = octet_of::<S, BITS>(words, octet, column);
                    }
                    for step in (0..STEPS).step_by(2) {
                        let mut weights = [[S::zero(); 2]; COLUMNS];
                        for column in 0..COLUMNS {
                            for i in 0..2 {
                                weights[column][i] =
                                    unpacked::<S, BITS>(octet_words[column], step + i);
                            }
                        }
                        for row in 0..ROWS {
                            let x = self.words[row].add(octet * STEPS + step);
                            let x = [S::broadcast(x), S::broadcast(x.add(1))];
                            for column in 0..COLUMNS {
                                let (ints, w) = (&mut ints[row][column], weights[column]);
                                *ints = if PAIRED {
                                    S::dot_pair(*ints, w, x)
                                } else {
                                    S::dot_words(S::dot_words(*ints, w[0], x[0]), w[1], x[1])
                                };
                            }
                        }
                    }
                }
                let group_at = w.group(unit_at * UNIT) * COLUMNS * S::LANES;
                // Else the compiler keeps sums of all units in registers, and spills them.
                let sums = black_box(sums);
                for row in 0..ROWS {
                    let scale_x = S::splat(*self.scales[row].add(unit_at * UNIT / BLOCK));
                    let sum_x = S::splat(*self.sums[row].add(unit_at));
                    for column in 0..COLUMNS {
                        let at = group_at + column * S::LANES;
                        let sum = sums.add((row * COLUMNS + column) * S::LANES);
                        let scale = S::mul(S::load(scales.add(at)), scale_x);
                        let acc = S::fma(S::to_floats(ints[row][column]), scale, S::load(sum));
                        S::store(sum, S::fma(S::load(biases.add(at)), sum_x, acc));
                    }
                }
            }
        }
    }
}

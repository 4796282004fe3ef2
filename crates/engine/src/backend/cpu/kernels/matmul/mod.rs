//! Quantised matrix times integer activations.
//!
//! `y[o] = Σ_units scale_w · scale_x · (Σ q·x̂) + bias · Σ x`, where a unit is 64 inputs, or 32 in
//! groups of 32.
//!
//! The lanes of a result are neighbouring outputs. For one row of activations weights are unpacked
//! as they lie, and each output's sums come together in its lane afterwards (`gemv`). Many rows share
//! a panel in the first-level cache, in which the outputs' words of eight elements stand transposed
//! ([`Simd::transpose`]): a shift and a mask unpack elements for all lanes, and a word of activations
//! is broadcast to all of them (`gemm`).
//!
//! A result's operations have one order, whatever else is computed beside it: sums within a unit
//! are exact, and units are added in ascending order, each with its bias. So one row and many
//! rows, and any split of the outputs over threads, give the same bits.

pub(super) mod exact;
mod gemm;
mod gemv;
mod prepare;

use std::ops::Range;

pub(super) use prepare::prepare;

use super::{activations::Activations, simd::Simd};
use crate::model::Linear;

/// `y[i * stride + o] = Σ w[o]·x[rows[i]]` for the given outputs.
///
/// # Safety
/// `supports(w)` holds with BITS as in `w`, UNIT is 32 for groups of 32 and else 64, rows are
/// prepared, `y` is writable at every place named above and touched by nobody else.
#[inline(always)]
pub(super) unsafe fn matmul<S: Simd, const BITS: usize, const UNIT: usize>(
    w: &Linear,
    x: &Activations,
    rows: &[u32],
    outputs: Range<usize>,
    y: *mut f32, // [rows, stride]
    stride: usize,
) {
    let w = &Matrix::new(w);
    // SAFETY: passed on from the caller; both parts stay inside `outputs`.
    unsafe {
        let mut rest = outputs;
        if rows.len() > 1 {
            rest = gemm::gemm::<S, BITS, UNIT>(w, x, rows, rest, y, stride);
        }
        for (i, &row) in rows.iter().enumerate() {
            let y = y.add(i * stride);
            gemv::gemv::<S, BITS, UNIT>(w, x, row as usize, rest.clone(), y);
        }
    }
}

/// A matrix as raw places: slices of the file would be looked up through their owner each time.
struct Matrix {
    weight: *const u8,
    scales: *const u16,
    biases: *const u16,
    row_bytes: usize,
    group_shift: u32, // a group is a power of two
    groups: usize,
    inputs: usize,
    outputs: usize,
}

impl Matrix {
    #[inline(always)]
    fn new(w: &Linear) -> Self {
        Self {
            weight: w.weight.as_ptr(),
            scales: w.scales.as_ptr().cast(),
            biases: w.biases.as_ptr().cast(),
            row_bytes: w.row_bytes(),
            group_shift: w.group.trailing_zeros(),
            groups: w.groups(),
            inputs: w.inputs,
            outputs: w.outputs,
        }
    }

    /// The group of an input.
    fn group(&self, input: usize) -> usize {
        input >> self.group_shift
    }

    /// Packed elements of an output row.
    fn weight(&self, output: usize) -> *const u8 {
        self.weight.wrapping_add(output * self.row_bytes)
    }

    /// Scales of an output row [groups] bf16, perhaps unaligned.
    fn scales(&self, output: usize) -> *const u16 {
        self.scales.wrapping_add(output * self.groups)
    }

    /// Biases of an output row [groups] bf16, perhaps unaligned.
    fn biases(&self, output: usize) -> *const u16 {
        self.biases.wrapping_add(output * self.groups)
    }
}

/// Asks for the cache lines of `bytes` bytes ahead of their use: into the first-level cache with
/// NEAR, for what is needed soon and lies side by side, else into the second-level one.
#[inline(always)]
unsafe fn prefetch<S: Simd, const NEAR: bool>(start: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        let line = start.wrapping_add(at);
        // SAFETY: prefetched addresses need not exist.
        unsafe { if NEAR { S::prefetch_near(line) } else { S::prefetch(line) } };
    }
}

/// Widens a run of bf16 of LANES rows: group `g` of all rows goes to `out + g * apart`.
///
/// # Safety
/// Each row, `stride` elements after the one before it, has `count` readable elements; `out` is
/// writable as described.
#[inline(always)]
unsafe fn spread<S: Simd>(
    rows: *const u16,
    stride: usize,
    count: usize,
    out: *mut f32,
    apart: usize,
) {
    // SAFETY: the caller's promise; a transposed word holds two elements of each row.
    unsafe {
        let mut group = 0;
        while group + 16 <= count {
            let words = S::transpose::<true>(rows.add(group).cast(), 2 * stride, 8);
            for i in 0..8 {
                let out = out.add((group + 2 * i) * apart);
                S::store(out, S::low_bf16(words[i]));
                S::store(out.add(apart), S::high_bf16(words[i]));
            }
            group += 16;
        }
        let pairs = (count - group) / 2;
        if pairs > 0 {
            let words = S::transpose::<false>(rows.add(group).cast(), 2 * stride, pairs);
            for &word in &words[..pairs] {
                let out = out.add(group * apart);
                S::store(out, S::low_bf16(word));
                S::store(out.add(apart), S::high_bf16(word));
                group += 2;
            }
        }
        if group < count {
            for lane in 0..S::LANES {
                *out.add(group * apart + lane) = bf16(rows.add(lane * stride + group));
            }
        }
    }
}

/// # Safety
/// `p` is readable; no alignment is asked for.
#[inline(always)]
unsafe fn bf16(p: *const u16) -> f32 {
    // SAFETY: the caller's promise. Files are little endian.
    f32::from_bits(u32::from(u16::from_le(unsafe { p.read_unaligned() })) << 16)
}

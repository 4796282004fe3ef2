//! One row: weights are unpacked as they lie, and each output's sums come together afterwards.
//!
//! An element fits a byte, and a product of bytes is exact in the instructions that there are for it:
//! activations of 16 bits go in as their two bytes. So a load of a row's weights, two elements of 4 bits
//! a byte, takes three operations to unpack and no transposition; a tree of additions over the tile's
//! rows then leaves each output's sum of a unit in its lane.

use std::{mem::MaybeUninit, ops::Range};

use super::{Matrix, prefetch, spread};
use crate::backend::cpu::kernels::{
    activations::{Activations, BLOCK},
    simd::Simd,
};

/// Groups whose scales are spread at a time.
const GROUPS: usize = 16;

/// Bytes of weights between a row that is read and the one that is asked for, at least: with less,
/// memory would answer too late for short rows.
const AHEAD: usize = 16 << 10;

/// `y[o] = w[o]·x[row]` for the given outputs.
///
/// # Safety
/// As for [`super::matmul`].
#[inline(always)]
pub(super) unsafe fn gemv<S: Simd, const BITS: usize, const UNIT: usize>(
    w: &Matrix,
    x: &Activations,
    row: usize,
    outputs: Range<usize>,
    y: *mut f32,
) {
    let Range { start: mut output, end } = outputs;
    // SAFETY: passed on from the caller; a tile's LANES rows exist.
    unsafe {
        while end - output >= S::LANES {
            let sums = tile::<S, BITS, UNIT, true>(w, output, x, row);
            S::store(y.add(output), sums);
            output += S::LANES;
        }
        if output < end && w.outputs >= S::LANES {
            // A whole tile that ends here; the outputs before are another tile's.
            let start = end.saturating_sub(S::LANES);
            let mut sums = [0.0f32; 16];
            S::store(sums.as_mut_ptr(), tile::<S, BITS, UNIT, true>(w, start, x, row));
            for output in output..end {
                *y.add(output) = sums[output - start];
            }
            output = end;
        }
        while output < end {
            let mut sums = [0.0f32; 16];
            S::store(sums.as_mut_ptr(), tile::<S, BITS, UNIT, false>(w, output, x, row));
            *y.add(output) = sums[0];
            output += 1;
        }
    }
}

/// LANES outputs from `output` on; without APART the same one in every lane.
#[inline(always)]
unsafe fn tile<S: Simd, const BITS: usize, const UNIT: usize, const APART: bool>(
    w: &Matrix,
    output: usize,
    x: &Activations,
    row: usize,
) -> S::Floats {
    let apart = if APART { 1 } else { 0 };
    let run = 8 * S::LANES;
    let scales_x = x.scales(row).cast_const();
    let sums_x = x.sums(row, UNIT).cast_const();
    let planes = x.bytes_of(row).map(|plane| plane.cast_const());
    let mut scales = MaybeUninit::<[[f32; 16]; GROUPS]>::uninit();
    let mut biases = MaybeUninit::<[[f32; 16]; GROUPS]>::uninit();
    let (scales, biases) = (scales.as_mut_ptr().cast::<f32>(), biases.as_mut_ptr().cast::<f32>());
    // SAFETY: the rows exist, each with inputs / 64 blocks and `groups` scales and biases, and
    // the activation row has as many blocks. Scales are spread before they are read.
    unsafe {
        let mut acc = S::splat(0.0);
        for group in (0..w.groups).step_by(GROUPS) {
            let groups = GROUPS.min(w.groups - group);
            if APART {
                let at = S::LANES * group;
                for factors in [w.scales(output + S::LANES), w.biases(output + S::LANES)] {
                    prefetch::<S>(factors.wrapping_add(at).cast(), 2 * S::LANES * groups);
                }
            }
            let groups_apart = apart * w.groups;
            spread::<S>(w.scales(output).add(group), groups_apart, groups, scales, 16);
            spread::<S>(w.biases(output).add(group), groups_apart, groups, biases, 16);
            let inputs = (group << w.group_shift)..((group + groups) << w.group_shift);
            for input in inputs.clone().step_by(run) {
                if APART {
                    // As many bytes of a tile after this one as this step reads.
                    let next = w.weight(output).wrapping_add(S::LANES * input * BITS / 8);
                    let ahead = AHEAD.max(S::LANES * w.row_bytes);
                    prefetch::<S>(next.wrapping_add(ahead), S::LANES * run * BITS / 8);
                }
                let packed = w.weight(output).add(input * BITS / 8);
                let apart = apart * w.row_bytes;
                let words = planes.map(|plane| S::load_ints(plane.add(input / 2).cast()));
                let left = run.min(inputs.end - input);
                let units = if left == run {
                    products::<S, BITS, UNIT, true>(packed, apart, words)
                } else {
                    products::<S, BITS, UNIT, false>(packed, apart, words)
                };
                for part in 0..left / UNIT {
                    let input = input + part * UNIT;
                    let at = 16 * (w.group(input) - group);
                    let scale_x = S::splat(*scales_x.add(input / BLOCK));
                    let scale = S::mul(S::load(scales.add(at)), scale_x);
                    let sum_x = S::splat(*sums_x.add(input / UNIT));
                    acc = S::fma(S::to_floats(units[part]), scale, acc);
                    acc = S::fma(S::load(biases.add(at)), sum_x, acc);
                }
            }
        }
        acc
    }
}

/// Sums of integer products over each unit of a run of inputs, for LANES rows `apart` bytes from
/// each other. A run has 8 LANES inputs with WHOLE, else 64.
#[inline(always)]
unsafe fn products<S: Simd, const BITS: usize, const UNIT: usize, const WHOLE: bool>(
    packed: *const u8,
    apart: usize,
    x: [S::Ints; 4],
) -> [S::Ints; 4] {
    // SAFETY: each row has the run's elements.
    unsafe {
        let mut rows = [S::zero(); 16];
        for lane in 0..S::LANES {
            let weights = S::even_odd::<BITS, WHOLE>(packed.add(lane * apart));
            rows[lane] = S::dot_bytes::<BITS>(weights, x);
        }
        S::unit_sums::<UNIT>(rows)
    }
}

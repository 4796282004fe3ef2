//! One row: weights are unpacked as they lie, and each output's sums come together afterwards.
//!
//! An element fits a byte, and a product of bytes is exact in the instructions that there are for it:
//! activations of 16 bits go in as their two bytes. So a load of a row's weights, two elements of 4 bits
//! a byte, takes three operations to unpack and no transposition; a tree of additions over the tile's
//! rows then leaves each output's sum of a unit in its lane.
//!
//! The product is bound by memory, and memory answers best what is asked for in its order: few rows
//! are read side by side, one or two *sides* of four, and where a tile has more their sums wait for
//! those of the others.

use std::{mem::MaybeUninit, ops::Range};

use super::{Matrix, prefetch, spread};
use crate::backend::cpu::kernels::{
    activations::{Activations, BLOCK},
    simd::Simd,
};

/// Rows of a side.
const SIDE: usize = 4;

/// Inputs whose sums wait at a time.
const CHUNK: usize = 4096;

/// Groups whose scales are spread at a time.
const GROUPS: usize = 8;

/// Bytes of weights between what is read and what is asked for, at least: with less, memory would
/// answer too late; with much more, what is asked for stands in the way of what is needed.
const AHEAD: usize = 4 << 10;

/// [run, side, lane]: sums of the sides of a tile that are read before its last ones.
#[repr(C, align(64))]
struct Waiting([u32; CHUNK / 8 * 3]);

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
    let waiting_sides = S::LANES / SIDE - S::SIDES;
    let scales_x = x.scales(row).cast_const();
    let sums_x = x.sums(row, UNIT).cast_const();
    let planes = x.bytes_of(row).map(|plane| plane.cast_const());
    let mut scales = MaybeUninit::<[[f32; 16]; GROUPS]>::uninit();
    let mut biases = MaybeUninit::<[[f32; 16]; GROUPS]>::uninit();
    let mut waiting = MaybeUninit::<Waiting>::uninit();
    let (scales, biases) = (scales.as_mut_ptr().cast::<f32>(), biases.as_mut_ptr().cast::<f32>());
    let waiting = waiting.as_mut_ptr().cast::<u32>();
    // SAFETY: the rows exist, each with inputs / 64 blocks and `groups` scales and biases, and
    // the activation row has as many blocks. Scales are spread, and sums stored, before they are read.
    unsafe {
        let mut acc = S::splat(0.0);
        for chunk in (0..w.inputs).step_by(CHUNK) {
            let end = w.inputs.min(chunk + CHUNK);
            let place = |input| waiting.add((input - chunk) / run * waiting_sides * S::LANES);
            for first in (0..waiting_sides).step_by(S::SIDES) {
                for input in (chunk..end).step_by(run) {
                    let sums = read::<S, BITS, APART>(w, output, planes, first, input, end);
                    for (i, sums) in sums[..S::SIDES].iter().enumerate() {
                        S::store_ints(place(input).add((first + i) * S::LANES), *sums);
                    }
                }
            }
            // With `for` and `step_by` products took 2 to 3 % longer (`cpu_stream`).
            let mut first = chunk;
            while first < end {
                let group = w.group(first);
                let inputs = first..end.min(first + (GROUPS << w.group_shift));
                let groups = w.group(inputs.end - 1) + 1 - group;
                if APART {
                    let at = S::LANES * group;
                    for factors in [w.scales(output + S::LANES), w.biases(output + S::LANES)] {
                        prefetch::<S, true>(factors.wrapping_add(at).cast(), 2 * S::LANES * groups);
                    }
                }
                let groups_apart = apart * w.groups;
                spread::<S>(w.scales(output).add(group), groups_apart, groups, scales, 16);
                spread::<S>(w.biases(output).add(group), groups_apart, groups, biases, 16);
                for input in inputs.clone().step_by(run) {
                    let left = run.min(end - input);
                    let mut sides = [S::zero(); 4];
                    for (side, sums) in sides[..waiting_sides].iter_mut().enumerate() {
                        *sums = S::load_ints(place(input).add(side * S::LANES));
                    }
                    let sums = read::<S, BITS, APART>(w, output, planes, waiting_sides, input, end);
                    sides[waiting_sides..][..S::SIDES].copy_from_slice(&sums[..S::SIDES]);
                    let units = S::unit_sums::<UNIT>(sides);
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
                first = inputs.end;
            }
        }
        acc
    }
}

/// [`Simd::side_sums`] of the run of inputs from `input` on, for SIDES sides of a tile from `side`
/// on. A run has 8 LANES inputs, or the 64 up to `end`.
#[inline(always)]
unsafe fn read<S: Simd, const BITS: usize, const APART: bool>(
    w: &Matrix,
    output: usize,
    planes: [*const i8; 4],
    side: usize,
    input: usize,
    end: usize,
) -> [S::Ints; 2] {
    let run = 8 * S::LANES;
    let rows = SIDE * S::SIDES;
    let output = if APART { output + SIDE * side } else { output };
    if APART {
        // As many bytes of rows after these as this step reads.
        let next = w.weight(output).wrapping_add(rows * input * BITS / 8);
        let ahead = AHEAD.max(rows * w.row_bytes);
        // SAFETY: any address will do.
        unsafe { prefetch::<S, true>(next.wrapping_add(ahead), rows * run * BITS / 8) };
    }
    // SAFETY: passed on from the caller: the rows have the run's elements, and so have the planes.
    unsafe {
        let packed = w.weight(output).add(input * BITS / 8);
        let apart = if APART { w.row_bytes } else { 0 };
        let x = planes.map(|plane| S::load_ints(plane.add(input / 2).cast()));
        let mut sums = [S::zero(); 2];
        for (i, sums) in sums[..S::SIDES].iter_mut().enumerate() {
            let packed = packed.add(i * SIDE * apart);
            *sums = if end - input >= run {
                products::<S, BITS, true>(packed, apart, x)
            } else {
                products::<S, BITS, false>(packed, apart, x)
            };
        }
        sums
    }
}

/// [`Simd::side_sums`] of a run of inputs for SIDE rows, `apart` bytes from each other. A run has
/// 8 LANES inputs with WHOLE, else 64.
#[inline(always)]
unsafe fn products<S: Simd, const BITS: usize, const WHOLE: bool>(
    packed: *const u8,
    apart: usize,
    x: [S::Ints; 4],
) -> S::Ints {
    // SAFETY: each row has the run's elements.
    unsafe {
        let mut rows = [S::zero(); SIDE];
        for (i, row) in rows.iter_mut().enumerate() {
            let weights = S::even_odd::<BITS, WHOLE>(packed.add(i * apart));
            *row = S::dot_bytes::<BITS>(weights, x);
        }
        S::side_sums(rows)
    }
}

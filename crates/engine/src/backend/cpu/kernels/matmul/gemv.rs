//! One row: words are transposed and unpacked in registers.

use std::{mem::MaybeUninit, ops::Range};

use super::{Matrix, STEPS, prefetch, spread, unpacked, words_of};
use crate::backend::cpu::kernels::{
    activations::{Activations, BLOCK},
    simd::Simd,
};

/// Groups whose scales are spread at a time.
const GROUPS: usize = 16;
/// Integer sums that take turns, so that one need not wait for the other.
const SUMS: usize = 4;

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
    let (row_bytes, groups_apart) = (apart * w.row_bytes, apart * w.groups);
    let (words, scales_x) = (words_of(x, row), x.scales(row).cast_const());
    let sums_x = x.sums(row, UNIT).cast_const();
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
            spread::<S>(w.scales(output).add(group), groups_apart, groups, scales, 16);
            spread::<S>(w.biases(output).add(group), groups_apart, groups, biases, 16);
            let inputs = (group << w.group_shift)..((group + groups) << w.group_shift);
            for input in inputs.step_by(BLOCK) {
                if APART {
                    // As many bytes of the next tile, which follows this one, as this step reads.
                    let next =
                        w.weight(output + S::LANES).wrapping_add(S::LANES * input * BITS / 8);
                    prefetch::<S>(next, S::LANES * BLOCK * BITS / 8);
                }
                let packed = w.weight(output).add(input * BITS / 8);
                let octets = octets::<S, BITS>(packed, row_bytes);
                let words = words.add(input / 8 * STEPS);
                let scale_x = S::splat(*scales_x.add(input / BLOCK));
                for part in 0..BLOCK / UNIT {
                    let ints = unit::<S, BITS, UNIT>(&octets, words, part);
                    let at = 16 * (w.group(input + part * UNIT) - group);
                    let scale = S::mul(S::load(scales.add(at)), scale_x);
                    let sum_x = S::splat(*sums_x.add(input / UNIT + part));
                    acc = S::fma(S::to_floats(ints), scale, acc);
                    acc = S::fma(S::load(biases.add(at)), sum_x, acc);
                }
            }
        }
        acc
    }
}

/// The words of a block's octets for all lanes.
#[inline(always)]
unsafe fn octets<S: Simd, const BITS: usize>(packed: *const u8, apart: usize) -> [[S::Ints; 2]; 8] {
    // SAFETY: each row has a whole block, in one run of eight words or, with 8 bits, two.
    unsafe {
        let mut octets = [[S::zero(); 2]; 8];
        for half in 0..BITS / 4 {
            let words = S::transpose::<true>(packed.add(32 * half), apart, 8);
            for i in 0..8 {
                let at = 8 * half + i;
                octets[at / (BITS / 4)][at % (BITS / 4)] = words[i];
            }
        }
        octets
    }
}

/// Sums of integer products over a block's unit `part`.
#[inline(always)]
unsafe fn unit<S: Simd, const BITS: usize, const UNIT: usize>(
    octets: &[[S::Ints; 2]; 8],
    words: *const u32, // of the block's activations
    part: usize,
) -> S::Ints {
    // SAFETY: a block has 8 octets of STEPS words.
    unsafe {
        let mut ints = [S::zero(); SUMS];
        for octet in part * UNIT / 8..(part + 1) * UNIT / 8 {
            for step in 0..STEPS {
                let at = octet * STEPS + step;
                let weights = unpacked::<S, BITS>(octets[octet], step);
                ints[at % SUMS] =
                    S::dot_words(ints[at % SUMS], weights, S::broadcast(words.add(at)));
            }
        }
        S::add_ints(S::add_ints(ints[0], ints[1]), S::add_ints(ints[2], ints[3]))
    }
}

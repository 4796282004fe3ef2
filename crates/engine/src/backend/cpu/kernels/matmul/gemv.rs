//! One row: words are transposed and unpacked in registers.

use std::{mem::MaybeUninit, ops::Range};

use super::{Matrix, spread, unit, width::Format};
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
pub(super) unsafe fn gemv<S: Simd, W: Format, const BITS: usize, const GROUP: usize>(
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
            let sums = tile::<S, W, BITS, GROUP, true>(w, output, x, row);
            S::store(y.add(output), sums);
            output += S::LANES;
        }
        if output < end && w.outputs >= S::LANES {
            // A whole tile that ends here; the outputs before are another tile's.
            let start = end.saturating_sub(S::LANES);
            let mut sums = [0.0f32; 16];
            S::store(sums.as_mut_ptr(), tile::<S, W, BITS, GROUP, true>(w, start, x, row));
            for output in output..end {
                *y.add(output) = sums[output - start];
            }
            output = end;
        }
        while output < end {
            let mut sums = [0.0f32; 16];
            S::store(sums.as_mut_ptr(), tile::<S, W, BITS, GROUP, false>(w, output, x, row));
            *y.add(output) = sums[0];
            output += 1;
        }
    }
}

/// LANES outputs from `output` on; without APART the same one in every lane.
#[inline(always)]
unsafe fn tile<S: Simd, W: Format, const BITS: usize, const GROUP: usize, const APART: bool>(
    w: &Matrix,
    output: usize,
    x: &Activations,
    row: usize,
) -> S::Floats {
    let apart = if APART { 1 } else { 0 };
    let (row_bytes, groups_apart) = (apart * w.row_bytes, apart * w.groups);
    let (words, scales_x) = (W::words(x, row), W::scales(x, row));
    let sums_x = W::sums(x, row, unit(GROUP));
    let mut scales = MaybeUninit::<[[f32; 16]; GROUPS]>::uninit();
    let mut biases = MaybeUninit::<[[f32; 16]; GROUPS]>::uninit();
    let (scales, biases) = (scales.as_mut_ptr().cast::<f32>(), biases.as_mut_ptr().cast::<f32>());
    // SAFETY: the rows exist, each with inputs / 64 blocks and `groups` scales and biases, and
    // the activation row has as many blocks. Scales are spread before they are read. Prefetched
    // addresses need not exist.
    unsafe {
        let mut acc = S::splat(0.0);
        for group in (0..w.groups).step_by(GROUPS) {
            let groups = GROUPS.min(w.groups - group);
            spread::<S>(w.scales(output).add(group), groups_apart, groups, scales, 16);
            spread::<S>(w.biases(output).add(group), groups_apart, groups, biases, 16);
            let first = group * GROUP / BLOCK;
            for block in first..first + groups * GROUP / BLOCK {
                let at = block * BLOCK * BITS / 8;
                if APART && at.is_multiple_of(64) {
                    for lane in 0..S::LANES {
                        let next = w.weight(output + S::LANES + lane);
                        S::prefetch(next.wrapping_add(at));
                    }
                }
                let packed = w.weight(output).add(at);
                let mut octets = [[S::zero(); 2]; 8];
                for half in 0..BITS / 4 {
                    let part = packed.add(32 * half);
                    let words = S::transpose::<true>(part, row_bytes, 8);
                    for i in 0..8 {
                        let word_at = 8 * half + i;
                        octets[word_at / (BITS / 4)][word_at % (BITS / 4)] = words[i];
                    }
                }
                let x = words.add(block * 8 * W::STEPS);
                let scale_x = S::splat(*scales_x.add(block));
                for part in 0..BLOCK / unit(GROUP) {
                    let octets_each = unit(GROUP) / 8;
                    let mut ints = [S::zero(); SUMS];
                    for octet in part * octets_each..(part + 1) * octets_each {
                        for step in 0..W::STEPS {
                            let weights = W::weights::<S, BITS>(octets[octet], step);
                            let place = (octet * W::STEPS + step) % SUMS;
                            let x = S::broadcast(x.add(octet * W::STEPS + step));
                            ints[place] = W::dot::<S>(ints[place], weights, x);
                        }
                    }
                    let ints =
                        S::add_ints(S::add_ints(ints[0], ints[1]), S::add_ints(ints[2], ints[3]));
                    let unit_at = block * (BLOCK / unit(GROUP)) + part;
                    let at = 16 * (unit_at * unit(GROUP) / GROUP - group);
                    let scale = S::mul(S::load(scales.add(at)), scale_x);
                    acc = S::fma(S::to_floats(ints), scale, acc);
                    acc = S::fma(S::load(biases.add(at)), S::splat(*sums_x.add(unit_at)), acc);
                }
            }
        }
        acc
    }
}

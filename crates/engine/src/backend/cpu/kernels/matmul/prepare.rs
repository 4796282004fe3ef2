use crate::backend::cpu::kernels::{
    activations::{Activations, BLOCK},
    simd::Simd,
};

/// Largest integer: with an element of 8 bits added it is still an i16, and its high byte is still
/// signed when 1 is added for a negative low byte.
const PEAK: f32 = 32512.0;

/// Fills one row: quantises it in blocks. The sums are of the quantised values, so that a product is
/// exactly that of the weights with the rounded row.
///
/// # Safety
/// `x` is as wide as the activations, and nobody else touches the row meanwhile.
#[inline(always)]
pub(in super::super) unsafe fn prepare<S: Simd>(to: &Activations, row: usize, x: &[f32]) {
    for (block, values) in x.chunks_exact(BLOCK).enumerate() {
        // SAFETY: a block has 64 readable values; `reset` made room for 64 integers and their bytes,
        // one scale and two sums a block.
        unsafe {
            let peak = peak::<S>(values);
            // Below this the factor would overflow; such a block counts as zeros.
            let zero = peak < 1e-33;
            let factor = if zero { 0.0 } else { PEAK / peak };
            let scale = if zero { 0.0 } else { peak / PEAK };
            let quants = to.quants(row).add(block * BLOCK);
            let planes = to.bytes_of(row).map(|plane| plane.add(block * BLOCK / 2));
            S::quantize(values.as_ptr(), factor, quants, planes);
            *to.scales(row).add(block) = scale;
            let sums = to.sums(row, 32).add(2 * block);
            let pairs = to.pairs(row, 32).add(2 * block);
            for half in 0..2 {
                let quants = quants.add(32 * half).cast::<[i16; 32]>().read_unaligned();
                *sums.add(half) = scale * quants.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
                if S::PAIRED {
                    *pairs.add(half) = paired(&quants).wrapping_neg();
                }
            }
            if S::PAIRED {
                *to.pairs(row, 64).add(block) = (*pairs).wrapping_add(*pairs.add(1));
            }
        }
    }
}

/// Sum of the products of inputs that [`Simd::dot_pair`] takes together, modulo 2^32: words
/// 0 and 1 of an octet, words 2 and 3.
#[inline(always)]
fn paired(quants: &[i16; 32]) -> i32 {
    let mut sum = 0i32;
    for four in quants.chunks_exact(4) {
        for i in 0..2 {
            sum = sum.wrapping_add(i32::from(four[i]) * i32::from(four[i + 2]));
        }
    }
    sum
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

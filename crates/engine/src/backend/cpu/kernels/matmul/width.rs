use crate::backend::cpu::kernels::{activations::Activations, simd::Simd};

/// How activations meet weights: what a 4-byte word of a row holds, and how it is multiplied.
pub(in super::super) trait Format {
    /// Words of activations for eight inputs.
    const STEPS: usize;

    /// A row's words [inputs / 8 * STEPS], aligned to their elements only.
    fn words(x: &Activations, row: usize) -> *const u32;

    /// A row's block scales [inputs / 64].
    fn scales(x: &Activations, row: usize) -> *const f32;

    /// Sums of a row's inputs in runs of `unit` [inputs / unit].
    fn sums(x: &Activations, row: usize, unit: usize) -> *const f32;

    /// Weights that belong to word `step` of an octet, for all lanes. The octet's elements stand
    /// in `words[0]`, or in both with 8 bits.
    ///
    /// # Safety
    /// The processor has the instruction set; `step` is below STEPS.
    unsafe fn weights<S: Simd, const BITS: usize>(words: [S::Ints; 2], step: usize) -> S::Ints;

    /// `acc + Σ w·x` over the elements of a word, in every lane.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn dot<S: Simd>(acc: S::Ints, w: S::Ints, x: S::Ints) -> S::Ints;
}

/// 16-bit integers: word i of an octet holds inputs i and i + 4.
pub(in super::super) struct Wide;

/// 8-bit integers: word i of an octet holds inputs i, i + 2, i + 4 and i + 6.
pub(in super::super) struct Narrow;

impl Format for Wide {
    const STEPS: usize = 4;

    #[inline(always)]
    fn words(x: &Activations, row: usize) -> *const u32 {
        x.quants(row).cast_const().cast()
    }

    #[inline(always)]
    fn scales(x: &Activations, row: usize) -> *const f32 {
        x.scales(row).cast_const()
    }

    #[inline(always)]
    fn sums(x: &Activations, row: usize, unit: usize) -> *const f32 {
        x.sums(row, unit).cast_const()
    }

    #[inline(always)]
    unsafe fn weights<S: Simd, const BITS: usize>(words: [S::Ints; 2], step: usize) -> S::Ints {
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

    #[inline(always)]
    unsafe fn dot<S: Simd>(acc: S::Ints, w: S::Ints, x: S::Ints) -> S::Ints {
        // SAFETY: passed on from the caller.
        unsafe { S::dot_words(acc, w, x) }
    }
}

impl Format for Narrow {
    const STEPS: usize = 2;

    #[inline(always)]
    fn words(x: &Activations, row: usize) -> *const u32 {
        x.narrow_quants(row).cast_const().cast()
    }

    #[inline(always)]
    fn scales(x: &Activations, row: usize) -> *const f32 {
        x.narrow_scales(row).cast_const()
    }

    #[inline(always)]
    fn sums(x: &Activations, row: usize, unit: usize) -> *const f32 {
        x.narrow_sums(row, unit).cast_const()
    }

    #[inline(always)]
    unsafe fn weights<S: Simd, const BITS: usize>(words: [S::Ints; 2], step: usize) -> S::Ints {
        const { assert!(BITS == 4) }
        // SAFETY: passed on from the caller.
        unsafe { S::shift_and(words[0], 4 * step as u32, 0x0F0F_0F0F) }
    }

    #[inline(always)]
    unsafe fn dot<S: Simd>(acc: S::Ints, w: S::Ints, x: S::Ints) -> S::Ints {
        // SAFETY: passed on from the caller.
        unsafe { S::dot_bytes(acc, w, x) }
    }
}

use std::{arch::x86_64::*, hint::black_box};

use super::Simd;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2;

impl Simd for Avx2 {
    type Floats = __m256;
    type Block = [__m256i; 4]; // evens of inputs 0..32, evens of 32..64, then the odds
    type Nibbles = (__m256i, __m128i); // mask of the low one, shift to the high one

    const LANES: usize = 8;
    const GEMV_OUTPUTS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: __m256) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_ps(p, a) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        // SAFETY: the trait's contract: 8 u16 are 16 bytes.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        // SAFETY: the trait's contract: 8 u16 are 16 bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, a: __m256) {
        // SAFETY: the trait's contract: 8 u16 are 16 bytes.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a)) }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m256 {
        // SAFETY: the trait's contract: the load reads 8 bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn abs(a: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    unsafe fn pow2(a: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    unsafe fn sum(a: __m256) -> f32 {
        // SAFETY: the trait's contract.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn largest(a: __m256) -> f32 {
        // SAFETY: the trait's contract.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn nibbles() -> (__m256i, __m128i) {
        // SAFETY: the trait's contract.
        unsafe { (_mm256_set1_epi16(black_box(0xF)), _mm_cvtsi32_si128(black_box(4))) }
    }

    #[inline(always)]
    unsafe fn unpack4(p: *const u8, (low, shift): (__m256i, __m128i)) -> [__m256i; 4] {
        // SAFETY: the trait's contract: two loads of 16 bytes.
        unsafe {
            let first = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
            let second = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.add(16).cast()));
            [
                _mm256_and_si256(first, low),
                _mm256_and_si256(second, low),
                _mm256_srl_epi16(first, shift),
                _mm256_srl_epi16(second, shift),
            ]
        }
    }

    #[inline(always)]
    unsafe fn unpack8(p: *const u8) -> [__m256i; 4] {
        // SAFETY: the trait's contract: two loads of 32 bytes.
        unsafe {
            let first = _mm256_loadu_si256(p.cast());
            let second = _mm256_loadu_si256(p.add(32).cast());
            let low = _mm256_set1_epi16(0xFF);
            [
                _mm256_and_si256(first, low),
                _mm256_and_si256(second, low),
                _mm256_srli_epi16::<8>(first),
                _mm256_srli_epi16::<8>(second),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_block(p: *const i16) -> [__m256i; 4] {
        // SAFETY: the trait's contract: 64 i16 are four vectors.
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(16).cast()),
                _mm256_loadu_si256(p.add(32).cast()),
                _mm256_loadu_si256(p.add(48).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_block(p: *mut i16, a: [__m256i; 4]) {
        // SAFETY: the trait's contract: 64 i16 are four vectors.
        unsafe {
            _mm256_storeu_si256(p.cast(), a[0]);
            _mm256_storeu_si256(p.add(16).cast(), a[1]);
            _mm256_storeu_si256(p.add(32).cast(), a[2]);
            _mm256_storeu_si256(p.add(48).cast(), a[3]);
        }
    }

    #[inline(always)]
    unsafe fn dot<const HALVES: bool>(
        acc: __m256,
        a: [__m256i; 4],
        b: *const i16,
        scale_x: __m256,
        scale_w: *const f32,
    ) -> __m256 {
        // SAFETY: the trait's contract: 64 i16 at `b`, one or two scales.
        unsafe {
            let b = Self::load_block(b);
            let (even0, odd0) = (_mm256_madd_epi16(a[0], b[0]), _mm256_madd_epi16(a[2], b[2]));
            let (even1, odd1) = (_mm256_madd_epi16(a[1], b[1]), _mm256_madd_epi16(a[3], b[3]));
            let first = _mm256_add_epi32(even0, odd0);
            let second = _mm256_add_epi32(even1, odd1);
            if HALVES {
                let acc = add_scaled(acc, first, scale_x, scale_w);
                add_scaled(acc, second, scale_x, scale_w.add(1))
            } else {
                add_scaled(acc, _mm256_add_epi32(first, second), scale_x, scale_w)
            }
        }
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16) {
        // SAFETY: the trait's contract: 64 f32 read, 64 i16 written.
        unsafe {
            let low = _mm256_set1_epi32(0xFFFF);
            for half in 0..2 {
                let ab = words16(x.add(32 * half), factor);
                let cd = words16(x.add(32 * half + 16), factor);
                let evens =
                    _mm256_packus_epi32(_mm256_and_si256(ab, low), _mm256_and_si256(cd, low));
                let odds =
                    _mm256_packus_epi32(_mm256_srli_epi32::<16>(ab), _mm256_srli_epi32::<16>(cd));
                _mm256_storeu_si256(out.add(16 * half).cast(), in_order(evens));
                _mm256_storeu_si256(out.add(32 + 16 * half).cast(), in_order(odds));
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// `acc + scale_w · (scale_x · sums)`
#[inline(always)]
unsafe fn add_scaled(acc: __m256, sums: __m256i, scale_x: __m256, scale_w: *const f32) -> __m256 {
    // SAFETY: the caller gives a readable scale.
    unsafe {
        let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale_x);
        _mm256_fmadd_ps(_mm256_broadcast_ss(&*scale_w), scaled, acc)
    }
}

/// 16 values as rounded i16.
#[inline(always)]
unsafe fn words16(x: *const f32, factor: f32) -> __m256i {
    // SAFETY: the caller gives 16 readable f32.
    unsafe {
        let factor = _mm256_set1_ps(factor);
        let a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
        let b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(8)), factor));
        in_order(_mm256_packs_epi32(a, b))
    }
}

/// Packing keeps each 128-bit lane to itself, [a0 b0 a1 b1]: this makes it [a0 a1 b0 b1].
#[inline(always)]
unsafe fn in_order(x: __m256i) -> __m256i {
    // SAFETY: the processor has AVX2.
    unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(x) }
}

use std::{arch::x86_64::*, hint::black_box};

use super::{Simd, avx2::Avx2};

/// AVX-512 with BW, VL and VNNI.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512;

impl Simd for Avx512 {
    type Floats = __m512;
    type Block = [__m512i; 2]; // evens, odds
    type Nibbles = (__m512i, __m512i); // mask of the low one, shift to the high one

    const LANES: usize = 16;
    const GEMV_OUTPUTS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: __m512) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(p, a) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 16 u16 are 32 bytes.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 16 u16 are 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, a: __m512) {
        // SAFETY: the trait's contract: 16 u16 are 32 bytes.
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            _mm256_storeu_si256(p.cast(), half);
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        // SAFETY: the trait's contract: the load reads 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    unsafe fn pow2(a: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        // SAFETY: the trait's contract; a processor with AVX-512 has AVX2.
        unsafe {
            let (low, high) = halves(a);
            Avx2::sum(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    unsafe fn largest(a: __m512) -> f32 {
        // SAFETY: the trait's contract; a processor with AVX-512 has AVX2.
        unsafe {
            let (low, high) = halves(a);
            Avx2::largest(_mm256_max_ps(low, high))
        }
    }

    #[inline(always)]
    unsafe fn nibbles() -> (__m512i, __m512i) {
        // SAFETY: the trait's contract.
        unsafe { (_mm512_set1_epi16(black_box(0xF)), _mm512_set1_epi16(black_box(4))) }
    }

    #[inline(always)]
    unsafe fn unpack4(p: *const u8, (low, shift): (__m512i, __m512i)) -> [__m512i; 2] {
        // SAFETY: the trait's contract: one load of 32 bytes.
        unsafe {
            let bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            [_mm512_and_si512(bytes, low), _mm512_srlv_epi16(bytes, shift)]
        }
    }

    #[inline(always)]
    unsafe fn unpack8(p: *const u8) -> [__m512i; 2] {
        // SAFETY: the trait's contract: one load of 64 bytes.
        unsafe {
            let bytes = _mm512_loadu_si512(p.cast());
            let low = _mm512_set1_epi16(0xFF);
            [_mm512_and_si512(bytes, low), _mm512_srli_epi16::<8>(bytes)]
        }
    }

    #[inline(always)]
    unsafe fn load_block(p: *const i16) -> [__m512i; 2] {
        // SAFETY: the trait's contract: 64 i16 are two vectors.
        unsafe { [_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn store_block(p: *mut i16, a: [__m512i; 2]) {
        // SAFETY: the trait's contract: 64 i16 are two vectors.
        unsafe {
            _mm512_storeu_si512(p.cast(), a[0]);
            _mm512_storeu_si512(p.add(32).cast(), a[1]);
        }
    }

    #[inline(always)]
    unsafe fn dot<const HALVES: bool>(
        acc: __m512,
        a: [__m512i; 2],
        b: *const i16,
        scale_x: __m512,
        scale_w: *const f32,
    ) -> __m512 {
        // SAFETY: the trait's contract: 64 i16 at `b`, one or two scales.
        unsafe {
            let b = Self::load_block(b);
            let evens = _mm512_dpwssd_epi32(_mm512_setzero_si512(), a[0], b[0]);
            let sums = _mm512_dpwssd_epi32(evens, a[1], b[1]);
            // A lane sums four neighbours: lanes 0..8 are the first 32 elements.
            let mut scale = _mm512_set1_ps(*scale_w);
            if HALVES {
                scale = _mm512_mask_blend_ps(0xFF00, scale, _mm512_set1_ps(*scale_w.add(1)));
            }
            _mm512_fmadd_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale_x), acc)
        }
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16) {
        // SAFETY: the trait's contract: 64 f32 read, 64 i16 written.
        unsafe {
            for half in 0..2 {
                let low = words16(x.add(32 * half), factor);
                let high = words16(x.add(32 * half + 16), factor);
                let words = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                let evens = _mm512_cvtepi32_epi16(words);
                let odds = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words));
                _mm256_storeu_si256(out.add(16 * half).cast(), evens);
                _mm256_storeu_si256(out.add(32 + 16 * half).cast(), odds);
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

#[inline(always)]
unsafe fn halves(a: __m512) -> (__m256, __m256) {
    // SAFETY: the processor has AVX-512.
    unsafe {
        let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a));
        (_mm512_castps512_ps256(a), _mm256_castpd_ps(high))
    }
}

/// 16 values as rounded i16.
#[inline(always)]
unsafe fn words16(x: *const f32, factor: f32) -> __m256i {
    // SAFETY: the caller gives 16 readable f32.
    unsafe {
        let scaled = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(factor));
        _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(scaled))
    }
}

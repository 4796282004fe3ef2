use std::arch::x86_64::*;

use super::Simd;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2;

impl Simd for Avx2 {
    type Floats = __m256;
    type Ints = __m256i;

    const LANES: usize = 8;
    const SIDES: usize = 2;
    const TILE_ROWS: usize = 4;

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
    unsafe fn zero() -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const u32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_ints(p: *mut u32, a: __m256i) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(p.cast(), a) }
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn add_ints(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub_ints(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_floats(a: __m256i) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn low_bf16(a: __m256i) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)) }
    }

    #[inline(always)]
    unsafe fn high_bf16(a: __m256i) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(-0x1_0000))) }
    }

    #[inline(always)]
    unsafe fn transpose<const WHOLE: bool>(
        rows: *const u8,
        stride: usize,
        words: usize,
    ) -> [__m256i; 8] {
        // SAFETY: the trait's contract: 32 bytes or `words` words of 8 rows.
        unsafe {
            let mask = _mm256_cmpgt_epi32(
                _mm256_set1_epi32(words as i32),
                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            );
            let a = transpose4::<WHOLE>(rows, stride, mask);
            let b = transpose4::<WHOLE>(rows.add(4 * stride), stride, mask);
            [
                _mm256_permute2x128_si256::<0x20>(a[0], b[0]),
                _mm256_permute2x128_si256::<0x20>(a[1], b[1]),
                _mm256_permute2x128_si256::<0x20>(a[2], b[2]),
                _mm256_permute2x128_si256::<0x20>(a[3], b[3]),
                _mm256_permute2x128_si256::<0x31>(a[0], b[0]),
                _mm256_permute2x128_si256::<0x31>(a[1], b[1]),
                _mm256_permute2x128_si256::<0x31>(a[2], b[2]),
                _mm256_permute2x128_si256::<0x31>(a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn shift_and(a: __m256i, bits: u32, mask: u32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe {
            let shifted = _mm256_srl_epi32(a, _mm_cvtsi32_si128(bits as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi32(mask as i32))
        }
    }

    #[inline(always)]
    unsafe fn join(low: __m256i, high: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_or_si256(low, _mm256_slli_epi32::<16>(high)) }
    }

    #[inline(always)]
    unsafe fn dot_words(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(w, x)) }
    }

    #[inline(always)]
    unsafe fn even_odd<const BITS: usize, const WHOLE: bool>(p: *const u8) -> [__m256i; 2] {
        // SAFETY: the trait's contract: BITS / 8 bytes an element, 64 elements.
        unsafe {
            let a = _mm256_loadu_si256(p.cast());
            if BITS == 4 {
                return [nibbles(a), nibbles(_mm256_srli_epi16::<4>(a))];
            }
            let b = _mm256_loadu_si256(p.add(32).cast());
            // Packing puts eight bytes of one operand behind eight of the other.
            let first = _mm256_permute2x128_si256::<0x20>(a, b);
            let second = _mm256_permute2x128_si256::<0x31>(a, b);
            let low = |x| _mm256_and_si256(x, _mm256_set1_epi16(0xFF));
            let high = |x| _mm256_srli_epi16::<8>(x);
            [
                _mm256_packus_epi16(low(first), low(second)),
                _mm256_packus_epi16(high(first), high(second)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_bytes<const BITS: usize>([even, odd]: [__m256i; 2], x: [__m256i; 4]) -> __m256i {
        // SAFETY: the trait's contract. Sums of i16 stay below 4 * 15 * 128.
        unsafe {
            let (low, high) = (_mm256_set1_epi16(1), _mm256_set1_epi16(256));
            if BITS == 4 {
                let sums = _mm256_madd_epi16(byte_products(even, odd, x[0], x[1]), low);
                let highs = _mm256_madd_epi16(byte_products(even, odd, x[2], x[3]), high);
                return _mm256_add_epi32(sums, highs);
            }
            // A product of two whole bytes would not fit: each of a weight's nibbles for itself.
            let upper = |x| nibbles(_mm256_srli_epi16::<4>(x));
            _mm256_add_epi32(
                Self::dot_bytes::<4>([nibbles(even), nibbles(odd)], x),
                _mm256_slli_epi32::<4>(Self::dot_bytes::<4>([upper(even), upper(odd)], x)),
            )
        }
    }

    #[inline(always)]
    unsafe fn side_sums(rows: [__m256i; 4]) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe {
            let pair =
                |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (a, b) = (pair(rows[0], rows[1]), pair(rows[2], rows[3]));
            _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
        }
    }

    #[inline(always)]
    unsafe fn unit_sums<const UNIT: usize>(sides: [__m256i; 4]) -> [__m256i; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let first = _mm256_permute2x128_si256::<0x20>(sides[0], sides[1]);
            let second = _mm256_permute2x128_si256::<0x31>(sides[0], sides[1]);
            let zero = _mm256_setzero_si256();
            if UNIT == 64 {
                return [_mm256_add_epi32(first, second), zero, zero, zero];
            }
            [first, second, zero, zero]
        }
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16, planes: [*mut i8; 4]) {
        // SAFETY: the trait's contract: 64 f32 read, 64 i16 and 4 * 32 i8 written.
        unsafe {
            let order = _mm_set_epi8(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0);
            // Low bytes of even words, then of odd ones, then the high bytes.
            let apart = _mm_set_epi8(15, 11, 7, 3, 13, 9, 5, 1, 14, 10, 6, 2, 12, 8, 4, 0);
            for at in (0..64).step_by(8) {
                let words = words8(x.add(at), factor);
                _mm_storeu_si128(out.add(at).cast(), _mm_shuffle_epi8(words, order));
                // A low byte counts as negative from 128 on: the high one is one more then.
                let carry = _mm_slli_epi16::<1>(_mm_and_si128(words, _mm_set1_epi16(128)));
                let bytes = _mm_shuffle_epi8(_mm_add_epi16(words, carry), apart);
                let quarters = [
                    _mm_cvtsi128_si32(bytes),
                    _mm_extract_epi32::<1>(bytes),
                    _mm_extract_epi32::<2>(bytes),
                    _mm_extract_epi32::<3>(bytes),
                ];
                for (plane, four) in planes.into_iter().zip(quarters) {
                    plane.add(at / 2).cast::<i32>().write_unaligned(four);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch_near(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

/// Of 4 rows: vector i holds word i, then word i + 4.
#[inline(always)]
unsafe fn transpose4<const WHOLE: bool>(
    rows: *const u8,
    stride: usize,
    mask: __m256i,
) -> [__m256i; 4] {
    // SAFETY: the caller gives 4 rows of 32 bytes, or of the words in the mask.
    unsafe {
        let r0 = row::<WHOLE>(rows, mask);
        let r1 = row::<WHOLE>(rows.add(stride), mask);
        let r2 = row::<WHOLE>(rows.add(2 * stride), mask);
        let r3 = row::<WHOLE>(rows.add(3 * stride), mask);
        let (t0, t1) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
        let (t2, t3) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
        [
            _mm256_unpacklo_epi64(t0, t2),
            _mm256_unpackhi_epi64(t0, t2),
            _mm256_unpacklo_epi64(t1, t3),
            _mm256_unpackhi_epi64(t1, t3),
        ]
    }
}

#[inline(always)]
unsafe fn row<const WHOLE: bool>(p: *const u8, mask: __m256i) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe {
        if WHOLE { _mm256_loadu_si256(p.cast()) } else { _mm256_maskload_epi32(p.cast(), mask) }
    }
}

/// The low nibble of each byte.
#[inline(always)]
unsafe fn nibbles(a: __m256i) -> __m256i {
    // SAFETY: the processor has AVX2.
    unsafe { _mm256_and_si256(a, _mm256_set1_epi8(0x0F)) }
}

/// Sums of four products of nibbles with signed bytes, as i16.
#[inline(always)]
unsafe fn byte_products(even: __m256i, odd: __m256i, x: __m256i, x_odd: __m256i) -> __m256i {
    // SAFETY: the processor has AVX2.
    unsafe { _mm256_add_epi16(_mm256_maddubs_epi16(even, x), _mm256_maddubs_epi16(odd, x_odd)) }
}

/// Eight values times `factor`, rounded to i16.
#[inline(always)]
unsafe fn words8(x: *const f32, factor: f32) -> __m128i {
    // SAFETY: the caller gives 8 readable f32.
    unsafe {
        let x = _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(factor));
        let x = _mm256_cvtps_epi32(x);
        _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
    }
}

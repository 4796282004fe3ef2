use std::arch::x86_64::*;

use super::{Simd, avx2::Avx2};

/// AVX-512 with BW, VL and VNNI. AMD's processors add on four pipes and multiply on two, Intel's do
/// both on the same two: products are PAIRED on the former.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512<const PAIRED: bool>;

impl<const PAIRED: bool> Simd for Avx512<PAIRED> {
    type Floats = __m512;
    type Ints = __m512i;

    const LANES: usize = 16;
    const SIDES: usize = 1;
    const TILE_ROWS: usize = 8;
    const PAIRED: bool = PAIRED;

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
    unsafe fn sums(a: [__m512; 4]) -> [f32; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            // The additions of `sum`, of two vectors, then of four side by side.
            let eights = [halved::<false>(a[0], a[1]), halved::<false>(a[2], a[3])];
            let fours = halved::<true>(eights[0], eights[1]);
            let twos = _mm512_add_ps(fours, _mm512_permute_ps::<0b01_00_11_10>(fours));
            let ones = _mm512_add_ps(twos, _mm512_permute_ps::<0b10_11_00_01>(twos));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let mut sums = [0.0; 4];
            let four = _mm512_castps512_ps128(_mm512_permutexvar_ps(order, ones));
            _mm_storeu_ps(sums.as_mut_ptr(), four);
            sums
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
    unsafe fn zero() -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const u32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_ints(p: *mut u32, a: __m512i) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_si512(p.cast(), a) }
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn add_ints(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub_ints(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_floats(a: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn low_bf16(a: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(a)) }
    }

    #[inline(always)]
    unsafe fn high_bf16(a: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(-0x1_0000))) }
    }

    #[inline(always)]
    unsafe fn transpose<const WHOLE: bool>(
        rows: *const u8,
        stride: usize,
        words: usize,
    ) -> [__m512i; 8] {
        // SAFETY: the trait's contract: 32 bytes or `words` words of 16 rows.
        unsafe {
            let mask = (1u16 << words).wrapping_sub(1) as u8;
            let a = transpose4::<WHOLE>(rows, stride, mask);
            let b = transpose4::<WHOLE>(rows.add(8 * stride), stride, mask);
            [
                _mm512_shuffle_i64x2::<0b10_00_10_00>(a[0], b[0]),
                _mm512_shuffle_i64x2::<0b10_00_10_00>(a[1], b[1]),
                _mm512_shuffle_i64x2::<0b10_00_10_00>(a[2], b[2]),
                _mm512_shuffle_i64x2::<0b10_00_10_00>(a[3], b[3]),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(a[0], b[0]),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(a[1], b[1]),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(a[2], b[2]),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn shift_and(a: __m512i, bits: u32, mask: u32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            if bits == 12 && mask == 0x000F_000F {
                return _mm512_srli_epi16::<12>(a);
            }
            let shifted = _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi32(mask as i32))
        }
    }

    #[inline(always)]
    unsafe fn join(low: __m512i, high: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_or_si512(low, _mm512_slli_epi32::<16>(high)) }
    }

    #[inline(always)]
    unsafe fn dot_words(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_dpwssd_epi32(acc, w, x) }
    }

    #[inline(always)]
    unsafe fn dot_pair(acc: __m512i, w: [__m512i; 2], x: [__m512i; 2]) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let (a, b) = (_mm512_add_epi16(x[0], w[1]), _mm512_add_epi16(x[1], w[0]));
            _mm512_dpwssd_epi32(acc, a, b)
        }
    }

    #[inline(always)]
    unsafe fn dot_nibbles(acc: __m512i, words: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = _mm512_set1_epi32(0x0F0F_0F0F);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<4>(words), mask);
            _mm512_dpbusd_epi32(acc, _mm512_and_si512(words, mask), odd)
        }
    }

    #[inline(always)]
    unsafe fn even_odd<const BITS: usize, const WHOLE: bool>(p: *const u8) -> [__m512i; 2] {
        // SAFETY: the trait's contract: BITS / 8 bytes an element.
        unsafe {
            if BITS == 4 {
                let packed = if WHOLE {
                    _mm512_loadu_si512(p.cast())
                } else {
                    _mm512_zextsi256_si512(_mm256_loadu_si256(p.cast()))
                };
                let mask = _mm512_set1_epi8(0x0F);
                let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                return [_mm512_and_si512(packed, mask), odd];
            }
            let a = _mm512_loadu_si512(p.cast());
            let b =
                if WHOLE { _mm512_loadu_si512(p.add(64).cast()) } else { _mm512_setzero_si512() };
            // Packing puts eight bytes of one operand behind eight of the other.
            let first = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
            let second = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
            let low = |x| _mm512_and_si512(x, _mm512_set1_epi16(0xFF));
            let high = |x| _mm512_srli_epi16::<8>(x);
            [
                _mm512_packus_epi16(low(first), low(second)),
                _mm512_packus_epi16(high(first), high(second)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_bytes<const BITS: usize>([even, odd]: [__m512i; 2], x: [__m512i; 4]) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, x[2]);
            let high = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(high, odd, x[3]));
            _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(high, even, x[0]), odd, x[1])
        }
    }

    #[inline(always)]
    unsafe fn side_sums(rows: [__m512i; 4]) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let pair =
                |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (a, b) = (pair(rows[0], rows[1]), pair(rows[2], rows[3]));
            _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
        }
    }

    #[inline(always)]
    unsafe fn unit_sums<const UNIT: usize>([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let even = |a, b| _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
            let odd = |a, b| _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
            if UNIT == 64 {
                let a = _mm512_add_epi32(even(a, b), odd(a, b));
                let c = _mm512_add_epi32(even(c, d), odd(c, d));
                let zero = _mm512_setzero_si512();
                return [even(a, c), odd(a, c), zero, zero];
            }
            let (evens, odds) = ([even(a, b), even(c, d)], [odd(a, b), odd(c, d)]);
            [
                even(evens[0], evens[1]),
                even(odds[0], odds[1]),
                odd(evens[0], evens[1]),
                odd(odds[0], odds[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16, planes: [*mut i8; 4]) {
        // SAFETY: the trait's contract: 64 f32 read, 64 i16 and 4 * 32 i8 written.
        unsafe {
            let order = _mm_set_epi8(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0);
            let order = _mm256_broadcastsi128_si256(order);
            let apart = _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
            for at in (0..64).step_by(16) {
                let ints = rounded(x.add(at), factor);
                let words = _mm256_shuffle_epi8(_mm512_cvtsepi32_epi16(ints), order);
                _mm256_storeu_si256(out.add(at).cast(), words);
                // A low byte counts as negative from 128 on: the high one is one more then.
                let high = _mm512_add_epi32(ints, _mm512_set1_epi32(128));
                let halves = [ints, _mm512_srai_epi32::<8>(high)];
                for (i, half) in halves.into_iter().enumerate() {
                    let bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(half), apart);
                    _mm_storel_epi64(planes[2 * i].add(at / 2).cast(), bytes);
                    let odd = _mm_unpackhi_epi64(bytes, bytes);
                    _mm_storel_epi64(planes[2 * i + 1].add(at / 2).cast(), odd);
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

/// Adds the lower halves of two vectors to their upper ones, or with QUARTERS the lower halves of
/// the halves.
#[inline(always)]
unsafe fn halved<const QUARTERS: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the processor has AVX-512.
    unsafe {
        if QUARTERS {
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            return _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
        }
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
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

/// Of 8 rows: vector i holds word i of rows 0..4, word i + 4 of these, then both of rows 4..8.
#[inline(always)]
unsafe fn transpose4<const WHOLE: bool>(rows: *const u8, stride: usize, mask: u8) -> [__m512i; 4] {
    // SAFETY: the caller gives 8 rows of 32 bytes, or of the words in the mask.
    unsafe {
        // Rows 4 apart share a register, so that the last step puts lanes in order.
        let r0 = row_pair::<WHOLE>(rows, stride, mask);
        let r1 = row_pair::<WHOLE>(rows.add(stride), stride, mask);
        let r2 = row_pair::<WHOLE>(rows.add(2 * stride), stride, mask);
        let r3 = row_pair::<WHOLE>(rows.add(3 * stride), stride, mask);
        let (t0, t1) = (_mm512_unpacklo_epi32(r0, r1), _mm512_unpackhi_epi32(r0, r1));
        let (t2, t3) = (_mm512_unpacklo_epi32(r2, r3), _mm512_unpackhi_epi32(r2, r3));
        [
            _mm512_unpacklo_epi64(t0, t2),
            _mm512_unpackhi_epi64(t0, t2),
            _mm512_unpacklo_epi64(t1, t3),
            _mm512_unpackhi_epi64(t1, t3),
        ]
    }
}

/// The row at `p` and the one 4 rows on, 32 bytes each.
#[inline(always)]
unsafe fn row_pair<const WHOLE: bool>(p: *const u8, stride: usize, mask: u8) -> __m512i {
    // SAFETY: passed on from the caller.
    unsafe {
        let (low, high) = (p.cast::<i32>(), p.add(4 * stride).cast::<i32>());
        let (low, high) = if WHOLE {
            (_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(high.cast()))
        } else {
            (_mm256_maskz_loadu_epi32(mask, low), _mm256_maskz_loadu_epi32(mask, high))
        };
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

/// 16 values times `factor`, rounded to integers.
#[inline(always)]
unsafe fn rounded(x: *const f32, factor: f32) -> __m512i {
    // SAFETY: the caller gives 16 readable f32.
    unsafe { _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(factor))) }
}

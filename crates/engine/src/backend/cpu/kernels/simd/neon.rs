use std::arch::aarch64::*;

use super::{Simd, portable::Portable};

/// NEON, which every 64-bit Arm processor has.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon;

/// Eight lanes in two registers.
type Floats = [float32x4_t; 2];
type Ints = [int32x4_t; 2];

/// Applies an intrinsic of four lanes to both registers.
macro_rules! both {
    ($intrinsic:ident($($arg:ident),*)) => {
        // SAFETY: the trait's contract.
        unsafe { [$intrinsic($($arg[0]),*), $intrinsic($($arg[1]),*)] }
    };
}

impl Simd for Neon {
    type Floats = Floats;
    type Ints = Ints;

    const LANES: usize = 8;
    const SIDES: usize = 2;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Floats {
        // SAFETY: the trait's contract.
        unsafe { [vdupq_n_f32(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Floats {
        // SAFETY: the trait's contract.
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Floats) {
        // SAFETY: the trait's contract.
        unsafe {
            vst1q_f32(p, a[0]);
            vst1q_f32(p.add(4), a[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Floats {
        // SAFETY: the trait's contract: 8 u16 are one register.
        unsafe {
            let bits = vld1q_u16(p);
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(bits))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(bits))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Floats {
        // SAFETY: the trait's contract. The conversion of whole registers is not stable yet; the
        // compiler vectorises the arithmetic of the portable one.
        unsafe { Self::load(Portable::load_f16(p).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, a: Floats) {
        let mut lanes = [0.0; 8];
        // SAFETY: the trait's contract.
        unsafe {
            Self::store(lanes.as_mut_ptr(), a);
            Portable::store_f16(p, lanes);
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Floats {
        // SAFETY: the trait's contract: the load reads 8 bytes.
        unsafe {
            let words = vmovl_u8(vld1_u8(p));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(words))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add(a: Floats, b: Floats) -> Floats {
        both!(vaddq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn sub(a: Floats, b: Floats) -> Floats {
        both!(vsubq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        both!(vmulq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn div(a: Floats, b: Floats) -> Floats {
        both!(vdivq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn max(a: Floats, b: Floats) -> Floats {
        both!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn min(a: Floats, b: Floats) -> Floats {
        both!(vminq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn abs(a: Floats) -> Floats {
        both!(vabsq_f32(a))
    }

    #[inline(always)]
    unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
        both!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    unsafe fn round(a: Floats) -> Floats {
        both!(vrndnq_f32(a))
    }

    #[inline(always)]
    unsafe fn pow2(a: Floats) -> Floats {
        // SAFETY: the trait's contract.
        unsafe { [pow2(a[0]), pow2(a[1])] }
    }

    #[inline(always)]
    unsafe fn sum(a: Floats) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { vaddvq_f32(vaddq_f32(a[0], a[1])) }
    }

    #[inline(always)]
    unsafe fn largest(a: Floats) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { vmaxvq_f32(vmaxq_f32(a[0], a[1])) }
    }

    #[inline(always)]
    unsafe fn zero() -> Ints {
        // SAFETY: the trait's contract.
        unsafe { [vdupq_n_s32(0); 2] }
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const u32) -> Ints {
        // SAFETY: the trait's contract.
        unsafe { [vld1q_s32(p.cast()), vld1q_s32(p.add(4).cast())] }
    }

    #[inline(always)]
    unsafe fn store_ints(p: *mut u32, a: Ints) {
        // SAFETY: the trait's contract.
        unsafe {
            vst1q_s32(p.cast(), a[0]);
            vst1q_s32(p.add(4).cast(), a[1]);
        }
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u32) -> Ints {
        // SAFETY: the trait's contract.
        unsafe { [vdupq_n_s32(p.cast::<i32>().read_unaligned()); 2] }
    }

    #[inline(always)]
    unsafe fn add_ints(a: Ints, b: Ints) -> Ints {
        both!(vaddq_s32(a, b))
    }

    #[inline(always)]
    unsafe fn sub_ints(a: Ints, b: Ints) -> Ints {
        both!(vsubq_s32(a, b))
    }

    #[inline(always)]
    unsafe fn to_floats(a: Ints) -> Floats {
        both!(vcvtq_f32_s32(a))
    }

    #[inline(always)]
    unsafe fn low_bf16(a: Ints) -> Floats {
        // SAFETY: the trait's contract.
        unsafe {
            [
                vreinterpretq_f32_s32(vshlq_n_s32::<16>(a[0])),
                vreinterpretq_f32_s32(vshlq_n_s32::<16>(a[1])),
            ]
        }
    }

    #[inline(always)]
    unsafe fn high_bf16(a: Ints) -> Floats {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = vdupq_n_s32(-0x1_0000);
            [
                vreinterpretq_f32_s32(vandq_s32(a[0], mask)),
                vreinterpretq_f32_s32(vandq_s32(a[1], mask)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn transpose<const WHOLE: bool>(
        rows: *const u8,
        stride: usize,
        words: usize,
    ) -> [Ints; 8] {
        // SAFETY: the trait's contract: 32 bytes or `words` words of 8 rows.
        unsafe {
            let mut out = [[vdupq_n_s32(0); 2]; 8];
            for quarter in 0..2 {
                let rows = rows.add(4 * quarter * stride);
                let mut halves = [[vdupq_n_s32(0); 4]; 2];
                for i in 0..4 {
                    let row = row::<WHOLE>(rows.add(i * stride), words);
                    halves[0][i] = row[0];
                    halves[1][i] = row[1];
                }
                for half in 0..2 {
                    let columns = transpose4(halves[half]);
                    for i in 0..4 {
                        out[4 * half + i][quarter] = columns[i];
                    }
                }
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn shift_and(a: Ints, bits: u32, mask: u32) -> Ints {
        // SAFETY: the trait's contract. A shift to the left by a negative number goes right.
        unsafe {
            let (bits, mask) = (vdupq_n_s32(-(bits as i32)), vdupq_n_u32(mask));
            let low = vandq_u32(vshlq_u32(vreinterpretq_u32_s32(a[0]), bits), mask);
            let high = vandq_u32(vshlq_u32(vreinterpretq_u32_s32(a[1]), bits), mask);
            [vreinterpretq_s32_u32(low), vreinterpretq_s32_u32(high)]
        }
    }

    #[inline(always)]
    unsafe fn join(low: Ints, high: Ints) -> Ints {
        // SAFETY: the trait's contract.
        unsafe {
            [
                vorrq_s32(low[0], vshlq_n_s32::<16>(high[0])),
                vorrq_s32(low[1], vshlq_n_s32::<16>(high[1])),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_words(acc: Ints, w: Ints, x: Ints) -> Ints {
        // SAFETY: the trait's contract.
        unsafe {
            let mut out = acc;
            for i in 0..2 {
                let (w, x) = (vreinterpretq_s16_s32(w[i]), vreinterpretq_s16_s32(x[i]));
                let low = vmull_s16(vget_low_s16(w), vget_low_s16(x));
                out[i] = vaddq_s32(acc[i], vpaddq_s32(low, vmull_high_s16(w, x)));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn even_odd<const BITS: usize, const WHOLE: bool>(p: *const u8) -> [Ints; 2] {
        // SAFETY: the trait's contract: BITS / 8 bytes for each of 64 elements.
        unsafe {
            let mut out = [[vdupq_n_s32(0); 2]; 2];
            for half in 0..2 {
                let (even, odd) = if BITS == 4 {
                    let packed = vld1q_u8(p.add(16 * half));
                    (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed))
                } else {
                    let (a, b) = (vld1q_u8(p.add(32 * half)), vld1q_u8(p.add(32 * half + 16)));
                    (vuzp1q_u8(a, b), vuzp2q_u8(a, b))
                };
                out[0][half] = vreinterpretq_s32_u8(even);
                out[1][half] = vreinterpretq_s32_u8(odd);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn dot_bytes<const BITS: usize>([even, odd]: [Ints; 2], x: [Ints; 4]) -> Ints {
        // SAFETY: the trait's contract.
        unsafe {
            let mut out = [vdupq_n_s32(0); 2];
            for half in 0..2 {
                let (even, odd) = (even[half], odd[half]);
                let low = byte_products::<BITS>([even, odd], [x[0][half], x[1][half]]);
                let high = byte_products::<BITS>([even, odd], [x[2][half], x[3][half]]);
                out[half] = vaddq_s32(low, vshlq_n_s32::<8>(high));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn side_sums(rows: [Ints; 4]) -> Ints {
        // SAFETY: the trait's contract.
        std::array::from_fn(|half| unsafe {
            let row = |i: usize| rows[i][half];
            vpaddq_s32(vpaddq_s32(row(0), row(1)), vpaddq_s32(row(2), row(3)))
        })
    }

    #[inline(always)]
    unsafe fn unit_sums<const UNIT: usize>(sides: [Ints; 4]) -> [Ints; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let halves = [0, 1].map(|half| [sides[0][half], sides[1][half]]);
            let zero = [vdupq_n_s32(0); 2];
            if UNIT == 64 {
                return [Self::add_ints(halves[0], halves[1]), zero, zero, zero];
            }
            [halves[0], halves[1], zero, zero]
        }
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16, planes: [*mut i8; 4]) {
        // SAFETY: the trait's contract: 64 f32 read, 64 i16 and 4 * 32 i8 written.
        unsafe {
            for at in (0..64).step_by(8) {
                let low = rounded(vld1q_f32(x.add(at)), factor);
                let high = rounded(vld1q_f32(x.add(at + 4)), factor);
                vst1q_s16(out.add(at), vcombine_s16(vzip1_s16(low, high), vzip2_s16(low, high)));
                // A low byte counts as negative from 128 on: the high one is one more then.
                let words = vcombine_s16(low, high);
                let carry = vshlq_n_s16::<1>(vandq_s16(words, vdupq_n_s16(128)));
                let highs = vshrn_n_s16::<8>(vaddq_s16(words, carry));
                for (i, bytes) in [vmovn_s16(words), highs].into_iter().enumerate() {
                    let apart = vreinterpret_s32_s8(vuzp1_s8(bytes, bytes));
                    planes[2 * i]
                        .add(at / 2)
                        .cast::<i32>()
                        .write_unaligned(vget_lane_s32::<0>(apart));
                    let apart = vreinterpret_s32_s8(vuzp2_s8(bytes, bytes));
                    planes[2 * i + 1]
                        .add(at / 2)
                        .cast::<i32>()
                        .write_unaligned(vget_lane_s32::<0>(apart));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch_near(_: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

#[inline(always)]
unsafe fn pow2(a: float32x4_t) -> float32x4_t {
    // SAFETY: the processor has NEON.
    unsafe {
        let biased = vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127));
        vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
    }
}

/// A row's 32 bytes, or its first `words` words and zeros.
#[inline(always)]
unsafe fn row<const WHOLE: bool>(p: *const u8, words: usize) -> Ints {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut copy = [0u8; 32];
        let mut p = p;
        if !WHOLE {
            std::ptr::copy_nonoverlapping(p, copy.as_mut_ptr(), 4 * words);
            p = copy.as_ptr();
        }
        [vld1q_s32(p.cast()), vld1q_s32(p.add(16).cast())]
    }
}

/// Word i of four rows as vector i.
#[inline(always)]
unsafe fn transpose4([a, b, c, d]: [int32x4_t; 4]) -> [int32x4_t; 4] {
    // SAFETY: the processor has NEON.
    unsafe {
        let ab_low = vreinterpretq_s64_s32(vtrn1q_s32(a, b));
        let ab_high = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
        let cd_low = vreinterpretq_s64_s32(vtrn1q_s32(c, d));
        let cd_high = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
        [
            vreinterpretq_s32_s64(vtrn1q_s64(ab_low, cd_low)),
            vreinterpretq_s32_s64(vtrn1q_s64(ab_high, cd_high)),
            vreinterpretq_s32_s64(vtrn2q_s64(ab_low, cd_low)),
            vreinterpretq_s32_s64(vtrn2q_s64(ab_high, cd_high)),
        ]
    }
}

/// Sums of the products of four unsigned bytes with four signed ones, for even and odd elements.
#[inline(always)]
unsafe fn byte_products<const BITS: usize>(w: [int32x4_t; 2], x: [int32x4_t; 2]) -> int32x4_t {
    // SAFETY: the processor has NEON.
    unsafe {
        let mut sums = [vdupq_n_s32(0); 2];
        for i in 0..2 {
            let (w, x) = (vreinterpretq_u8_s32(w[i]), vreinterpretq_s8_s32(x[i]));
            let (low, high) = if BITS == 4 {
                let w = vreinterpretq_s8_u8(w);
                (vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x))
            } else {
                // 255 * 128 fits an i16, but 255 no i8.
                let wide = |w: uint8x8_t| vreinterpretq_s16_u16(vmovl_u8(w));
                (
                    vmulq_s16(wide(vget_low_u8(w)), vmovl_s8(vget_low_s8(x))),
                    vmulq_s16(wide(vget_high_u8(w)), vmovl_high_s8(x)),
                )
            };
            sums = [vpadalq_s16(sums[0], low), vpadalq_s16(sums[1], high)];
        }
        vpaddq_s32(sums[0], sums[1])
    }
}

/// Four values as rounded i16.
#[inline(always)]
unsafe fn rounded(x: float32x4_t, factor: f32) -> int16x4_t {
    // SAFETY: the processor has NEON.
    unsafe { vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(x, factor))) }
}

use std::arch::aarch64::*;

use super::{Simd, portable::Portable};

/// NEON, which every 64-bit Arm processor has.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon;

/// Eight lanes in two registers.
type Floats = [float32x4_t; 2];

/// Applies an intrinsic of four lanes to both registers.
macro_rules! both {
    ($intrinsic:ident($($arg:ident),*)) => {
        // SAFETY: the trait's contract.
        unsafe { [$intrinsic($($arg[0]),*), $intrinsic($($arg[1]),*)] }
    };
}

impl Simd for Neon {
    type Floats = Floats;
    type Block = [int16x8_t; 8]; // evens of inputs 0..16, of 16..32, and so on, then the odds
    type Nibbles = ();

    const LANES: usize = 8;
    const GEMV_OUTPUTS: usize = 4;

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
    unsafe fn nibbles() {}

    #[inline(always)]
    unsafe fn unpack4(p: *const u8, (): ()) -> [int16x8_t; 8] {
        // SAFETY: the trait's contract: two loads of 16 bytes.
        unsafe {
            let (first, second) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            let low = vdupq_n_u8(0xF);
            let [a, b] = widen(vandq_u8(first, low));
            let [c, d] = widen(vandq_u8(second, low));
            let [e, f] = widen(vshrq_n_u8::<4>(first));
            let [g, h] = widen(vshrq_n_u8::<4>(second));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn unpack8(p: *const u8) -> [int16x8_t; 8] {
        // SAFETY: the trait's contract: two loads of 32 bytes, evens and odds apart.
        unsafe {
            let (first, second) = (vld2q_u8(p), vld2q_u8(p.add(32)));
            let [a, b] = widen(first.0);
            let [c, d] = widen(second.0);
            let [e, f] = widen(first.1);
            let [g, h] = widen(second.1);
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn load_block(p: *const i16) -> [int16x8_t; 8] {
        // SAFETY: the trait's contract: 64 i16 are eight registers.
        unsafe {
            [
                vld1q_s16(p),
                vld1q_s16(p.add(8)),
                vld1q_s16(p.add(16)),
                vld1q_s16(p.add(24)),
                vld1q_s16(p.add(32)),
                vld1q_s16(p.add(40)),
                vld1q_s16(p.add(48)),
                vld1q_s16(p.add(56)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_block(p: *mut i16, a: [int16x8_t; 8]) {
        for (i, words) in a.into_iter().enumerate() {
            // SAFETY: the trait's contract: 64 i16 are eight registers.
            unsafe { vst1q_s16(p.add(8 * i), words) }
        }
    }

    #[inline(always)]
    unsafe fn dot<const HALVES: bool>(
        acc: Floats,
        a: [int16x8_t; 8],
        b: *const i16,
        scale_x: Floats,
        scale_w: *const f32,
    ) -> Floats {
        // SAFETY: the trait's contract: 64 i16 at `b`, one or two scales.
        unsafe {
            let b = Self::load_block(b);
            let mut sums = [[vdupq_n_s32(0); 2]; 2]; // of the first and the second 32 elements
            for i in 0..8 {
                let half = &mut sums[i / 2 % 2];
                half[0] = vmlal_s16(half[0], vget_low_s16(a[i]), vget_low_s16(b[i]));
                half[1] = vmlal_high_s16(half[1], a[i], b[i]);
            }
            let [first, second] = sums;
            if HALVES {
                let acc = add_scaled(acc, first, scale_x, *scale_w);
                add_scaled(acc, second, scale_x, *scale_w.add(1))
            } else {
                let all = [vaddq_s32(first[0], second[0]), vaddq_s32(first[1], second[1])];
                add_scaled(acc, all, scale_x, *scale_w)
            }
        }
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16) {
        // SAFETY: the trait's contract: 64 f32 read, 64 i16 written.
        unsafe {
            for i in 0..4 {
                let pairs = [vld2q_f32(x.add(16 * i)), vld2q_f32(x.add(16 * i + 8))];
                let evens = [rounded(pairs[0].0, factor), rounded(pairs[1].0, factor)];
                let odds = [rounded(pairs[0].1, factor), rounded(pairs[1].1, factor)];
                vst1q_s16(out.add(8 * i), vcombine_s16(evens[0], evens[1]));
                vst1q_s16(out.add(32 + 8 * i), vcombine_s16(odds[0], odds[1]));
            }
        }
    }

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

/// 16 bytes as 16 words.
#[inline(always)]
unsafe fn widen(bytes: uint8x16_t) -> [int16x8_t; 2] {
    // SAFETY: the processor has NEON.
    unsafe {
        [
            vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
            vreinterpretq_s16_u16(vmovl_high_u8(bytes)),
        ]
    }
}

/// Four values as rounded i16.
#[inline(always)]
unsafe fn rounded(x: float32x4_t, factor: f32) -> int16x4_t {
    // SAFETY: the processor has NEON.
    unsafe { vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(x, factor))) }
}

/// `acc + scale_w · (scale_x · sums)`
#[inline(always)]
unsafe fn add_scaled(acc: Floats, sums: [int32x4_t; 2], scale_x: Floats, scale_w: f32) -> Floats {
    // SAFETY: the processor has NEON.
    unsafe {
        let low = vmulq_f32(vcvtq_f32_s32(sums[0]), scale_x[0]);
        let high = vmulq_f32(vcvtq_f32_s32(sums[1]), scale_x[1]);
        [vfmaq_n_f32(acc[0], low, scale_w), vfmaq_n_f32(acc[1], high, scale_w)]
    }
}

use super::Simd;

/// Plain Rust over fixed arrays; the compiler vectorises what the base target allows.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

type Floats = [f32; 8];

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> Floats {
    std::array::from_fn(f)
}

impl Simd for Portable {
    type Floats = Floats;
    type Block = [i16; 64];
    type Nibbles = ();

    const LANES: usize = 8;
    const GEMV_OUTPUTS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Floats {
        [x; 8]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Floats {
        // SAFETY: the caller gives 8 readable f32.
        unsafe { p.cast::<Floats>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Floats) {
        // SAFETY: the caller gives 8 writable f32.
        unsafe { p.cast::<Floats>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Floats {
        // SAFETY: the caller gives 8 readable u16.
        let bits = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        each(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Floats {
        // SAFETY: the caller gives 8 readable u16.
        let bits = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        each(|i| f16_to_f32(bits[i]))
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, a: Floats) {
        let bits: [u16; 8] = std::array::from_fn(|i| half::f16::from_f32_const(a[i]).to_bits());
        // SAFETY: the caller gives 8 writable u16.
        unsafe { p.cast::<[u16; 8]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Floats {
        // SAFETY: the caller gives 8 readable bytes.
        let bytes = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        each(|i| f32::from(bytes[i]))
    }

    #[inline(always)]
    unsafe fn add(a: Floats, b: Floats) -> Floats {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: Floats, b: Floats) -> Floats {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Floats, b: Floats) -> Floats {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn max(a: Floats, b: Floats) -> Floats {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: Floats, b: Floats) -> Floats {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn abs(a: Floats) -> Floats {
        each(|i| a[i].abs())
    }

    #[inline(always)]
    unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
        each(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn round(a: Floats) -> Floats {
        // Adding 1.5 * 2^23 leaves no fraction bits: the addition rounds, ties to even.
        const SHIFT: f32 = 12_582_912.0;
        each(|i| (a[i] + SHIFT) - SHIFT)
    }

    #[inline(always)]
    unsafe fn pow2(a: Floats) -> Floats {
        // 2^23 + 127 + a has the biased exponent in its low mantissa bits.
        each(|i| f32::from_bits((a[i] + 8_388_735.0).to_bits() << 23))
    }

    #[inline(always)]
    unsafe fn sum(a: Floats) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }

    #[inline(always)]
    unsafe fn largest(a: Floats) -> f32 {
        a.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x))
    }

    #[inline(always)]
    unsafe fn nibbles() {}

    #[inline(always)]
    unsafe fn unpack4(p: *const u8, (): ()) -> [i16; 64] {
        // SAFETY: the caller gives 32 readable bytes.
        let bytes = unsafe { p.cast::<[u8; 32]>().read_unaligned() };
        let mut block = [0; 64];
        for (j, &byte) in bytes.iter().enumerate() {
            block[j] = i16::from(byte & 0xF);
            block[32 + j] = i16::from(byte >> 4);
        }
        block
    }

    #[inline(always)]
    unsafe fn unpack8(p: *const u8) -> [i16; 64] {
        // SAFETY: the caller gives 64 readable bytes.
        let bytes = unsafe { p.cast::<[u8; 64]>().read_unaligned() };
        std::array::from_fn(|i| i16::from(bytes[(i % 32) * 2 + i / 32]))
    }

    #[inline(always)]
    unsafe fn load_block(p: *const i16) -> [i16; 64] {
        // SAFETY: the caller gives 64 readable i16.
        unsafe { p.cast::<[i16; 64]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_block(p: *mut i16, a: [i16; 64]) {
        // SAFETY: the caller gives 64 writable i16.
        unsafe { p.cast::<[i16; 64]>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn dot<const HALVES: bool>(
        mut acc: Floats,
        a: [i16; 64],
        b: *const i16,
        scale_x: Floats,
        scale_w: *const f32,
    ) -> Floats {
        // SAFETY: the caller gives 64 readable i16, and one scale or two with HALVES.
        let (b, first, second) = unsafe {
            let second = if HALVES { *scale_w.add(1) } else { 0.0 };
            (b.cast::<[i16; 64]>().read_unaligned(), *scale_w, second)
        };
        let (even0, even1) = (pairs(&a, &b, 0), pairs(&a, &b, 16));
        let (odd0, odd1) = (pairs(&a, &b, 32), pairs(&a, &b, 48));
        for i in 0..8 {
            let (low, high) = (even0[i] + odd0[i], even1[i] + odd1[i]);
            if HALVES {
                acc[i] += first * (scale_x[i] * low as f32);
                acc[i] += second * (scale_x[i] * high as f32);
            } else {
                acc[i] += first * (scale_x[i] * (low + high) as f32);
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16) {
        // SAFETY: the caller gives 64 readable f32.
        let x = unsafe { x.cast::<[f32; 64]>().read_unaligned() };
        let block: [i16; 64] =
            std::array::from_fn(|i| (x[(i % 32) * 2 + i / 32] * factor).round_ties_even() as i16);
        // SAFETY: the caller gives 64 writable i16.
        unsafe { out.cast::<[i16; 64]>().write_unaligned(block) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

/// 8 sums of neighbouring products from 16 words: the shape of a multiply-add of words.
#[inline(always)]
fn pairs(a: &[i16; 64], b: &[i16; 64], at: usize) -> [i32; 8] {
    std::array::from_fn(|i| {
        let j = at + 2 * i;
        i32::from(a[j]) * i32::from(b[j]) + i32::from(a[j + 1]) * i32::from(b[j + 1])
    })
}

/// Exact for every finite f16: the exponent is re-biased by a multiplication, which also turns
/// subnormals into normals. Infinities and NaN become large numbers; caches never hold them.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((254 - 15) << 23); // 2^112
    let magnitude = f32::from_bits(u32::from(bits & 0x7FFF) << 13) * REBIAS;
    f32::from_bits(magnitude.to_bits() | (u32::from(bits & 0x8000) << 16))
}

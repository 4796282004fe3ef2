use super::Simd;

/// Plain Rust over fixed arrays; the compiler vectorises what the base target allows.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

type Floats = [f32; 8];
type Ints = [u32; 8];

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> Floats {
    std::array::from_fn(f)
}

impl Simd for Portable {
    type Floats = Floats;
    type Ints = Ints;

    const LANES: usize = 8;
    const SIDES: usize = 2;
    const TILE_ROWS: usize = 4;

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
    unsafe fn zero() -> Ints {
        [0; 8]
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const u32) -> Ints {
        // SAFETY: the caller gives 8 readable words.
        unsafe { p.cast::<Ints>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_ints(p: *mut u32, a: Ints) {
        // SAFETY: the caller gives 8 writable words.
        unsafe { p.cast::<Ints>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u32) -> Ints {
        // SAFETY: the caller gives a readable word.
        [unsafe { p.read_unaligned() }; 8]
    }

    #[inline(always)]
    unsafe fn add_ints(a: Ints, b: Ints) -> Ints {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    unsafe fn sub_ints(a: Ints, b: Ints) -> Ints {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(always)]
    unsafe fn to_floats(a: Ints) -> Floats {
        each(|i| a[i] as i32 as f32)
    }

    #[inline(always)]
    unsafe fn low_bf16(a: Ints) -> Floats {
        each(|i| f32::from_bits(a[i] << 16))
    }

    #[inline(always)]
    unsafe fn high_bf16(a: Ints) -> Floats {
        each(|i| f32::from_bits(a[i] & 0xFFFF_0000))
    }

    #[inline(always)]
    unsafe fn transpose<const WHOLE: bool>(
        rows: *const u8,
        stride: usize,
        words: usize,
    ) -> [Ints; 8] {
        let mut out = [[0; 8]; 8];
        for lane in 0..8 {
            for (i, out) in out.iter_mut().enumerate().take(if WHOLE { 8 } else { words }) {
                // SAFETY: the trait's contract: 8 or `words` words of 8 rows.
                let word = unsafe { rows.add(lane * stride).cast::<u32>().add(i).read_unaligned() };
                out[lane] = u32::from_le(word);
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn shift_and(a: Ints, bits: u32, mask: u32) -> Ints {
        a.map(|word| word >> bits & mask)
    }

    #[inline(always)]
    unsafe fn join(low: Ints, high: Ints) -> Ints {
        std::array::from_fn(|i| low[i] | high[i] << 16)
    }

    #[inline(always)]
    unsafe fn dot_words(acc: Ints, w: Ints, x: Ints) -> Ints {
        std::array::from_fn(|i| {
            let low = i32::from(w[i] as i16) * i32::from(x[i] as i16);
            let high = ((w[i] as i32) >> 16) * ((x[i] as i32) >> 16);
            acc[i].wrapping_add(low as u32).wrapping_add(high as u32)
        })
    }

    #[inline(always)]
    unsafe fn even_odd<const BITS: usize, const WHOLE: bool>(p: *const u8) -> [Ints; 2] {
        let mut bytes = [[0u8; 32]; 2];
        // SAFETY: the trait's contract: BITS / 8 bytes for each of 64 elements.
        unsafe {
            for i in 0..32 {
                let [even, odd] = if BITS == 4 {
                    let byte = *p.add(i);
                    [byte & 15, byte >> 4]
                } else {
                    [*p.add(2 * i), *p.add(2 * i + 1)]
                };
                (bytes[0][i], bytes[1][i]) = (even, odd);
            }
            [Self::load_ints(bytes[0].as_ptr().cast()), Self::load_ints(bytes[1].as_ptr().cast())]
        }
    }

    #[inline(always)]
    unsafe fn dot_bytes<const BITS: usize>(w: [Ints; 2], x: [Ints; 4]) -> Ints {
        std::array::from_fn(|i| {
            let mut sum = 0;
            for part in 0..2 {
                let (w, low, high) = (
                    w[part][i].to_ne_bytes(),
                    x[part][i].to_ne_bytes(),
                    x[2 + part][i].to_ne_bytes(),
                );
                for byte in 0..4 {
                    let x = i32::from(low[byte] as i8) + 256 * i32::from(high[byte] as i8);
                    sum += i32::from(w[byte]) * x;
                }
            }
            sum as u32
        })
    }

    #[inline(always)]
    unsafe fn side_sums(rows: [Ints; 4]) -> Ints {
        std::array::from_fn(|lane| {
            let lanes = &rows[lane % 4][lane / 4 * 4..][..4];
            lanes.iter().fold(0u32, |sum, &x| sum.wrapping_add(x))
        })
    }

    #[inline(always)]
    unsafe fn unit_sums<const UNIT: usize>(sides: [Ints; 4]) -> [Ints; 4] {
        std::array::from_fn(|unit| {
            std::array::from_fn(|row| {
                let quarters = (unit * UNIT / 32..2).take(UNIT / 32);
                let sums = quarters.map(|quarter| sides[row / 4][4 * quarter + row % 4]);
                sums.fold(0u32, u32::wrapping_add)
            })
        })
    }

    #[inline(always)]
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16, planes: [*mut i8; 4]) {
        const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        // SAFETY: the caller gives 64 readable f32 and 64 writable i16, and 32 i8 four times.
        unsafe {
            let x = x.cast::<[f32; 64]>().read_unaligned();
            let ints = x.map(|x| (x * factor).round_ties_even() as i16);
            let words: [i16; 64] = std::array::from_fn(|i| ints[i / 8 * 8 + ORDER[i % 8]]);
            out.cast::<[i16; 64]>().write_unaligned(words);
            for (i, int) in ints.into_iter().enumerate() {
                // A low byte counts as negative from 128 on: the high one is one more then.
                *planes[i % 2].add(i / 2) = int as i8;
                *planes[2 + i % 2].add(i / 2) = ((i32::from(int) + 128) >> 8) as i8;
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch_near(_: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

/// Exact for every finite f16: the exponent is re-biased by a multiplication, which also turns
/// subnormals into normals. Infinities and NaN become large numbers; caches never hold them.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((254 - 15) << 23); // 2^112
    let magnitude = f32::from_bits(u32::from(bits & 0x7FFF) << 13) * REBIAS;
    f32::from_bits(magnitude.to_bits() | (u32::from(bits & 0x8000) << 16))
}

//! The few vector operations that the kernels are written with, once for each instruction set.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

/// One instruction set.
///
/// Every method is `#[inline(always)]` and has no `#[target_feature]` of its own: kernels are
/// generic over `Simd` and become code of that instruction set where a wrapper that has the
/// feature inlines them (`table.rs`).
///
/// # Safety
/// All methods: the processor has the instruction set, and pointers are good for the number of
/// elements stated. No alignment is asked for.
pub(super) trait Simd: Copy + 'static {
    /// `LANES` f32.
    type Floats: Copy;
    /// LANES words of 4 bytes: integers, or packed elements.
    type Ints: Copy;

    /// Number of f32 in `Floats`: 8 or 16.
    const LANES: usize;
    /// Fours of rows of weights that are read side by side for one row of activations: 1 or 2.
    const SIDES: usize;
    /// Rows of activations whose sums of two vectors stay in registers: 4 or 8.
    const TILE_ROWS: usize;
    /// Whether two additions of i16 and one product cost less than two products: there are
    /// [`Simd::dot_pair`] and [`Simd::dot_nibbles`] then.
    const PAIRED: bool = false;

    unsafe fn splat(x: f32) -> Self::Floats;
    unsafe fn load(p: *const f32) -> Self::Floats;
    unsafe fn store(p: *mut f32, a: Self::Floats);
    /// Widens `LANES` bf16.
    unsafe fn load_bf16(p: *const u16) -> Self::Floats;
    /// Widens `LANES` f16.
    unsafe fn load_f16(p: *const u16) -> Self::Floats;
    /// Rounds to `LANES` f16, ties to even.
    unsafe fn store_f16(p: *mut u16, a: Self::Floats);
    /// Widens `LANES` unsigned bytes.
    unsafe fn load_u8(p: *const u8) -> Self::Floats;

    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn sub(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn div(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane by lane; where one is NaN the result is `b`.
    unsafe fn max(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane by lane; where one is NaN the result is `b`.
    unsafe fn min(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn abs(a: Self::Floats) -> Self::Floats;
    /// `a * b + c`, fused where the instruction set can.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Nearest whole number, ties to even; |a| below 2^22.
    unsafe fn round(a: Self::Floats) -> Self::Floats;
    /// 2^a for whole numbers -126..=127.
    unsafe fn pow2(a: Self::Floats) -> Self::Floats;
    unsafe fn sum(a: Self::Floats) -> f32;
    /// [`Simd::sum`] of each, to the bit.
    #[inline(always)]
    unsafe fn sums(a: [Self::Floats; 4]) -> [f32; 4] {
        // SAFETY: passed on from the caller.
        unsafe { [Self::sum(a[0]), Self::sum(a[1]), Self::sum(a[2]), Self::sum(a[3])] }
    }
    unsafe fn largest(a: Self::Floats) -> f32;

    unsafe fn zero() -> Self::Ints;
    unsafe fn load_ints(p: *const u32) -> Self::Ints;
    unsafe fn store_ints(p: *mut u32, a: Self::Ints);
    /// The word at `p` in every lane.
    unsafe fn broadcast(p: *const u32) -> Self::Ints;
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn sub_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Signed integers as f32.
    unsafe fn to_floats(a: Self::Ints) -> Self::Floats;
    /// The low half of each word as bf16.
    unsafe fn low_bf16(a: Self::Ints) -> Self::Floats;
    /// The high half of each word as bf16.
    unsafe fn high_bf16(a: Self::Ints) -> Self::Floats;
    /// Word i of LANES rows, `stride` bytes apart, as vector i. Reads 32 bytes of each row with
    /// WHOLE; else only the first `words` words, and the vectors after them mean nothing.
    unsafe fn transpose<const WHOLE: bool>(
        rows: *const u8,
        stride: usize,
        words: usize,
    ) -> [Self::Ints; 8];
    /// `a >> bits & mask` in each word.
    unsafe fn shift_and(a: Self::Ints, bits: u32, mask: u32) -> Self::Ints;
    /// `low | high << 16` in each word.
    unsafe fn join(low: Self::Ints, high: Self::Ints) -> Self::Ints;
    /// `acc + Σ w·x` over the two i16 of each word.
    unsafe fn dot_words(acc: Self::Ints, w: Self::Ints, x: Self::Ints) -> Self::Ints;
    /// `acc + Σ (x₀ + w₁)·(x₁ + w₀)` over the two i16 of each word, modulo 2^32, where no sum leaves
    /// i16: `Σ w₀·x₀ + w₁·x₁`, and besides `Σ w₀·w₁ + x₀·x₁`.
    #[inline(always)]
    unsafe fn dot_pair(_: Self::Ints, _: [Self::Ints; 2], _: [Self::Ints; 2]) -> Self::Ints {
        unreachable!("not PAIRED")
    }
    /// `acc + Σ n₀·n₁` over the four pairs of neighbouring nibbles of each word.
    #[inline(always)]
    unsafe fn dot_nibbles(_: Self::Ints, _: Self::Ints) -> Self::Ints {
        unreachable!("not PAIRED")
    }
    /// A run of a row's packed elements as unsigned bytes, even ones and odd ones: 8 LANES elements
    /// from `p` on with WHOLE, else 64 and then zeros.
    unsafe fn even_odd<const BITS: usize, const WHOLE: bool>(p: *const u8) -> [Self::Ints; 2];
    /// `Σ w·x` over the eight elements of each lane: four bytes of `even` elements and four of `odd`
    /// ones times integers in four planes of signed bytes, [low even, low odd, high even, high odd].
    unsafe fn dot_bytes<const BITS: usize>(w: [Self::Ints; 2], x: [Self::Ints; 4]) -> Self::Ints;
    /// Sums over each four lanes for four rows: lane 4 i + j of the result is the sum of lanes
    /// 4 i .. 4 i + 4 of `rows[j]`.
    unsafe fn side_sums(rows: [Self::Ints; 4]) -> Self::Ints;
    /// For each UNIT elements of a run, 32 or 64, the sums over its lanes for LANES rows: lane i of
    /// the results is row i's. `sides` are the LANES / 4 [`Simd::side_sums`] of these rows; what is
    /// behind them is not read. 8 LANES / UNIT results, in order.
    unsafe fn unit_sums<const UNIT: usize>(sides: [Self::Ints; 4]) -> [Self::Ints; 4];
    /// Rounds 64 `x * factor` to i16, each eight in the order 0 4 1 5 2 6 3 7, and their bytes to
    /// the four `planes` of [`Simd::dot_bytes`], 32 each.
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16, planes: [*mut i8; 4]);
    /// Asks for the cache line at `p` to come into the first-level cache; any address will do.
    unsafe fn prefetch_near(p: *const u8);
    /// Asks for the cache line at `p` to come into the second-level cache; any address will do.
    unsafe fn prefetch(p: *const u8);
}

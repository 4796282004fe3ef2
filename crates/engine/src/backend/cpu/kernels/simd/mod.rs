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
    /// 64 elements of i16, evens before odds.
    type Block: Copy;
    /// What `unpack4` takes nibbles apart with.
    type Nibbles: Copy;

    /// Number of f32 in `Floats`: 8 or 16.
    const LANES: usize;
    /// Output rows that a product with one activation row walks together.
    const GEMV_OUTPUTS: usize;

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
    unsafe fn largest(a: Self::Floats) -> f32;

    /// Made once before a loop. Opaque to the compiler, which would otherwise take bytes apart
    /// before it widens them: twice the instructions.
    unsafe fn nibbles() -> Self::Nibbles;
    /// Unpacks 64 elements of 4 bits: reads 32 bytes.
    unsafe fn unpack4(p: *const u8, nibbles: Self::Nibbles) -> Self::Block;
    /// Unpacks 64 elements of 8 bits: reads 64 bytes.
    unsafe fn unpack8(p: *const u8) -> Self::Block;
    /// Reads 64 i16.
    unsafe fn load_block(p: *const i16) -> Self::Block;
    /// Writes 64 i16.
    unsafe fn store_block(p: *mut i16, a: Self::Block);
    /// `acc + scale_w · (scale_x · Σ a·b)` over a block, spread over the lanes in a fixed way; the
    /// sums of products are exact. With `HALVES`, `scale_w[0]` is for the first 32 elements of
    /// the block and `scale_w[1]` for the others. `b` points at 64 i16.
    unsafe fn dot<const HALVES: bool>(
        acc: Self::Floats,
        a: Self::Block,
        b: *const i16,
        scale_x: Self::Floats,
        scale_w: *const f32,
    ) -> Self::Floats;
    /// Rounds `x * factor` to i16 and puts evens before odds: reads 64 f32, writes 64 i16.
    unsafe fn quantize(x: *const f32, factor: f32, out: *mut i16);
    /// Asks for the cache line at `p` ahead of its use; any address will do.
    unsafe fn prefetch(p: *const u8);
}

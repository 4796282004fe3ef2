//! Norms, gates and other operations on vectors of f32.

use super::simd::Simd;

/// A lane-wise operation. A trait and not a closure: only what is `#[inline(always)]` is sure to
/// be compiled with the features of the wrapper.
trait Binary<S: Simd>: Copy {
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn apply(self, x: S::Floats, y: S::Floats) -> S::Floats;
}

/// Names a lane-wise operation of `x` and `y`, perhaps with a constant `c`.
macro_rules! binary {
    ($name:ident($($c:ident)?), $simd:ident, $x:ident, $y:ident => $body:expr) => {
        #[derive(Clone, Copy)]
        struct $name { $($c: f32)? }

        impl<$simd: Simd> Binary<$simd> for $name {
            #[inline(always)]
            unsafe fn apply(self, $x: $simd::Floats, $y: $simd::Floats) -> $simd::Floats {
                $(let $c = self.$c;)?
                // SAFETY: passed on from the caller.
                unsafe { $body }
            }
        }
    };
}

binary!(Add(), S, x, y => S::add(x, y));
binary!(AddScaled(c), S, x, y => S::fma(S::splat(c), y, x));
binary!(ScaleMul(c), S, x, y => S::mul(S::mul(x, S::splat(c)), y));
binary!(SiluMul(), S, x, y => S::mul(silu::<S>(x), y));
binary!(MulSilu(), S, x, y => S::mul(x, silu::<S>(y)));
binary!(MulSigmoid(), S, x, y => S::mul(x, sigmoid::<S>(y)));

/// `x ← op(x, y)` in whole vectors, the rest in zero-padded copies.
///
/// # Safety
/// The slices are equally long; the processor has the instruction set.
#[inline(always)]
unsafe fn map2<S: Simd>(x: &mut [f32], y: &[f32], op: impl Binary<S>) {
    debug_assert_eq!(x.len(), y.len());
    let whole = x.len() - x.len() % S::LANES;
    // SAFETY: whole vectors lie inside the slices; the rest goes through buffers of 16.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            let p = x.as_mut_ptr().add(at);
            S::store(p, op.apply(S::load(p), S::load(y.as_ptr().add(at))));
        }
        if whole < x.len() {
            let (a, b) = (padded(&x[whole..]), padded(&y[whole..]));
            let mut out = [0.0; 16];
            S::store(out.as_mut_ptr(), op.apply(S::load(a.as_ptr()), S::load(b.as_ptr())));
            let rest = x.len() - whole;
            x[whole..].copy_from_slice(&out[..rest]);
        }
    }
}

#[inline(always)]
fn padded(rest: &[f32]) -> [f32; 16] {
    let mut out = [0.0; 16];
    out[..rest.len()].copy_from_slice(rest);
    out
}

/// `Σ x·y` in one vector of partial sums.
///
/// # Safety
/// The slices are equally long; the processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd>(x: &[f32], y: &[f32]) -> f32 {
    debug_assert_eq!(x.len(), y.len());
    let whole = x.len() - x.len() % S::LANES;
    // SAFETY: whole vectors lie inside the slices; the rest goes through buffers of 16.
    unsafe {
        let mut acc = S::splat(0.0);
        for at in (0..whole).step_by(S::LANES) {
            acc = S::fma(S::load(x.as_ptr().add(at)), S::load(y.as_ptr().add(at)), acc);
        }
        if whole < x.len() {
            let (a, b) = (padded(&x[whole..]), padded(&y[whole..]));
            acc = S::fma(S::load(a.as_ptr()), S::load(b.as_ptr()), acc);
        }
        S::sum(acc)
    }
}

/// The sum of each vector.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn sums_of<S: Simd, const N: usize>(vectors: [S::Floats; N]) -> [f32; N] {
    let mut sums = [0.0; N];
    // SAFETY: passed on from the caller.
    unsafe {
        let mut at = 0;
        while at + 4 <= N {
            let four = [vectors[at], vectors[at + 1], vectors[at + 2], vectors[at + 3]];
            sums[at..at + 4].copy_from_slice(&S::sums(four));
            at += 4;
        }
        while at < N {
            sums[at] = S::sum(vectors[at]);
            at += 1;
        }
    }
    sums
}

/// `x ← x · factor`
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn scale<S: Simd>(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

#[inline(always)]
pub(super) unsafe fn rms_norm<S: Simd>(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: passed on from the caller, who checked the lengths.
    unsafe {
        let factor = 1.0 / (dot::<S>(x, x) / x.len() as f32 + eps).sqrt();
        out.copy_from_slice(x);
        map2::<S>(out, gain, ScaleMul { c: factor });
    }
}

#[inline(always)]
pub(super) unsafe fn l2_norm<S: Simd>(x: &mut [f32], eps: f32, factor: f32) {
    // SAFETY: passed on from the caller.
    unsafe {
        let factor = factor / (dot::<S>(x, x) + eps).sqrt();
        scale::<S>(x, factor);
    }
}

#[inline(always)]
pub(super) unsafe fn silu_mul<S: Simd>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: passed on from the caller, who checked the lengths.
    unsafe { map2::<S>(gate, up, SiluMul {}) }
}

#[inline(always)]
pub(super) unsafe fn mul_silu<S: Simd>(x: &mut [f32], gate: &[f32]) {
    // SAFETY: passed on from the caller, who checked the lengths.
    unsafe { map2::<S>(x, gate, MulSilu {}) }
}

#[inline(always)]
pub(super) unsafe fn mul_sigmoid<S: Simd>(x: &mut [f32], gate: &[f32]) {
    // SAFETY: passed on from the caller, who checked the lengths.
    unsafe { map2::<S>(x, gate, MulSigmoid {}) }
}

#[inline(always)]
pub(super) unsafe fn add<S: Simd>(x: &mut [f32], y: &[f32]) {
    // SAFETY: passed on from the caller, who checked the lengths.
    unsafe { map2::<S>(x, y, Add {}) }
}

#[inline(always)]
pub(super) unsafe fn add_scaled<S: Simd>(x: &mut [f32], factor: f32, y: &[f32]) {
    // SAFETY: passed on from the caller, who checked the lengths.
    unsafe { map2::<S>(x, y, AddScaled { c: factor }) }
}

#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(x: &mut [f32]) {
    let peak = x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    // SAFETY: the processor has the instruction set; whole vectors lie inside the slice, the
    // rest goes through buffers of 16.
    unsafe {
        let peak = S::splat(peak);
        let whole = x.len() - x.len() % S::LANES;
        let mut sum = S::splat(0.0);
        for at in (0..whole).step_by(S::LANES) {
            let p = x.as_mut_ptr().add(at);
            let e = exp::<S>(S::sub(S::load(p), peak));
            sum = S::add(sum, e);
            S::store(p, e);
        }
        let mut total = S::sum(sum);
        let rest = padded(&x[whole..]);
        let mut out = [0.0; 16];
        S::store(out.as_mut_ptr(), exp::<S>(S::sub(S::load(rest.as_ptr()), peak)));
        for (x, e) in x[whole..].iter_mut().zip(out) {
            *x = e;
            total += e;
        }
        scale::<S>(x, 1.0 / total);
    }
}

/// `out = silu(Σ_t weights[t] · inputs[t])`, taps in order.
#[inline(always)]
pub(super) unsafe fn conv_silu<S: Simd>(taps: &[(&[f32], &[f32])], out: &mut [f32]) {
    let whole = out.len() - out.len() % S::LANES;
    // SAFETY: passed on from the caller, who checked that every slice is as long as `out`; whole
    // vectors lie inside, the rest goes through buffers of 16.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            let mut acc = S::splat(0.0);
            for (weights, inputs) in taps {
                let (w, x) = (weights.as_ptr().add(at), inputs.as_ptr().add(at));
                acc = S::fma(S::load(w), S::load(x), acc);
            }
            S::store(out.as_mut_ptr().add(at), silu::<S>(acc));
        }
        if whole < out.len() {
            let mut acc = S::splat(0.0);
            for (weights, inputs) in taps {
                let (w, x) = (padded(&weights[whole..]), padded(&inputs[whole..]));
                acc = S::fma(S::load(w.as_ptr()), S::load(x.as_ptr()), acc);
            }
            let mut lanes = [0.0; 16];
            S::store(lanes.as_mut_ptr(), silu::<S>(acc));
            let rest = out.len() - whole;
            out[whole..].copy_from_slice(&lanes[..rest]);
        }
    }
}

/// Turns pairs `(i, i + cos.len())` of a head by the given angles; further dimensions stay.
#[inline(always)]
pub(super) unsafe fn rope<S: Simd>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[inline(always)]
pub(super) unsafe fn store_f16<S: Simd>(x: &[f32], out: &mut [u16]) {
    let whole = x.len() - x.len() % S::LANES;
    // SAFETY: whole vectors lie inside the slices; the rest goes through buffers of 16.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            S::store_f16(out.as_mut_ptr().add(at), S::load(x.as_ptr().add(at)));
        }
        let mut rest = [0u16; 16];
        S::store_f16(rest.as_mut_ptr(), S::load(padded(&x[whole..]).as_ptr()));
        let n = x.len() - whole;
        out[whole..].copy_from_slice(&rest[..n]);
    }
}

/// `x · sigmoid(x)`
#[inline(always)]
unsafe fn silu<S: Simd>(x: S::Floats) -> S::Floats {
    // SAFETY: passed on from the caller.
    unsafe { S::mul(x, sigmoid::<S>(x)) }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
unsafe fn sigmoid<S: Simd>(x: S::Floats) -> S::Floats {
    // SAFETY: passed on from the caller.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// e^x: x = n·ln 2 + r with |r| ≤ ln 2 / 2, e^r by its Taylor series to r^7 (error below 1e-8
/// relative), times 2^n. Saturates outside ±87: e^-87 = 1.6e-38 stands for all below.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::Floats) -> S::Floats {
    // ln 2 in two parts: the first has trailing zeros, so n times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: passed on from the caller; n lies in -126..=126.
    unsafe {
        // NaN is the second operand's to give: it passes through.
        let x = S::min(S::splat(87.0), S::max(S::splat(-87.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-LN_2_HIGH), x);
        let r = S::fma(n, S::splat(-LN_2_LOW), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(c));
        }
        S::mul(p, S::pow2(n))
    }
}

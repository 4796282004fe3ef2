//! One token's step of a Gated DeltaNet value head.

use super::{DeltaStep, elementwise, simd::Simd};

/// Rows of the state that are walked together, sharing the loads of q and k.
const ROWS: usize = 4;

/// `S ← g·S;  δ = β·(v − S·k);  S ← S + δ⊗k;  o = S·q`, row by row.
///
/// A row's `S·k` and `S·q` come from one pass, because `S'·q = g·(S·q) + δ·(k·q)`; the second
/// pass finds the row in L1. So the state crosses the memory bus once in each direction.
///
/// # Safety
/// The caller checked the lengths: state [v, k], q and k [k], v and out [v].
#[inline(always)]
pub(super) unsafe fn delta_step<S: Simd>(step: &DeltaStep<'_>, state: &mut [f32], out: &mut [f32]) {
    let key_dim = step.k.len();
    let mut row = 0;
    // SAFETY: rows stay below value_dim; passed on from the caller.
    unsafe {
        let kq = elementwise::dot::<S>(step.k, step.q);
        if key_dim.is_multiple_of(S::LANES) {
            while row + ROWS <= out.len() {
                let p = state.as_mut_ptr().add(row * key_dim);
                rows::<S, ROWS>(step, kq, p, row, out);
                row += ROWS;
            }
            while row < out.len() {
                let p = state.as_mut_ptr().add(row * key_dim);
                rows::<S, 1>(step, kq, p, row, out);
                row += 1;
            }
        } else {
            for (row, state) in state.chunks_exact_mut(key_dim).enumerate() {
                let sk = elementwise::dot::<S>(state, step.k);
                let sq = elementwise::dot::<S>(state, step.q);
                let delta = step.beta * (step.v[row] - step.decay * sk);
                elementwise::scale::<S>(state, step.decay);
                elementwise::add_scaled::<S>(state, delta, step.k);
                out[row] = step.decay * sq + delta * kq;
            }
        }
    }
}

#[inline(always)]
unsafe fn rows<S: Simd, const ROWS: usize>(
    step: &DeltaStep<'_>,
    kq: f32,
    state: *mut f32, // [ROWS, key_dim]
    first: usize,
    out: &mut [f32],
) {
    let key_dim = step.k.len();
    let (k, q) = (step.k.as_ptr(), step.q.as_ptr());
    // SAFETY: key_dim is a multiple of LANES and the state has ROWS rows from here on.
    unsafe {
        let mut sk = [S::splat(0.0); ROWS];
        let mut sq = [S::splat(0.0); ROWS];
        for at in (0..key_dim).step_by(S::LANES) {
            let (k, q) = (S::load(k.add(at)), S::load(q.add(at)));
            for row in 0..ROWS {
                let s = S::load(state.add(row * key_dim + at));
                sk[row] = S::fma(s, k, sk[row]);
                sq[row] = S::fma(s, q, sq[row]);
            }
        }
        let (sk, sq) = (elementwise::sums_of::<S, ROWS>(sk), elementwise::sums_of::<S, ROWS>(sq));
        let mut delta = [S::splat(0.0); ROWS];
        for row in 0..ROWS {
            let d = step.beta * (step.v[first + row] - step.decay * sk[row]);
            out[first + row] = step.decay * sq[row] + d * kq;
            delta[row] = S::splat(d);
        }
        let decay = S::splat(step.decay);
        for at in (0..key_dim).step_by(S::LANES) {
            let k = S::load(k.add(at));
            for (row, &delta) in delta.iter().enumerate() {
                let p = state.add(row * key_dim + at);
                S::store(p, S::fma(delta, k, S::mul(decay, S::load(p))));
            }
        }
    }
}

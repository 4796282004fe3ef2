//! A run of tokens through the state of a Gated DeltaNet value head.

use std::ops::Range;

use super::{DeltaRun, elementwise, simd::Simd};

/// Tokens that pass over some rows of the state before the next rows' turn.
const TOKENS: usize = 64;

/// Vectors of a row that registers hold, where there are enough of them.
const VECTORS: usize = 8;

/// Such rows at a time: with their sums 30 vectors.
const HELD_ROWS: usize = 3;

/// Rows that all tokens pass over where registers hold none: 16 KB with keys of 128, so that they
/// stay in the first-level cache.
const CACHED_ROWS: usize = 32;

/// Of these, rows that are walked together, sharing the loads of q and k.
const WALKED_ROWS: usize = 4;

/// `S ← g·S;  δ = β·(v − S·k);  S ← S + δ⊗k;  o = S·q`, row by row.
///
/// A row's `S·k` and `S·q` come from one pass, because `S'·q = g·(S·q) + δ·(k·q)`. Rows do not
/// depend on each other, so some rows see all tokens before others see the first.
///
/// # Safety
/// The caller checked the lengths: see [`DeltaRun`]; the state is [v, k], `out` has v floats for each
/// token.
#[inline(always)]
pub(super) unsafe fn delta_run<S: Simd>(
    run: &DeltaRun<'_>,
    state: &mut [f32],
    out: &mut [f32],
    out_stride: usize,
) {
    let (key_dim, tokens) = (run.key_dim, run.decays.len());
    let value_dim = state.len() / key_dim;
    for first in (0..tokens).step_by(TOKENS) {
        let tokens = first..tokens.min(first + TOKENS);
        let mut kq = [0.0f32; TOKENS];
        for (kq, token) in kq.iter_mut().zip(tokens.clone()) {
            // SAFETY: passed on from the caller.
            *kq = unsafe { elementwise::dot::<S>(run.key(token), run.query(token)) };
        }
        // SAFETY: passed on from the caller; rows stay below value_dim.
        unsafe {
            if S::LANES == 16 && key_dim == VECTORS * S::LANES {
                let mut row = 0;
                while row + HELD_ROWS <= value_dim {
                    hold::<S, HELD_ROWS>(run, tokens.clone(), &kq, state, row, out, out_stride);
                    row += HELD_ROWS;
                }
                while row < value_dim {
                    hold::<S, 1>(run, tokens.clone(), &kq, state, row, out, out_stride);
                    row += 1;
                }
                continue;
            }
            for row in (0..value_dim).step_by(CACHED_ROWS) {
                let end = value_dim.min(row + CACHED_ROWS);
                let rows = &mut state[row * key_dim..end * key_dim];
                for (token, &kq) in tokens.clone().zip(&kq) {
                    let out = &mut out[token * out_stride..][row..end];
                    walk::<S>(run, token, kq, rows, row, out);
                }
            }
        }
    }
}

/// Takes ROWS rows of VECTORS vectors through the tokens in registers.
#[inline(always)]
unsafe fn hold<S: Simd, const ROWS: usize>(
    run: &DeltaRun<'_>,
    tokens: Range<usize>,
    kq: &[f32; TOKENS],
    state: &mut [f32], // [v, k]
    first: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let key_dim = VECTORS * S::LANES;
    let state = state[first * key_dim..][..ROWS * key_dim].as_mut_ptr();
    // SAFETY: the state has ROWS rows from `first` on, q and k are as wide.
    unsafe {
        let mut s = [[S::splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            for i in 0..VECTORS {
                s[row][i] = S::load(state.add(row * key_dim + i * S::LANES));
            }
        }
        for (token, &kq) in tokens.zip(kq) {
            let (k, q) = (run.key(token).as_ptr(), run.query(token).as_ptr());
            let (mut sk, mut sq) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
            for i in 0..VECTORS {
                let (k, q) = (S::load(k.add(i * S::LANES)), S::load(q.add(i * S::LANES)));
                for row in 0..ROWS {
                    sk[row] = S::fma(s[row][i], k, sk[row]);
                    sq[row] = S::fma(s[row][i], q, sq[row]);
                }
            }
            let (sk, sq) = (S::sums(sk), S::sums(sq));
            let mut delta = [S::splat(0.0); ROWS];
            for row in 0..ROWS {
                let (d, o) = run.outcome(token, first + row, sk[row], sq[row], kq);
                out[token * out_stride + first + row] = o;
                delta[row] = S::splat(d);
            }
            let decay = S::splat(run.decays[token]);
            for i in 0..VECTORS {
                let k = S::load(k.add(i * S::LANES));
                for row in 0..ROWS {
                    s[row][i] = S::fma(delta[row], k, S::mul(decay, s[row][i]));
                }
            }
        }
        for row in 0..ROWS {
            for i in 0..VECTORS {
                S::store(state.add(row * key_dim + i * S::LANES), s[row][i]);
            }
        }
    }
}

/// Takes some rows through one token.
#[inline(always)]
unsafe fn walk<S: Simd>(
    run: &DeltaRun<'_>,
    token: usize,
    kq: f32,
    state: &mut [f32], // [rows, k]
    first: usize,
    out: &mut [f32], // [rows]
) {
    let key_dim = run.key_dim;
    let mut row = 0;
    // SAFETY: rows stay below those of the state; passed on from the caller.
    unsafe {
        if key_dim.is_multiple_of(S::LANES) {
            while row + WALKED_ROWS <= out.len() {
                let p = state.as_mut_ptr().add(row * key_dim);
                rows::<S, WALKED_ROWS>(run, token, kq, p, first + row, &mut out[row..]);
                row += WALKED_ROWS;
            }
            while row < out.len() {
                let p = state.as_mut_ptr().add(row * key_dim);
                rows::<S, 1>(run, token, kq, p, first + row, &mut out[row..]);
                row += 1;
            }
        } else {
            let (k, q) = (run.key(token), run.query(token));
            for ((state, out), row) in state.chunks_exact_mut(key_dim).zip(out).zip(first..) {
                let (sk, sq) = (elementwise::dot::<S>(state, k), elementwise::dot::<S>(state, q));
                let (delta, o) = run.outcome(token, row, sk, sq, kq);
                *out = o;
                elementwise::scale::<S>(state, run.decays[token]);
                elementwise::add_scaled::<S>(state, delta, k);
            }
        }
    }
}

/// Takes ROWS rows through one token; the second pass finds them in the first-level cache.
#[inline(always)]
unsafe fn rows<S: Simd, const ROWS: usize>(
    run: &DeltaRun<'_>,
    token: usize,
    kq: f32,
    state: *mut f32, // [ROWS, k]
    first: usize,
    out: &mut [f32], // [ROWS]
) {
    let key_dim = run.key_dim;
    let (k, q) = (run.key(token).as_ptr(), run.query(token).as_ptr());
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
            let (d, o) = run.outcome(token, first + row, sk[row], sq[row], kq);
            out[row] = o;
            delta[row] = S::splat(d);
        }
        let decay = S::splat(run.decays[token]);
        for at in (0..key_dim).step_by(S::LANES) {
            let k = S::load(k.add(at));
            for (row, &delta) in delta.iter().enumerate() {
                let p = state.add(row * key_dim + at);
                S::store(p, S::fma(delta, k, S::mul(decay, S::load(p))));
            }
        }
    }
}

impl DeltaRun<'_> {
    #[inline(always)]
    fn query(&self, token: usize) -> &[f32] {
        &self.queries[token * self.stride..][..self.key_dim]
    }

    #[inline(always)]
    fn key(&self, token: usize) -> &[f32] {
        &self.keys[token * self.stride..][..self.key_dim]
    }

    /// A row's δ and o, from the products of its old state.
    #[inline(always)]
    fn outcome(&self, token: usize, row: usize, sk: f32, sq: f32, kq: f32) -> (f32, f32) {
        let decay = self.decays[token];
        let delta = self.betas[token] * (self.values[token * self.stride + row] - decay * sk);
        (delta, decay * sq + delta * kq)
    }
}

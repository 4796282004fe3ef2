//! Softmax attention over a run of cached tokens, for the query heads that share a KV head.

use super::{AttendBlock, Running, elementwise::exp, simd::Simd};

/// Tokens whose scores are taken before the softmax is brought up to date. Anchored at the
/// start of the run.
const TOKENS: usize = 16;
/// Query heads that share the loads of keys and values.
const HEADS: usize = 4;

/// # Safety
/// The caller checked the lengths; `T` is the element type of both caches.
#[inline(always)]
pub(super) unsafe fn attend<S: Simd, T: Element>(
    block: &AttendBlock<'_>,
    keys: &[T],
    values: &[T],
    running: &mut Running<'_>,
) {
    let heads = running.max.len();
    let mut first = 0;
    while first < block.tokens {
        let count = TOKENS.min(block.tokens - first);
        let tile = Tile {
            keys: keys[first * block.stride..].as_ptr(),
            values: values[first * block.stride..].as_ptr(),
            count,
        };
        let mut head = 0;
        // SAFETY: heads below `heads`; the tile's tokens lie inside the caches.
        unsafe {
            while head + HEADS <= heads {
                attend_tile::<S, T, HEADS>(block, &tile, head, running);
                head += HEADS;
            }
            while head < heads {
                attend_tile::<S, T, 1>(block, &tile, head, running);
                head += 1;
            }
        }
        first += count;
    }
}

/// What a KV cache holds: f32, or f16 as its bits.
pub(super) trait Element: Copy {
    /// # Safety
    /// As for [`Simd::load`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::Floats;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::Floats {
        // SAFETY: passed on from the caller.
        unsafe { S::load(p) }
    }
}

impl Element for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u16) -> S::Floats {
        // SAFETY: passed on from the caller.
        unsafe { S::load_f16(p) }
    }
}

struct Tile<T> {
    keys: *const T,   // [count, stride]
    values: *const T, // [count, stride]
    count: usize,
}

#[inline(always)]
unsafe fn attend_tile<S: Simd, T: Element, const HEADS: usize>(
    block: &AttendBlock<'_>,
    tile: &Tile<T>,
    head: usize,
    running: &mut Running<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut scores = [[0.0f32; TOKENS]; HEADS];
        score::<S, T, HEADS>(block, tile, head, &mut scores);
        let mut correction = [0.0f32; HEADS];
        for (h, scores) in scores.iter_mut().enumerate() {
            let (max, sum) = (&mut running.max[head + h], &mut running.sum[head + h]);
            correction[h] = update::<S>(scores, tile.count, max, sum);
        }
        accumulate::<S, T, HEADS>(block, tile, &scores, &correction, head, running.acc);
    }
}

/// `scores[h][t] = scale · q_h · k_t`
#[inline(always)]
unsafe fn score<S: Simd, T: Element, const HEADS: usize>(
    block: &AttendBlock<'_>,
    tile: &Tile<T>,
    head: usize,
    scores: &mut [[f32; TOKENS]; HEADS],
) {
    let dim = block.head_dim;
    for token in 0..tile.count {
        // SAFETY: `attend`'s caller gives a head_dim that is a multiple of LANES.
        unsafe {
            let key = tile.keys.add(token * block.stride);
            let mut acc = [S::splat(0.0); HEADS];
            for at in (0..dim).step_by(S::LANES) {
                let key = T::load::<S>(key.add(at));
                for (h, acc) in acc.iter_mut().enumerate() {
                    let query = S::load(block.queries.as_ptr().add((head + h) * dim + at));
                    *acc = S::fma(query, key, *acc);
                }
            }
            for (scores, acc) in scores.iter_mut().zip(acc) {
                scores[token] = block.scale * S::sum(acc);
            }
        }
    }
}

/// Turns scores into weights relative to the new maximum (zero beyond `count`), updates the
/// running values and returns the factor for what was accumulated before.
#[inline(always)]
unsafe fn update<S: Simd>(
    scores: &mut [f32; TOKENS],
    count: usize,
    max: &mut f32,
    sum: &mut f32,
) -> f32 {
    let peak = scores[..count].iter().fold(*max, |m, &s| m.max(s));
    // SAFETY: vectors lie inside the 16 scores and the buffer.
    unsafe {
        let mut first = [0.0f32; 16];
        S::store(first.as_mut_ptr(), exp::<S>(S::splat(*max - peak)));
        let correction = first[0];
        for at in (0..TOKENS).step_by(S::LANES) {
            let p = scores.as_mut_ptr().add(at);
            S::store(p, exp::<S>(S::sub(S::load(p), S::splat(peak))));
        }
        scores[count..].fill(0.0);
        let mut total = S::splat(0.0);
        for at in (0..TOKENS).step_by(S::LANES) {
            total = S::add(total, S::load(scores.as_ptr().add(at)));
        }
        *max = peak;
        *sum = *sum * correction + S::sum(total);
        correction
    }
}

/// `acc_h ← correction_h · acc_h + Σ_t scores[h][t] · v_t`
#[inline(always)]
unsafe fn accumulate<S: Simd, T: Element, const HEADS: usize>(
    block: &AttendBlock<'_>,
    tile: &Tile<T>,
    scores: &[[f32; TOKENS]; HEADS],
    correction: &[f32; HEADS],
    head: usize,
    acc: &mut [f32],
) {
    let dim = block.head_dim;
    for at in (0..dim).step_by(S::LANES) {
        // SAFETY: as in `score`; `acc` has head_dim places for each head.
        unsafe {
            let place = acc.as_mut_ptr().add(head * dim + at);
            let mut sums = [S::splat(0.0); HEADS];
            for (h, sums) in sums.iter_mut().enumerate() {
                *sums = S::mul(S::load(place.add(h * dim)), S::splat(correction[h]));
            }
            for token in 0..tile.count {
                let value = T::load::<S>(tile.values.add(token * block.stride + at));
                for (h, sums) in sums.iter_mut().enumerate() {
                    *sums = S::fma(S::splat(scores[h][token]), value, *sums);
                }
            }
            for (h, sums) in sums.into_iter().enumerate() {
                S::store(place.add(h * dim), sums);
            }
        }
    }
}

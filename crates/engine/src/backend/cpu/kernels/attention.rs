//! Softmax attention over a run of cached tokens, for the query heads that share a KV head.

use std::ptr;

use super::{
    AttendBlock, Running,
    elementwise::{exp, sums_of},
    simd::Simd,
};

/// Tokens whose scores are taken before the softmax is brought up to date. Anchored at the
/// start of the run.
const TOKENS: usize = 32;
/// Query heads that share the loads of keys and values where registers, or heads, are few.
const HEADS: usize = 4;
/// The same with vectors of 16 lanes, of which there are 32.
const HEADS_WIDE: usize = 8;

/// # Safety
/// The caller checked the lengths; `T` is the element type of both caches.
#[inline(always)]
pub(super) unsafe fn attend<S: Simd, T: Element>(
    block: &AttendBlock<'_>,
    keys: &[T],
    values: &[T],
    running: &mut Running<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match &block.next {
            Some([next_keys, next_values]) => {
                let next = [next_keys.as_ptr().cast(), next_values.as_ptr().cast()];
                attend_tiles::<S, T, true>(block, keys, values, next, running);
            }
            None => attend_tiles::<S, T, false>(block, keys, values, [ptr::null(); 2], running),
        }
    }
}

/// With AHEAD `next` are the keys and values to ask for.
#[inline(always)]
unsafe fn attend_tiles<S: Simd, T: Element, const AHEAD: bool>(
    block: &AttendBlock<'_>,
    keys: &[T],
    values: &[T],
    [next_keys, next_values]: [*const T; 2],
    running: &mut Running<'_>,
) {
    let heads = running.max.len();
    let mut first = 0;
    while first < block.tokens {
        let count = TOKENS.min(block.tokens - first);
        let at = first * block.stride;
        let tile = Tile::<T, AHEAD> {
            keys: keys[at..].as_ptr(),
            values: values[at..].as_ptr(),
            count,
            next_keys: next_keys.wrapping_add(at),
            next_values: next_values.wrapping_add(at),
        };
        let mut head = 0;
        // SAFETY: heads below `heads`; the tile's tokens lie inside the caches.
        unsafe {
            while S::LANES == 16 && head + HEADS_WIDE <= heads {
                attend_tile::<S, T, HEADS_WIDE, AHEAD>(block, &tile, head, running);
                head += HEADS_WIDE;
            }
            while head + HEADS <= heads {
                attend_tile::<S, T, HEADS, AHEAD>(block, &tile, head, running);
                head += HEADS;
            }
            while head < heads {
                attend_tile::<S, T, 1, AHEAD>(block, &tile, head, running);
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

struct Tile<T, const AHEAD: bool> {
    keys: *const T,   // [count, stride]
    values: *const T, // [count, stride]
    count: usize,
    next_keys: *const T,   // [count, stride] what is asked for meanwhile
    next_values: *const T, // [count, stride]
}

/// With AHEAD asks for the cache line of the next tile's place that corresponds to element `at` of
/// this one, when it begins there.
#[inline(always)]
unsafe fn ask<S: Simd, T, const AHEAD: bool>(next: *const T, at: usize) {
    if AHEAD && (at * size_of::<T>()).is_multiple_of(64) {
        // SAFETY: prefetched addresses need not exist.
        unsafe { S::prefetch(next.wrapping_add(at).cast()) }
    }
}

#[inline(always)]
unsafe fn attend_tile<S: Simd, T: Element, const HEADS: usize, const AHEAD: bool>(
    block: &AttendBlock<'_>,
    tile: &Tile<T, AHEAD>,
    head: usize,
    running: &mut Running<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut scores = [[0.0f32; TOKENS]; HEADS];
        score::<S, T, HEADS, AHEAD>(block, tile, head, &mut scores);
        let mut correction = [0.0f32; HEADS];
        for (h, scores) in scores.iter_mut().enumerate() {
            let (max, sum) = (&mut running.max[head + h], &mut running.sum[head + h]);
            correction[h] = update::<S>(scores, tile.count, max, sum);
        }
        accumulate::<S, T, HEADS, AHEAD>(block, tile, &scores, &correction, head, running.acc);
    }
}

/// `scores[h][t] = scale · q_h · k_t`
#[inline(always)]
unsafe fn score<S: Simd, T: Element, const HEADS: usize, const AHEAD: bool>(
    block: &AttendBlock<'_>,
    tile: &Tile<T, AHEAD>,
    head: usize,
    scores: &mut [[f32; TOKENS]; HEADS],
) {
    let dim = block.head_dim;
    let mut token = 0;
    // SAFETY: `attend`'s caller gives a head_dim that is a multiple of LANES.
    unsafe {
        macro_rules! tokens_of {
            ($tokens:literal) => {
                while tile.count - token >= $tokens {
                    let mut acc = [[S::splat(0.0); HEADS]; $tokens];
                    for at in (0..dim).step_by(S::LANES) {
                        let mut keys = [S::splat(0.0); $tokens];
                        for t in 0..$tokens {
                            let at = (token + t) * block.stride + at;
                            keys[t] = T::load::<S>(tile.keys.add(at));
                            ask::<S, T, AHEAD>(tile.next_keys, at);
                        }
                        for h in 0..HEADS {
                            let query = S::load(block.queries.as_ptr().add((head + h) * dim + at));
                            for t in 0..$tokens {
                                acc[t][h] = S::fma(query, keys[t], acc[t][h]);
                            }
                        }
                    }
                    for t in 0..$tokens {
                        let sums = sums_of::<S, HEADS>(acc[t]);
                        for h in 0..HEADS {
                            scores[h][token + t] = block.scale * sums[h];
                        }
                    }
                    token += $tokens;
                }
            };
        }
        // 16 sums at a time.
        if S::LANES == 16 && HEADS == HEADS_WIDE {
            tokens_of!(2);
        } else if S::LANES == 16 {
            tokens_of!(4);
        }
        tokens_of!(1);
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
    scores[count..].fill(f32::NEG_INFINITY);
    // SAFETY: vectors lie inside the 16 scores and the buffer.
    unsafe {
        let mut peak = S::splat(*max);
        for at in (0..TOKENS).step_by(S::LANES) {
            peak = S::max(S::load(scores.as_ptr().add(at)), peak);
        }
        let peak = S::largest(peak);
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
unsafe fn accumulate<S: Simd, T: Element, const HEADS: usize, const AHEAD: bool>(
    block: &AttendBlock<'_>,
    tile: &Tile<T, AHEAD>,
    scores: &[[f32; TOKENS]; HEADS],
    correction: &[f32; HEADS],
    head: usize,
    acc: &mut [f32],
) {
    let dim = block.head_dim;
    let mut at = 0;
    // SAFETY: as in `score`; `acc` has head_dim places for each head.
    unsafe {
        macro_rules! vectors_of {
            ($vectors:literal) => {
                while dim - at >= $vectors * S::LANES {
                    let place = acc.as_mut_ptr().add(head * dim + at);
                    let mut sums = [[S::splat(0.0); $vectors]; HEADS];
                    for h in 0..HEADS {
                        let correction = S::splat(correction[h]);
                        for v in 0..$vectors {
                            let old = S::load(place.add(h * dim + v * S::LANES));
                            sums[h][v] = S::mul(old, correction);
                        }
                    }
                    for token in 0..tile.count {
                        let value = tile.values.add(token * block.stride + at);
                        let mut values = [S::splat(0.0); $vectors];
                        for v in 0..$vectors {
                            values[v] = T::load::<S>(value.add(v * S::LANES));
                            let at = token * block.stride + at + v * S::LANES;
                            ask::<S, T, AHEAD>(tile.next_values, at);
                        }
                        for h in 0..HEADS {
                            let score = S::splat(scores[h][token]);
                            for v in 0..$vectors {
                                sums[h][v] = S::fma(score, values[v], sums[h][v]);
                            }
                        }
                    }
                    for h in 0..HEADS {
                        for v in 0..$vectors {
                            S::store(place.add(h * dim + v * S::LANES), sums[h][v]);
                        }
                    }
                    at += $vectors * S::LANES;
                }
            };
        }
        // 16 sums at a time.
        if S::LANES == 16 && HEADS == HEADS_WIDE {
            vectors_of!(2);
        } else if S::LANES == 16 {
            vectors_of!(4);
        }
        vectors_of!(1);
    }
}

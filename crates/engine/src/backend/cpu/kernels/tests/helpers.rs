use std::ops::Range;

use super::for_each;
use crate::backend::cpu::kernels::{
    DeltaRun, Kernels,
    samples::{LENGTHS, Random, error},
};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A binary operation against its plain twin at every length.
fn check2(name: &str, op: impl Fn(&Kernels, &mut [f32], &[f32]), plain: impl Fn(f64, f64) -> f64) {
    for_each(|kernels| {
        let mut random = Random(4);
        for len in LENGTHS {
            let (x, y) = (random.normals(len), random.normals(len));
            let mut out = x.clone();
            op(kernels, &mut out, &y);
            let expected: Vec<f64> =
                x.iter().zip(&y).map(|(&x, &y)| plain(x.into(), y.into())).collect();
            let error = error(&out, &expected);
            assert!(error < 5e-7, "{name} {} length {len}: {error:e}", kernels.name);
        }
    });
}

#[test]
fn vector_operations() {
    check2("add", |k, x, y| k.add(x, y), |x, y| x + y);
    check2("add_scaled", |k, x, y| k.add_scaled(x, -0.7, y), |x, y| x - f64::from(0.7f32) * y);
    check2("silu_mul", |k, x, y| k.silu_mul(x, y), |x, y| x * sigmoid(x) * y);
    check2("mul_silu", |k, x, y| k.mul_silu(x, y), |x, y| x * y * sigmoid(y));
    check2("mul_sigmoid", |k, x, y| k.mul_sigmoid(x, y), |x, y| x * sigmoid(y));
}

#[test]
fn gates_saturate_cleanly() {
    for_each(|kernels| {
        let gate = [-f32::INFINITY, -1e9, -100.0, -80.0, 80.0, 100.0, 1e9, f32::INFINITY, f32::NAN];
        let mut x = [1.0f32; 9];
        kernels.mul_sigmoid(&mut x, &gate);
        assert!(x[..4].iter().all(|&x| (0.0..1e-34).contains(&x)), "{x:?}");
        assert!(x[4..8].iter().all(|&x| x == 1.0), "{x:?}");
        assert!(x[8].is_nan());
    });
}

#[test]
fn exponentials_are_accurate() {
    for_each(|kernels| {
        // e^-d relative to e^0 for d in 0..80, from the unnormalised ratio of a softmax.
        for step in 0..2000 {
            let d = step as f32 * 0.04;
            let mut x = vec![0.0f32; 17];
            x[3] = -d;
            kernels.softmax(&mut x);
            let (ratio, exact) = (f64::from(x[3]) / f64::from(x[0]), f64::from(-d).exp());
            // One rounding of the product with 1/sum on each side, beside the exponential's.
            assert!((ratio / exact - 1.0).abs() < 4e-7, "{} e^-{d}: {ratio:e}", kernels.name);
        }
    });
}

#[test]
fn softmax_sums_to_one() {
    for_each(|kernels| {
        let mut random = Random(5);
        for len in LENGTHS {
            for offset in [0.0, 1e4, -1e4] {
                let x: Vec<f32> = random.normals(len).iter().map(|x| 3.0 * x + offset).collect();
                let mut out = x.clone();
                kernels.softmax(&mut out);
                let peak = f64::from(x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x)));
                let e: Vec<f64> = x.iter().map(|&x| (f64::from(x) - peak).exp()).collect();
                let sum: f64 = e.iter().sum();
                let expected: Vec<f64> = e.iter().map(|e| e / sum).collect();
                assert!(error(&out, &expected) < 5e-7, "{} length {len}", kernels.name);
            }
        }
    });
}

#[test]
fn norms() {
    for_each(|kernels| {
        let mut random = Random(6);
        for len in LENGTHS {
            let (x, gain) = (random.normals(len), random.normals(len));
            let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let mut out = vec![0.0; len];
            kernels.rms_norm(&x, &gain, 1e-3, &mut out);
            let factor = 1.0 / (squares / len as f64 + f64::from(1e-3f32)).sqrt();
            let expected: Vec<f64> =
                x.iter().zip(&gain).map(|(&x, &g)| f64::from(x) * factor * f64::from(g)).collect();
            assert!(error(&out, &expected) < 5e-7, "rms_norm {} {len}", kernels.name);

            let mut out = x.clone();
            kernels.l2_norm(&mut out, 1e-3, 0.25);
            let factor = 0.25 / (squares + f64::from(1e-3f32)).sqrt();
            let expected: Vec<f64> = x.iter().map(|&x| f64::from(x) * factor).collect();
            assert!(error(&out, &expected) < 5e-7, "l2_norm {} {len}", kernels.name);
        }
    });
}

#[test]
fn convolution() {
    for_each(|kernels| {
        let mut random = Random(7);
        for len in LENGTHS {
            let rows: Vec<_> = (0..4).map(|_| (random.normals(len), random.normals(len))).collect();
            let taps: Vec<_> = rows.iter().map(|(w, x)| (&w[..], &x[..])).collect();
            let mut out = vec![0.0; len];
            kernels.conv_silu(&taps, &mut out);
            let expected: Vec<f64> = (0..len)
                .map(|i| {
                    let sum: f64 =
                        rows.iter().map(|(w, x)| f64::from(w[i]) * f64::from(x[i])).sum();
                    sum * sigmoid(sum)
                })
                .collect();
            assert!(error(&out, &expected) < 1e-6, "{} length {len}", kernels.name);
        }
    });
}

#[test]
fn rope_turns_pairs() {
    for_each(|kernels| {
        let mut head: Vec<f32> = (1..=12).map(|x| x as f32).collect();
        // A quarter turn, half a turn, no turn; dimensions from 6 on stay.
        kernels.rope(&mut head, &[0.0, -1.0, 1.0], &[1.0, 0.0, 0.0]);
        assert_eq!(head, [-4.0, -2.0, 3.0, 1.0, -5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    });
}

#[test]
fn half_floats_round_to_even() {
    for_each(|kernels| {
        let mut random = Random(8);
        for len in LENGTHS {
            let mut x: Vec<f32> = random.normals(len).iter().map(|x| x * x * x).collect();
            x[0] = 1.0 + 1.0 / 2048.0; // a tie
            x[len - 1] = 3e-7; // subnormal as a half
            let mut out = vec![0u16; len];
            kernels.store_f16(&x, &mut out);
            for (x, bits) in x.iter().zip(out) {
                assert_eq!(bits, half::f16::from_f32(*x).to_bits(), "{x} {}", kernels.name);
            }
        }
    });
}

/// Tokens' vectors side by side: query, key, value.
struct Mixed {
    key_dim: usize,
    stride: usize,
    vectors: Vec<f32>, // [tokens, stride]
    decays: Vec<f32>,
    betas: Vec<f32>,
}

impl Mixed {
    fn new(kernels: &Kernels, tokens: usize, value_dim: usize, key_dim: usize) -> Self {
        let stride = 2 * key_dim + value_dim + 3;
        let mut vectors = Random(9).normals(tokens * stride);
        for token in vectors.chunks_exact_mut(stride) {
            kernels.l2_norm(&mut token[key_dim..2 * key_dim], 1e-6, 1.0);
        }
        let decays = (0..tokens).map(|token| 0.9 + 0.001 * token as f32).collect();
        let betas = (0..tokens).map(|token| 0.2 + 0.01 * token as f32).collect();
        Self { key_dim, stride, vectors, decays, betas }
    }

    /// Some tokens, with the values from row `row` on.
    fn run(&self, tokens: Range<usize>, row: usize) -> DeltaRun<'_> {
        let vectors = &self.vectors[tokens.start * self.stride..];
        DeltaRun {
            queries: vectors,
            keys: &vectors[self.key_dim..],
            values: &vectors[2 * self.key_dim + row..],
            stride: self.stride,
            key_dim: self.key_dim,
            decays: &self.decays[tokens.clone()],
            betas: &self.betas[tokens],
        }
    }
}

#[test]
fn delta_runs_follow_the_recurrence() {
    const TOKENS: usize = 70;
    for_each(|kernels| {
        for (value_dim, key_dim) in [(128, 128), (6, 48), (5, 20), (7, 64)] {
            let mixed = Mixed::new(kernels, TOKENS, value_dim, key_dim);
            let mut state = vec![0.0f32; value_dim * key_dim];
            let mut out = vec![0.0; TOKENS * value_dim];
            kernels.delta_run(&mixed.run(0..TOKENS, 0), &mut state, &mut out, value_dim);
            let mut plain = vec![0.0f64; value_dim * key_dim];
            for (token, out) in out.chunks_exact(value_dim).enumerate() {
                let expected = plain_step(&mixed.run(token..token + 1, 0), &mut plain);
                assert!(error(out, &expected) < 2e-6, "{} token {token}", kernels.name);
            }
            assert!(error(&state, &plain) < 2e-6, "{}", kernels.name);
        }
    });
}

#[test]
fn rows_of_a_state_and_runs_of_tokens_change_no_bit() {
    for_each(|kernels| {
        for (value_dim, key_dim) in [(7, 64), (11, 128), (5, 20)] {
            let mixed = Mixed::new(kernels, 70, value_dim, key_dim);
            let start = Random(10).normals(value_dim * key_dim);
            let (mut whole, mut out) = (start.clone(), vec![0.0; 70 * value_dim]);
            kernels.delta_run(&mixed.run(0..70, 0), &mut whole, &mut out, value_dim);
            let (mut parts, mut parts_out) = (start, vec![0.0; 70 * value_dim]);
            for rows in [0..3, 3..4, 4..value_dim] {
                for tokens in [0..1, 1..6, 6..70] {
                    let state = &mut parts[rows.start * key_dim..rows.end * key_dim];
                    let run = mixed.run(tokens.clone(), rows.start);
                    let out = &mut parts_out[tokens.start * value_dim + rows.start..];
                    kernels.delta_run(&run, state, out, value_dim);
                }
            }
            assert_eq!((whole, out), (parts, parts_out), "{} {key_dim}", kernels.name);
        }
    });
}

fn plain_step(run: &DeltaRun<'_>, state: &mut [f64]) -> Vec<f64> {
    let dot =
        |row: &[f64], x: &[f32]| -> f64 { row.iter().zip(x).map(|(s, &x)| s * f64::from(x)).sum() };
    state
        .chunks_exact_mut(run.key_dim)
        .zip(run.values)
        .map(|(row, &v)| {
            row.iter_mut().for_each(|s| *s *= f64::from(run.decays[0]));
            let delta = f64::from(run.betas[0]) * (f64::from(v) - dot(row, run.keys));
            row.iter_mut().zip(run.keys).for_each(|(s, &k)| *s += delta * f64::from(k));
            dot(row, run.queries)
        })
        .collect()
}

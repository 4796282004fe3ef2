use super::{Random, error, for_each};
use crate::backend::cpu::kernels::{AttendBlock, Cached, Kernels, Running};

struct Sample {
    head_dim: usize,
    stride: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,   // [tokens, stride]
    values: Vec<f32>, // [tokens, stride]
}

impl Sample {
    fn new(head_dim: usize, heads: usize, tokens: usize) -> Self {
        let mut random = Random((head_dim * heads + tokens) as u64);
        let stride = head_dim + 16;
        Self {
            head_dim,
            stride,
            queries: random.normals(heads * head_dim),
            keys: random.normals(tokens * stride).iter().map(|x| 2.0 * x).collect(),
            values: random.normals(tokens * stride),
        }
    }

    /// Attends to the tokens in runs that end at `ends`.
    fn attend(&self, kernels: &Kernels, half: bool, ends: &[usize], heads: usize) -> Vec<f32> {
        let to_half = |x: &[f32]| {
            let mut bits = vec![0; x.len()];
            kernels.store_f16(x, &mut bits);
            bits
        };
        let (keys, values) = (to_half(&self.keys), to_half(&self.values));
        let (mut max, mut sum) = (vec![0.0; heads], vec![0.0; heads]);
        let mut acc = vec![0.0; heads * self.head_dim];
        let mut running = Running { max: &mut max, sum: &mut sum, acc: &mut acc };
        running.clear();
        let mut start = 0;
        for &end in ends {
            let from = start * self.stride;
            let (keys, values) = if half {
                (Cached::F16(&keys[from..]), Cached::F16(&values[from..]))
            } else {
                (Cached::F32(&self.keys[from..]), Cached::F32(&self.values[from..]))
            };
            let block = AttendBlock {
                queries: &self.queries[..heads * self.head_dim],
                head_dim: self.head_dim,
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                keys,
                values,
                stride: self.stride,
                tokens: end - start,
            };
            kernels.attend(&block, &mut running);
            start = end;
        }
        running.finish();
        acc
    }

    fn plain(&self, half: bool, tokens: usize) -> Vec<f64> {
        let stored = |x: f32| f64::from(if half { half::f16::from_f32(x).to_f32() } else { x });
        let mut out = Vec::new();
        for query in self.queries.chunks(self.head_dim) {
            let rows = |cache: &[f32]| -> Vec<Vec<f64>> {
                let row = |row: &[f32]| row[..self.head_dim].iter().map(|&x| stored(x)).collect();
                cache.chunks(self.stride).take(tokens).map(row).collect()
            };
            let scores: Vec<f64> = rows(&self.keys)
                .iter()
                .map(|key| {
                    let dot: f64 = key.iter().zip(query).map(|(k, &q)| k * f64::from(q)).sum();
                    dot / (self.head_dim as f64).sqrt()
                })
                .collect();
            let peak = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
            let weights: Vec<f64> = scores.iter().map(|s| (s - peak).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let values = rows(&self.values);
            out.extend(
                (0..self.head_dim)
                    .map(|i| weights.iter().zip(&values).map(|(w, v)| w * v[i]).sum::<f64>() / sum),
            );
        }
        out
    }
}

#[test]
fn attention_agrees_with_plain_softmax() {
    for_each(|kernels| {
        for (head_dim, heads) in [(16, 1), (32, 3), (128, 6), (256, 8)] {
            for (tokens, ends) in [(1, vec![1]), (17, vec![17]), (150, vec![64, 128, 150])] {
                for half in [false, true] {
                    let sample = Sample::new(head_dim, heads, tokens);
                    let out = sample.attend(kernels, half, &ends, heads);
                    let error = error(&out, &sample.plain(half, tokens));
                    assert!(
                        error < 2e-6,
                        "{} head_dim {head_dim} tokens {tokens} half {half}: {error:e}",
                        kernels.name
                    );
                }
            }
        }
    });
}

#[test]
fn heads_beside_each_other_change_no_bit() {
    for_each(|kernels| {
        let sample = Sample::new(64, 7, 90);
        let all = sample.attend(kernels, true, &[64, 90], 7);
        for heads in 1..7 {
            let some = sample.attend(kernels, true, &[64, 90], heads);
            assert_eq!(some, all[..heads * 64], "{} {heads} heads", kernels.name);
        }
    });
}

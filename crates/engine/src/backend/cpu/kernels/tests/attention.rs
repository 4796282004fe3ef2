use super::for_each;
use crate::backend::cpu::kernels::samples::{Cache, error};

impl Cache {
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
                    let sample = Cache::new(head_dim, heads, tokens);
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
        let sample = Cache::new(64, 13, 90);
        let all = sample.attend(kernels, true, &[64, 90], 13);
        for heads in 1..13 {
            let some = sample.attend(kernels, true, &[64, 90], heads);
            assert_eq!(some, all[..heads * 64], "{} {heads} heads", kernels.name);
        }
    });
}

//! `calla eval agree`: logits against those of another implementation, position by position.

use std::path::Path;

use calla_engine::{
    backend::{Backend, Batch, Logits, Row, Wants},
    checkpoint::{Dtype, Tensor, Tensors},
};
use serde::Serialize;

use crate::{args::AgreeArgs, error::Error, model, output};

/// Bytes of logits computed at a time.
const LOGITS_BYTES_MAX: usize = 64 << 20;

pub(crate) fn run(args: &AgreeArgs, verbose: u8) -> Result<(), Error> {
    let golden = Golden::open(&args.against)?;
    let mut loaded = model::load(&args.model, &args.backend, verbose)?;
    golden.check(&args.against, loaded.backend.shape())?;
    let agreement = compare(loaded.backend.as_mut(), &golden)?;
    if args.output.json {
        return output::json(&agreement);
    }
    output::text(&format!(
        "positions       {}\n\
         top1_agreement  {:.4}\n\
         kl_mean         {:.3e}\n\
         kl_max          {:.3e}\n\
         max_abs_error   {:.3e}\n\
         rel_error       {:.3e}\n",
        agreement.positions,
        agreement.top1_agreement,
        agreement.kl_mean,
        agreement.kl_max,
        agreement.max_abs_error,
        agreement.rel_error,
    ))
}

/// Feeds the ids in chunks and compares every position.
fn compare(backend: &mut dyn Backend, golden: &Golden) -> Result<Agreement, Error> {
    let vocab = backend.shape().vocab;
    let chunk_max = (LOGITS_BYTES_MAX / (4 * vocab)).clamp(1, backend.batch_tokens_max());
    let sequence = backend.open(golden.ids.len())?;
    let mut logits = Logits::new();
    let mut theirs = vec![0.0; vocab];
    let mut sums = Sums::default();
    for (i, chunk) in golden.ids.chunks(chunk_max).enumerate() {
        let row = Row { sequence, tokens: chunk, wants: Wants::All };
        backend.forward(&Batch { rows: &[row] }, &mut logits)?;
        for j in 0..chunk.len() {
            let position = i * chunk_max + j;
            golden.read_row(position, &mut theirs);
            let ours = logits.row(j);
            if !ours.iter().all(|value| value.is_finite()) {
                return Err(Error::NotANumber { position });
            }
            sums.add(ours, &theirs);
        }
    }
    backend.close(sequence)?;
    Ok(sums.agreement())
}

/// How close two sets of logits are.
#[derive(Debug, Serialize)]
struct Agreement {
    positions: usize,
    /// Share of positions with the same most probable token.
    top1_agreement: f64,
    /// Mean over positions of KL(theirs || ours), in nats.
    kl_mean: f64,
    kl_max: f64,
    max_abs_error: f64,
    /// Norm of the difference over norm of theirs.
    rel_error: f64,
}

#[derive(Default)]
struct Sums {
    positions: usize,
    same_top: usize,
    kl: f64,
    kl_max: f64,
    max_abs_error: f64,
    squared_error: f64,
    squared_norm: f64,
}

impl Sums {
    fn add(&mut self, ours: &[f32], theirs: &[f32]) {
        self.positions += 1;
        self.same_top += usize::from(top(ours) == top(theirs));
        let kl = kl_divergence(theirs, ours);
        self.kl += kl;
        self.kl_max = self.kl_max.max(kl);
        for (&ours, &theirs) in ours.iter().zip(theirs) {
            let error = f64::from(ours) - f64::from(theirs);
            self.max_abs_error = self.max_abs_error.max(error.abs());
            self.squared_error += error * error;
            self.squared_norm += f64::from(theirs) * f64::from(theirs);
        }
    }

    fn agreement(&self) -> Agreement {
        let positions = self.positions as f64;
        Agreement {
            positions: self.positions,
            top1_agreement: self.same_top as f64 / positions,
            kl_mean: self.kl / positions,
            kl_max: self.kl_max,
            max_abs_error: self.max_abs_error,
            // All-zero logits have no scale to be relative to.
            rel_error: (self.squared_error / self.squared_norm.max(f64::MIN_POSITIVE)).sqrt(),
        }
    }
}

/// Index of the largest value, the lowest of equals.
fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, &value) in logits.iter().enumerate() {
        if value > logits[best] {
            best = i;
        }
    }
    best
}

/// KL(p || q) in nats for p = softmax(theirs), q = softmax(ours), in f64.
fn kl_divergence(theirs: &[f32], ours: &[f32]) -> f64 {
    let (log_sum_p, log_sum_q) = (log_sum_exp(theirs), log_sum_exp(ours));
    let kl: f64 = (theirs.iter().zip(ours))
        .map(|(&p, &q)| {
            let (log_p, log_q) = (f64::from(p) - log_sum_p, f64::from(q) - log_sum_q);
            log_p.exp() * (log_p - log_q)
        })
        .sum();
    // Equal distributions sum to a rounding error that may be negative.
    kl.max(0.0)
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&value| (f64::from(value) - max).exp()).sum();
    max + sum.ln()
}

/// Ids, and the logits that another implementation gives for them.
struct Golden {
    ids: Vec<u32>,
    logits: Tensor, // [ids, vocab] f32
}

impl Golden {
    fn open(path: &Path) -> Result<Self, Error> {
        let mut tensors = Tensors::open_file(path)?;
        let mut take = |name: &str, dtype: Dtype, dims: usize| {
            let expected = format!("a tensor `{name}` of {dtype:?} with {dims} dimension(s)");
            match tensors.take(name) {
                None => Err(file_error(path, format!("holds no `{name}`: expected {expected}"))),
                Some(tensor) if tensor.dtype != dtype || tensor.shape.len() != dims => {
                    let found = format!("{:?} {:?}", tensor.dtype, tensor.shape);
                    Err(file_error(path, format!("`{name}` is {found}: expected {expected}")))
                }
                Some(tensor) => Ok(tensor),
            }
        };
        let (ids, logits) = (take("ids", Dtype::I32, 1)?, take("logits", Dtype::F32, 2)?);
        if ids.shape[0] == 0 || logits.shape[0] != ids.shape[0] {
            let problem = format!(
                "`ids` has {} rows and `logits` {}: expected the same number, at least one",
                ids.shape[0], logits.shape[0]
            );
            return Err(file_error(path, problem));
        }
        let (words, _) = ids.bytes.as_chunks::<4>();
        // A negative id becomes one that no vocabulary holds.
        let ids = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
        Ok(Self { ids, logits })
    }

    /// Whether this model can be asked for these logits.
    fn check(&self, path: &Path, shape: &calla_engine::model::Shape) -> Result<(), Error> {
        let problem = if self.logits.shape[1] != shape.vocab {
            format!("`logits` has {} columns, the model {}", self.logits.shape[1], shape.vocab)
        } else if let Some(&id) = self.ids.iter().find(|&&id| id as usize >= shape.vocab) {
            format!("`ids` holds {}, outside the vocabulary of {}", id as i32, shape.vocab)
        } else if self.ids.len() > shape.context_max {
            format!("`ids` has {} tokens, the context {}", self.ids.len(), shape.context_max)
        } else {
            return Ok(());
        };
        Err(file_error(path, format!("{problem}: was it made from another checkpoint?")))
    }

    fn read_row(&self, index: usize, row: &mut [f32]) {
        let bytes = &self.logits.bytes[index * row.len() * 4..][..row.len() * 4];
        for (value, &word) in row.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(word);
        }
    }
}

fn file_error(path: &Path, problem: String) -> Error {
    Error::File { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_agree_wholly() {
        let mut sums = Sums::default();
        sums.add(&[1.0, -2.0, 0.5], &[1.0, -2.0, 0.5]);
        let agreement = sums.agreement();
        assert_eq!(agreement.top1_agreement, 1.0);
        assert_eq!(agreement.rel_error, 0.0);
        assert!(agreement.kl_max < 1e-15);
    }

    #[test]
    fn divergence_is_that_of_the_definition() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2
        let kl = kl_divergence(&[3f32.ln(), 0.0], &[100.0, 100.0]);
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((kl - expected).abs() < 1e-7, "{kl}");
    }

    #[test]
    fn errors_are_those_of_the_definition() {
        let mut sums = Sums::default();
        sums.add(&[3.0, 1.0], &[0.0, 5.0]);
        let agreement = sums.agreement();
        assert_eq!(agreement.top1_agreement, 0.0);
        assert_eq!(agreement.max_abs_error, 4.0);
        assert!((agreement.rel_error - 1.0).abs() < 1e-12);
    }
}

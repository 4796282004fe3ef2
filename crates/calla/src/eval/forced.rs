//! Tokens fed as they are, whatever the model would have said (teacher forced), with the logits of
//! every position.

use calla_engine::backend::{Backend, Batch, Logits, Row, SequenceId, Wants};

use crate::error::Error;

/// Bytes of logits computed at a time.
const LOGITS_BYTES_MAX: usize = 64 << 20;

/// One model that reads sequences, one after the other.
pub(super) struct Forced<'a> {
    backend: &'a mut dyn Backend,
    logits: Logits,
    /// The open sequence and the tokens in it.
    sequence: Option<(SequenceId, usize)>,
}

impl<'a> Forced<'a> {
    pub(super) fn new(backend: &'a mut dyn Backend) -> Self {
        Self { backend, logits: Logits::new(), sequence: None }
    }

    /// Most tokens whose logits are computed at a time.
    pub(super) fn chunk_tokens_max(&self) -> usize {
        let row_bytes = 4 * self.backend.shape().vocab;
        (LOGITS_BYTES_MAX / row_bytes).clamp(1, self.backend.batch_tokens_max())
    }

    /// Starts an empty sequence that may grow to `tokens`; an open one ends.
    pub(super) fn begin(&mut self, tokens: usize) -> Result<(), Error> {
        self.end()?;
        self.sequence = Some((self.backend.open(tokens)?, 0));
        Ok(())
    }

    /// Ends the open sequence, if there is one.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        match self.sequence.take() {
            Some((sequence, _)) => Ok(self.backend.close(sequence)?),
            None => Ok(()),
        }
    }

    /// Reads tokens of which nothing is asked.
    pub(super) fn skip(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let chunk_max = self.backend.batch_tokens_max();
        tokens.chunks(chunk_max).try_for_each(|chunk| self.forward(chunk, Wants::Nothing))
    }

    /// Reads at most [`Self::chunk_tokens_max`] tokens. Then [`Self::row`] gives what follows each.
    ///
    /// # Errors
    /// Those of the backend, and [`Error::NotANumber`].
    pub(super) fn read(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let first = self.sequence.map_or(0, |(_, len)| len);
        self.forward(tokens, Wants::All)?;
        let finite = |&index: &usize| self.row(index).iter().all(|value| value.is_finite());
        match (0..tokens.len()).find(|index| !finite(index)) {
            Some(index) => Err(Error::NotANumber { position: first + index }),
            None => Ok(()),
        }
    }

    /// The logits that follow the token of this number among those read last, each finite.
    pub(super) fn row(&self, index: usize) -> &[f32] {
        self.logits.row(index)
    }

    fn forward(&mut self, tokens: &[u32], wants: Wants) -> Result<(), Error> {
        let (sequence, len) = self.sequence.as_mut().expect("callers begin a sequence first");
        let row = Row { sequence: *sequence, tokens, wants };
        self.backend.forward(&Batch { rows: &[row] }, &mut self.logits)?;
        *len += tokens.len();
        Ok(())
    }
}

/// Natural logarithm of the sum of the exponentials, in float64.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&value| (f64::from(value) - max).exp()).sum();
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logits_do_not_overflow() {
        assert!((log_sum_exp(&[1000.0, 1000.0]) - (1000.0 + 2f64.ln())).abs() < 1e-12);
        assert!((log_sum_exp(&[0.0, -1000.0])).abs() < 1e-12);
    }
}

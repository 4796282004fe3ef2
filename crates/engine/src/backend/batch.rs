use super::SequenceId;
use crate::Error;

/// What one forward pass computes: a ragged batch, one row a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// The rows; no sequence stands in two of them.
    pub rows: &'a [Row<'a>],
}

/// New tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The sequence they are appended to.
    pub sequence: SequenceId,
    /// Token ids; at least one.
    pub tokens: &'a [u32],
    /// Which of their positions want logits.
    pub wants: Wants,
}

/// Which of a row's positions want logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// None: a prefill chunk that is not the last.
    Nothing,
    /// The last position's.
    Last,
    /// Every position's, in order.
    All,
}

impl Wants {
    /// Rows of logits for `tokens` new tokens.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Wants::Nothing => 0,
            Wants::Last => 1,
            Wants::All => tokens,
        }
    }
}

impl Batch<'_> {
    /// What every backend checks before it touches a sequence. `room` gives a sequence's tokens
    /// so far and the tokens it may hold.
    ///
    /// # Errors
    /// [`Error::Batch`] for a row without tokens, a sequence in two rows, a token outside the
    /// vocabulary, a sequence beyond its context, and the row with which the batch exceeds
    /// `tokens_max`; what `room` gives for an unknown sequence.
    pub fn check(
        &self,
        vocab: usize,
        tokens_max: usize,
        room: impl Fn(SequenceId) -> Result<(usize, usize), Error>,
    ) -> Result<(), Error> {
        let mut tokens_total = 0;
        for (index, row) in self.rows.iter().enumerate() {
            let refuse = |problem: String| Err(Error::Batch { row: index, problem });
            let (len, context) = room(row.sequence)?;
            if row.tokens.is_empty() {
                return refuse("no tokens".into());
            }
            if let Some(first) = self.rows[..index].iter().position(|r| r.sequence == row.sequence)
            {
                return refuse(format!("{:?} stands in row {first} already", row.sequence));
            }
            if let Some(token) = row.tokens.iter().find(|&&token| token as usize >= vocab) {
                return refuse(format!("token {token}, the vocabulary ends at {}", vocab - 1));
            }
            let count = row.tokens.len();
            if count > context.saturating_sub(len) {
                return refuse(format!("{count} tokens after {len}, the context holds {context}"));
            }
            tokens_total += count;
            if tokens_total > tokens_max {
                return refuse(format!("{tokens_total} tokens, a batch takes {tokens_max}"));
            }
        }
        Ok(())
    }

    /// New tokens in all rows together.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).sum()
    }

    /// Rows of logits in all rows together.
    pub fn logit_rows(&self) -> usize {
        self.rows.iter().map(|row| row.wants.rows(row.tokens.len())).sum()
    }
}

/// Logits of one forward pass, in the order of the batch's rows. The caller keeps it between
/// steps so that its memory is reused.
#[derive(Debug, Default)]
pub struct Logits {
    values: Vec<f32>, // [rows, vocab]
    vocab: usize,
}

impl Logits {
    /// Empty; grows to what the largest batch wants.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `vocab` values and gives them to a backend to fill.
    pub fn resize(&mut self, rows: usize, vocab: usize) -> &mut [f32] {
        self.vocab = vocab;
        self.values.resize(rows * vocab, 0.0);
        &mut self.values
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// Row `index` `[vocab]`.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.vocab..(index + 1) * self.vocab]
    }

    /// All rows side by side [rows, vocab].
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

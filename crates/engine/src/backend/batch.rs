use super::{Candidates, SequenceId};
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
    /// Which of their positions want logits, or candidates.
    pub wants: Wants,
}

/// Which of a row's positions want logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wants {
    /// None: a prefill chunk that is not the last.
    Nothing,
    /// The last position's.
    Last,
    /// The last position's, of which [`Candidates`] will do: a token is chosen and no more. Where
    /// every row of a batch that wants anything wants these, a backend may give them; it may
    /// always give the logits.
    Candidates {
        /// What the logits are divided by, for the sum of the softmax; 0 when nothing is drawn.
        temperature: f32,
    },
    /// Every position's, in order.
    All,
}

impl Wants {
    /// Rows of logits for `tokens` new tokens.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Wants::Nothing => 0,
            Wants::Last | Wants::Candidates { .. } => 1,
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
    /// vocabulary, a sequence beyond its context, a temperature that is none, and the row with
    /// which the batch exceeds `tokens_max`; what `room` gives for an unknown sequence.
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
            if let Wants::Candidates { temperature } = row.wants
                && !(temperature >= 0.0 && temperature.is_finite())
            {
                return refuse(format!("a temperature of {temperature}"));
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

    /// The temperatures of the rows that want [`Candidates`].
    pub fn temperatures(&self) -> impl Iterator<Item = f32> {
        self.rows.iter().filter_map(|row| match row.wants {
            Wants::Candidates { temperature } => Some(temperature),
            _ => None,
        })
    }

    /// Whether there are rows that want anything, and [`Candidates`] will do for all of them.
    pub fn wants_candidates(&self) -> bool {
        let candidates = |row: &&Row| matches!(row.wants, Wants::Candidates { .. });
        let given = self.rows.iter().filter(candidates).count();
        given > 0 && given == self.rows.iter().filter(|row| row.wants != Wants::Nothing).count()
    }
}

/// What one forward pass gives, in the order of the batch's rows: logits, or candidates of every
/// row. The caller keeps it between steps so that its memory is reused.
#[derive(Debug, Default)]
pub struct Logits {
    values: Vec<f32>, // [rows, vocab]
    vocab: usize,
    candidates: Vec<Candidates>, // [rows]
    gives_candidates: bool,
}

/// What a pass gives of one position.
#[derive(Debug, Clone, Copy)]
pub enum Scores<'a> {
    /// Its logits `[vocab]`.
    Logits(&'a [f32]),
    /// Its best tokens; the logits are in [`Backend::logits_row`](super::Backend::logits_row).
    Candidates(&'a Candidates),
}

impl Logits {
    /// Empty; grows to what the largest batch wants.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `vocab` values and gives them to a backend to fill.
    pub fn resize(&mut self, rows: usize, vocab: usize) -> &mut [f32] {
        self.gives_candidates = false;
        self.vocab = vocab;
        self.values.resize(rows * vocab, 0.0);
        &mut self.values
    }

    /// Makes room for `rows` rows of candidates and gives them to a backend to fill.
    pub fn resize_candidates(&mut self, rows: usize) -> &mut [Candidates] {
        self.gives_candidates = true;
        self.candidates.resize(rows, Candidates::NONE);
        &mut self.candidates
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self.gives_candidates {
            true => self.candidates.len(),
            false => self.values.len().checked_div(self.vocab).unwrap_or(0),
        }
    }

    /// Row `index`, as it was given.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn scores(&self, index: usize) -> Scores<'_> {
        match self.gives_candidates {
            true => Scores::Candidates(&self.candidates[index]),
            false => Scores::Logits(self.row(index)),
        }
    }

    /// Row `index` `[vocab]`.
    ///
    /// # Panics
    /// When there is no such row, or candidates were asked for and given.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values()[index * self.vocab..(index + 1) * self.vocab]
    }

    /// All rows side by side [rows, vocab]; none when candidates were asked for and given.
    pub fn values(&self) -> &[f32] {
        match self.gives_candidates {
            true => &[],
            false => &self.values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_do_only_where_they_do_for_every_row() {
        let wants = |wants: &[Wants]| {
            let row = |wants| Row { sequence: SequenceId(0), tokens: &[1], wants };
            let rows: Vec<Row> = wants.iter().copied().map(row).collect();
            Batch { rows: &rows }.wants_candidates()
        };
        let some = Wants::Candidates { temperature: 0.5 };
        assert!(wants(&[some, Wants::Nothing, Wants::Candidates { temperature: 0.0 }]));
        for others in [Wants::Last, Wants::All] {
            assert!(!wants(&[some, others]));
        }
        assert!(!wants(&[Wants::Nothing]) && !wants(&[]));
    }

    #[test]
    fn a_temperature_that_is_none_is_refused() {
        for (temperature, good) in
            [(0.0, true), (2.0, true), (-0.1, false), (f32::NAN, false), (f32::INFINITY, false)]
        {
            let wants = Wants::Candidates { temperature };
            let rows = [Row { sequence: SequenceId(0), tokens: &[1], wants }];
            let checked = Batch { rows: &rows }.check(10, 10, |_| Ok((0, 10)));
            assert_eq!(checked.is_ok(), good, "{temperature}");
        }
    }
}

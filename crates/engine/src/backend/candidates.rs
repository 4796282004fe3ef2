use std::cmp::Ordering;

/// Candidates of a row, of a larger vocabulary.
pub const CANDIDATES_MAX: usize = 64;

/// How far [`Candidates::sum`] and [`Candidates::sum_at_temperature`] may be from the exact sums,
/// relative. docs/numerics.md derives it.
pub const SUM_ERROR: f64 = 1.0 / (1 << 15) as f64;

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl Candidate {
    /// The larger logit first, the lower id on a tie: a total order where no logit is NaN.
    pub fn best_first(&self, other: &Self) -> Ordering {
        other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

/// What a backend may give in place of a row of logits when the row wants no more than to choose a
/// token: its best tokens, and what normalises the softmax of all.
///
/// Laid out as the CUDA backend's kernels write it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Candidates {
    finite: u32, // 0: a logit is infinite or not a number, and nothing below means anything
    len: u32,
    sum: f32,
    sum_at_temperature: f32,
    best: [Candidate; CANDIDATES_MAX], // the first `len`
}

impl Candidates {
    /// Of a row nobody has looked at.
    pub(super) const NONE: Self = Self {
        finite: 0,
        len: 0,
        sum: 0.0,
        sum_at_temperature: 0.0,
        best: [Candidate { id: 0, logit: 0.0 }; CANDIDATES_MAX],
    };

    /// The definition: those of `logits`, one for each token, for sampling at `temperature`.
    pub fn of(logits: &[f32], temperature: f32) -> Self {
        let mut candidates = Self::NONE;
        if logits.iter().any(|logit| !logit.is_finite()) {
            return candidates;
        }
        let mut ranked: Vec<Candidate> =
            (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }).collect();
        if ranked.len() > CANDIDATES_MAX {
            ranked.select_nth_unstable_by(CANDIDATES_MAX, Candidate::best_first);
            ranked.truncate(CANDIDATES_MAX);
        }
        ranked.sort_unstable_by(Candidate::best_first);
        let len = ranked.len();
        let largest = f64::from(ranked[0].logit);
        let sum_at = |temperature: f64| -> f64 {
            logits.iter().map(|&logit| ((f64::from(logit) - largest) / temperature).exp()).sum()
        };
        candidates.finite = 1;
        candidates.len = len as u32;
        candidates.sum = sum_at(1.0) as f32;
        candidates.sum_at_temperature = match temperature {
            0.0 => candidates.sum,
            _ => sum_at(f64::from(temperature)) as f32,
        };
        candidates.best[..len].copy_from_slice(&ranked);
        candidates
    }

    /// Whether every logit of the row is finite. Nothing else is known when it is not.
    pub fn is_finite(&self) -> bool {
        self.finite != 0
    }

    /// The [`CANDIDATES_MAX`] largest logits, or all of a smaller vocabulary: largest first, the
    /// lower id first on a tie.
    pub fn best(&self) -> &[Candidate] {
        &self.best[..self.len as usize]
    }

    /// `Σ exp(logit - largest)` over the vocabulary, within [`SUM_ERROR`].
    pub fn sum(&self) -> f32 {
        self.sum
    }

    /// `Σ exp((logit - largest) / temperature)` over the vocabulary, within [`SUM_ERROR`], for the
    /// temperature that was asked for; [`Candidates::sum`] when that was 0.
    pub fn sum_at_temperature(&self) -> f32 {
        self.sum_at_temperature
    }

    /// The same with other sums, for tests of what the last bits of a device's sums may change.
    #[cfg(test)]
    pub(crate) fn with_sums_times(mut self, factor: f64) -> Self {
        self.sum = (f64::from(self.sum) * factor) as f32;
        self.sum_at_temperature = (f64::from(self.sum_at_temperature) * factor) as f32;
        self
    }
}

use super::Sampler;
use crate::backend::{Candidate, Candidates, SUM_ERROR};

/// What is certain about a row, adjusted by biases and penalties that only lower logits, of which
/// the [`Candidates`] are known.
pub(super) struct Certain<'a> {
    /// The best tokens of the adjusted row, in order, as far as they are known.
    pub(super) ranked: &'a [Candidate],
    /// They are all there are, but for those that an adjustment has made minus infinity.
    pub(super) whole: bool,
    /// Tokens of the vocabulary.
    pub(super) vocab: usize,
    candidates: &'a Candidates,
    adjusted: &'a [Adjusted],
    /// Adjusted tokens that are no candidates, at most.
    unseen: usize,
}

/// A candidate whose logit an adjustment has changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adjusted {
    from: f32,
    to: f32,
}

/// Memory for it, kept between steps.
#[derive(Debug, Default)]
pub(super) struct CertainMemory {
    ranked: Vec<Candidate>,
    adjusted: Vec<Adjusted>,
}

impl<'a> Certain<'a> {
    /// Of the row that a sampler chooses from next.
    pub(super) fn new(
        sampler: &Sampler,
        candidates: &'a Candidates,
        vocab: usize,
        memory: &'a mut CertainMemory,
    ) -> Self {
        let best = candidates.best();
        let whole = best.len() == vocab;
        let touched = sampler.sampling.logit_bias.len() + sampler.generated.len();
        if touched == 0 {
            return Self { ranked: best, whole, vocab, candidates, adjusted: &[], unseen: 0 };
        }
        let CertainMemory { ranked, adjusted } = memory;
        ranked.clear();
        adjusted.clear();
        for &Candidate { id, logit } in best {
            let to = sampler.adjusted(id, logit);
            if to != logit {
                adjusted.push(Adjusted { from: logit, to });
            }
            ranked.push(Candidate { id, logit: to });
        }
        // Nothing beyond the candidates is above the last of them, and an adjustment raises nothing.
        let bound = match whole {
            true => f32::NEG_INFINITY,
            false => best.last().map_or(f32::INFINITY, |last| last.logit),
        };
        ranked.retain(|candidate| candidate.logit > bound);
        ranked.sort_unstable_by(Candidate::best_first);
        let unseen = touched.saturating_sub(adjusted.len());
        Self { ranked, whole, vocab, candidates, adjusted, unseen }
    }

    /// Bounds of `Σ exp((logit - max) / temperature)` over the adjusted row, whose largest logit is
    /// `max`; none when nothing is ranked.
    pub(super) fn totals(&self, temperature: f64) -> Option<[f64; 2]> {
        // What float64 rounds, many times over.
        const ROUNDING: f64 = 1e-9;
        let max = f64::from(self.ranked.first()?.logit);
        let weight = |logit: f32| ((f64::from(logit) - max) / temperature).exp();
        let ranked: f64 = self.ranked.iter().map(|candidate| weight(candidate.logit)).sum();
        if self.whole {
            return Some([ranked * (1.0 - ROUNDING), ranked * (1.0 + ROUNDING)]);
        }
        let best = self.candidates.best();
        let raw = f64::from(self.candidates.sum_at_temperature()) * weight(best[0].logit);
        let moved: f64 = self.adjusted.iter().map(|one| weight(one.from) - weight(one.to)).sum();
        // Whatever was taken from a token that is not seen, it had no more than the last candidate.
        let unseen = self.unseen as f64 * weight(best[best.len() - 1].logit);
        let error = (SUM_ERROR + ROUNDING) * raw;
        let least = (raw - moved - unseen - error).max(ranked * (1.0 - ROUNDING));
        Some([least, raw - moved + error])
    }
}

//! How close two sets of logits are.

use serde::Serialize;

use crate::eval::forced::log_sum_exp;

/// The figures over all positions.
#[derive(Debug, Serialize)]
pub(super) struct Agreement {
    positions: usize,
    /// Share of positions with the same most probable token.
    top1_agreement: f64,
    /// Mean over positions of KL(theirs || ours), in nats.
    kl_mean: f64,
    kl_max: f64,
    max_abs_error: f64,
    /// Norm of the difference over norm of theirs.
    rel_error: f64,
    /// Of the text that was fed, by our logits; `None` when no position has a next token.
    perplexity: Option<f64>,
    perplexity_theirs: Option<f64>,
    /// How far ours is from theirs, as a share of theirs.
    perplexity_rel_error: Option<f64>,
}

impl Agreement {
    pub(super) fn table(&self) -> String {
        let or_none =
            |value: Option<f64>, text: fn(f64) -> String| value.map_or("-".to_owned(), text);
        format!(
            "positions             {}\n\
             top1_agreement        {:.4}\n\
             kl_mean               {:.3e}\n\
             kl_max                {:.3e}\n\
             max_abs_error         {:.3e}\n\
             rel_error             {:.3e}\n\
             perplexity            {}\n\
             perplexity_theirs     {}\n\
             perplexity_rel_error  {}\n",
            self.positions,
            self.top1_agreement,
            self.kl_mean,
            self.kl_max,
            self.max_abs_error,
            self.rel_error,
            or_none(self.perplexity, |value| format!("{value:.5}")),
            or_none(self.perplexity_theirs, |value| format!("{value:.5}")),
            or_none(self.perplexity_rel_error, |value| format!("{value:.3e}")),
        )
    }
}

/// What has been compared so far.
#[derive(Default)]
pub(super) struct Sums {
    positions: usize,
    same_top: usize,
    kl: f64,
    kl_max: f64,
    max_abs_error: f64,
    squared_error: f64,
    squared_norm: f64,
    /// Positions that have a next token, and the sums of its -ln p.
    scored: usize,
    nll_ours: f64,
    nll_theirs: f64,
}

impl Sums {
    /// Counts a position; `next` is the token that follows it in the text.
    pub(super) fn add(&mut self, ours: &[f32], theirs: &[f32], next: Option<u32>) {
        let (sum_ours, sum_theirs) = (log_sum_exp(ours), log_sum_exp(theirs));
        self.positions += 1;
        self.same_top += usize::from(top(ours) == top(theirs));
        let kl = kl_divergence(theirs, sum_theirs, ours, sum_ours);
        self.kl += kl;
        self.kl_max = self.kl_max.max(kl);
        for (&ours, &theirs) in ours.iter().zip(theirs) {
            let error = f64::from(ours) - f64::from(theirs);
            self.max_abs_error = self.max_abs_error.max(error.abs());
            self.squared_error += error * error;
            self.squared_norm += f64::from(theirs) * f64::from(theirs);
        }
        if let Some(next) = next {
            self.scored += 1;
            self.nll_ours += sum_ours - f64::from(ours[next as usize]);
            self.nll_theirs += sum_theirs - f64::from(theirs[next as usize]);
        }
    }

    pub(super) fn agreement(&self) -> Agreement {
        let positions = self.positions as f64;
        let scored = (self.scored > 0).then_some(self.scored as f64);
        let difference = self.nll_ours - self.nll_theirs;
        Agreement {
            positions: self.positions,
            top1_agreement: self.same_top as f64 / positions,
            kl_mean: self.kl / positions,
            kl_max: self.kl_max,
            max_abs_error: self.max_abs_error,
            // All-zero logits have no scale to be relative to.
            rel_error: (self.squared_error / self.squared_norm.max(f64::MIN_POSITIVE)).sqrt(),
            perplexity: scored.map(|scored| (self.nll_ours / scored).exp()),
            perplexity_theirs: scored.map(|scored| (self.nll_theirs / scored).exp()),
            perplexity_rel_error: scored.map(|scored| (difference / scored).exp_m1().abs()),
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

/// KL(p || q) in nats for p = softmax(theirs), q = softmax(ours), in f64. The sums are those of
/// [`log_sum_exp`].
fn kl_divergence(theirs: &[f32], sum_theirs: f64, ours: &[f32], sum_ours: f64) -> f64 {
    let kl: f64 = (theirs.iter().zip(ours))
        .map(|(&p, &q)| {
            let (log_p, log_q) = (f64::from(p) - sum_theirs, f64::from(q) - sum_ours);
            log_p.exp() * (log_p - log_q)
        })
        .sum();
    // Equal distributions sum to a rounding error that may be negative.
    kl.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_agree_wholly() {
        let mut sums = Sums::default();
        sums.add(&[1.0, -2.0, 0.5], &[1.0, -2.0, 0.5], Some(1));
        let agreement = sums.agreement();
        assert_eq!(agreement.top1_agreement, 1.0);
        assert_eq!(agreement.rel_error, 0.0);
        assert!(agreement.kl_max < 1e-15);
        assert_eq!(agreement.perplexity, agreement.perplexity_theirs);
        assert_eq!(agreement.perplexity_rel_error, Some(0.0));
    }

    #[test]
    fn divergence_is_that_of_the_definition() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2
        let mut sums = Sums::default();
        sums.add(&[100.0, 100.0], &[3f32.ln(), 0.0], None);
        let kl = sums.agreement().kl_mean;
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((kl - expected).abs() < 1e-7, "{kl}");
    }

    #[test]
    fn errors_are_those_of_the_definition() {
        let mut sums = Sums::default();
        sums.add(&[3.0, 1.0], &[0.0, 5.0], None);
        let agreement = sums.agreement();
        assert_eq!(agreement.top1_agreement, 0.0);
        assert_eq!(agreement.max_abs_error, 4.0);
        assert!((agreement.rel_error - 1.0).abs() < 1e-12);
        assert_eq!(agreement.perplexity, None);
    }

    #[test]
    fn perplexity_is_over_the_positions_that_have_a_next_token() {
        let mut sums = Sums::default();
        // p(next) is 1/4 and 1/2 by ours, 3/4 and 1/2 by theirs.
        sums.add(&[0.0, 3f32.ln()], &[3f32.ln(), 0.0], Some(0));
        sums.add(&[7.0, 7.0], &[1.0, 1.0], Some(1));
        sums.add(&[9.0, 0.0], &[0.0, 9.0], None);
        let agreement = sums.agreement();
        let near = |value: Option<f64>, expected: f64| {
            assert!((value.expect("two are scored") - expected).abs() < 1e-6, "{value:?}");
        };
        near(agreement.perplexity, 8f64.sqrt());
        near(agreement.perplexity_theirs, (8f64 / 3.0).sqrt());
        near(agreement.perplexity_rel_error, 3f64.sqrt() - 1.0);
    }
}

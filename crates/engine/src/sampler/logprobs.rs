use super::largest::max;
use crate::backend::Candidate;

/// Log-probabilities in the model's own distribution: log softmax,
/// `logit - largest - ln(Σ exp(logit - largest))`.
pub(super) struct LogSoftmax {
    log_sum: f64,
}

impl LogSoftmax {
    /// Over `logits` [vocab], summed in float64.
    pub(super) fn of(logits: &[f32]) -> Self {
        let largest = max(logits);
        let sum = logits.iter().map(|&logit| (f64::from(logit) - f64::from(largest)).exp()).sum();
        Self::new(largest, sum)
    }

    /// Of a row with this `largest` logit and `sum` of `exp(logit - largest)`.
    pub(super) fn new(largest: f32, sum: f64) -> Self {
        Self { log_sum: f64::from(largest) + sum.ln() }
    }

    /// The log-probability of a token with this logit.
    pub(super) fn at(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
    }

    /// Tokens with their log-probabilities.
    pub(super) fn of_each(&self, tokens: &[Candidate]) -> Vec<(u32, f32)> {
        tokens.iter().map(|token| (token.id, self.at(token.logit))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        // exp: 1, 2, 4, 1 of 8; large offsets must not matter.
        for offset in [0.0, 1000.0, -1000.0] {
            let logits: Vec<f32> =
                [1.0_f32, 2.0, 4.0, 1.0].iter().map(|share| share.ln() + offset).collect();
            let softmax = LogSoftmax::of(&logits);
            for (logit, share) in logits.iter().zip([0.125_f32, 0.25, 0.5, 0.125]) {
                let logprob = softmax.at(*logit);
                assert!((logprob - share.ln()).abs() < 2e-4, "{logprob}, not ln {share}");
            }
        }
    }
}

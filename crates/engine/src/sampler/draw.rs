use super::{Sampling, certain::Certain, largest::max, ranking::Ranking};
use crate::backend::Candidate;

/// Truncates the distribution and draws from what is left.
///
/// With the tokens in descending order (lower id first on a tie), each of top-k, top-p and min-p
/// keeps a first part of them. So one place in that order is the cut, and the draw is the first
/// token whose cumulative weight exceeds `random` times the weight of all that is kept. Weights
/// are `exp((logit - max) / temperature)` in float64, summed in a fixed order: apart from the
/// last bit of `exp`, platforms agree.
#[derive(Debug, Default)]
pub(super) struct Drawer {
    cumulative: Vec<f64>, // [ranked], best first
}

/// How many tokens are ranked at first when top-k is off; rarely does a nucleus need more.
const RANKED_FIRST: usize = 256;

impl Drawer {
    /// Draws from `logits` [vocab], already adjusted, with `random` in [0, 1). The temperature is
    /// not 0 and every logit is finite.
    pub(super) fn draw(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        random: f64,
        ranking: &mut Ranking,
    ) -> u32 {
        let max = f64::from(max(logits));
        let temperature = f64::from(sampling.temperature);
        let weight = |logit: f32| ((f64::from(logit) - max) / temperature).exp();

        // Top-k ranks its k at once; without it, the weight of the whole vocabulary is summed and
        // the ranking grows until the cut and the draw lie in it.
        let (limit, mut count, known_total) = match sampling.top_k {
            0 => {
                let total = logits.iter().map(|&logit| weight(logit)).sum();
                (logits.len(), logits.len().min(RANKED_FIRST), Some(total))
            }
            k => (k.min(logits.len()), k.min(logits.len()), None),
        };
        loop {
            let ranked = ranking.top(logits, count);
            self.accumulate(ranked, weight);
            let all = count == limit;
            let weights = ranked.iter().map(|candidate| weight(candidate.logit));
            if let Some(index) = self.choose(weights, sampling, random, known_total, all) {
                return ranked[index].id;
            }
            count = count.saturating_mul(8).min(limit);
        }
    }

    /// The token that [`Drawer::draw`] draws from the row of which `certain` is known; `None` when
    /// that does not say.
    ///
    /// What is chosen moves one way only, down the ranking, as the total grows: where the least and
    /// the largest that the total can be choose the same token, so does every one between.
    pub(super) fn draw_certain(
        &mut self,
        certain: &Certain<'_>,
        sampling: &Sampling,
        random: f64,
    ) -> Option<u32> {
        let max = f64::from(certain.ranked.first()?.logit);
        let temperature = f64::from(sampling.temperature);
        let weight = |logit: f32| ((f64::from(logit) - max) / temperature).exp();
        let limit = match sampling.top_k {
            0 => certain.vocab,
            k => k.min(certain.vocab),
        };
        let all = certain.whole || certain.ranked.len() >= limit;
        let ranked = &certain.ranked[..limit.min(certain.ranked.len())];
        self.accumulate(ranked, weight);
        let totals = match sampling.top_k {
            0 => certain.totals(temperature)?.map(Some),
            // The total is that of the k best, and known if they are.
            _ if all => [None, None],
            _ => return None,
        };
        let weights = || ranked.iter().map(|candidate| weight(candidate.logit));
        let [least, largest] =
            totals.map(|total| self.choose(weights(), sampling, random, total, all));
        least.filter(|_| least == largest).map(|index| ranked[index].id)
    }

    fn accumulate(&mut self, ranked: &[Candidate], weight: impl Fn(f32) -> f64) {
        self.cumulative.clear();
        self.cumulative.extend(ranked.iter().scan(0.0, |sum, candidate| {
            *sum += weight(candidate.logit);
            Some(*sum)
        }));
    }

    /// Index of the drawn token, or `None` when it may lie beyond what is ranked. `all`: nothing
    /// lies beyond.
    fn choose(
        &self,
        mut weights: impl Iterator<Item = f64>,
        sampling: &Sampling,
        random: f64,
        known_total: Option<f64>,
        all: bool,
    ) -> Option<usize> {
        let ranked_total = *self.cumulative.last().expect("at least one token is ranked");
        let total = known_total.unwrap_or(ranked_total);
        let by_top_p = if sampling.top_p < 1.0 {
            let mass = f64::from(sampling.top_p) * total;
            self.cumulative.iter().position(|&sum| sum >= mass).map(|last| last + 1)
        } else {
            None
        };
        // The largest weight is 1: a token's weight is its share of the largest.
        let by_min_p = weights.position(|weight| weight < f64::from(sampling.min_p));

        let cut = [by_top_p, by_min_p].into_iter().flatten().min();
        let untruncated = sampling.top_p >= 1.0 && sampling.min_p <= 0.0;
        let (kept, mass) = match cut {
            Some(kept) => (kept, self.cumulative[kept - 1]),
            None if all => (self.cumulative.len(), ranked_total),
            None if untruncated => (self.cumulative.len(), total),
            None => return None,
        };
        let target = random * mass;
        match self.cumulative[..kept].iter().position(|&sum| sum > target) {
            Some(index) => Some(index),
            None if cut.is_none() && !all => None,
            // Rounding alone: the target is below the mass of what is kept.
            None => Some(kept - 1),
        }
    }
}

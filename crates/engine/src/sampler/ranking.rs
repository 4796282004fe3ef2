use super::largest::{CHUNK, max};
use crate::backend::Candidate;

/// The largest logits of a row, in order, found without sorting the row.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    candidates: Vec<Candidate>,
}

impl Ranking {
    /// The `count` largest logits, largest first, the lower id first on a tie. Fewer when the row
    /// [vocab] is shorter; a logit of minus infinity never ranks.
    ///
    /// One pass with a growing floor: when `count` better ones are known a candidate is dropped at
    /// once, and so is a chunk of logits without one, which for a small count is nearly every chunk.
    pub(super) fn top(&mut self, logits: &[f32], count: usize) -> &[Candidate] {
        self.candidates.clear();
        let room = count.saturating_mul(2).max(64);
        let mut floor = f32::NEG_INFINITY;
        for (first, chunk) in (0_u32..).step_by(CHUNK).zip(logits.chunks(CHUNK)) {
            if max(chunk) <= floor {
                continue;
            }
            for (id, &logit) in (first..).zip(chunk) {
                // An equal logit loses too: its id is higher than those seen before.
                if logit <= floor {
                    continue;
                }
                self.candidates.push(Candidate { id, logit });
                if self.candidates.len() == room {
                    floor = self.keep(count);
                }
            }
        }
        self.keep(count);
        self.candidates.sort_unstable_by(Candidate::best_first);
        &self.candidates
    }

    /// Drops all but the best `count` candidates; gives the logit that the next one must exceed.
    fn keep(&mut self, count: usize) -> f32 {
        if let Some(last) = count.checked_sub(1)
            && self.candidates.len() > count
        {
            self.candidates.select_nth_unstable_by(last, Candidate::best_first);
        }
        self.candidates.truncate(count);
        self.candidates.last().map_or(f32::INFINITY, |worst| worst.logit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::tests::noise;

    #[test]
    fn the_top_equals_a_full_sort_at_every_count() {
        let mut ranking = Ranking::default();
        for seed in 0..8 {
            // Rounded, so that ties are common.
            let logits: Vec<f32> =
                noise(seed, 500).iter().map(|x| (x * 4.0).round() / 4.0).collect();
            let mut sorted: Vec<Candidate> =
                (0..).zip(&logits).map(|(id, &logit)| Candidate { id, logit }).collect();
            sorted.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.id.cmp(&b.id)));
            for count in [0, 1, 2, 20, 31, 32, 33, 64, 499, 500, 501] {
                let expected = &sorted[..count.min(500)];
                assert_eq!(ranking.top(&logits, count), expected, "seed {seed}, count {count}");
            }
        }
    }
}

use super::ranking::Ranking;

/// Log-probability of `id` and of the `count` most probable tokens in the model's own
/// distribution: log softmax, `logit - max - ln(sum(exp(logit - max)))`, summed in float64.
pub(super) fn logprobs(
    logits: &[f32], // [vocab]
    id: u32,
    count: usize,
    ranking: &mut Ranking,
) -> (f32, Vec<(u32, f32)>) {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let alternatives = match count {
        0 => Vec::new(),
        _ => {
            let top = ranking.top(logits, count);
            top.iter().map(|candidate| (candidate.id, logprob(candidate.logit))).collect()
        }
    };
    (logprob(logits[id as usize]), alternatives)
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
            let (chosen, alternatives) = logprobs(&logits, 1, 3, &mut Ranking::default());
            let close = |a: f32, b: f32| (a - b.ln()).abs() < 2e-4;
            assert!(close(chosen, 0.25), "{chosen}");
            let ids: Vec<u32> = alternatives.iter().map(|&(id, _)| id).collect();
            assert_eq!(ids, [2, 1, 0]);
            assert!(close(alternatives[0].1, 0.5) && close(alternatives[2].1, 0.125));
        }
    }
}

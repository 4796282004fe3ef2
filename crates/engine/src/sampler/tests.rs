//! The sampler against its definition, written down without any regard for speed.

use super::*;

mod candidates;

/// Reproducible values in about [-4, 4], different for each seed.
pub(super) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| (random.next() * 8.0 - 4.0) as f32).collect()
}

fn sample(sampling: &Sampling, logits: &[f32]) -> u32 {
    let mut sampler = Sampler::new(sampling.clone(), None);
    sampler.next_of_logits(logits, &mut Workspace::default()).expect("the logits are finite").id
}

/// Sorts everything, cuts step by step, draws: the documentation of [`Sampling`] as code. Gives
/// the tokens that stay, and the drawn one.
fn naive(sampling: &Sampling, logits: &[f32], random: f64) -> (Vec<u32>, u32) {
    let mut tokens: Vec<(u32, f64)> =
        (0..).zip(logits).map(|(id, &logit)| (id, f64::from(logit))).collect();
    tokens.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    let max = tokens[0].1;
    for token in &mut tokens {
        token.1 = ((token.1 - max) / f64::from(sampling.temperature)).exp();
    }
    if sampling.top_k > 0 {
        tokens.truncate(sampling.top_k);
    }
    let total: f64 = tokens.iter().map(|token| token.1).sum();
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for token in tokens {
        if sum >= f64::from(sampling.top_p) * total && sampling.top_p < 1.0 {
            break;
        }
        sum += token.1;
        kept.push(token);
    }
    kept.retain(|token| token.1 >= f64::from(sampling.min_p));
    let mass: f64 = kept.iter().map(|token| token.1).sum();
    let mut left = random * mass;
    let drawn = kept.iter().find(|token| {
        left -= token.1;
        left < 0.0
    });
    let drawn = drawn.or(kept.last()).unwrap().0;
    (kept.iter().map(|token| token.0).collect(), drawn)
}

#[test]
fn truncation_and_draw_equal_the_naive_definition() {
    let mut ranking = Ranking::default();
    let mut drawer = Drawer::default();
    let mut draws = Random::new(1);
    for vocab in [1, 2, 50, 300, 3000] {
        let logits = noise(vocab as u64, vocab);
        for temperature in [0.1, 0.7, 1.0, 2.0] {
            for top_k in [0, 1, 20, 256, 5000] {
                for (top_p, min_p) in
                    [(1.0, 0.0), (0.8, 0.0), (0.95, 0.05), (1.0, 0.1), (0.01, 0.0), (1.0, 1.0)]
                {
                    let sampling = Sampling { temperature, top_k, top_p, min_p, ..greedy() };
                    for _ in 0..8 {
                        let random = draws.next();
                        let (_, expected) = naive(&sampling, &logits, random);
                        let drawn = drawer.draw(&logits, &sampling, random, &mut ranking);
                        assert_eq!(drawn, expected, "{sampling:?} vocab {vocab} at {random}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_largest_draw_is_the_last_token_that_stays() {
    let logits = noise(3, 1000);
    for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.2)] {
        let sampling = Sampling { temperature: 1.0, top_k, top_p, min_p, ..greedy() };
        let random = 1.0 - f64::EPSILON / 2.0;
        let (kept, _) = naive(&sampling, &logits, random);
        let drawn = Drawer::default().draw(&logits, &sampling, random, &mut Ranking::default());
        assert_eq!(drawn, *kept.last().unwrap(), "{sampling:?}");
    }
}

#[test]
fn draws_follow_the_distribution() {
    // Shares 1 to 10 of 55: top-k keeps the eight largest, 3 to 10 of 52.
    let logits: Vec<f32> = (1..=10).map(|share| (share as f32).ln()).collect();
    let sampling = Sampling { temperature: 1.0, top_k: 8, seed: Some(11), ..greedy() };
    let mut sampler = Sampler::new(sampling, None);
    let mut workspace = Workspace::default();
    let mut counts = [0_u32; 10];
    for _ in 0..52_000 {
        counts[sampler.next_of_logits(&logits, &mut workspace).unwrap().id as usize] += 1;
    }
    assert_eq!(counts[..2], [0, 0]);
    let chi_square: f64 = (2..10)
        .map(|id| {
            let expected = (id as f64 + 1.0) * 1000.0;
            (f64::from(counts[id]) - expected).powi(2) / expected
        })
        .sum();
    // 7 degrees of freedom: above 24.3 once in a thousand seeds.
    assert!(chi_square < 24.3, "{chi_square}: {counts:?}");
}

#[test]
fn greedy_takes_the_largest_and_the_lower_id_on_a_tie() {
    assert_eq!(sample(&greedy(), &[0.0, 3.0, -1.0, 3.0]), 1);
    assert_eq!(sample(&greedy(), &[-5.0]), 0);
    assert_eq!(sample(&greedy(), &[f32::MIN, f32::MIN]), 0);
}

#[test]
fn a_bias_moves_the_choice() {
    let logits = [1.0, 2.0, 3.0];
    let banned = Sampling { logit_bias: vec![(2, -100.0)], ..greedy() };
    assert_eq!(sample(&banned, &logits), 1);
    let added_up = Sampling { logit_bias: vec![(0, 1.5), (0, 1.5)], ..greedy() };
    assert_eq!(sample(&added_up, &logits), 0);
}

/// Tokens of three greedy steps over the same logits.
fn three_steps(sampling: Sampling, logits: &[f32]) -> [u32; 3] {
    let mut sampler = Sampler::new(sampling, None);
    let mut workspace = Workspace::default();
    std::array::from_fn(|_| sampler.next_of_logits(logits, &mut workspace).unwrap().id)
}

#[test]
fn penalties_count_what_was_generated() {
    let presence = |presence_penalty| Sampling { presence_penalty, ..greedy() };
    assert_eq!(three_steps(presence(0.0), &[1.0, 0.5, 0.0]), [0, 0, 0]);
    // Once, however often the token came: 1.0 - 0.4 stays largest.
    assert_eq!(three_steps(presence(0.4), &[1.0, 0.5, 0.0]), [0, 0, 0]);
    assert_eq!(three_steps(presence(0.6), &[1.0, 0.5, 0.0]), [0, 1, 0]);
    // Each time: 1.0 - 2 * 0.4 falls behind.
    let frequency = Sampling { frequency_penalty: 0.4, ..greedy() };
    assert_eq!(three_steps(frequency, &[1.0, 0.5, 0.0]), [0, 0, 1]);
    // Divides what is positive, multiplies what is negative: both fall.
    let repetition = || Sampling { repetition_penalty: 3.0, ..greedy() };
    assert_eq!(three_steps(repetition(), &[1.0, 0.5, 0.25]), [0, 1, 0]);
    assert_eq!(three_steps(repetition(), &[-1.0, -2.0, -9.0]), [0, 1, 0]);
}

#[test]
fn bias_comes_before_penalties() {
    // (1 + 3) / 4 = 1 falls behind 1.5; the other order, 1 / 4 + 3, would not.
    let sampling = Sampling { logit_bias: vec![(0, 3.0)], repetition_penalty: 4.0, ..greedy() };
    assert_eq!(three_steps(sampling, &[1.0, 1.5, 0.0]), [0, 1, 0]);
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let logits = noise(5, 1000);
    let tokens = |seed| {
        let sampling = Sampling { temperature: 1.0, seed, ..greedy() };
        let mut sampler = Sampler::new(sampling, None);
        let mut workspace = Workspace::default();
        (0..32)
            .map(|_| sampler.next_of_logits(&logits, &mut workspace).unwrap().id)
            .collect::<Vec<_>>()
    };
    assert_eq!(tokens(Some(1)), tokens(Some(1)));
    assert_ne!(tokens(Some(1)), tokens(Some(2)));
    assert_ne!(tokens(None), tokens(None));
}

#[test]
fn anything_but_finite_logits_is_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in 0..3 {
            let mut logits = [1.0, 2.0, 3.0];
            logits[place] = bad;
            let mut sampler = Sampler::new(greedy(), None);
            assert_eq!(sampler.next_of_logits(&logits, &mut Workspace::default()), None);
        }
    }
}

#[test]
fn log_probabilities_are_the_models_own() {
    let logits = [1.0, 2.0, 3.0, 0.0];
    let sampling = Sampling {
        temperature: 0.5,
        top_k: 1,
        logit_bias: vec![(0, 50.0)],
        presence_penalty: 1.0,
        ..greedy()
    };
    let mut sampler = Sampler::new(sampling, Some(2));
    let token = sampler.next_of_logits(&logits, &mut Workspace::default()).unwrap();
    let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
    assert_eq!(token.id, 0);
    assert!((token.logprob.unwrap() - (1.0 - sum.ln())).abs() < 1e-6);
    let ids: Vec<u32> = token.alternatives.iter().map(|alternative| alternative.0).collect();
    assert_eq!(ids, [2, 1]);
}

#[test]
fn every_range_is_checked_and_the_field_named() {
    let field = |sampling: Sampling| match sampling.check(10) {
        Ok(()) => "none",
        Err(Error::Request { field, .. }) => field,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(field(greedy()), "none");
    for bad in [-0.1, 2.1, f32::NAN, f32::INFINITY] {
        assert_eq!(field(Sampling { temperature: bad, ..greedy() }), "temperature");
        assert_eq!(field(Sampling { top_p: bad, ..greedy() }), "top_p");
        assert_eq!(field(Sampling { min_p: bad, ..greedy() }), "min_p");
    }
    assert_eq!(field(Sampling { top_p: 0.0, ..greedy() }), "top_p");
    for bad in [-2.1, 2.1, f32::NAN] {
        assert_eq!(field(Sampling { presence_penalty: bad, ..greedy() }), "presence_penalty");
        assert_eq!(field(Sampling { frequency_penalty: bad, ..greedy() }), "frequency_penalty");
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(field(Sampling { repetition_penalty: bad, ..greedy() }), "repetition_penalty");
    }
    for bad in [(10, 0.0), (0, 101.0), (0, f32::NAN)] {
        assert_eq!(field(Sampling { logit_bias: vec![bad], ..greedy() }), "logit_bias");
    }
}

fn greedy() -> Sampling {
    Sampling::default()
}

//! Choosing from candidates against choosing from the logits: the same tokens, or a refusal.

use super::*;
use crate::backend::{Candidates, SUM_ERROR};

const TEMPERATURES: [f32; 4] = [0.0, 0.2, 1.0, 2.0];

/// Rows of `vocab` logits of every kind: apart, with ties, all equal, and peaked as a model's are.
fn rows(vocab: usize) -> Vec<Vec<f32>> {
    let apart = noise(vocab as u64, vocab);
    let ties = apart.iter().map(|x| x.round()).collect();
    let zeros = apart.iter().map(|x| if *x < 0.0 { -0.0 } else { 0.0 }).collect();
    let peaked = apart.iter().map(|x| x * x * x.abs()).collect();
    let low = apart.iter().map(|x| x - 100.0).collect();
    vec![apart, ties, vec![1.5; vocab], zeros, peaked, low]
}

/// Every value of every field with a few others.
fn samplings() -> Vec<Sampling> {
    let penalties = [(0.0, 0.0, 1.0), (1.5, 0.0, 1.0), (0.0, 0.3, 1.0), (0.0, 0.0, 1.3)];
    let penalties =
        penalties.into_iter().chain([(0.4, 0.2, 3.0), (-0.5, 0.2, 1.0), (0.0, 0.0, 0.8)]);
    let mut all = Vec::new();
    for (presence_penalty, frequency_penalty, repetition_penalty) in penalties {
        for logit_bias in [vec![], vec![(0, -3.0), (0, -1.0)], vec![(0, 2.5)]] {
            for temperature in TEMPERATURES {
                for top_k in [0, 1, 20, CANDIDATES_MAX, 100] {
                    for (top_p, min_p) in
                        [(1.0, 0.0), (0.8, 0.0), (0.95, 0.05), (1.0, 0.1), (0.05, 0.0)]
                    {
                        all.push(Sampling {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            presence_penalty,
                            frequency_penalty,
                            repetition_penalty,
                            logit_bias: logit_bias.clone(),
                            seed: Some(all.len() as u64),
                        });
                    }
                }
            }
        }
    }
    all
}

/// Log-probabilities as near as the sums may be apart.
fn assert_close(ours: &Token, expected: &Token, what: &str) {
    let near = |a: f32, b: f32| (a - b).abs() <= 2.0 * SUM_ERROR as f32 + a.abs() * 1e-6;
    assert_eq!(ours.id, expected.id, "{what}");
    assert!(near(ours.logprob.unwrap(), expected.logprob.unwrap()), "{what}");
    assert_eq!(ours.alternatives.len(), expected.alternatives.len(), "{what}");
    for (ours, expected) in ours.alternatives.iter().zip(&expected.alternatives) {
        assert!(ours.0 == expected.0 && near(ours.1, expected.1), "{what}");
    }
}

#[test]
fn candidates_give_the_token_of_the_logits_or_none() {
    let mut workspace = Workspace::default();
    for vocab in [1, 2, 64, 65, 700] {
        for logits in rows(vocab) {
            let candidates = TEMPERATURES.map(|temperature| Candidates::of(&logits, temperature));
            for (case, sampling) in samplings().into_iter().enumerate() {
                let at = TEMPERATURES.iter().position(|one| *one == sampling.temperature);
                // Sums as wrong as they may be.
                let factor = [1.0, 1.0 + 0.99 * SUM_ERROR, 1.0 - 0.99 * SUM_ERROR][case % 3];
                let candidates = candidates[at.unwrap()].with_sums_times(factor);
                let mut of_logits = Sampler::new(sampling.clone(), Some(case % 21));
                let mut of_candidates = Sampler::new(sampling.clone(), Some(case % 21));
                for step in 0..3 {
                    let what = format!("{sampling:?}, vocab {vocab}, step {step}");
                    let expected = of_logits.next_of_logits(&logits, &mut workspace).unwrap();
                    let scores = Scores::Candidates(&candidates);
                    let ours = match of_candidates.next(scores, vocab, &mut workspace) {
                        Ok(token) => token.unwrap(),
                        Err(NeedsLogits) => {
                            let scores = Scores::Logits(&logits);
                            of_candidates.next(scores, vocab, &mut workspace).unwrap().unwrap()
                        }
                    };
                    assert_close(&ours, &expected, &what);
                }
            }
        }
    }
}

/// Steps in which candidates were enough, and all steps, over rows as a model gives them.
fn enough(sampling: &Sampling) -> (usize, usize) {
    const STEPS: usize = 50;
    let mut workspace = Workspace::default();
    let mut served = 0;
    let mut sampler = Sampler::new(sampling.clone(), Some(20));
    for step in 0..STEPS {
        let logits: Vec<f32> = noise(step as u64, 3000).iter().map(|x| x * x * x / 4.0).collect();
        let candidates = Candidates::of(&logits, sampling.temperature);
        match sampler.next(Scores::Candidates(&candidates), logits.len(), &mut workspace) {
            Ok(_) => served += 1,
            Err(NeedsLogits) => {
                let scores = Scores::Logits(&logits);
                sampler.next(scores, logits.len(), &mut workspace).unwrap().unwrap();
            }
        }
    }
    (served, STEPS)
}

#[test]
fn candidates_are_enough_for_what_is_usually_asked() {
    let warm = || Sampling { temperature: 0.7, seed: Some(4), ..greedy() };
    let always = [
        greedy(),
        Sampling { presence_penalty: 1.5, repetition_penalty: 1.1, ..greedy() },
        Sampling { logit_bias: vec![(7, -100.0)], ..greedy() },
        Sampling { top_k: 20, top_p: 0.95, ..warm() },
        Sampling { top_k: CANDIDATES_MAX, min_p: 0.1, ..warm() },
        Sampling { top_k: 20, top_p: 0.8, presence_penalty: 1.5, ..warm() },
    ];
    for sampling in always {
        let (served, steps) = enough(&sampling);
        assert_eq!(served, steps, "{sampling:?}");
    }
    let mostly = [
        Sampling { min_p: 0.1, ..warm() },
        Sampling { top_p: 0.5, ..warm() },
        Sampling { top_p: 0.5, presence_penalty: 1.0, ..warm() },
        Sampling { temperature: 0.3, ..warm() },
    ];
    for sampling in mostly {
        let (served, steps) = enough(&sampling);
        assert!(2 * served > steps, "{served} of {steps}: {sampling:?}");
    }
}

#[test]
fn a_cut_that_the_sum_s_error_could_move_asks_for_the_logits() {
    // Two tokens reach top-p, or just do not: a third stays then, and the draw moves.
    let logits: Vec<f32> = (0..200).map(|id| if id < 3 { 8.0 } else { 0.0 }).collect();
    let share = 2.0 * 8.0_f64.exp() / (3.0 * 8.0_f64.exp() + 197.0);
    let mut workspace = Workspace::default();
    let mut outcomes = [0; 2];
    for off in [-1e-3, -1e-5, -1e-6, 1e-6, 1e-5, 1e-3] {
        for seed in 0..50 {
            let top_p = (share * (1.0 + off)) as f32;
            let sampling = Sampling { temperature: 1.0, top_p, seed: Some(seed), ..greedy() };
            let expected =
                Sampler::new(sampling.clone(), None).next_of_logits(&logits, &mut workspace);
            for wrong in [-0.99, 0.99] {
                let candidates =
                    Candidates::of(&logits, 1.0).with_sums_times(1.0 + wrong * SUM_ERROR);
                let mut sampler = Sampler::new(sampling.clone(), None);
                let scores = Scores::Candidates(&candidates);
                match sampler.next(scores, logits.len(), &mut workspace) {
                    Ok(token) => {
                        assert_eq!(token, expected, "top-p {top_p}, seed {seed}");
                        outcomes[0] += 1;
                    }
                    Err(NeedsLogits) => outcomes[1] += 1,
                }
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 50), "{outcomes:?}");
}

#[test]
fn what_a_bias_takes_from_tokens_that_are_not_seen_counts() {
    // A bias takes a token away that is no candidate. With what is left two tokens reach top-p, with
    // the sum as it was they do not.
    let logits: Vec<f32> = (0..200).map(|id| if id < 3 { 2.0 } else { 0.0 }).collect();
    let share = |others: f64| 2.0 * 2.0_f64.exp() / (3.0 * 2.0_f64.exp() + others);
    let top_p = (0.5 * (share(196.0) + share(197.0))) as f32;
    let candidates = Candidates::of(&logits, 1.0);
    assert!(candidates.best().iter().all(|candidate| candidate.id != 150));
    let mut workspace = Workspace::default();
    let mut refused = 0;
    for seed in 0..200 {
        let logit_bias = vec![(150, -100.0)];
        let sampling =
            Sampling { temperature: 1.0, top_p, seed: Some(seed), logit_bias, ..greedy() };
        let expected = Sampler::new(sampling.clone(), None).next_of_logits(&logits, &mut workspace);
        let mut sampler = Sampler::new(sampling, None);
        match sampler.next(Scores::Candidates(&candidates), logits.len(), &mut workspace) {
            Ok(token) => assert_eq!(token, expected, "seed {seed}"),
            Err(NeedsLogits) => refused += 1,
        }
    }
    assert!(refused > 0, "every draw was certain");
}

#[test]
fn what_raises_logits_or_ranks_more_asks_for_the_logits() {
    let wants = |sampling| Sampler::new(sampling, None).wants();
    let warm = Sampling { temperature: 0.5, top_k: CANDIDATES_MAX, ..greedy() };
    assert_eq!(wants(warm.clone()), Wants::Candidates { temperature: 0.5 });
    for raising in [
        Sampling { logit_bias: vec![(1, -1.0), (2, 0.5)], ..greedy() },
        Sampling { presence_penalty: -0.1, ..greedy() },
        Sampling { frequency_penalty: -0.1, ..greedy() },
        Sampling { repetition_penalty: 0.9, ..greedy() },
        Sampling { top_k: CANDIDATES_MAX + 1, ..warm },
    ] {
        assert_eq!(wants(raising.clone()), Wants::Last, "{raising:?}");
    }
}

#[test]
fn candidates_of_logits_that_are_no_numbers_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = noise(1, 100);
        logits[70] = bad;
        let candidates = Candidates::of(&logits, 1.0);
        let scores = Scores::Candidates(&candidates);
        let next = Sampler::new(greedy(), None).next(scores, 100, &mut Workspace::default());
        assert_eq!(next, Ok(None));
    }
}

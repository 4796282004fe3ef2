//! Many turns under a small budget.

use calla_engine::{Engine, EngineConfig, Request};

use crate::{
    fake::{PAGE_BYTES, Probe, STATE_BYTES, greedy},
    harness::{config, end, request, run, start, tokens},
};

/// The cache's own count lies between what the backend really holds and the budget.
fn assert_bytes(engine: &Engine, probe: &Probe, budget: usize) {
    let counted = engine.stats().cache_bytes;
    let held = probe.snapshot_bytes();
    assert!(held <= counted, "{held} bytes are held, {counted} are counted");
    assert!(counted <= budget, "{counted} bytes are counted, the budget is {budget}");
}

#[test]
fn two_hundred_turns_stay_under_the_budget_and_hit() {
    let budget = 32 * (STATE_BYTES + 8 * PAGE_BYTES);
    let (engine, probe) = start(EngineConfig { cache_bytes: budget, ..config() });
    let system = tokens(1, 64);
    // Reasoning is dropped from the history: a turn continues from the last opener, not the end.
    let mut history = system.clone();
    let mut known = 0;
    for turn in 0..200 {
        history.extend(tokens(turn, 7));
        let opener = history.len();
        let prompt = [&history[..], &[55, 55]].concat();
        let snapshot_at = vec![system.len(), opener];
        let outcome = run(&engine, Request { snapshot_at, ..request(prompt.clone(), 8) });
        assert_eq!(outcome.ids(), greedy(&prompt, 8));
        assert_eq!(outcome.usage.cached_tokens, known, "turn {turn}");
        assert_bytes(&engine, &probe, budget);
        known = opener;
    }
    // Ten times more was written than fits; the place that other conversations share is there.
    assert!(engine.stats().cache_entries < 40, "{:?}", engine.stats());
    let other = [&system[..], &[56, 56]].concat();
    assert_eq!(run(&engine, request(other, 1)).usage.cached_tokens, system.len());
    end(engine, &probe);
}

#[test]
fn any_mix_of_conversations_under_any_budget_gives_the_models_answers() {
    for (seed, states) in [(1_u64, 1), (2, 2), (3, 5), (4, 40)] {
        let budget = states * (STATE_BYTES + 6 * PAGE_BYTES);
        let (engine, probe) = start(EngineConfig { cache_bytes: budget, ..config() });
        let mut random = seed;
        let mut pick = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            ((random >> 33) % below) as usize
        };
        let mut histories: Vec<Vec<u32>> = (0..4).map(|id| tokens(id % 2, 20)).collect();
        for step in 0..150 {
            let history = &mut histories[pick(4)];
            // Go on, edit the end, or start over.
            let keep = [history.len(), history.len() - pick(10), 20][pick(3)];
            history.truncate(keep);
            history.extend(tokens(step, 1 + pick(20)));
            let snapshot_at = vec![pick(history.len() as u64), history.len().min(20)];
            let count = pick(12);
            let request = Request { snapshot_at, ..request(history.clone(), count) };
            if pick(5) == 0 {
                drop(engine.submit(request).unwrap());
                continue;
            }
            let outcome = run(&engine, request);
            assert_eq!(outcome.ids(), greedy(history, count), "seed {seed}, step {step}");
            assert_bytes(&engine, &probe, budget);
            history.extend(outcome.ids());
        }
        assert!(probe.state().restores > 0 || states == 1);
        end(engine, &probe);
    }
}

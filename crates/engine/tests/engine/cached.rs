//! The prefix cache: what a prompt can continue from, and that no answer shows it.

use calla_engine::{Engine, EngineConfig, FinishReason, Request};

use crate::{
    fake::{Probe, TURNS_NAN, greedy},
    harness::{Outcome, config, end, read_tokens, request, run, start, tokens},
};

fn start_cached() -> (Engine, Probe) {
    start(EngineConfig { cache_bytes: 1 << 20, ..config() })
}

/// Runs a greedy request, checks its answer against the model, and gives the reused tokens.
fn reused(engine: &Engine, prompt: &[u32], snapshot_at: &[usize]) -> usize {
    let snapshot_at = snapshot_at.to_vec();
    let outcome = run(engine, Request { snapshot_at, ..request(prompt.to_vec(), 6) });
    assert_eq!(outcome.ids(), greedy(prompt, 6));
    assert_consistent(&outcome, prompt.len());
    outcome.usage.cached_tokens
}

fn assert_consistent(outcome: &Outcome, prompt_tokens: usize) {
    assert_eq!(outcome.usage.prompt_tokens, prompt_tokens);
    assert!(outcome.usage.cached_tokens < prompt_tokens, "the last token is always computed");
    let first = outcome.prefill.first().expect("at least one token is computed").0;
    assert!(first > outcome.usage.cached_tokens, "progress includes what was reused");
}

fn join(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[test]
fn the_same_prompt_again_is_a_hit_for_all_but_its_last_token() {
    for prompt_tokens in [1, 2, 15, 16, 17, 33, 100] {
        let (engine, probe) = start_cached();
        let prompt = tokens(1, prompt_tokens);
        assert_eq!(reused(&engine, &prompt, &[]), 0);
        for _ in 0..3 {
            assert_eq!(reused(&engine, &prompt, &[]), prompt_tokens - 1);
        }
        assert_eq!(engine.stats().cached_tokens, 3 * (prompt_tokens as u64 - 1));
        end(engine, &probe);
    }
}

#[test]
fn the_next_turn_continues_from_the_end_of_the_last() {
    let (engine, probe) = start_cached();
    let mut history = tokens(2, 40);
    let mut known = 0;
    for turn in 0..10 {
        assert_eq!(reused(&engine, &history, &[]), known);
        history.extend(greedy(&history, 6));
        // The last token was delivered and never fed.
        known = history.len() - 1;
        history.extend(tokens(turn, 9));
    }
    end(engine, &probe);
}

#[test]
fn a_stopped_answer_is_a_hit_to_its_last_token() {
    let (engine, probe) = start_cached();
    let prompt = tokens(3, 20);
    let answer = greedy(&prompt, 6);
    let cut = answer.iter().position(|id| id == &answer[5]).unwrap();
    let stop_ids = vec![answer[5]];
    run(&engine, Request { stop_ids, ..request(prompt.clone(), 100) });
    let next = join(&[&prompt, &answer[..cut], &[1, 2, 3]]);
    assert_eq!(reused(&engine, &next, &[]), prompt.len() + cut);
    end(engine, &probe);
}

#[test]
fn interleaved_conversations_keep_their_own_places() {
    let (engine, probe) = start_cached();
    let mut histories = [tokens(4, 30), tokens(5, 50), tokens(6, 30)];
    let mut known = [0; 3];
    for _ in 0..6 {
        for (history, known) in histories.iter_mut().zip(&mut known) {
            assert_eq!(reused(&engine, history, &[]), *known);
            history.extend(greedy(history, 6));
            *known = history.len() - 1;
            history.extend([1, 2, 3, 4]);
        }
    }
    end(engine, &probe);
}

#[test]
fn an_asked_place_serves_whatever_branches_off_after_it() {
    let (engine, probe) = start_cached();
    let system = tokens(7, 300);
    let (first, edited) = (join(&[&system, &[1, 2, 3]]), join(&[&system, &[1, 4, 3, 5]]));
    assert_eq!(reused(&engine, &first, &[300]), 0);
    // An edited last message, and another conversation under the same system prompt.
    assert_eq!(reused(&engine, &edited, &[300]), 300);
    assert_eq!(reused(&engine, &join(&[&system, &tokens(8, 99)]), &[300]), 300);
    // One token earlier there is nothing to continue from.
    let differs = join(&[&system[..299], &[49], &first[300..]]);
    assert_ne!(system[299], 49);
    assert_eq!(reused(&engine, &differs, &[]), 0);
    end(engine, &probe);
}

#[test]
fn every_length_around_places_and_chunks_gives_the_same_answer() {
    // Chunks of 16: places at, before and after their ends.
    for place in [1, 15, 16, 17, 31, 32, 33, 47, 48] {
        let (engine, probe) = start_cached();
        let base = tokens(9, 80);
        assert_eq!(reused(&engine, &base[..48], &[place]), 0);
        for length in [place, place + 1, place + 2, 46, 47, 48, 49, 80] {
            reused(&engine, &base[..length], &[place.min(length)]);
        }
        // Histories that were never stored change nothing either.
        for cut in [place - 1, place, place + 1] {
            let branch = join(&[&base[..cut], &[50, 51, 52]]);
            reused(&engine, &branch, &[]);
        }
        end(engine, &probe);
    }
}

#[test]
fn a_cancelled_prefill_is_kept_to_its_last_chunk() {
    let (engine, probe) = start_cached();
    probe.hold();
    let prompt = tokens(10, 200);
    let stream = engine.submit(request(prompt.clone(), 5)).unwrap();
    probe.allow(4);
    while probe.tokens_computed() < 64 {
        std::thread::yield_now();
    }
    drop(stream);
    probe.release();
    // The chunk after the fourth may be under way when the stream is dropped.
    let cached = reused(&engine, &prompt, &[]);
    assert!([64, 80].contains(&cached), "{cached}");
    end(engine, &probe);
}

#[test]
fn a_cancelled_answer_is_kept() {
    let (engine, probe) = start_cached();
    probe.hold();
    let prompt = tokens(11, 10);
    let mut stream = engine.submit(request(prompt.clone(), 1000)).unwrap();
    // Nine tokens, the tenth, then the answer's first two.
    probe.allow(4);
    let answer = read_tokens(&mut stream, 3);
    drop(stream);
    probe.release();
    let next = join(&[&prompt, &answer, &greedy(&join(&[&prompt, &answer]), 2), &[1]]);
    let cached = reused(&engine, &next, &[]);
    // The third token's pass may be under way when the stream is dropped.
    assert!([12, 13].contains(&cached), "{cached}");
    end(engine, &probe);
}

#[test]
fn what_the_caller_cuts_off_is_not_kept() {
    for (kept, expected) in [(2, 9), (usize::MAX, 13)] {
        let (engine, probe) = start_cached();
        probe.hold();
        let prompt = tokens(12, 10);
        let mut stream = engine.submit(request(prompt.clone(), 5)).unwrap();
        probe.allow(5);
        let answer = read_tokens(&mut stream, 4);
        stream.finish(kept);
        probe.release();
        let rest = greedy(&join(&[&prompt, &answer]), 2);
        let cached = reused(&engine, &join(&[&prompt, &answer, &rest]), &[]);
        assert!(cached == expected || (kept > 2 && cached == 14), "{kept}: {cached}");
        end(engine, &probe);
    }
}

#[test]
fn no_state_is_copied_twice() {
    let (engine, probe) = start_cached();
    let prompt = tokens(13, 40);
    reused(&engine, &prompt, &[40, 39, 20, 20, 0]);
    // Twenty, one before the end, and the end of the answer.
    assert_eq!(probe.state().snapshots_taken, 3);
    for _ in 0..4 {
        reused(&engine, &prompt, &[40, 39, 20, 20, 0]);
    }
    assert_eq!(probe.state().snapshots_taken, 3);
    assert_eq!(engine.stats().cache_entries, 3);
    end(engine, &probe);
}

#[test]
fn without_a_budget_nothing_is_kept() {
    let (engine, probe) = start(config());
    for _ in 0..2 {
        assert_eq!(reused(&engine, &tokens(14, 40), &[20]), 0);
    }
    assert_eq!(probe.state().snapshots_taken, 0);
    // Nor is the prompt cut at places that serve nobody.
    assert_eq!(probe.state().forwards[..3], [16, 16, 8]);
    end(engine, &probe);
}

#[test]
fn a_backend_without_memory_for_snapshots_serves_on() {
    let (engine, probe) = start_cached();
    probe.state().snapshots_max = Some(1);
    let prompt = tokens(15, 40);
    for expected in [0, 39, 39] {
        assert_eq!(reused(&engine, &prompt, &[]), expected);
    }
    end(engine, &probe);
}

#[test]
fn a_state_that_went_wrong_is_not_kept() {
    let (engine, probe) = start_cached();
    let prompt = join(&[&[TURNS_NAN], &tokens(16, 40)]);
    for _ in 0..2 {
        let outcome = run(&engine, Request { snapshot_at: vec![20], ..request(prompt.clone(), 3) });
        assert!(matches!(outcome.reason, FinishReason::NotANumber));
        assert_eq!(outcome.usage.cached_tokens, 0);
    }
    assert_eq!(engine.stats().cache_entries, 0);
    end(engine, &probe);
}

//! What every backend promises about sequences, whatever the model: logits are a pure function of
//! a sequence's tokens, to the bit where the backend says so, and a refused batch changes nothing.

mod common;

use calla_engine::{
    Error,
    backend::{
        Backend, Batch, Candidates, Logits, Row, SUM_ERROR, Scores, SequenceId, SnapshotId, Wants,
    },
    model::Shape,
};
use common::{
    Candidate, alone, assert_bits, candidates, feed, greedy,
    random::{self, Random},
    step,
};

/// Long enough for two chunks of 64 and a rest, and for several KV pages.
const PROMPT_TOKENS: usize = 150;

/// Runs `test` on every backend with every random model.
fn on_every_backend(test: impl Fn(&Candidate, &mut dyn Backend, &Shape)) {
    for (model, shape, weights) in random::models() {
        for candidate in candidates() {
            println!("{} with the {model} model", candidate.name);
            test(&candidate, &mut *candidate.backend(&shape, &weights), &shape);
        }
    }
}

fn prompt(shape: &Shape, seed: u64, len: usize) -> Vec<u32> {
    Random(seed).tokens(len, shape.vocab)
}

#[test]
fn any_chunking_gives_the_same_bits() {
    on_every_backend(|candidate, backend, shape| {
        let tokens = prompt(shape, 1, PROMPT_TOKENS);
        let expected = alone(backend, &tokens);
        for chunk in [1, 7, 64] {
            let sequence = backend.open(tokens.len()).unwrap();
            let logits = feed(backend, sequence, &tokens, chunk);
            candidate.assert_same(&format!("chunks of {chunk}"), &logits, &expected);
        }
    });
}

#[test]
fn one_repeated_token_gives_the_same_bits_in_any_chunking() {
    on_every_backend(|candidate, backend, _| {
        let tokens = [5; PROMPT_TOKENS];
        let expected = alone(backend, &tokens);
        for chunk in [1, 64] {
            let sequence = backend.open(tokens.len()).unwrap();
            let logits = feed(backend, sequence, &tokens, chunk);
            candidate.assert_same(&format!("chunks of {chunk}"), &logits, &expected);
        }
    });
}

#[test]
fn only_wanted_rows_come_back() {
    on_every_backend(|candidate, backend, shape| {
        let tokens = prompt(shape, 2, 40);
        let all = alone(backend, &tokens);
        let sequence = backend.open(tokens.len()).unwrap();
        assert!(step(backend, sequence, &tokens[..30], Wants::Nothing).is_empty());
        let last = step(backend, sequence, &tokens[30..], Wants::Last);
        candidate.assert_same("the last row", &last, &all[39 * shape.vocab..]);
    });
}

#[test]
fn setting_up_differently_gives_the_same_bits() {
    for (model, shape, weights) in random::models() {
        let tokens = prompt(&shape, 3, PROMPT_TOKENS);
        let mut first_of_its_kind: Vec<(&str, Vec<f32>)> = Vec::new();
        for candidate in candidates() {
            let logits = alone(&mut *candidate.backend(&shape, &weights), &tokens);
            match first_of_its_kind.iter().find(|(bits, _)| *bits == candidate.bits) {
                Some((_, expected)) => {
                    assert_bits(&format!("{} on {model}", candidate.name), &logits, expected);
                }
                None => first_of_its_kind.push((candidate.bits, logits)),
            }
            let again = alone(&mut *candidate.backend(&shape, &weights), &tokens);
            let (_, expected) =
                first_of_its_kind.iter().find(|(bits, _)| *bits == candidate.bits).unwrap();
            assert_bits(&format!("{} on {model}, once more", candidate.name), &again, expected);
        }
    }
}

#[test]
fn batch_mates_change_no_bit() {
    on_every_backend(|candidate, backend, shape| {
        let prompts = [prompt(shape, 4, 90), prompt(shape, 5, 33), prompt(shape, 6, 1)];
        let expected: Vec<Vec<f32>> = prompts.iter().map(|tokens| alone(backend, tokens)).collect();
        let sequences: Vec<SequenceId> =
            prompts.iter().map(|tokens| backend.open(tokens.len()).unwrap()).collect();

        // each step takes a chunk of another size from every prompt that is not used up, so
        // that prefill and decode meet in one batch
        let (mut done, mut found) = ([0; 3], [const { Vec::new() }; 3]);
        let mut logits = Logits::new();
        for turn in 0.. {
            let mut rows = Vec::new();
            let mut owners = Vec::new();
            for (owner, tokens) in prompts.iter().enumerate() {
                let chunk = [1, 13, 40][(turn + owner) % 3].min(tokens.len() - done[owner]);
                if chunk > 0 {
                    let tokens = &tokens[done[owner]..][..chunk];
                    rows.push(Row { sequence: sequences[owner], tokens, wants: Wants::All });
                    owners.push(owner);
                }
            }
            if rows.is_empty() {
                break;
            }
            backend.forward(&Batch { rows: &rows }, &mut logits).unwrap();
            let mut at = 0;
            for (row, owner) in rows.iter().zip(owners) {
                let len = row.tokens.len() * shape.vocab;
                found[owner].extend_from_slice(&logits.values()[at..][..len]);
                at += len;
                done[owner] += row.tokens.len();
            }
            assert_eq!(at, logits.values().len());
        }
        for (found, expected) in found.iter().zip(&expected) {
            candidate.assert_same("beside others", found, expected);
        }
    });
}

#[test]
fn greedy_tokens_are_a_function_of_the_prompt() {
    on_every_backend(|_, backend, shape| {
        let tokens = prompt(shape, 7, 70);
        let start = |backend: &mut dyn Backend| backend.open(100).unwrap();
        let whole = start(backend);
        let logits = step(backend, whole, &tokens, Wants::Last);
        let expected = decode(backend, whole, &logits, 24);
        assert!(expected.iter().any(|token| *token != expected[0]), "a loop proves nothing");

        let chunked = start(backend);
        let logits = feed(backend, chunked, &tokens, 7);
        let last = &logits[logits.len() - shape.vocab..];
        let fork = backend.fork(chunked).unwrap();
        let snapshot = backend.snapshot(chunked).unwrap();
        assert_eq!(decode(backend, chunked, last, 24), expected, "chunked");
        assert_eq!(decode(backend, fork, last, 24), expected, "forked");
        let restored = backend.restore(snapshot).unwrap();
        assert_eq!(decode(backend, restored, last, 24), expected, "restored");

        let answered: Vec<u32> = tokens.iter().chain(&expected[..10]).copied().collect();
        let resumed = start(backend);
        let logits = step(backend, resumed, &answered, Wants::Last);
        assert_eq!(decode(backend, resumed, &logits, 14), expected[10..], "resumed");
    });
}

/// Continues greedily from the logits of the last token.
fn decode(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    logits: &[f32],
    tokens: usize,
) -> Vec<u32> {
    let mut found = vec![greedy(logits)];
    while found.len() < tokens {
        let last = found[found.len() - 1];
        found.push(greedy(&step(backend, sequence, &[last], Wants::Last)));
    }
    found
}

#[test]
fn a_full_step_of_short_contexts_gives_each_sequence_its_own_logits() {
    const SEQUENCES: usize = 64;
    for (model, shape, weights) in random::models() {
        let shape = Shape { context_max: 64, ..shape };
        for candidate in candidates() {
            println!("{} with the {model} model", candidate.name);
            let mut backend = candidate.backend(&shape, &weights);
            let sequences: Vec<SequenceId> =
                (0..SEQUENCES).map(|_| backend.open(64).unwrap()).collect();
            let tokens: Vec<u32> = (0..SEQUENCES as u32).collect();
            let row = |(&sequence, token)| Row { sequence, tokens: token, wants: Wants::Last };
            let rows: Vec<Row> = sequences.iter().zip(tokens.chunks(1)).map(row).collect();
            let mut logits = Logits::new();
            backend.forward(&Batch { rows: &rows }, &mut logits).unwrap();
            for at in [0, SEQUENCES - 1] {
                let expected = alone(&mut *backend, &tokens[at..=at]);
                candidate.assert_same("among others", logits.row(at), &expected);
            }
        }
    }
}

#[test]
fn candidates_are_those_of_the_logits() {
    on_every_backend(|candidate, backend, shape| {
        let prompts = [prompt(shape, 20, 30), prompt(shape, 21, 1), prompt(shape, 22, 9)];
        let temperatures = [0.0, 0.7, 2.0];
        let asked = temperatures.map(|temperature| Wants::Candidates { temperature });
        // whole prompts, then a step, which is another kind of pass
        let sequences = prompts.each_ref().map(|_| backend.open(60).unwrap());
        let twins = prompts.each_ref().map(|_| backend.open(60).unwrap());
        let (mut expected, mut found) = (Logits::new(), Logits::new());
        for tokens in [prompts.each_ref().map(|tokens| &tokens[..]), [&[3], &[4], &[5]]] {
            let mut forward = |sequences: &[SequenceId], wants: &[Wants], out: &mut Logits| {
                let row = |at: usize| Row {
                    sequence: sequences[at],
                    tokens: tokens[at],
                    wants: wants[at],
                };
                let rows: Vec<Row> = (0..3).map(row).collect();
                backend.forward(&Batch { rows: &rows }, out).unwrap();
            };
            forward(&twins, &[Wants::Last; 3], &mut expected);
            forward(&sequences, &asked, &mut found);
            assert_eq!(found.rows(), 3);
            for (at, temperature) in temperatures.into_iter().enumerate() {
                let Scores::Candidates(ours) = found.scores(at) else {
                    candidate.assert_same("logits", found.row(at), expected.row(at));
                    continue;
                };
                let mut logits = vec![0.0; shape.vocab];
                backend.logits_row(at, &mut logits).unwrap();
                assert_bits("the logits behind candidates", &logits, expected.row(at));
                let exact = Candidates::of(&logits, temperature);
                assert_eq!(ours.best(), exact.best());
                for (ours, exact) in [
                    (ours.sum(), exact.sum()),
                    (ours.sum_at_temperature(), exact.sum_at_temperature()),
                ] {
                    let error = f64::from(ours) / f64::from(exact) - 1.0;
                    assert!(error.abs() <= SUM_ERROR, "a sum is off by {error:.1e}");
                }
            }
        }
        // where one row wants logits, all get them, and none are kept
        let rows = [
            Row { sequence: sequences[0], tokens: &[1], wants: asked[1] },
            Row { sequence: sequences[1], tokens: &[1], wants: Wants::Last },
        ];
        backend.forward(&Batch { rows: &rows }, &mut found).unwrap();
        assert_eq!(found.values().len(), 2 * shape.vocab);
        let error = backend.logits_row(0, &mut vec![0.0; shape.vocab]).unwrap_err();
        assert!(matches!(error, Error::Batch { row: 0, .. }), "{error}");
    });
}

#[test]
fn forks_part_without_touching_each_other() {
    on_every_backend(|candidate, backend, shape| {
        let (trunk, left, right) =
            (prompt(shape, 8, 75), prompt(shape, 9, 40), prompt(shape, 10, 30));
        let joined = |branch: &[u32]| [&trunk, branch].concat();
        let tail = |logits: Vec<f32>| logits[trunk.len() * shape.vocab..].to_vec();
        let expected_left = tail(alone(backend, &joined(&left)));
        let expected_right = tail(alone(backend, &joined(&right)));

        let a = backend.open(200).unwrap();
        step(backend, a, &trunk, Wants::Nothing);
        let b = backend.fork(a).unwrap();
        assert_eq!(backend.len(b).unwrap(), trunk.len());
        // turn by turn, so that a shared page would show
        let (mut found_left, mut found_right) = (Vec::new(), Vec::new());
        for at in 0..left.len() {
            found_left.extend(step(backend, a, &left[at..=at], Wants::All));
            if at < right.len() {
                found_right.extend(step(backend, b, &right[at..=at], Wants::All));
            }
        }
        candidate.assert_same("the original", &found_left, &expected_left);
        candidate.assert_same("the fork", &found_right, &expected_right);

        let c = backend.fork(b).unwrap();
        backend.close(b).unwrap();
        backend.close(a).unwrap();
        let whole = [&trunk[..], &right, &left].concat();
        let found = feed(backend, c, &left, 7);
        let expected = alone(backend, &whole);
        let from = (whole.len() - left.len()) * shape.vocab;
        candidate.assert_same("a fork that outlives its origin", &found, &expected[from..]);
    });
}

#[test]
fn snapshots_stay_as_they_were_taken() {
    on_every_backend(|candidate, backend, shape| {
        let (trunk, branch) = (prompt(shape, 11, 66), prompt(shape, 12, 20));
        let whole = [&trunk[..], &branch].concat();
        let expected = alone(backend, &whole)[trunk.len() * shape.vocab..].to_vec();

        let sequence = backend.open(100).unwrap();
        step(backend, sequence, &trunk, Wants::Nothing);
        let snapshot = backend.snapshot(sequence).unwrap();
        let found = feed(backend, sequence, &branch, 3);
        candidate.assert_same("the original", &found, &expected);
        backend.close(sequence).unwrap();

        for chunk in [20, 1] {
            let restored = backend.restore(snapshot).unwrap();
            assert_eq!(backend.len(restored).unwrap(), trunk.len());
            candidate.assert_same("restored", &feed(backend, restored, &branch, chunk), &expected);
        }

        let restored = backend.restore(snapshot).unwrap();
        backend.release(snapshot).unwrap();
        candidate.assert_same("after the release", &feed(backend, restored, &branch, 7), &expected);
        assert!(
            matches!(backend.restore(snapshot), Err(Error::UnknownSnapshot(id)) if id == snapshot)
        );
        assert!(
            matches!(backend.release(snapshot), Err(Error::UnknownSnapshot(id)) if id == snapshot)
        );
    });
}

#[test]
fn an_empty_sequence_can_be_copied() {
    on_every_backend(|candidate, backend, shape| {
        let tokens = prompt(shape, 13, 10);
        let expected = alone(backend, &tokens);
        let empty = backend.open(10).unwrap();
        let snapshot = backend.snapshot(empty).unwrap();
        let fork = backend.fork(empty).unwrap();
        let restored = backend.restore(snapshot).unwrap();
        for sequence in [empty, fork, restored] {
            candidate.assert_same("from empty", &feed(backend, sequence, &tokens, 10), &expected);
        }
    });
}

#[test]
fn memory_of_closed_sequences_comes_back_clean() {
    on_every_backend(|candidate, backend, shape| {
        let tokens = prompt(shape, 14, 80);
        let expected = alone(backend, &tokens);
        let mut seen = Vec::new();
        for round in 0..4 {
            let dirty = backend.open(120).unwrap();
            step(backend, dirty, &prompt(shape, 100 + round, 120), Wants::Nothing);
            backend.close(dirty).unwrap();
            let clean = backend.open(80).unwrap();
            assert_eq!(backend.len(clean).unwrap(), 0);
            candidate.assert_same("after a close", &feed(backend, clean, &tokens, 80), &expected);
            backend.close(clean).unwrap();
            seen.extend([dirty, clean]);
        }
        seen.dedup();
        assert_eq!(seen.len(), 8, "a handle came twice");
    });
}

#[test]
fn unknown_sequences_are_refused() {
    on_every_backend(|_, backend, _| {
        let closed = backend.open(10).unwrap();
        backend.close(closed).unwrap();
        for id in [closed, SequenceId(u64::MAX)] {
            let is_it =
                |error: Error| matches!(error, Error::UnknownSequence(named) if named == id);
            assert!(is_it(backend.close(id).unwrap_err()));
            assert!(is_it(backend.fork(id).unwrap_err()));
            assert!(is_it(backend.snapshot(id).unwrap_err()));
            assert!(is_it(backend.len(id).unwrap_err()));
            let rows = [Row { sequence: id, tokens: &[1], wants: Wants::Last }];
            let result = backend.forward(&Batch { rows: &rows }, &mut Logits::new());
            assert!(is_it(result.unwrap_err()));
        }
        let id = SnapshotId(u64::MAX);
        assert!(matches!(backend.restore(id), Err(Error::UnknownSnapshot(named)) if named == id));
        assert!(matches!(backend.release(id), Err(Error::UnknownSnapshot(named)) if named == id));
    });
}

#[test]
fn a_refused_batch_changes_nothing() {
    on_every_backend(|candidate, backend, shape| {
        let tokens = prompt(shape, 15, 30);
        let expected = alone(backend, &tokens)[20 * shape.vocab..].to_vec();
        let (good, full) = (backend.open(30).unwrap(), backend.open(12).unwrap());
        step(backend, good, &tokens[..20], Wants::Nothing);
        step(backend, full, &tokens[..10], Wants::Nothing);
        let roomy = backend.open(shape.context_max).unwrap();

        let vocab = shape.vocab as u32;
        let flood = vec![1; backend.batch_tokens_max()];
        let unknown = SequenceId(u64::MAX);
        // what the second row holds, and what the error must say
        let cases: [(SequenceId, &[u32], &[&str]); 6] = [
            (full, &[], &["row 1", "no tokens"]),
            (good, &[1], &["row 1", "row 0"]),
            (full, &[1, vocab], &["row 1", &vocab.to_string()]),
            (full, &[1, 2, 3], &["row 1", "3 tokens", "12"]),
            (roomy, &flood, &["row 1", &flood.len().to_string()]),
            (unknown, &[1], &["SequenceId(18446744073709551615)"]),
        ];
        for (sequence, second, says) in cases {
            let rows = [
                Row { sequence: good, tokens: &tokens[20..], wants: Wants::All },
                Row { sequence, tokens: second, wants: Wants::Last },
            ];
            let error = backend.forward(&Batch { rows: &rows }, &mut Logits::new()).unwrap_err();
            let known = sequence != unknown;
            assert_eq!(matches!(error, Error::Batch { row: 1, .. }), known, "{error:?}");
            for word in says {
                assert!(error.to_string().contains(word), "`{error}` does not say {word}");
            }
        }

        assert_eq!(backend.len(good).unwrap(), 20);
        assert_eq!(backend.len(full).unwrap(), 10);
        assert_eq!(backend.len(roomy).unwrap(), 0);
        let found = feed(backend, good, &tokens[20..], 10);
        candidate.assert_same("after the refused batches", &found, &expected);
    });
}

#[test]
fn a_sequence_takes_exactly_its_context() {
    on_every_backend(|_, backend, shape| {
        let sequence = backend.open(5).unwrap();
        step(backend, sequence, &[1, 2, 3, 4, 5], Wants::Last);
        let copies = [sequence, backend.fork(sequence).unwrap()];
        for full in copies {
            let rows = [Row { sequence: full, tokens: &[1], wants: Wants::Last }];
            let result = backend.forward(&Batch { rows: &rows }, &mut Logits::new());
            assert!(matches!(result, Err(Error::Batch { row: 0, .. })));
        }
        let result = backend.open(shape.context_max + 1);
        assert!(matches!(result, Err(Error::Request { field: "context_tokens", .. })));
        assert!(backend.open(usize::MAX).is_err());
    });
}

#[test]
fn a_batch_without_rows_is_no_work() {
    on_every_backend(|_, backend, _| {
        let mut logits = Logits::new();
        backend.forward(&Batch { rows: &[] }, &mut logits).unwrap();
        assert_eq!(logits.rows(), 0);
    });
}

#[test]
fn predicted_memory_grows_with_the_context_only() {
    on_every_backend(|_, backend, _| {
        let [empty, short, long] = [0, 500, 1000].map(|tokens| backend.bytes_for(tokens));
        assert!(empty.state > 0);
        assert_eq!((empty.state, empty.state), (short.state, long.state));
        assert_eq!(empty.kv, 0);
        assert!(0 < short.kv && short.kv < long.kv);
    });
}

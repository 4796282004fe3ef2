//! The cpu backend against the reference where the suite for all backends does not reach: long
//! contexts, and many sequences that come, part and go.

mod common;

use calla_engine::{
    backend::{
        Backend, BackendOptions, Batch, Logits, Precision, Row, SequenceId, SnapshotId, Wants,
        cpu::Cpu, reference::Reference,
    },
    model::{Shape, Weights},
};
use common::{
    assert_bits, feed,
    random::{self, Random},
    relative_error,
};

/// float32 sums in another order, through three layers.
const TOLERANCE: f64 = 1e-5;

fn cpu(shape: &Shape, weights: &Weights, precision: Precision) -> Cpu {
    let options = BackendOptions { precision, threads: Some(2) };
    Cpu::new(shape.clone(), weights.clone(), &options).expect("the suite's models suit the kernels")
}

#[test]
fn long_contexts_agree_with_the_reference_in_any_chunking() {
    for (model, shape, weights) in random::models() {
        let tokens = Random(21).tokens(1300, shape.vocab);
        let mut reference = Reference::new(shape.clone(), weights.clone());
        let sequence = reference.open(tokens.len()).unwrap();
        let expected = feed(&mut reference, sequence, &tokens, 500);
        for precision in [Precision::Exact, Precision::Default] {
            let mut backend = cpu(&shape, &weights, precision);
            let [large, small] = [512, 100].map(|chunk| {
                let sequence = backend.open(tokens.len()).unwrap();
                feed(&mut backend, sequence, &tokens, chunk)
            });
            assert_bits(&format!("{model}, {precision:?}: chunks of 100"), &small, &large);
            let error = relative_error(&large, &expected);
            println!("{model}, {precision:?}: {error:.2e}");
            let tolerance = if precision == Precision::Exact { TOLERANCE } else { 5e-3 };
            assert!(error <= tolerance, "{model}, {precision:?}: {error:.2e}");
        }
    }
}

/// The same history in both backends.
struct Pair<Id> {
    cpu: Id,
    reference: Id,
}

#[test]
fn sequences_that_come_part_and_go_agree_with_the_reference() {
    for (seed, (model, shape, weights)) in random::models().into_iter().enumerate() {
        println!("{model}");
        let mut random = Random(31 + seed as u64);
        let mut ours = cpu(&shape, &weights, Precision::Exact);
        let mut reference = Reference::new(shape.clone(), weights.clone());
        let mut open: Vec<Pair<SequenceId>> = Vec::new();
        let mut frozen: Vec<Pair<SnapshotId>> = Vec::new();
        for _ in 0..400 {
            let pick = |len: usize, random: &mut Random| (random.next_u64() % len as u64) as usize;
            match random.next_u64() % 10 {
                0 if open.len() < 6 => open.push(Pair {
                    cpu: ours.open(shape.context_max).unwrap(),
                    reference: reference.open(shape.context_max).unwrap(),
                }),
                1 if !open.is_empty() && open.len() < 6 => {
                    let from = &open[pick(open.len(), &mut random)];
                    open.push(Pair {
                        cpu: ours.fork(from.cpu).unwrap(),
                        reference: reference.fork(from.reference).unwrap(),
                    });
                }
                2 if !open.is_empty() && frozen.len() < 4 => {
                    let from = &open[pick(open.len(), &mut random)];
                    frozen.push(Pair {
                        cpu: ours.snapshot(from.cpu).unwrap(),
                        reference: reference.snapshot(from.reference).unwrap(),
                    });
                }
                3 if !frozen.is_empty() && open.len() < 6 => {
                    let from = &frozen[pick(frozen.len(), &mut random)];
                    open.push(Pair {
                        cpu: ours.restore(from.cpu).unwrap(),
                        reference: reference.restore(from.reference).unwrap(),
                    });
                }
                4 if !open.is_empty() => {
                    let gone = open.swap_remove(pick(open.len(), &mut random));
                    ours.close(gone.cpu).unwrap();
                    reference.close(gone.reference).unwrap();
                }
                5 if !frozen.is_empty() => {
                    let gone = frozen.swap_remove(pick(frozen.len(), &mut random));
                    ours.release(gone.cpu).unwrap();
                    reference.release(gone.reference).unwrap();
                }
                _ if !open.is_empty() => step_some(&open, &mut ours, &mut reference, &mut random),
                _ => {}
            }
        }
    }
}

/// A ragged batch over some of the sequences, on both backends.
fn step_some(
    open: &[Pair<SequenceId>],
    ours: &mut Cpu,
    reference: &mut Reference,
    random: &mut Random,
) {
    let vocab = ours.shape().vocab;
    let mut drawn = Vec::new();
    for pair in open {
        if random.next_u64().is_multiple_of(2) {
            let wants = [Wants::Nothing, Wants::Last, Wants::All][(random.next_u64() % 3) as usize];
            let len = [1, 1, 3, 17, 70][(random.next_u64() % 5) as usize];
            let before = ours.len(pair.cpu).expect("it is open");
            assert_eq!(before, reference.len(pair.reference).expect("it is open"));
            if before + len <= 600 {
                drawn.push((pair, random.tokens(len, vocab), wants));
            }
        }
    }
    let run = |backend: &mut dyn Backend, id: fn(&Pair<SequenceId>) -> SequenceId| {
        let rows: Vec<Row> = drawn
            .iter()
            .map(|(pair, tokens, wants)| Row { sequence: id(pair), tokens, wants: *wants })
            .collect();
        let mut logits = Logits::new();
        backend.forward(&Batch { rows: &rows }, &mut logits).expect("a good batch");
        logits
    };
    let found = run(ours, |pair| pair.cpu);
    let expected = run(reference, |pair| pair.reference);
    assert_eq!(found.rows(), expected.rows());
    for row in 0..found.rows() {
        let error = relative_error(found.row(row), expected.row(row));
        assert!(error <= 10.0 * TOLERANCE, "row {row} of {}: {error:.2e}", found.rows());
    }
}

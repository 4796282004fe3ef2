//! The engine over real backends: on every device that runs here, with small random checkpoints,
//! an answer is the same whether its prompt was computed or continued from a kept state.

use std::path::Path;

use calla_engine::{
    Engine, EngineConfig, Error, Request, Sampling, Token,
    backend::{Backend, BackendOptions, Batch, Logits, Precision, Row, Wants, select},
    checkpoint::{Checkpoint, Source},
};

use crate::harness::{config, request, run};

const MODELS: [&str; 4] = ["moe_base", "moe_tied", "dense_zero_centred", "bits8"];

/// How far a log-probability on cuda in exact mode may be from that of the same tokens fed another
/// way: passes of few and of many rows sum in different orders.
const CUDA_LOGPROB: f32 = 1e-3;

/// Runs `test` with each model on each device that it concerns: its name, a way to make backends, and the vocabulary.
fn on_every_device(
    precision: Precision,
    concerns: &dyn Fn(&str) -> bool,
    test: impl Fn(&str, &dyn Fn() -> Box<dyn Backend>, u32),
) {
    for model in MODELS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(model);
        let Checkpoint { shape, weights, .. } =
            Checkpoint::open(&Source::folder(folder)).expect("a good checkpoint");
        for device in select::names().filter(|device| concerns(device)) {
            let options = BackendOptions { threads: Some(1), precision };
            let start = || select::select(Some(device), &shape, &weights, &options);
            match start() {
                Err(Error::BackendUnavailable { .. }) => println!("{device} cannot run here"),
                Err(error) => panic!("{device}: {error}"),
                Ok(_) => {
                    println!("{model} on {device}");
                    let again = || start().expect("it has started before");
                    test(device, &again, shape.vocab as u32);
                }
            }
        }
    }
}

/// The greedy answer, by the shortest way through a backend.
fn greedy(backend: &mut dyn Backend, prompt: &[u32], count: usize) -> Vec<u32> {
    let sequence = backend.open(prompt.len() + count).expect("memory for it");
    let (mut answer, mut next) = (Vec::new(), prompt.to_vec());
    let mut logits = Logits::new();
    while answer.len() < count {
        let rows = [Row { sequence, tokens: &next, wants: Wants::Last }];
        backend.forward(&Batch { rows: &rows }, &mut logits).expect("a good batch");
        let row = logits.row(0);
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let best = row.iter().position(|&logit| logit == largest).expect("no NaN") as u32;
        answer.push(best);
        next = vec![best];
    }
    backend.close(sequence).expect("it is open");
    answer
}

fn prompt(seed: u32, len: u32, vocab: u32) -> Vec<u32> {
    (0..len).map(|i| (seed * 77 + i * i * 5 + i * 13) % vocab).collect()
}

fn start(backend: Box<dyn Backend>, prefill_chunk_tokens: usize, cache_bytes: usize) -> Engine {
    Engine::start(
        backend,
        EngineConfig { prefill_chunk_tokens: Some(prefill_chunk_tokens), cache_bytes, ..config() },
    )
    .expect("a valid config")
}

#[test]
fn a_conversation_gets_the_backends_own_answers() {
    on_every_device(Precision::Default, &|_| true, |_, backend, vocab| {
        let mut alone = backend();
        let engine = start(backend(), 7, 1 << 26);
        let mut history = prompt(1, 40, vocab);
        let mut known = 0;
        for turn in 0..3 {
            let expected = greedy(&mut *alone, &history, 6);
            for cached in [known, history.len() - 1] {
                let outcome = run(&engine, request(history.clone(), 6));
                assert_eq!(outcome.ids(), expected);
                assert_eq!(outcome.usage.cached_tokens, cached, "turn {turn}");
            }
            history.extend(expected);
            known = history.len() - 1;
            history.extend(prompt(turn, 9, vocab));
        }
    });
}

#[test]
fn a_hit_changes_no_bit_of_a_sampled_answer() {
    hits_change_nothing(Precision::Default, &|device| device != "cuda");
}

/// By default the rounding could move a draw.
#[test]
fn a_hit_changes_no_token_of_a_sampled_answer_on_cuda() {
    hits_change_nothing(Precision::Exact, &|device| device == "cuda");
}

fn hits_change_nothing(precision: Precision, concerns: &dyn Fn(&str) -> bool) {
    on_every_device(precision, concerns, |device, backend, vocab| {
        let prompt = prompt(2, 50, vocab);
        let sampling = Sampling {
            temperature: 0.8,
            top_p: 0.95,
            top_k: 20,
            seed: Some(3),
            ..Sampling::default()
        };
        let sampled = |engine: &Engine| {
            let snapshot_at = vec![17];
            let sampling = sampling.clone();
            let asked = Request { sampling, snapshot_at, ..request(prompt.clone(), 12) };
            run(engine, Request { logprobs: Some(3), ..asked })
        };
        let tolerance = if device == "cuda" { CUDA_LOGPROB } else { 0.0 };
        let close = |ours: &Token, expected: &Token| {
            let [ours, expected] = [ours, expected].map(|one| one.logprob.expect("asked for"));
            ours.to_bits() == expected.to_bits() || (ours - expected).abs() <= tolerance
        };
        let cold = sampled(&start(backend(), 64, 0));
        let engine = start(backend(), 7, 1 << 26);
        for cached in [0, 49, 49] {
            let outcome = sampled(&engine);
            assert_eq!(outcome.usage.cached_tokens, cached);
            assert_eq!(outcome.ids(), cold.ids());
            let mut pairs = outcome.tokens.iter().zip(&cold.tokens);
            assert!(pairs.all(|(ours, expected)| close(ours, expected)), "{device}");
        }
        // Branches off after the place that was asked for.
        let branch = [&prompt[..17], &[1, 2, 3]].concat();
        let outcome = run(&engine, request(branch.clone(), 5));
        assert_eq!(outcome.usage.cached_tokens, 17);
        assert_eq!(outcome.ids(), greedy(&mut *backend(), &branch, 5));
    });
}

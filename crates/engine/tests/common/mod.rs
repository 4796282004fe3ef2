//! What the test files share: the backends under test, random models, and ways to run them.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test file uses a part of it")]

use std::sync::Arc;

#[cfg(target_os = "linux")]
use calla_engine::backend::cuda::device::emulator::Emulator;
use calla_engine::{
    Error,
    backend::{
        Backend, BackendOptions, Batch, Logits, Precision, Row, SequenceId, Wants,
        cpu::Cpu,
        cuda::{
            Cuda,
            device::{Device, driver::Driver},
        },
        reference::Reference,
    },
    model::{Shape, Weights},
};

pub use calla_engine::model::random;

/// Sets a backend up for a model.
type Start = fn(&Shape, &Weights) -> Result<Box<dyn Backend>, Error>;

/// A backend, in one way of setting it up, that must pass the whole suite.
#[derive(Clone, Copy)]
pub struct Candidate {
    /// For messages.
    pub name: &'static str,
    /// Candidates with the same word here must give the same bits.
    pub bits: &'static str,
    /// How far logits may differ where the same tokens take another way through the backend: in
    /// other chunks, or beside others. 0 asks for the same bits.
    pub way_tolerance: f64,
    /// How far logits may be from mlx-lm's in float32: norm of the difference over norm.
    pub oracle_tolerance: f64,
    /// The checkpoints of `data/tiny` that it is compared on, or none for all: each costs an emulated
    /// device half a minute of compiling.
    pub only: &'static [&'static str],
    /// Checkpoints of `data/tiny` whose dimensions it does not take: it must say so.
    pub refuses: &'static [&'static str],
    pub start: Start,
}

impl Candidate {
    /// A backend for a model that it takes.
    pub fn backend(&self, shape: &Shape, weights: &Weights) -> Box<dyn Backend> {
        (self.start)(shape, weights).expect("the suite's models suit every backend")
    }

    /// Fails unless both are as alike as the backend promises for the same tokens.
    #[track_caller]
    pub fn assert_same(&self, what: &str, ours: &[f32], expected: &[f32]) {
        if self.way_tolerance == 0.0 {
            return assert_bits(what, ours, expected);
        }
        assert!(expected.iter().all(|value| value.is_finite()), "{what}: not finite");
        let error = relative_error(ours, expected);
        assert!(error <= self.way_tolerance, "{what}: off by {error:.2e}");
    }
}

/// Every backend under test, and with `CALLA_TEST_CUDA` set this machine's GPU, which must be there.
pub fn candidates() -> Vec<Candidate> {
    let mut all = Vec::from(CANDIDATES);
    if std::env::var_os("CALLA_TEST_CUDA").is_some() {
        all.extend_from_slice(CUDA_HERE);
    }
    all
}

/// What any machine can run; one line adds one.
const CANDIDATES: &[Candidate] = &[
    Candidate {
        name: "reference",
        bits: "reference",
        way_tolerance: 0.0,
        oracle_tolerance: 1e-4,
        only: &[],
        refuses: &[],
        start: |shape, weights| Ok(Box::new(Reference::new(shape.clone(), weights.clone()))),
    },
    Candidate {
        name: "cpu exact, 1 thread",
        bits: "cpu exact",
        way_tolerance: 0.0,
        oracle_tolerance: 1e-5,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cpu(shape, weights, Precision::Exact, 1),
    },
    Candidate {
        name: "cpu exact, 3 threads",
        bits: "cpu exact",
        way_tolerance: 0.0,
        oracle_tolerance: 1e-5,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cpu(shape, weights, Precision::Exact, 3),
    },
    Candidate {
        name: "cpu, 1 thread",
        bits: "cpu",
        way_tolerance: 0.0,
        oracle_tolerance: 1e-3,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cpu(shape, weights, Precision::Default, 1),
    },
    Candidate {
        name: "cpu, 2 threads",
        bits: "cpu",
        way_tolerance: 0.0,
        oracle_tolerance: 1e-3,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cpu(shape, weights, Precision::Default, 2),
    },
    Candidate {
        name: "cpu, 3 threads",
        bits: "cpu",
        way_tolerance: 0.0,
        oracle_tolerance: 1e-3,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cpu(shape, weights, Precision::Default, 3),
    },
    #[cfg(target_os = "linux")]
    Candidate {
        name: "cuda exact, emulated",
        bits: "cuda exact",
        way_tolerance: CUDA_EXACT_WAYS,
        oracle_tolerance: 1e-4,
        only: EMULATED,
        refuses: CPU_REFUSES,
        start: |shape, weights| cuda(Arc::new(Emulator::open()?), shape, weights, Precision::Exact),
    },
    #[cfg(target_os = "linux")]
    Candidate {
        name: "cuda, emulated",
        bits: "cuda",
        way_tolerance: CUDA_WAYS,
        oracle_tolerance: 5e-3,
        only: EMULATED,
        refuses: CPU_REFUSES,
        start: |shape, weights| {
            cuda(Arc::new(Emulator::open()?), shape, weights, Precision::Default)
        },
    },
];

/// One of each kind: routed and dense, 4 and 8 bits, mixed bits, and one that is refused.
const EMULATED: &[&str] = &["moe_override", "bits8", "dense_zero_centred", "moe_wide"];

/// Rounding of activations to half precision, which differs with the order of sums before it.
const CUDA_WAYS: f64 = 4e-3;

/// The same in exact mode.
const CUDA_EXACT_WAYS: f64 = 1e-5;

/// The GPU. Its `exp` and fused products differ from the emulator's in the last bits.
const CUDA_HERE: &[Candidate] = &[
    Candidate {
        name: "cuda exact",
        bits: "cuda exact, card",
        way_tolerance: CUDA_EXACT_WAYS,
        oracle_tolerance: 1e-4,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cuda(Arc::new(Driver::open()?), shape, weights, Precision::Exact),
    },
    Candidate {
        name: "cuda",
        bits: "cuda, card",
        way_tolerance: CUDA_WAYS,
        oracle_tolerance: 5e-3,
        only: &[],
        refuses: CPU_REFUSES,
        start: |shape, weights| cuda(Arc::new(Driver::open()?), shape, weights, Precision::Default),
    },
];

fn cuda(
    device: Arc<dyn Device>,
    shape: &Shape,
    weights: &Weights,
    precision: Precision,
) -> Result<Box<dyn Backend>, Error> {
    let options = BackendOptions { precision, threads: None };
    Ok(Box::new(Cuda::on(device, shape.clone(), weights, &options)?))
}

fn cpu(
    shape: &Shape,
    weights: &Weights,
    precision: Precision,
    threads: usize,
) -> Result<Box<dyn Backend>, Error> {
    let options = BackendOptions { precision, threads: Some(threads) };
    Ok(Box::new(Cpu::new(shape.clone(), weights.clone(), &options)?))
}

/// Experts 96 wide: the kernels take multiples of 64.
const CPU_REFUSES: &[&str] = &["moe_wide"];

/// Appends tokens to one sequence and gives the wanted rows of logits.
pub fn step(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    tokens: &[u32],
    wants: Wants,
) -> Vec<f32> {
    let mut logits = Logits::new();
    let rows = [Row { sequence, tokens, wants }];
    backend.forward(&Batch { rows: &rows }, &mut logits).expect("a good batch");
    assert_eq!(logits.rows(), wants.rows(tokens.len()));
    logits.values().to_vec()
}

/// Appends tokens in chunks and gives every token's logits [tokens, vocab].
pub fn feed(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    tokens: &[u32],
    chunk: usize,
) -> Vec<f32> {
    tokens.chunks(chunk).flat_map(|part| step(backend, sequence, part, Wants::All)).collect()
}

/// Logits [tokens, vocab] of a sequence opened for these tokens alone, in one pass.
pub fn alone(backend: &mut dyn Backend, tokens: &[u32]) -> Vec<f32> {
    let sequence = backend.open(tokens.len()).expect("memory for a short sequence");
    let logits = feed(backend, sequence, tokens, tokens.len());
    backend.close(sequence).expect("it is open");
    logits
}

/// The token with the largest logit, the lower id on a tie.
pub fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Fails unless both are the same bits, saying where they part.
#[track_caller]
pub fn assert_bits(what: &str, ours: &[f32], expected: &[f32]) {
    assert_eq!(ours.len(), expected.len(), "{what}: lengths differ");
    assert!(expected.iter().all(|value| value.is_finite()), "{what}: not finite");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    if let Some(at) = ours.iter().zip(expected).position(differs) {
        panic!("{what}: value {at} is {}, expected {}", ours[at], expected[at]);
    }
}

/// Norm of the difference over norm of `expected`.
pub fn relative_error(ours: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    let square = |x: f64| x * x;
    let difference: f64 =
        ours.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    (difference / norm).sqrt()
}

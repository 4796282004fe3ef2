//! The kernels against the reference, in passes of every kind on two small random models, on the
//! device that will run them.
//!
//! Kernels are compiled for a model's dimensions, so that there is no table of them to go through one
//! by one, as on the CPU: a check is a kind of pass, and stands for all kernels that it launches.

use std::sync::Arc;

use super::{Cuda, device::Device};
use crate::{
    Error,
    backend::{
        Backend, BackendOptions, Batch, Candidates, KernelCheck, Logits, Precision, Row, Scores,
        SequenceId, Wants, reference::Reference,
    },
    model::{
        AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape, Weights,
        random::{self, Random},
    },
};

/// Gives the logits of every pass of a kind.
type Passes = fn(&mut dyn Backend) -> Result<Vec<f32>, Error>;

/// A kind of pass: what it is called with the routed model and with the dense one.
struct Kind {
    routed: &'static str,
    dense: &'static str,
    passes: Passes,
}

const KINDS: [Kind; 5] = [
    Kind { routed: "routed: token by token", dense: "dense: token by token", passes: decode },
    Kind { routed: "routed: candidates", dense: "dense: candidates", passes: candidates },
    Kind { routed: "routed: 5 sequences", dense: "dense: 5 sequences", passes: decode_together },
    Kind { routed: "routed: short prompts", dense: "dense: short prompts", passes: short_prompts },
    Kind { routed: "routed: long prompt", dense: "dense: long prompt", passes: long_prompt },
];

/// Compares the kernels of one precision.
///
/// # Errors
/// [`Error::Device`] when the device fails, [`Error::BackendUnavailable`] when it lacks memory.
pub(super) fn on(
    device: &Arc<dyn Device>,
    precision: Precision,
) -> Result<Vec<KernelCheck>, Error> {
    let options = BackendOptions { precision, threads: None };
    let mut checks = Vec::new();
    for (shape, weights) in models() {
        let mut found = Cuda::on(Arc::clone(device), shape.clone(), &weights, &options)?;
        let mut expected = Reference::new(shape.clone(), weights);
        for Kind { routed, dense, passes } in KINDS {
            checks.push(KernelCheck {
                path: "cuda",
                kernel: match shape.mlp {
                    MlpShape::Moe { .. } => routed,
                    MlpShape::Dense { .. } => dense,
                },
                error: relative_error(&passes(&mut found)?, &passes(&mut expected)?),
                tolerance: tolerance(precision),
            });
        }
    }
    Ok(checks)
}

/// What docs/numerics.md allows for logits of a whole model.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Default => 5e-3,
        Precision::Exact => 1e-4,
    }
}

/// A routed model of 4 bits and a dense one of 8, with the published members' heads and smaller ones.
///
/// Their seeds keep every choice of experts clear of a tie, which rounding would decide.
fn models() -> [(Shape, Weights); 2] {
    let routed = Shape {
        attention: AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 256,
            rotary_dims: 64,
            rope_theta: 1e7,
        },
        delta_net: DeltaNetShape {
            key_heads: 1,
            value_heads: 2,
            key_dim: 128,
            value_dim: 128,
            conv_taps: 4,
        },
        mlp: MlpShape::Moe {
            experts: 8,
            experts_per_token: 2,
            expert_width: 64,
            // As wide as an expert: few rows take them together.
            shared_width: 64,
            renormalise: true,
        },
        mixers: vec![MixerKind::DeltaNet, MixerKind::Attention],
        ..random::moe_shape()
    };
    let dense = random::dense_shape();
    [(4, 64, ROUTED_SEED, routed), (8, 32, 2, dense)].map(|(bits, group, seed, shape)| {
        let weights = random::weights(&shape, bits, group, seed);
        (shape, weights)
    })
}

const ROUTED_SEED: u64 = 15;

/// A step that is recorded, and others that are replayed.
fn decode(backend: &mut dyn Backend) -> Result<Vec<f32>, Error> {
    let tokens = Random(11).tokens(6, backend.shape().vocab);
    alone(backend, tokens.chunks(1), Wants::Last)
}

/// A recorded step and a replayed one that give candidates: their best logits and the sum of the softmax.
fn candidates(backend: &mut dyn Backend) -> Result<Vec<f32>, Error> {
    const TEMPERATURE: f32 = 0.7;
    let tokens = Random(15).tokens(2, backend.shape().vocab);
    let sequence = backend.open(16)?;
    let mut result = Vec::new();
    let mut logits = Logits::new();
    for tokens in tokens.chunks(1) {
        let wants = Wants::Candidates { temperature: TEMPERATURE };
        backend.forward(&Batch { rows: &[Row { sequence, tokens, wants }] }, &mut logits)?;
        let candidates = match logits.scores(0) {
            Scores::Candidates(candidates) => *candidates,
            Scores::Logits(logits) => Candidates::of(logits, TEMPERATURE),
        };
        result.extend(candidates.best().iter().map(|candidate| candidate.logit));
        result.push(candidates.sum());
    }
    backend.close(sequence)?;
    Ok(result)
}

/// Steps of five sequences of different lengths.
fn decode_together(backend: &mut dyn Backend) -> Result<Vec<f32>, Error> {
    const SEQUENCES: usize = 5;
    let tokens = Random(12).tokens(7 * SEQUENCES, backend.shape().vocab);
    let mut result = Vec::new();
    let mut sequences = Vec::new();
    for (count, tokens) in tokens.chunks(7).enumerate() {
        let sequence = backend.open(16)?;
        sequences.push(sequence);
        result.extend(forward(backend, &[(sequence, &tokens[..count + 1])], Wants::Last)?);
    }
    for step in 0..2 {
        let next = &tokens[step * SEQUENCES..][..SEQUENCES];
        let rows: Vec<_> = sequences.iter().copied().zip(next.chunks(1)).collect();
        result.extend(forward(backend, &rows, Wants::Last)?);
    }
    sequences.into_iter().try_for_each(|sequence| backend.close(sequence))?;
    Ok(result)
}

/// Passes of few rows.
fn short_prompts(backend: &mut dyn Backend) -> Result<Vec<f32>, Error> {
    let tokens = Random(13).tokens(7 + 12, backend.shape().vocab);
    let (first, second) = tokens.split_at(7);
    alone(backend, [first, second].into_iter(), Wants::All)
}

/// Passes of many rows: over the end of a page, and after what came before.
fn long_prompt(backend: &mut dyn Backend) -> Result<Vec<f32>, Error> {
    let tokens = Random(14).tokens(70 + 40, backend.shape().vocab);
    let (first, second) = tokens.split_at(70);
    alone(backend, [first, second].into_iter(), Wants::All)
}

/// The logits of one sequence that is given these tokens.
fn alone<'a>(
    backend: &mut dyn Backend,
    parts: impl Iterator<Item = &'a [u32]>,
    wants: Wants,
) -> Result<Vec<f32>, Error> {
    let sequence = backend.open(128)?;
    let mut result = Vec::new();
    for tokens in parts {
        result.extend(forward(backend, &[(sequence, tokens)], wants)?);
    }
    backend.close(sequence)?;
    Ok(result)
}

fn forward(
    backend: &mut dyn Backend,
    rows: &[(SequenceId, &[u32])],
    wants: Wants,
) -> Result<Vec<f32>, Error> {
    let rows: Vec<Row<'_>> =
        rows.iter().map(|&(sequence, tokens)| Row { sequence, tokens, wants }).collect();
    let mut logits = Logits::new();
    backend.forward(&Batch { rows: &rows }, &mut logits)?;
    Ok(logits.values().to_vec())
}

/// Norm of the difference over norm of `expected`.
fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = found.iter().zip(expected);
    let difference: f64 = pairs.map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let norm: f64 = expected.iter().map(|&b| square(f64::from(b))).sum();
    (difference / norm).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel's work is a little off somewhere: no expert may be chosen for that.
    #[test]
    fn no_choice_of_experts_is_near_a_tie() {
        let [(shape, weights), _] = models();
        let expected = run(&shape, weights.clone());
        for seed in 1..6 {
            let (mut random, mut weights) = (Random(seed), weights.clone());
            for layer in &mut weights.layers {
                for gain in layer.input_norm.iter_mut().chain(&mut layer.post_norm) {
                    *gain *= 1.0 + 5e-3 * random.uniform(-1.0, 1.0);
                }
            }
            for (kind, (found, expected)) in run(&shape, weights).iter().zip(&expected).enumerate()
            {
                let error = relative_error(found, expected);
                assert!(error < 1e-2, "{}, seed {seed}: {error:.1e}", KINDS[kind].routed);
            }
        }
    }

    fn run(shape: &Shape, weights: Weights) -> Vec<Vec<f32>> {
        let mut backend = Reference::new(shape.clone(), weights);
        let run = |kind: Kind| (kind.passes)(&mut backend).expect("the reference takes all");
        KINDS.map(run).into()
    }
}

#[cfg(all(
    test,
    feature = "cuda-emulator",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod emulated {
    use std::collections::BTreeSet;

    use super::{super::device::emulator::Emulator, *};

    fn emulator() -> Emulator {
        Emulator::open().expect("a C++ compiler")
    }

    #[test]
    fn both_precisions_pass_and_no_kind_of_kernel_is_left_out() {
        for precision in [Precision::Default, Precision::Exact] {
            let device = Arc::new(emulator());
            let checks = on(&(Arc::clone(&device) as _), precision).expect("it works");
            for check in &checks {
                println!("{precision:?} {:<24} {:.1e}", check.kernel, check.error);
            }
            assert_eq!(checks.len(), 2 * KINDS.len());
            assert!(checks.iter().all(KernelCheck::ok), "{checks:?}");

            let launched: BTreeSet<String> =
                device.launches().keys().map(|name| kind_of(name)).collect();
            let compiled = models().map(|(shape, weights)| {
                let shared = device.shared_per_block();
                super::super::units(&shape, &weights, precision, shared, false)
            });
            let kernels = compiled.iter().flatten().flat_map(|unit| &unit.kernels);
            let compiled: BTreeSet<String> = kernels.map(|name| kind_of(name)).collect();
            let missing: Vec<_> = compiled.difference(&launched).collect();
            assert!(missing.is_empty(), "{precision:?}: never launched: {missing:?}");
        }
    }

    /// Kernels that differ in the size of their block alone are of one kind: the device and the matrix
    /// choose among them.
    fn kind_of(kernel: &str) -> String {
        match kernel.rsplit_once('_') {
            Some((kind, size)) if size.parse::<usize>().is_ok() => kind.to_owned(),
            _ => kernel.to_owned(),
        }
    }

    #[test]
    fn a_kernel_that_does_nothing_is_found() {
        for kernel in
            ["embed", "rope_table", "rms_norm", "delta_chunk", "attend_tiles", "route", "moe_few"]
        {
            let device: Arc<dyn Device> = Arc::new(emulator().with_idle(kernel));
            // What is read instead may be no address at all: then it is the device that fails.
            let found = match on(&device, Precision::Default) {
                Ok(checks) => !checks.iter().all(KernelCheck::ok),
                Err(error) => matches!(error, Error::Device { .. }),
            };
            assert!(found, "nobody noticed {kernel}");
        }
    }
}

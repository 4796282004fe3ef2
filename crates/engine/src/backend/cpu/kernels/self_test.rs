//! Every kernel against the reference on small made-up inputs, on the machine that will run it.
//!
//! A processor, a compiler or a memory that is broken shows here, before it shows in an answer.

use super::{
    DeltaRun, Kernels,
    samples::{Cache, FORMATS, LENGTHS, Random, error, matrix, multiply, prepared},
};
use crate::{
    backend::{KernelCheck, Precision, reference::ops},
    model::{AttentionShape, DeltaNetShape},
};

/// Epsilon of the norms: the one that the reference's `l2norm` has built in.
const EPS: f32 = 1e-6;

/// One kernel's comparison.
struct Check {
    kernel: &'static str,
    tolerance: f64,
    /// The largest error over all its inputs.
    error: fn(&Kernels) -> f64,
}

/// Operations in float32, products of the exact mode included.
const FLOAT32: f64 = 1e-5;
/// Products with activations in int16.
const INT16: f64 = 1e-2;
/// Attention to a cache in half floats.
const FLOAT16: f64 = 5e-3;
/// No rounding of its own.
const BITS: f64 = 0.0;

const CHECKS: &[Check] = &[
    check("matmul (int16)", INT16, |k| products(k, Precision::Default)),
    check("matmul (float32)", FLOAT32, |k| products(k, Precision::Exact)),
    check("dequantize_row", BITS, dequantize_row),
    check("rms_norm", FLOAT32, rms_norm),
    check("l2_norm", FLOAT32, l2_norm),
    check("silu_mul", FLOAT32, silu_mul),
    check("mul_silu", FLOAT32, mul_silu),
    check("mul_sigmoid", FLOAT32, mul_sigmoid),
    check("add", FLOAT32, add),
    check("add_scaled", FLOAT32, add_scaled),
    check("softmax", FLOAT32, softmax),
    check("conv_silu", FLOAT32, conv_silu),
    check("rope", FLOAT32, rope),
    check("store_f16", BITS, store_f16),
    check("delta_run", FLOAT32, delta_run),
    check("attend (float16)", FLOAT16, |k| attend(k, true)),
    check("attend (float32)", FLOAT32, |k| attend(k, false)),
];

const fn check(kernel: &'static str, tolerance: f64, error: fn(&Kernels) -> f64) -> Check {
    Check { kernel, tolerance, error }
}

/// Compares every kernel of every instruction set that this processor has, fastest set first.
pub fn self_test() -> Vec<KernelCheck> {
    Kernels::available().flat_map(of).collect()
}

/// The kernels of one table.
fn of(kernels: &Kernels) -> impl Iterator<Item = KernelCheck> {
    CHECKS.iter().map(|check| KernelCheck {
        path: kernels.name,
        kernel: check.kernel,
        error: (check.error)(kernels),
        tolerance: check.tolerance,
    })
}

/// The largest, or not a number when one of them is not.
fn worst(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors.into_iter().fold(0.0, |worst, error| match error > worst || error.is_nan() {
        true => error,
        false => worst,
    })
}

fn against(found: &[f32], expected: &[f32]) -> f64 {
    error(found, &expected.iter().map(|&x| f64::from(x)).collect::<Vec<_>>())
}

/// One row alone, and enough rows for the kernels that unpack a panel of weights.
fn products(kernels: &Kernels, precision: Precision) -> f64 {
    let mut random = Random(1);
    worst(FORMATS.into_iter().flat_map(|(bits, group)| {
        let matrix = matrix(61, 9 * group.max(64), bits, group);
        let x: Vec<_> = (0..67).map(|_| random.normals(matrix.inputs)).collect();
        let activations = prepared(kernels, &x, precision);
        [1, 5, 67].map(|count| {
            let rows: Vec<u32> = (0..count as u32).collect();
            let expected = ops::linear(&matrix, &x[..count].concat());
            multiply(kernels, &matrix, &activations, &rows, &[0, 13, 61])
                .map_or(f64::INFINITY, |found| against(&found, &expected))
        })
    }))
}

fn dequantize_row(kernels: &Kernels) -> f64 {
    worst(FORMATS.into_iter().map(|(bits, group)| {
        let matrix = matrix(3, 384, bits, group);
        let (mut found, mut expected) = (vec![0.0; 384], vec![0.0; 384]);
        kernels.dequantize_row(&matrix, 2, &mut found);
        ops::expand_row(&matrix, 2, &mut expected);
        against(&found, &expected)
    }))
}

fn rms_norm(kernels: &Kernels) -> f64 {
    binary(|x, gain| {
        let mut found = vec![0.0; x.len()];
        kernels.rms_norm(x, gain, EPS, &mut found);
        (found, ops::rmsnorm(x, gain, EPS))
    })
}

fn l2_norm(kernels: &Kernels) -> f64 {
    binary(|x, _| {
        let mut found = x.to_vec();
        kernels.l2_norm(&mut found, EPS, 0.25);
        (found, ops::l2norm(x, x.len(), 0.25))
    })
}

fn silu_mul(kernels: &Kernels) -> f64 {
    in_place(|x, y| kernels.silu_mul(x, y), |x, y| ops::silu(x) * y)
}

fn mul_silu(kernels: &Kernels) -> f64 {
    in_place(|x, y| kernels.mul_silu(x, y), |x, y| x * ops::silu(y))
}

fn mul_sigmoid(kernels: &Kernels) -> f64 {
    in_place(|x, y| kernels.mul_sigmoid(x, y), |x, y| x * ops::sigmoid(y))
}

fn add(kernels: &Kernels) -> f64 {
    in_place(|x, y| kernels.add(x, y), |x, y| x + y)
}

fn add_scaled(kernels: &Kernels) -> f64 {
    in_place(|x, y| kernels.add_scaled(x, -0.7, y), |x, y| x - 0.7 * y)
}

fn softmax(kernels: &Kernels) -> f64 {
    binary(|x, _| {
        let mut found = x.to_vec();
        kernels.softmax(&mut found);
        // The router's probabilities, put back in the order of the experts.
        let mut expected = vec![0.0; x.len()];
        for (index, probability) in ops::route(x, x.len(), false) {
            expected[index] = probability;
        }
        (found, expected)
    })
}

fn conv_silu(kernels: &Kernels) -> f64 {
    const TAPS: usize = 4;
    let mut random = Random(7);
    worst(LENGTHS.into_iter().map(|channels| {
        let weights = random.normals(channels * TAPS); // [channels, taps]
        let inputs = random.normals(TAPS * channels); // [taps, channels], the current token last
        let by_tap: Vec<Vec<f32>> = (0..TAPS)
            .map(|tap| weights.iter().skip(tap).step_by(TAPS).copied().collect())
            .collect();
        let taps: Vec<_> =
            by_tap.iter().map(Vec::as_slice).zip(inputs.chunks_exact(channels)).collect();
        let mut found = vec![0.0; channels];
        kernels.conv_silu(&taps, &mut found);
        let (earlier, current) = inputs.split_at((TAPS - 1) * channels);
        let expected = ops::conv_silu(current, &weights, &mut earlier.to_vec(), TAPS);
        against(&found, &expected)
    }))
}

fn rope(kernels: &Kernels) -> f64 {
    const POSITION: usize = 1000;
    let mut random = Random(11);
    worst([(12, 6), (128, 128), (256, 64)].map(|(head_dim, rotary_dims)| {
        let shape = attention_shape(head_dim, 1, rotary_dims);
        let angle = |i: usize| {
            POSITION as f64 * shape.rope_theta.powf(-2.0 * i as f64 / rotary_dims as f64)
        };
        let (sin, cos): (Vec<f32>, Vec<f32>) =
            (0..rotary_dims / 2).map(|i| (angle(i).sin() as f32, angle(i).cos() as f32)).unzip();
        let head = random.normals(head_dim);
        let (mut found, mut expected) = (head.clone(), head);
        kernels.rope(&mut found, &cos, &sin);
        ops::rope(&shape, &mut expected, 1, POSITION);
        against(&found, &expected)
    }))
}

fn store_f16(kernels: &Kernels) -> f64 {
    binary(|x, _| {
        let mut bits = vec![0; x.len()];
        kernels.store_f16(x, &mut bits);
        let found = bits.into_iter().map(|bits| half::f16::from_bits(bits).to_f32()).collect();
        let expected = x.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
        (found, expected)
    })
}

/// More tokens than pass over some rows at a time, and so many that an error in the state has time
/// to grow.
fn delta_run(kernels: &Kernels) -> f64 {
    const TOKENS: usize = 70;
    let mut random = Random(9);
    worst([(128, 128), (6, 48), (5, 20)].map(|(value_dim, key_dim)| {
        let shape =
            DeltaNetShape { key_heads: 1, value_heads: 1, key_dim, value_dim, conv_taps: 4 };
        let inputs = ops::DeltaInputs {
            queries: random.normals(TOKENS * key_dim),
            keys: ops::l2norm(&random.normals(TOKENS * key_dim), key_dim, 1.0),
            values: random.normals(TOKENS * value_dim),
            decay_log: (0..TOKENS).map(|token| -0.1 + 0.001 * token as f32).collect(),
            beta: (0..TOKENS).map(|token| 0.2 + 0.01 * token as f32).collect(),
        };
        let (mut found, mut state) = (vec![0.0; TOKENS * value_dim], vec![0.0; shape.state_len()]);
        // A token's vectors side by side, as the convolution leaves them.
        let stride = 2 * key_dim + value_dim;
        let mut mixed = vec![0.0; TOKENS * stride];
        for (token, mixed) in mixed.chunks_exact_mut(stride).enumerate() {
            mixed[..key_dim].copy_from_slice(&inputs.queries[token * key_dim..][..key_dim]);
            mixed[key_dim..2 * key_dim].copy_from_slice(&inputs.keys[token * key_dim..][..key_dim]);
            mixed[2 * key_dim..].copy_from_slice(&inputs.values[token * value_dim..][..value_dim]);
        }
        let run = DeltaRun {
            queries: &mixed,
            keys: &mixed[key_dim..],
            values: &mixed[2 * key_dim..],
            stride,
            key_dim,
            decays: &inputs.decay_log.iter().map(|decay| decay.exp()).collect::<Vec<_>>(),
            betas: &inputs.beta,
        };
        kernels.delta_run(&run, &mut state, &mut found, value_dim);
        let mut expected_state = vec![0.0; shape.state_len()];
        let expected = ops::delta_recurrent(&shape, &inputs, &mut expected_state);
        worst([against(&found, &expected), against(&state, &expected_state)])
    }))
}

/// A last token that looks at all of them, block by block as pages give them.
fn attend(kernels: &Kernels, half: bool) -> f64 {
    const TOKENS: usize = 150;
    worst([(16, 1), (128, 6), (256, 8)].map(|(head_dim, heads)| {
        let cache = Cache::new(head_dim, heads, TOKENS);
        let found = cache.attend(kernels, half, &[64, 128, TOKENS], heads);
        let rows = |x: &[f32]| -> Vec<f32> {
            x.chunks_exact(cache.stride).flat_map(|row| row[..head_dim].to_vec()).collect()
        };
        let shape = attention_shape(head_dim, heads, head_dim);
        let (keys, values) = (rows(&cache.keys), rows(&cache.values));
        against(&found, &ops::attend(&shape, &cache.queries, &keys, &values, TOKENS - 1))
    }))
}

fn attention_shape(head_dim: usize, heads: usize, rotary_dims: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads: 1, head_dim, rotary_dims, rope_theta: 1e7 }
}

/// The largest error over vectors of every length; `run` gives what was found and expected.
fn binary(run: impl Fn(&[f32], &[f32]) -> (Vec<f32>, Vec<f32>)) -> f64 {
    let mut random = Random(4);
    worst(LENGTHS.map(|len| {
        let (found, expected) = run(&random.normals(len), &random.normals(len));
        against(&found, &expected)
    }))
}

/// The same for a kernel that changes its first argument, element by element.
fn in_place(kernel: impl Fn(&mut [f32], &[f32]), plain: impl Fn(f32, f32) -> f32) -> f64 {
    binary(|x, y| {
        let mut found = x.to_vec();
        kernel(&mut found, y);
        (found, x.iter().zip(y).map(|(&x, &y)| plain(x, y)).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        super::table::{OPS, without},
        *,
    };

    /// What there is to know about a check.
    struct Known {
        kernel: &'static str,
        /// Entries of the table that it calls.
        calls: &'static [&'static str],
        /// Row and column of its tolerance in docs/numerics.md.
        tolerance: (&'static str, usize),
    }

    /// Columns of docs/numerics.md.
    const EXACT: usize = 5;
    const DEFAULT: usize = 7;

    #[rustfmt::skip]
    const KNOWN: &[Known] = &[
        line("matmul (int16)", &["prepare", "matmul"], ("linear", DEFAULT)),
        line("matmul (float32)", &["prepare", "matmul"], ("linear", EXACT)),
        line("dequantize_row", &["dequantize_row"], ("expand_row", DEFAULT)),
        line("rms_norm", &["rms_norm"], ("rmsnorm", DEFAULT)),
        line("l2_norm", &["l2_norm"], ("l2norm", DEFAULT)),
        line("silu_mul", &["silu_mul"], ("silu_mul", DEFAULT)),
        line("mul_silu", &["mul_silu"], ("mul_silu", DEFAULT)),
        line("mul_sigmoid", &["mul_sigmoid"], ("head_gate", DEFAULT)),
        line("add", &["add"], ("add", DEFAULT)),
        line("add_scaled", &["add_scaled"], ("add_scaled", DEFAULT)),
        line("softmax", &["softmax"], ("softmax", DEFAULT)),
        line("conv_silu", &["conv_silu"], ("conv_silu", DEFAULT)),
        line("rope", &["rope"], ("rope", DEFAULT)),
        line("store_f16", &["store_f16"], ("store_f16", DEFAULT)),
        line("delta_run", &["delta_run"], ("delta_recurrent", DEFAULT)),
        line("attend (float16)", &["attend_f16"], ("attend", DEFAULT)),
        line("attend (float32)", &["attend_f32"], ("attend", EXACT)),
    ];

    const fn line(
        kernel: &'static str,
        calls: &'static [&'static str],
        tolerance: (&'static str, usize),
    ) -> Known {
        Known { kernel, calls, tolerance }
    }

    fn known(kernel: &str) -> &'static Known {
        let known = KNOWN.iter().find(|known| known.kernel == kernel);
        known.unwrap_or_else(|| panic!("nothing is known about {kernel}"))
    }

    #[test]
    fn every_kernel_of_this_processor_passes() {
        let checks = self_test();
        for check in &checks {
            println!("{:<9} {:<17} {:.1e}", check.path, check.kernel, check.error);
        }
        let bad: Vec<_> = checks.iter().filter(|check| !check.ok()).collect();
        assert!(bad.is_empty(), "{bad:?}");
        let paths: BTreeSet<_> = checks.iter().map(|check| check.path).collect();
        assert_eq!(paths.len(), Kernels::available().count());
        assert_eq!(checks.len(), paths.len() * CHECKS.len());
    }

    #[test]
    fn no_kernel_is_left_out() {
        assert_eq!(KNOWN.len(), CHECKS.len(), "a new check needs a line above");
        let called: BTreeSet<_> = KNOWN.iter().flat_map(|known| known.calls).collect();
        assert_eq!(called, OPS.iter().collect());
    }

    #[test]
    fn a_kernel_that_computes_nothing_is_found_and_no_other_blamed() {
        for op in OPS {
            for check in of(&without(op)) {
                let calls = known(check.kernel).calls;
                assert_eq!(check.ok(), !calls.contains(op), "without {op}: {check:?}");
            }
        }
    }

    #[test]
    fn a_value_that_is_slightly_off_or_no_number_fails() {
        let expected = vec![1.0; 100];
        let mut found = expected.clone();
        found[50] += 2e-4;
        let off = |found: &[f32]| KernelCheck {
            path: "portable",
            kernel: "add",
            error: against(found, &expected),
            tolerance: FLOAT32,
        };
        assert!(!off(&found).ok() && off(&expected).ok());
        found[50] = f32::NAN;
        assert!(!off(&found).ok());
        assert!(worst([0.0, f64::NAN, 1.0]).is_nan());
        assert_eq!(worst([0.5, 2.0, 1.0]), 2.0);
    }

    #[test]
    fn tolerances_are_those_of_the_document() {
        let document = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/numerics.md"));
        let allowed = |op: &str, column: usize| {
            let row = document.lines().find(|line| line.starts_with(&format!("| `{op}`")));
            let cell = row.and_then(|row| row.split('|').nth(column)).map(str::trim);
            match cell.unwrap_or_else(|| panic!("no column {column} for {op}")) {
                "bits" => 0.0,
                number => number.parse().unwrap_or_else(|_| panic!("{op}: {number}")),
            }
        };
        for check in CHECKS {
            let (op, column) = known(check.kernel).tolerance;
            assert_eq!(check.tolerance, allowed(op, column), "{}", check.kernel);
        }
    }
}

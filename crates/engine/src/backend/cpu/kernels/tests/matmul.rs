use std::sync::Arc;

use super::{for_each, norm};
use crate::{
    backend::{
        Precision,
        cpu::kernels::{
            Activations, Kernels,
            samples::{self, FORMATS, Random, prepared},
            supports,
        },
    },
    model::{Bytes, Linear},
};

/// A random matrix and the values that its format stands for.
struct Sample {
    linear: Linear,
    values: Vec<f32>, // [outputs, inputs]
}

impl Sample {
    fn new(outputs: usize, inputs: usize, bits: usize, group: usize) -> Self {
        Self::of(samples::matrix(outputs, inputs, bits, group))
    }

    fn of(linear: Linear) -> Self {
        let value = |at: usize| {
            let bf16 = |bytes: &[u8]| {
                let group = at / linear.group;
                half::bf16::from_le_bytes([bytes[2 * group], bytes[2 * group + 1]]).to_f32()
            };
            let bit = at * linear.bits;
            let q = linear.weight[bit / 8] >> (bit % 8) & ((1u16 << linear.bits) - 1) as u8;
            bf16(&linear.scales) * f32::from(q) + bf16(&linear.biases)
        };
        let values = (0..linear.outputs * linear.inputs).map(value).collect();
        Self { linear, values }
    }

    fn row(&self, output: usize) -> &[f32] {
        &self.values[output * self.linear.inputs..(output + 1) * self.linear.inputs]
    }
}

/// Products with all outputs [rows, outputs], computed range by range.
fn multiply(
    kernels: &Kernels,
    linear: &Linear,
    x: &Activations,
    rows: &[u32],
    cuts: &[usize],
) -> Vec<f32> {
    samples::multiply(kernels, linear, x, rows, cuts).expect("nothing beyond the outputs")
}

/// Largest |y − Σ w·x| relative to ‖w‖·‖x‖.
fn worst_error(sample: &Sample, x: &[Vec<f32>], y: &[f32]) -> f64 {
    let mut worst = 0.0f64;
    for (x, y) in x.iter().zip(y.chunks(sample.linear.outputs)) {
        for (output, &y) in y.iter().enumerate() {
            let w = sample.row(output);
            let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            let scale = (norm(w) * norm(x)).max(1e-300);
            worst = worst.max((f64::from(y) - exact).abs() / scale);
            assert!(y.is_finite(), "output {output} is {y}");
        }
    }
    worst
}

fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Default => 2e-5,
        Precision::Exact => 1e-6,
    }
}

const PRECISIONS: [Precision; 2] = [Precision::Default, Precision::Exact];

#[test]
fn products_agree_with_plain_loops() {
    for_each(|kernels| {
        let mut random = Random(1);
        for (bits, group) in FORMATS {
            for inputs in [group.max(64), 192 * group.max(64) / 64, 1024, 1152] {
                let sample = Sample::new(29, inputs, bits, group);
                let x: Vec<_> = (0..5).map(|_| random.normals(inputs)).collect();
                for precision in PRECISIONS {
                    let activations = prepared(kernels, &x, precision);
                    let y =
                        multiply(kernels, &sample.linear, &activations, &[0, 1, 2, 3, 4], &[0, 29]);
                    let error = worst_error(&sample, &x, &y);
                    assert!(
                        error <= tolerance(precision),
                        "{} {bits} bits, groups of {group}, {inputs} inputs, {precision:?}: {error:e}",
                        kernels.name
                    );
                }
            }
        }
    });
}

#[test]
fn rows_and_ranges_change_no_bit() {
    for_each(|kernels| {
        let mut random = Random(2);
        // Whole runs of the widest vectors, and half a run behind them or alone; more inputs than
        // one row's sums wait for.
        let widths = [64, 192, 1280, 1344, 4096 + 64];
        let formats = widths.iter().flat_map(|&width| FORMATS.map(|format| (width, format)));
        for (inputs, (bits, group)) in formats {
            if inputs % group != 0 {
                continue;
            }
            let sample = Sample::new(43, inputs, bits, group);
            let x: Vec<_> = (0..131).map(|_| random.normals(inputs)).collect();
            for precision in PRECISIONS {
                let activations = prepared(kernels, &x, precision);
                let rows: Vec<u32> = (0..131).collect();
                let all = multiply(kernels, &sample.linear, &activations, &rows, &[0, 43]);
                for count in [1, 2, 3, 4, 7, 33, 65] {
                    // Rows out of order and one of them twice, as routing gives them.
                    let mut rows: Vec<u32> = (0..count).map(|i| (i * 37 + 5) % 131).collect();
                    rows.push(rows[0]);
                    if count == 1 {
                        rows.pop();
                    }
                    let cuts = [0, 1, 6, 18, 35, 43];
                    let some = multiply(kernels, &sample.linear, &activations, &rows, &cuts);
                    for (row, y) in rows.iter().zip(some.chunks(43)) {
                        let expected = &all[*row as usize * 43..][..43];
                        let same = y.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{} {bits}/{group} {precision:?} {count} rows", kernels.name);
                    }
                }
            }
        }
    });
}

#[test]
fn extreme_inputs_stay_accurate() {
    for_each(|kernels| {
        let mut random = Random(3);
        for (bits, group) in FORMATS {
            let sample = Sample::new(9, 512, bits, group);
            let outlier: Vec<f32> =
                (0..512).map(|i| random.normal() * if i % 64 == 9 { 1e4 } else { 1.0 }).collect();
            let largest: Vec<f32> = (0..512).map(|i| [1.0, -1.0][i % 2] * (i + 1) as f32).collect();
            let scaled = |factor: f32| -> Vec<f32> { largest.iter().map(|x| x * factor).collect() };
            let cases = [outlier, vec![1.0; 512], scaled(1e30), scaled(1e-25)];
            for precision in PRECISIONS {
                let activations = prepared(kernels, &cases, precision);
                let y = multiply(kernels, &sample.linear, &activations, &[0, 1, 2, 3], &[0, 9]);
                let error = worst_error(&sample, &cases, &y);
                assert!(
                    error <= tolerance(precision),
                    "{} {bits}/{group}: {error:e}",
                    kernels.name
                );

                let tiny = [vec![0.0; 512], scaled(1e-42)];
                let activations = prepared(kernels, &tiny, precision);
                let y = multiply(kernels, &sample.linear, &activations, &[0, 1], &[0, 9]);
                assert!(
                    y.iter().all(|y| y.abs() < 1e-33),
                    "{} {bits}/{group}: {y:?}",
                    kernels.name
                );
                assert!(y[..9].iter().all(|&y| y == 0.0), "zeros give zeros");
            }
        }
    });
}

#[test]
fn extreme_weights_do_not_overflow() {
    for_each(|kernels| {
        for (bits, group) in FORMATS {
            let mut linear = samples::matrix(35, 256, bits, group);
            linear.weight = Bytes::new(Arc::new(vec![0xFFu8; linear.weight.len()]));
            let sample = Sample::of(linear);
            // All products of a block have their largest size and one sign.
            let x: Vec<_> = (0..9).map(|row| vec![[-1.0, 1.0][row % 2]; 256]).collect();
            let rows: Vec<u32> = (0..9).collect();
            for precision in PRECISIONS {
                let activations = prepared(kernels, &x, precision);
                let y = multiply(kernels, &sample.linear, &activations, &rows, &[0, 35]);
                let error = worst_error(&sample, &x, &y);
                assert!(
                    error <= tolerance(precision),
                    "{} {bits}/{group}: {error:e}",
                    kernels.name
                );
            }
        }
    });
}

#[test]
fn broken_inputs_are_not_hidden() {
    for_each(|kernels| {
        let sample = Sample::new(2, 128, 4, 64);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![0.5; 128];
            x[77] = bad;
            for precision in PRECISIONS {
                let activations = prepared(kernels, &[x.clone()], precision);
                let y = multiply(kernels, &sample.linear, &activations, &[0], &[0, 2]);
                assert!(y.iter().all(|y| !y.is_finite()), "{} {bad}: {y:?}", kernels.name);
            }
        }
    });
}

#[test]
fn a_row_is_expanded() {
    for_each(|kernels| {
        for (bits, group) in FORMATS {
            let sample = Sample::new(5, 384, bits, group);
            let mut out = vec![0.0; 384];
            for row in 0..5 {
                kernels.dequantize_row(&sample.linear, row, &mut out);
                for (a, b) in out.iter().zip(sample.row(row)) {
                    assert!((a - b).abs() <= 1e-6 * b.abs().max(0.01), "{a} {b}");
                }
            }
        }
    });
}

#[test]
fn unsupported_matrices_are_named() {
    let sample = Sample::new(3, 192, 4, 64);
    let refused = |change: fn(&mut Linear)| {
        let mut linear = sample.linear.clone();
        change(&mut linear);
        supports(&linear).unwrap_err()
    };
    assert!(refused(|w| w.bits = 3).contains("3 bits"));
    assert!(refused(|w| w.group = 16).contains("groups of 16"));
    assert!(refused(|w| w.inputs = 96).contains("96 inputs"));
    assert!(refused(|w| w.group = 128).contains("groups of 128"));
    assert!(refused(|w| w.outputs = 4).contains("expected 384"));
}

use std::sync::Arc;

use super::{Random, for_each, norm};
use crate::{
    backend::{
        Precision,
        cpu::kernels::{Activations, Kernels, supports},
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
        let mut random = Random((outputs * inputs + bits * group) as u64);
        let levels = (1u64 << bits) - 1;
        let mut weight = vec![0u8; outputs * inputs * bits / 8];
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        let mut values = Vec::new();
        for row in 0..outputs {
            for group_index in 0..inputs / group {
                let bf16 = |x: f32| half::bf16::from_f32(x);
                let scale = bf16(0.02 * (random.normal().abs() + 0.1) / levels as f32);
                let bias = bf16(-scale.to_f32() * levels as f32 / 2.0 + 0.001 * random.normal());
                scales.extend(scale.to_le_bytes());
                biases.extend(bias.to_le_bytes());
                for i in group_index * group..(group_index + 1) * group {
                    let q = (random.bits() % (levels + 1)) as u8;
                    let bit = (row * inputs + i) * bits;
                    weight[bit / 8] |= q << (bit % 8);
                    values.push(scale.to_f32() * f32::from(q) + bias.to_f32());
                }
            }
        }
        // One byte before everything else: alignment is not promised.
        let bytes = |data: Vec<u8>| {
            let shifted = [vec![0], data].concat();
            let len = shifted.len();
            Bytes::new(Arc::new(shifted)).slice(1..len).expect("the range is inside")
        };
        let linear = Linear {
            outputs,
            inputs,
            bits,
            group,
            weight: bytes(weight),
            scales: bytes(scales),
            biases: bytes(biases),
        };
        assert_eq!(supports(&linear), Ok(()));
        Self { linear, values }
    }

    fn row(&self, output: usize) -> &[f32] {
        &self.values[output * self.linear.inputs..(output + 1) * self.linear.inputs]
    }
}

fn prepared(kernels: &Kernels, x: &[Vec<f32>], precision: Precision) -> Activations {
    let inputs = x[0].len();
    let mut activations = Activations::with_capacity(x.len() + 1, inputs + 64, precision);
    activations.reset(x.len(), inputs);
    for (row, x) in x.iter().enumerate() {
        // SAFETY: one thread.
        unsafe { kernels.prepare(&activations, row, x) };
    }
    activations
}

/// Products with all outputs [rows, outputs], computed range by range.
fn multiply(
    kernels: &Kernels,
    linear: &Linear,
    x: &Activations,
    rows: &[u32],
    cuts: &[usize],
) -> Vec<f32> {
    let stride = linear.outputs + 3;
    let mut y = vec![f32::NAN; rows.len() * stride];
    for range in cuts.windows(2) {
        // SAFETY: every row is prepared, the ranges lie inside the stride.
        unsafe { kernels.matmul(linear, x, rows, range[0]..range[1], y.as_mut_ptr(), stride) };
    }
    for row in y.chunks(stride) {
        assert!(row[linear.outputs..].iter().all(|y| y.is_nan()), "wrote beyond the outputs");
    }
    y.chunks(stride).flat_map(|row| row[..linear.outputs].to_vec()).collect()
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

const FORMATS: [(usize, usize); 6] = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)];
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
        for (bits, group) in FORMATS {
            let sample = Sample::new(43, 1280, bits, group);
            let x: Vec<_> = (0..131).map(|_| random.normals(1280)).collect();
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
            let mut sample = Sample::new(3, 256, bits, group);
            let full = vec![0xFFu8; sample.linear.weight.len()];
            sample.linear.weight = Bytes::new(Arc::new(full));
            let q = ((1u32 << bits) - 1) as f32;
            for (at, value) in sample.values.iter_mut().enumerate() {
                let bf16 = |bytes: &[u8]| {
                    half::bf16::from_le_bytes([bytes[at / group * 2], bytes[at / group * 2 + 1]])
                };
                let (scale, bias) = (bf16(&sample.linear.scales), bf16(&sample.linear.biases));
                *value = scale.to_f32() * q + bias.to_f32();
            }
            // All products of a block have their largest size and one sign.
            let x = [vec![-1.0; 256], vec![1.0; 256]];
            for precision in PRECISIONS {
                let activations = prepared(kernels, &x, precision);
                let y = multiply(kernels, &sample.linear, &activations, &[0, 1], &[0, 3]);
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

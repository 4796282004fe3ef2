//! MLX's affine quantisation of one group: value = scale * code + bias.

use half::bf16;

/// Least scale, which keeps a group of equal values from dividing by zero.
const SCALE_MIN: f32 = 1e-7;

/// Quantises groups of `group` values, as `mlx.core.quantize` does on a CPU: codes go to `codes`,
/// low bits first in each word, scales and biases to the other two, all little endian. Says whether
/// every scale and bias is finite, which fails for values that are not and for ones near the
/// largest float.
pub(super) fn quantise(
    values: &[f32], // [groups, group], bfloat16 widened
    group: usize,
    bits: usize,
    codes: &mut Vec<u8>,  // [groups, group * bits / 8]
    scales: &mut Vec<u8>, // [groups] bf16
    biases: &mut Vec<u8>, // [groups] bf16
) -> bool {
    let mut finite = true;
    let code_max = ((1u32 << bits) - 1) as f32;
    for values in values.chunks_exact(group) {
        let (scale, bias) = line(values, code_max);
        finite &= scale.is_finite() && bias.is_finite() && values.iter().all(|v| v.is_finite());
        match bits {
            4 => codes.extend(values.as_chunks::<2>().0.iter().map(|pair| {
                code(pair[0], scale, bias, code_max) | code(pair[1], scale, bias, code_max) << 4
            })),
            8 => codes.extend(values.iter().map(|&value| code(value, scale, bias, code_max))),
            _ => unreachable!("the options allow 4 and 8 bits"),
        }
        scales.extend(bf16::from_f32(scale).to_le_bytes());
        biases.extend(bf16::from_f32(bias).to_le_bytes());
    }
    finite
}

/// Scale and bias of a group. The value farthest from zero becomes the bias, at code 0, and zero
/// falls on a whole code, so that both are exact.
fn line(values: &[f32], code_max: f32) -> (f32, f32) {
    let (min, max) = values
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &v| (min.min(v), max.max(v)));
    let step = ((max - min) / code_max).max(SCALE_MIN);
    let (edge, scale) = if min.abs() > max.abs() { (min, step) } else { (max, -step) };
    let code_of_zero = (edge / scale).round_ties_even();
    if code_of_zero == 0.0 {
        return (scale, 0.0);
    }
    (edge / code_of_zero, edge)
}

/// The code nearest to a value, ties to even.
fn code(value: f32, scale: f32, bias: f32, code_max: f32) -> u8 {
    /// A float of this size has no bits after the point: adding it rounds to even and leaves the
    /// whole number in the low bits, in instructions that every CPU has.
    const ROUND: f32 = (1 << 23) as f32;
    let steps = ((value - bias) / scale).clamp(0.0, code_max);
    (steps + ROUND).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::{Dtype, Tensors};

    /// Every group of the committed file, as `mlx.core.quantize` does it.
    #[test]
    fn groups_are_quantised_as_mlx_does() {
        let file = "tests/data/bf16/groups.safetensors";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let mut golden = Tensors::open_file(&path).expect("the golden file opens");
        let values = golden.take("values").expect("values").to_f32().expect("floats");
        for bits in [4, 8] {
            for group in [32, 64, 128] {
                let [mut codes, mut scales, mut biases] = [(); 3].map(|()| Vec::new());
                let finite = quantise(&values, group, bits, &mut codes, &mut scales, &mut biases);
                assert!(finite, "{bits} bits, groups of {group}");
                for (part, made) in [("codes", codes), ("scales", scales), ("biases", biases)] {
                    let name = format!("{bits}.{group}.{part}");
                    let golden = golden.take(&name).expect("in the golden file");
                    assert!(made == golden.bytes[..], "{name}");
                    assert!(part == "codes" || golden.dtype == Dtype::BF16);
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_told() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 64];
            values[40] = bad;
            let [mut codes, mut scales, mut biases] = [(); 3].map(|()| Vec::new());
            assert!(!quantise(&values, 64, 4, &mut codes, &mut scales, &mut biases), "{bad}");
        }
        // The range of these is more than a float holds.
        let values: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { 3e38 } else { -3e38 }).collect();
        let [mut codes, mut scales, mut biases] = [(); 3].map(|()| Vec::new());
        assert!(!quantise(&values, 64, 4, &mut codes, &mut scales, &mut biases));
    }
}

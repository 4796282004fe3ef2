use half::bf16;

use crate::model::Linear;

/// Partial sums of [`dot`].
const LANES: usize = 8;

/// `y[t, o] = Σ_i matrix[o, i] * x[t, i]`, the matrix expanded row by row.
pub fn linear(
    matrix: &Linear, // [outputs, inputs] packed
    x: &[f32],       // [tokens, inputs]
) -> Vec<f32> {
    let tokens = x.len() / matrix.inputs;
    assert_eq!(x.len(), tokens * matrix.inputs);
    let mut y = vec![0.0; tokens * matrix.outputs]; // [tokens, outputs]
    let mut row = vec![0.0; matrix.inputs];
    for output in 0..matrix.outputs {
        expand_row(matrix, output, &mut row);
        for (token, x) in x.chunks_exact(matrix.inputs).enumerate() {
            y[token * matrix.outputs + output] = dot(&row, x);
        }
    }
    y
}

/// One row of a quantised matrix as floats: `scale * q + bias` with the group's scale and bias.
pub fn expand_row(
    matrix: &Linear, // [outputs, inputs] packed
    row: usize,
    out: &mut [f32], // [inputs]
) {
    assert_eq!(out.len(), matrix.inputs);
    let packed = &matrix.weight[row * matrix.row_bytes()..][..matrix.row_bytes()];
    let mask = ((1u32 << matrix.bits) - 1) as u8;
    for (group, out) in out.chunks_exact_mut(matrix.group).enumerate() {
        let scale = bf16_at(&matrix.scales, row * matrix.groups() + group);
        let bias = bf16_at(&matrix.biases, row * matrix.groups() + group);
        for (i, out) in out.iter_mut().enumerate() {
            // low bits first in little-endian words: the same as low bits first in bytes
            let bit = (group * matrix.group + i) * matrix.bits;
            let q = packed[bit / 8] >> (bit % 8) & mask;
            *out = scale * f32::from(q) + bias;
        }
    }
}

/// `Σ_i a[i] * b[i]` in eight partial sums: closer to the exact sum than a single one, and the
/// compiler can keep them in one register.
pub fn dot(
    a: &[f32], // [n]
    b: &[f32], // [n]
) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

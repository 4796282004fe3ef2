//! Quantised matrix times float32 activations: proves the wiring, so speed comes second.
//!
//! `y = Σ_groups scale · Σ q·x  +  Σ_groups bias · Σ x`, groups in ascending order,
//! whatever else is computed beside a result.

use std::ops::Range;

use super::{Matrix, bf16};
use crate::{
    backend::cpu::kernels::{
        activations::{Activations, BLOCK},
        simd::Simd,
    },
    model::Linear,
};

/// Rows that share one unpacked row of weights.
const ROWS: usize = 32;

/// Fills one row.
///
/// # Safety
/// `x` is as wide as the activations, and nobody else touches the row meanwhile.
#[inline(always)]
pub(in super::super) unsafe fn prepare<S: Simd>(to: &Activations, row: usize, x: &[f32]) {
    let sums = to.sums(row, 32);
    // SAFETY: the caller's promise; `reset` made room for the row and one sum for 32 values.
    unsafe {
        std::ptr::copy_nonoverlapping(x.as_ptr(), to.values(row), x.len());
        for (index, values) in x.chunks_exact(32).enumerate() {
            let mut sum = S::load(values.as_ptr());
            for at in (S::LANES..32).step_by(S::LANES) {
                sum = S::add(sum, S::load(values.as_ptr().add(at)));
            }
            *sums.add(index) = S::sum(sum);
        }
    }
}

/// `y[i * stride + o] = Σ w[o]·x[rows[i]]` for the given outputs.
///
/// # Safety
/// As for [`super::matmul`].
#[inline(always)]
pub(in super::super) unsafe fn matmul<S: Simd, const BITS: usize, const GROUP: usize>(
    w: &Linear,
    x: &Activations,
    rows: &[u32],
    outputs: Range<usize>,
    y: *mut f32, // [rows, stride]
    stride: usize,
) {
    let matrix = Matrix::new(w);
    for output in outputs {
        for first in (0..rows.len()).step_by(ROWS) {
            let rows = &rows[first..rows.len().min(first + ROWS)];
            // SAFETY: passed on from the caller; at most ROWS rows.
            unsafe {
                let y = y.add(first * stride + output);
                output_row::<S, BITS, GROUP>(&matrix, x, rows, output, y, stride);
            }
        }
    }
}

#[inline(always)]
unsafe fn output_row<S: Simd, const BITS: usize, const GROUP: usize>(
    w: &Matrix,
    x: &Activations,
    rows: &[u32],
    output: usize,
    y: *mut f32,
    stride: usize,
) {
    // SAFETY: the output row has `groups` groups of GROUP elements, and so do the activations.
    unsafe {
        let (packed, scales) = (w.weight(output), w.scales(output));
        let mut acc = [S::splat(0.0); ROWS];
        for group in 0..w.groups {
            let mut weights = [0.0f32; GROUP];
            expand::<S, BITS, GROUP>(packed.add(group * GROUP * BITS / 8), &mut weights);
            let scale = S::splat(bf16(scales.add(group)));
            for (acc, &row) in acc.iter_mut().zip(rows) {
                let x = x.values(row as usize).add(group * GROUP);
                let mut part = S::splat(0.0);
                for at in (0..GROUP).step_by(S::LANES) {
                    part = S::fma(S::load(weights.as_ptr().add(at)), S::load(x.add(at)), part);
                }
                *acc = S::fma(scale, part, *acc);
            }
        }
        for (i, (acc, &row)) in acc.iter().zip(rows).enumerate() {
            let bias = bias_dot::<S>(w.biases(output), x.sums(row as usize, GROUP), w.groups);
            *y.add(i * stride) = S::sum(*acc) + bias;
        }
    }
}

/// `Σ bias · sum of inputs` over a row's groups.
#[inline(always)]
unsafe fn bias_dot<S: Simd>(biases: *const u16, sums: *const f32, groups: usize) -> f32 {
    // SAFETY: both rows have `groups` elements.
    unsafe {
        let mut acc = S::splat(0.0);
        let mut group = 0;
        while group + S::LANES <= groups {
            acc = S::fma(S::load_bf16(biases.add(group)), S::load(sums.add(group)), acc);
            group += S::LANES;
        }
        let mut rest = 0.0;
        while group < groups {
            rest += bf16(biases.add(group)) * *sums.add(group);
            group += 1;
        }
        S::sum(acc) + rest
    }
}

/// Elements of a group as f32, in the order of the inputs.
#[inline(always)]
unsafe fn expand<S: Simd, const BITS: usize, const GROUP: usize>(
    packed: *const u8,
    out: &mut [f32; GROUP],
) {
    // SAFETY: the group has GROUP * BITS / 8 bytes; vectors stay inside GROUP elements.
    unsafe {
        let mut bytes = [0u8; GROUP];
        if BITS == 8 {
            std::ptr::copy_nonoverlapping(packed, bytes.as_mut_ptr(), GROUP);
        } else {
            for i in 0..GROUP / 2 {
                let byte = *packed.add(i);
                bytes[2 * i] = byte & 0xF;
                bytes[2 * i + 1] = byte >> 4;
            }
        }
        for at in (0..GROUP).step_by(S::LANES) {
            S::store(out.as_mut_ptr().add(at), S::load_u8(bytes.as_ptr().add(at)));
        }
    }
}

/// Row `row` of a matrix as f32: an embedding.
///
/// # Safety
/// `supports(w)` holds with BITS and GROUP as in `w`, the row exists, `out` has `inputs` places.
#[inline(always)]
pub(in super::super) unsafe fn dequantize_row<S: Simd, const BITS: usize, const GROUP: usize>(
    w: &Linear,
    row: usize,
    out: &mut [f32],
) {
    const { assert!(GROUP.is_multiple_of(BLOCK / 2)) }
    let matrix = Matrix::new(w);
    for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
        // SAFETY: the row has one group for each chunk of the output.
        unsafe {
            let mut elements = [0.0f32; GROUP];
            expand::<S, BITS, GROUP>(
                matrix.weight(row).add(group * GROUP * BITS / 8),
                &mut elements,
            );
            let scale = bf16(matrix.scales(row).add(group));
            let bias = bf16(matrix.biases(row).add(group));
            for (out, q) in out.iter_mut().zip(elements) {
                *out = scale * q + bias;
            }
        }
    }
}

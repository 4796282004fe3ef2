//! Products with quantised matrices: one row is a decoded token, more are a prompt's or several
//! sequences'.

use calla_engine::backend::{Precision, cpu::kernels::Activations};
use divan::Bencher;

use crate::{
    SHAPE, counted, experts, kernels,
    memory::{Turns, matrices},
};

const ROWS: [usize; 4] = [1, 16, 64, 512];

/// Outputs that the backend's threads take at a time.
const TASK_OUTPUTS: usize = 128;

/// Outputs of the output matrix that are timed: whole it has 248,320 and is no different.
const HEAD_OUTPUTS: usize = 32_768;

#[divan::bench(args = ROWS)]
fn in_proj(bencher: Bencher<'_, '_>, rows: usize) {
    let net = &SHAPE.delta_net;
    let outputs = net.conv_channels() + net.value_width() + 2 * net.value_heads;
    product(bencher, (outputs, SHAPE.hidden, 4), rows, Precision::Default);
}

#[divan::bench(args = ROWS)]
fn out_proj(bencher: Bencher<'_, '_>, rows: usize) {
    let matrix = (SHAPE.hidden, SHAPE.delta_net.value_width(), 4);
    product(bencher, matrix, rows, Precision::Default);
}

#[divan::bench(args = ROWS)]
fn out_proj_exact(bencher: Bencher<'_, '_>, rows: usize) {
    product(bencher, (SHAPE.hidden, SHAPE.delta_net.value_width(), 4), rows, Precision::Exact);
}

#[divan::bench(args = ROWS)]
fn router(bencher: Bencher<'_, '_>, rows: usize) {
    product(bencher, (experts().1, SHAPE.hidden, 8), rows, Precision::Default);
}

#[divan::bench(args = ROWS)]
fn expert_gate(bencher: Bencher<'_, '_>, rows: usize) {
    product(bencher, (experts().0, SHAPE.hidden, 4), rows, Precision::Default);
}

#[divan::bench(args = ROWS)]
fn expert_down(bencher: Bencher<'_, '_>, rows: usize) {
    product(bencher, (SHAPE.hidden, experts().0, 4), rows, Precision::Default);
}

#[divan::bench(args = [1, 16])]
fn head(bencher: Bencher<'_, '_>, rows: usize) {
    product(bencher, (HEAD_OUTPUTS, SHAPE.hidden, 4), rows, Precision::Default);
}

/// A row of activations: rounded, or as it is with exact precision, and its sums.
#[divan::bench(args = [Precision::Default, Precision::Exact])]
fn prepare(bencher: Bencher<'_, '_>, precision: Precision) {
    let values = row_values(0, SHAPE.hidden);
    let mut x = Activations::with_capacity(1, values.len(), precision);
    x.reset(1, values.len());
    counted(bencher, size_of_val(&*values), 0).bench_local(|| {
        // SAFETY: one thread.
        unsafe { kernels().prepare(&x, 0, divan::black_box(&values)) }
    });
}

/// A token's row of the embedding matrix.
#[divan::bench]
fn embed(bencher: Bencher<'_, '_>) {
    let matrices = matrices(HEAD_OUTPUTS, SHAPE.hidden, 4);
    let mut turns = Turns::of(SHAPE.hidden / 2);
    let mut out = vec![0.0; SHAPE.hidden];
    counted(bencher, matrices[0].output_bytes(), 0)
        .with_inputs(|| turns.next())
        .bench_local_values(|turn| {
            // Neighbouring tokens' rows do not lie side by side.
            let (matrix, row) = (turn % matrices.len(), turn * 9973 % HEAD_OUTPUTS);
            kernels().dequantize_row(&matrices[matrix], row, &mut out);
        });
}

fn product(
    bencher: Bencher<'_, '_>,
    (outputs, inputs, bits): (usize, usize, usize),
    rows: usize,
    precision: Precision,
) {
    let matrices = matrices(outputs, inputs, bits);
    let mut turns = Turns::of(matrices[0].weight.len());
    let x = activations(rows, inputs, precision);
    let numbers: Vec<u32> = (0..rows as u32).collect();
    let mut y = vec![0.0f32; rows * outputs];
    counted(bencher, matrices[0].size_bytes(), 2 * rows * outputs * inputs)
        .with_inputs(|| turns.next())
        .bench_local_values(|turn| {
            for start in (0..outputs).step_by(TASK_OUTPUTS) {
                let task = start..outputs.min(start + TASK_OUTPUTS);
                let y = y.as_mut_ptr();
                // SAFETY: 4 or 8 bits in groups of 64; every row is prepared, y holds
                // [rows, outputs] and is this thread's.
                unsafe { kernels().matmul(&matrices[turn], &x, &numbers, task, y, outputs) };
            }
        });
}

fn activations(rows: usize, inputs: usize, precision: Precision) -> Activations {
    let mut x = Activations::with_capacity(rows, inputs, precision);
    x.reset(rows, inputs);
    for row in 0..rows {
        // SAFETY: one thread.
        unsafe { kernels().prepare(&x, row, &row_values(row, inputs)) };
    }
    x
}

fn row_values(row: usize, inputs: usize) -> Vec<f32> {
    (0..inputs).map(|i| ((i * 7 + row) % 13) as f32 - 6.0).collect()
}

//! What the stages of one forward pass share: the batch as the kernels see it, and the kinds of
//! job that more than one stage runs.

use std::ops::Range;

use super::{
    Sequences,
    clock::Worker,
    kernels::{Activations, Kernels},
    pool::Pool,
    scratch::Residual,
    shared::Shared,
};
use crate::{
    backend::profile::Op,
    model::{Linear, Shape},
};

/// Outputs of a product that one task computes. Half as many cost 8 % of a decoded token (a
/// worker that jumps to other rows waits for memory), more leave the last task's worker alone.
const TASK_OUTPUTS: usize = 128;

/// One forward pass over a ragged batch, whose tokens stand side by side row after row.
pub(super) struct Pass<'a> {
    pub shape: &'a Shape,
    pub kernels: &'a Kernels,
    pub pool: &'a mut Pool,
    pub sequences: &'a Sequences,
    pub rows: &'a [RowPlan],
    /// All tokens of the batch, by number: 0, 1, 2, …
    pub tokens: &'a [u32],
}

/// One sequence's part of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPlan {
    /// Where the sequence stands among the open ones.
    pub sequence: usize,
    /// Number of its first token in the batch.
    pub first: usize,
    /// Its new tokens.
    pub len: usize,
    /// Position of the first new token in the sequence.
    pub position: usize,
}

/// One matrix of a job: `y[row, output] = Σ_i matrix[output, i] * x[row, i]`.
pub(super) struct Product<'a> {
    pub op: Op,
    pub matrix: &'a Linear,
    pub y: Shared<'a, f32>, // [rows, stride]
    pub stride: usize,
}

impl<'a> Product<'a> {
    /// A product whose results stand in rows of the matrix's own width.
    pub(super) fn new(op: Op, matrix: &'a Linear, y: &'a mut [f32]) -> Self {
        Self { op, matrix, y: Shared::new(y), stride: matrix.outputs }
    }

    /// Tasks that it is cut into.
    pub(super) fn tasks(matrix: &Linear) -> usize {
        matrix.outputs.div_ceil(TASK_OUTPUTS)
    }

    /// Outputs that a task computes.
    pub(super) fn outputs(matrix: &Linear, task: usize) -> Range<usize> {
        let start = task * TASK_OUTPUTS;
        start..matrix.outputs.min(start + TASK_OUTPUTS)
    }

    /// Computes one task's outputs for the activation rows `rows`; the first of them gives row
    /// `y_row` of the result.
    ///
    /// # Safety
    /// Nobody else touches these outputs of these rows.
    pub(super) unsafe fn run(
        &self,
        worker: Worker<'_>,
        kernels: &Kernels,
        x: &Activations,
        rows: &[u32],
        y_row: usize,
        task: usize,
    ) {
        let y = self.y.pointer(y_row * self.stride, rows.len() * self.stride);
        let outputs = Self::outputs(self.matrix, task);
        worker.at(self.op);
        worker.moves(
            outputs.len() * self.matrix.output_bytes(),
            2 * outputs.len() * self.matrix.inputs * rows.len(),
        );
        // SAFETY: `pointer` has checked the reach; the caller keeps others away.
        unsafe { kernels.matmul(self.matrix, x, rows, outputs, y, self.stride) };
    }
}

impl Pass<'_> {
    /// Calls `work(token, worker)` for every token of the batch.
    pub(super) fn each_token(&mut self, op: Op, work: impl Fn(usize, Worker<'_>) + Sync) {
        self.pool.run(op, self.tokens.len(), work);
    }

    /// Products of several matrices with the same activations, as one job.
    pub(super) fn products<const N: usize>(
        &mut self,
        products: [Product<'_>; N],
        x: &Activations,
        rows: &[u32],
    ) {
        if rows.is_empty() {
            return;
        }
        let kernels = self.kernels;
        let tasks = products.iter().map(|product| Product::tasks(product.matrix)).sum();
        self.pool.run(products[0].op, tasks, |mut task, worker| {
            for product in &products {
                let own = Product::tasks(product.matrix);
                if task < own {
                    // SAFETY: each task has outputs of its own.
                    unsafe { product.run(worker, kernels, x, rows, 0, task) };
                    return;
                }
                task -= own;
            }
        });
    }

    /// `x += update` and `activations = rmsnorm(x) * gain` for the batch's tokens listed in
    /// `tokens`: the first listed becomes activation row 0, and so on.
    pub(super) fn add_and_norm(
        &mut self,
        residual: &mut Residual,
        gain: &[f32], // [hidden]
        tokens: &[u32],
        activations: &mut Activations,
    ) {
        let (hidden, eps, kernels) = (self.shape.hidden, self.shape.norm_eps, self.kernels);
        activations.reset(tokens.len(), hidden);
        let activations = &*activations;
        let x = Shared::new(&mut residual.x);
        let normed = Shared::new(&mut residual.normed);
        let update = &residual.update;
        self.pool.run(Op::Norm, tokens.len(), |row, worker| {
            let token = tokens[row] as usize;
            // SAFETY: each task has a token of its own, each worker a row of `normed`.
            let (x, normed) = unsafe {
                (x.part(token * hidden, hidden), normed.part(worker.index * hidden, hidden))
            };
            kernels.add(x, &update[token * hidden..][..hidden]);
            kernels.rms_norm(x, gain, eps, normed);
            // SAFETY: each task has an activation row of its own.
            unsafe { kernels.prepare(activations, row, normed) };
        });
    }

    /// Turns `rows` rows of `inputs` floats into activations.
    pub(super) fn prepare(
        &mut self,
        x: &[f32], // [rows, inputs]
        inputs: usize,
        activations: &mut Activations,
    ) {
        let rows = x.len() / inputs;
        activations.reset(rows, inputs);
        let (activations, kernels) = (&*activations, self.kernels);
        self.pool.run(Op::Round, rows, |row, _| {
            // SAFETY: each task has an activation row of its own.
            unsafe { kernels.prepare(activations, row, &x[row * inputs..][..inputs]) };
        });
    }
}

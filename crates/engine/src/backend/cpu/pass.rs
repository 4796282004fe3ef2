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

/// Outputs in a block, of which a task computes a run.
const BLOCK_OUTPUTS: usize = 128;

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

    /// Blocks of its outputs.
    pub(super) fn blocks(matrix: &Linear) -> usize {
        matrix.outputs.div_ceil(BLOCK_OUTPUTS)
    }

    /// Outputs in a run of blocks.
    pub(super) fn outputs(matrix: &Linear, blocks: Range<usize>) -> Range<usize> {
        blocks.start * BLOCK_OUTPUTS..matrix.outputs.min(blocks.end * BLOCK_OUTPUTS)
    }

    /// Computes some blocks of outputs for the activation rows `rows`; the first of them gives row
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
        blocks: Range<usize>,
    ) {
        let y = self.y.pointer(y_row * self.stride, rows.len() * self.stride);
        let outputs = Self::outputs(self.matrix, blocks);
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
        self.runs(op, self.tokens.len(), |tokens, worker| {
            tokens.for_each(|token| work(token, worker));
        });
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
        let blocks = products.iter().map(|product| Product::blocks(product.matrix)).sum();
        self.runs(products[0].op, blocks, |run, worker| {
            let mut start = 0;
            for product in &products {
                let end = start + Product::blocks(product.matrix);
                let own = run.start.max(start)..run.end.min(end);
                if !own.is_empty() {
                    // SAFETY: each task has outputs of its own.
                    unsafe {
                        let blocks = own.start - start..own.end - start;
                        product.run(worker, kernels, x, rows, 0, blocks);
                    }
                }
                start = end;
            }
        });
    }

    /// Calls `work(run, worker)` for runs that together are `0..items`.
    pub(super) fn runs(
        &mut self,
        op: Op,
        items: usize,
        work: impl Fn(Range<usize>, Worker<'_>) + Sync,
    ) {
        let cuts = Cuts { items, workers: self.pool.workers() };
        self.pool.run(op, cuts.count(), |task, worker| work(cuts.run(task), worker));
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
        self.runs(Op::Norm, tokens.len(), |rows, worker| {
            for row in rows {
                let token = tokens[row] as usize;
                // SAFETY: each task has tokens of its own, each worker a row of `normed`.
                let (x, normed) = unsafe {
                    (x.part(token * hidden, hidden), normed.part(worker.index * hidden, hidden))
                };
                kernels.add(x, &update[token * hidden..][..hidden]);
                kernels.rms_norm(x, gain, eps, normed);
                // SAFETY: each task has activation rows of its own.
                unsafe { kernels.prepare(activations, row, normed) };
            }
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
        self.runs(Op::Round, rows, |rows, _| {
            for row in rows {
                // SAFETY: each task has activation rows of its own.
                unsafe { kernels.prepare(activations, row, &x[row * inputs..][..inputs]) };
            }
        });
    }
}

/// How items are cut into runs, one a task: each run is a share of what is left. The first ones
/// are long, since a worker that jumps to other rows of weights waits for memory; the last ones are
/// single items, so that workers end together.
#[derive(Debug, Clone, Copy)]
struct Cuts {
    items: usize,
    workers: usize,
}

impl Cuts {
    /// Runs in order.
    fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let left = self.items - start;
            let run = start..start + (left / (2 * self.workers)).max(1);
            start = run.end.min(self.items);
            (left > 0).then_some(run)
        })
    }

    fn count(self) -> usize {
        self.runs().count()
    }

    fn run(self, task: usize) -> Range<usize> {
        self.runs().nth(task).expect("a task has a run")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_meet_and_end_with_single_items() {
        for workers in [1, 2, 3, 16] {
            for items in [0, 1, 2, 17, 1940] {
                let cuts = Cuts { items, workers };
                let runs: Vec<_> = (0..cuts.count()).map(|task| cuts.run(task)).collect();
                let mut end = 0;
                for run in &runs {
                    assert!(run.start == end && run.end > run.start, "{runs:?}");
                    end = run.end;
                }
                assert_eq!(end, items);
                assert!(runs.iter().rev().take(workers).all(|run| run.len() == 1), "{runs:?}");
                assert!(runs.len() <= 16 * workers, "{} runs", runs.len());
            }
        }
    }
}

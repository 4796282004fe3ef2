//! Stage `embed`: each row's token gives its row of the residual stream.

use super::{
    pass::{Pass, row_threads},
    weights::Embedding,
};
use crate::{Error, backend::profile::Op};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("embed.cu");

/// Threads of `rope_table`.
const TURN_THREADS: usize = 128;

impl Pass<'_> {
    /// Fills the residual stream.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn embed(&self, weights: &Embedding) -> Result<(), Error> {
        let arguments = [
            self.plan.tokens.into(),
            self.plan.row_sequence.into(),
            weights.weight.into(),
            weights.scales.into(),
            weights.biases.into(),
            self.scratch.x.into(),
        ];
        let block = row_threads(self.shape.hidden);
        let (kernel, rows) = (self.kernels.embed.embed, self.plan.rows);
        let work = (Op::Rows, weights.amount.times(rows));
        self.launch(work, kernel, [rows, 1, 1], block, 0, &arguments)
    }

    /// Fills the table of RoPE's cosines and sines, which all attention layers share.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn turns(&self) -> Result<(), Error> {
        let Some(attention) = &self.scratch.attention else { return Ok(()) };
        let count = self.plan.rows * self.shape.attention.rotary_dims / 2;
        let arguments = [
            self.plan.row_position.into(),
            attention.frequencies.into(),
            self.rows(),
            attention.turns.into(),
        ];
        let grid = [count.div_ceil(TURN_THREADS), 1, 1];
        let kernel = self.kernels.embed.rope_table;
        self.launch(Op::RopeTable, kernel, grid, TURN_THREADS, 0, &arguments)
    }
}

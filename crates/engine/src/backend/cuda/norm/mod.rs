//! RMSNorm of the residual stream, as the next matrices' input.

use super::{
    device::{Address, Argument},
    pass::Pass,
};
use crate::{Error, model::Shape};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("norm.cu");

impl Pass<'_> {
    /// Norms every row of the residual stream.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn norm(&self, gain: Address) -> Result<(), Error> {
        self.norm_rows(Argument::NULL, self.plan.rows, gain)
    }

    /// Norms `rows` rows: those whose numbers `pick` lists, or the first ones.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn norm_rows(
        &self,
        pick: Argument,
        rows: usize,
        gain: Address,
    ) -> Result<(), Error> {
        let arguments = [self.scratch.x.into(), pick, gain.into(), self.scratch.normed.into()];
        self.launch(self.kernels.norm, [rows, 1, 1], threads(self.shape), 0, &arguments)
    }
}

/// `NORM_THREADS` of the kernel file: eight elements a thread.
fn threads(shape: &Shape) -> usize {
    (shape.hidden / 8).next_multiple_of(32).min(1024)
}

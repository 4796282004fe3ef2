//! RMSNorm of the residual stream, as the next matrices' input.

use super::{
    device::{Address, Argument},
    pass::{Pass, row_threads},
};
use crate::{Error, backend::profile::Op};

/// The kernel files.
pub(super) const SOURCE: &str = concat!(include_str!("row.cu"), "\n", include_str!("norm.cu"));

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
        let block = row_threads(self.shape.hidden);
        self.launch(Op::Norm, self.kernels.norm, [rows, 1, 1], block, 0, &arguments)
    }
}

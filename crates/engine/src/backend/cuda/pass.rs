//! What the stages of one forward pass share.

use super::{
    Kernels,
    device::{Argument, Device, Kernel, Launch},
    dimensions::Dimensions,
    plan::Plan,
    scratch::Scratch,
};
use crate::{Error, model::Shape};

/// One forward pass: its launches are queued or recorded in order.
pub(super) struct Pass<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) shape: &'a Shape,
    pub(super) dimensions: &'a Dimensions,
    pub(super) kernels: &'a Kernels,
    pub(super) scratch: &'a Scratch,
    pub(super) plan: Plan,
}

impl Pass<'_> {
    /// Queues a launch. A grid without blocks is nothing to do.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn launch(
        &self,
        kernel: Kernel,
        grid: [usize; 3],
        block: usize,
        shared_bytes: usize,
        arguments: &[Argument],
    ) -> Result<(), Error> {
        if grid.contains(&0) {
            return Ok(());
        }
        self.device.launch(&Launch {
            kernel,
            grid: grid.map(|blocks| blocks as u32),
            block: block as u32,
            shared_bytes: shared_bytes as u32,
            arguments,
        })
    }

    /// Whether no sequence has more than one row.
    pub(super) fn one_row_each(&self) -> bool {
        self.plan.rows == self.plan.sequences
    }

    /// Rows as an argument.
    pub(super) fn rows(&self) -> Argument {
        (self.plan.rows as u32).into()
    }
}

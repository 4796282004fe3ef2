//! What the stages of one forward pass share.

use super::{
    Kernels,
    device::{Argument, Device, Kernel, Launch},
    dimensions::Dimensions,
    plan::Plan,
    profile::{Trace, Work},
    scratch::Scratch,
};
use crate::{Error, backend::profile::Stage, model::Shape};

/// One forward pass: its launches are queued or recorded in order.
pub(super) struct Pass<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) shape: &'a Shape,
    pub(super) dimensions: &'a Dimensions,
    pub(super) kernels: &'a Kernels,
    pub(super) scratch: &'a Scratch,
    pub(super) plan: Plan,
    /// What is launched, where it is measured.
    pub(super) trace: Option<&'a Trace>,
}

/// Threads of a block for a row of `width` elements, eight a thread, as kernel files have it.
pub(super) fn row_threads(width: usize) -> usize {
    (width / 8).next_multiple_of(32).min(1024)
}

impl Pass<'_> {
    /// The launches from now on are this stage's.
    pub(super) fn enter(&self, stage: Stage) {
        if let Some(trace) = self.trace {
            trace.enter(stage);
        }
    }

    /// Queues a launch, which does `work`. A grid without blocks is nothing to do.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn launch(
        &self,
        work: impl Into<Work>,
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
        })?;
        if let Some(trace) = self.trace {
            trace.launched(work.into());
        }
        Ok(())
    }

    /// Queues what notes the end of the launches so far, where they are measured. The host comes
    /// next, and its time is nobody's.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn end(&self) -> Result<(), Error> {
        let (Some(trace), Some(kernel)) = (self.trace, self.kernels.end) else { return Ok(()) };
        self.device.launch(&Launch {
            kernel,
            grid: [1; 3],
            block: 32,
            shared_bytes: 0,
            arguments: &[],
        })?;
        trace.ended();
        Ok(())
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

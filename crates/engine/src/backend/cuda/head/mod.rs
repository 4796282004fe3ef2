//! Stage `head`: logits of the rows that want them.

use super::{pass::Pass, weights::DeviceWeights};
use crate::{
    Error,
    backend::profile::{Op, Stage},
};

impl Pass<'_> {
    /// Logits of the wanted rows from `first` on, `rows` of them.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn head(
        &self,
        weights: &DeviceWeights,
        first: usize,
        rows: usize,
    ) -> Result<(), Error> {
        self.enter(Stage::Head);
        self.norm_rows(self.plan.pick.plus(4 * first).into(), rows, weights.norm)?;
        self.project(
            Op::Logits,
            &weights.head,
            self.scratch.normed,
            rows,
            self.scratch.logits,
            self.shape.vocab,
        )
    }
}

/// Logits as the bytes that they are copied into.
pub(super) fn as_bytes(logits: &mut [f32]) -> &mut [u8] {
    let len = size_of_val(logits);
    // SAFETY: the same memory, alone as long as the borrow; any bytes are floats.
    unsafe { std::slice::from_raw_parts_mut(logits.as_mut_ptr().cast(), len) }
}

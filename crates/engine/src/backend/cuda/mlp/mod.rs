//! Stage `mlp`: one SwiGLU for every row.

use super::{pass::Pass, weights::DeviceSwiglu};
use crate::Error;

impl Pass<'_> {
    /// Adds `down(silu(gate(x)) * up(x))` of the normed rows to the residual stream.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn mlp(&self, weights: &DeviceSwiglu) -> Result<(), Error> {
        let inner = self.scratch.mlp.inner;
        self.swiglu(weights, self.scratch.normed, inner)?;
        self.project_down(weights, inner, self.scratch.x, true)
    }
}

//! Stage `mlp`: one SwiGLU for every row.

use super::{device::Address, pass::Pass, weights::DeviceSwiglu};
use crate::{Error, backend::profile::Op};

impl Pass<'_> {
    /// Adds `down(silu(gate(x)) * up(x))` of the rows, normed with `gain`, to the residual stream.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn mlp(&self, weights: &DeviceSwiglu, gain: Address) -> Result<(), Error> {
        let inner = self.scratch.mlp.inner;
        self.norm(gain)?;
        self.swiglu(Op::GateUp, weights, self.scratch.normed, inner)?;
        self.project_down(Op::Down, weights, inner, self.scratch.x, true)
    }
}

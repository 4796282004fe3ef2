//! Stage `delta_net`: in_proj, convolution, gates, state, gated norm, out_proj, residual.

use super::{
    device::{Address, Kernel},
    pass::Pass,
    profile::Amount,
    scratch::delta_net_width,
    weights::DeviceDeltaNet,
};
use crate::{
    Error,
    backend::{histories::StateLayout, profile::Op},
    model::{DELTA_FLOP, DeltaNetShape, Shape},
};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("delta_net.cu");

/// `CONV_ROWS` of the kernel file.
const CONV_ROWS: usize = 8;

/// Value rows of a block of `delta_step`.
const STEP_VALUES: usize = 32;

/// The stage's kernels.
pub(super) struct DeltaNetKernels {
    pub(super) conv_gates: Kernel,
    pub(super) delta_step: Kernel,
    pub(super) gated_norm: Kernel,
    pub(super) delta_decode: Kernel,
}

/// Floats of a layer's convolution state: a ring with one row more than the convolution looks
/// back, see delta_net.cu.
pub(super) fn conv_state_len(shape: &Shape) -> usize {
    shape.delta_net.conv_taps * shape.delta_net.conv_channels()
}

impl Pass<'_> {
    /// Runs the stage on the rows, normed with `gain`; `layer` counts the DeltaNet layers.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn delta_net(
        &self,
        weights: &DeviceDeltaNet,
        gain: Address,
        layer: usize,
    ) -> Result<(), Error> {
        // in_proj
        let projected = self.scratch.projected;
        let width = delta_net_width(self.shape);
        self.norm_project(Op::InProj, gain, &weights.input, projected, width)?;

        // conv, gates, state, gated norm
        let layout =
            StateLayout { conv_len: conv_state_len(self.shape), ..StateLayout::new(self.shape) };
        let state_at = layout.layer_at(layer) as u64;
        if self.one_row_each()
            && self.shape.delta_net.value_dim.is_multiple_of(self.dimensions.group)
        {
            self.delta_decode(weights, state_at)?;
        } else {
            self.delta_rows(weights, state_at)?;
        }

        // out_proj
        self.project_add(Op::OutProj, &weights.output, self.scratch.read, self.plan.rows)
    }

    fn delta_net_kernels(&self) -> &DeltaNetKernels {
        self.kernels.delta_net.as_ref().expect("made for this shape")
    }

    /// A single kernel for everything between the projections, one new token a sequence.
    fn delta_decode(&self, weights: &DeviceDeltaNet, state_at: u64) -> Result<(), Error> {
        let DeltaNetShape { value_heads, value_dim, .. } = self.shape.delta_net;
        let arguments = [
            self.scratch.projected.into(),
            (delta_net_width(self.shape) as u32).into(),
            self.plan.row_sequence.into(),
            self.plan.row_position.into(),
            self.plan.states.into(),
            state_at.into(),
            weights.conv.into(),
            weights.a_log.into(),
            weights.dt_bias.into(),
            weights.norm.into(),
            self.scratch.read.into(),
        ];
        let kernel = self.delta_net_kernels().delta_decode;
        let work = (Op::DeltaDecode, self.states_amount());
        self.launch(work, kernel, [value_heads, self.plan.rows, 1], 4 * value_dim, 0, &arguments)
    }

    /// Of the delta rule: a layer's states are read and written, and follow every row.
    fn states_amount(&self) -> Amount {
        let elements = self.shape.delta_net.state_len();
        Amount {
            bytes: (2 * 4 * elements * self.plan.sequences) as u64,
            flop: (DELTA_FLOP * elements * self.plan.rows) as u64,
        }
    }

    /// The same for any number of new tokens.
    fn delta_rows(&self, weights: &DeviceDeltaNet, state_at: u64) -> Result<(), Error> {
        let shape = &self.shape.delta_net;
        let scratch = self.scratch.delta_net.as_ref().expect("made for this shape");
        let kernels = self.delta_net_kernels();
        let (projected, width) = (self.scratch.projected, delta_net_width(self.shape) as u32);
        let (plan, rows) = (&self.plan, self.plan.rows);
        self.launch(
            Op::Conv,
            kernels.conv_gates,
            [rows.div_ceil(CONV_ROWS), shape.key_heads, 1],
            shape.key_dim.max(shape.value_dim),
            0,
            &[
                projected.into(),
                width.into(),
                plan.row_sequence.into(),
                plan.row_position.into(),
                plan.first_row.into(),
                plan.states.into(),
                state_at.into(),
                weights.conv.into(),
                weights.a_log.into(),
                weights.dt_bias.into(),
                self.rows(),
                scratch.qkv.into(),
                scratch.factors.into(),
            ],
        )?;
        self.launch(
            (Op::State, self.states_amount()),
            kernels.delta_step,
            [shape.value_width() / STEP_VALUES, plan.sequences, 1],
            128,
            0,
            &[
                scratch.qkv.into(),
                scratch.factors.into(),
                projected.into(),
                width.into(),
                plan.row_position.into(),
                plan.first_row.into(),
                plan.states.into(),
                state_at.into(),
                scratch.read.into(),
            ],
        )?;
        self.launch(
            Op::GatedNorm,
            kernels.gated_norm,
            [rows, 1, 1],
            (shape.value_width() / 8).next_multiple_of(32).min(1024),
            0,
            &[
                scratch.read.into(),
                projected.into(),
                width.into(),
                plan.row_sequence.into(),
                weights.norm.into(),
                self.scratch.read.into(),
            ],
        )
    }
}

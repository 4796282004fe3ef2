//! Step 5 on a CUDA device: the chain of stages.

use super::{
    pass::Pass,
    weights::{DeviceMixer, DeviceMlp, DeviceWeights},
};
use crate::{Error, backend::profile::Stage};

impl Pass<'_> {
    /// Everything but the head.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn layers(&self, weights: &DeviceWeights) -> Result<(), Error> {
        // embed
        self.enter(Stage::Embed);
        self.embed(&weights.embed)?;
        self.turns()?;

        let (mut delta_nets, mut attentions) = (0, 0);
        for layer in &weights.layers {
            // delta_net or attention
            let gain = layer.input_norm;
            match &layer.mixer {
                DeviceMixer::DeltaNet(mixer) => {
                    self.enter(Stage::DeltaNet);
                    self.delta_net(mixer, gain, delta_nets)?;
                    delta_nets += 1;
                }
                DeviceMixer::Attention(mixer) => {
                    self.enter(Stage::Attention);
                    self.attention(mixer, gain, attentions)?;
                    attentions += 1;
                }
            }

            // moe or mlp
            let gain = layer.post_norm;
            match &layer.mlp {
                DeviceMlp::Dense(mlp) => {
                    self.enter(Stage::Mlp);
                    self.mlp(mlp, gain)?;
                }
                DeviceMlp::Moe(moe) => {
                    self.enter(Stage::Moe);
                    self.moe(moe, gain)?;
                }
            }
        }
        Ok(())
    }
}

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
        let mut normed = false; // the layer's input, by the layer before
        for (index, layer) in weights.layers.iter().enumerate() {
            // delta_net or attention
            let gain = (!normed).then_some(layer.input_norm);
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
                    normed = false;
                }
                DeviceMlp::Moe(moe) => {
                    self.enter(Stage::Moe);
                    let next = weights.layers.get(index + 1).map(|layer| layer.input_norm);
                    normed = self.moe(moe, gain, next, index as u32 + 1)?;
                }
            }
        }
        Ok(())
    }
}

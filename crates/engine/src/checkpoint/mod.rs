//! Checkpoint folders in MLX's quantised format: `config.json` becomes a [`Shape`] that cannot be
//! wrong, safetensors become [`Weights`] by role. Files are mapped, never copied.
//!
//! Reading is strict. Every tensor is used or known to be of no use here; one that is missing,
//! unknown, or not as the configuration says is an error that names it.

mod config;
mod folder;
mod map;
pub mod quantize;
mod safetensors;
mod source;
pub mod synth;
#[cfg(test)]
mod tests;
mod weights;
mod writer;

pub use config::{check_config, check_unquantised_config};
pub use map::explain_lost_files;
pub use safetensors::{Dtype, Tensor, Tensors, shard_names};
pub use source::Source;

use crate::{
    Error,
    model::{Figures, Shape, TensorInfo, Weights},
};

/// A model read from a checkpoint: what a backend needs to run it.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The dimensions.
    pub shape: Shape,
    /// The weights; matrices stay in the mapped files.
    pub weights: Weights,
    /// What the files hold of the model, in the order of reading.
    pub tensors: Vec<TensorInfo>,
    /// What else they hold.
    pub unused: Unused,
}

/// Tensors that text generation has no use for: vision, drafting, a second copy of a tied head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unused {
    /// How many.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Checkpoint {
    /// Reads and checks a whole checkpoint. Matrices are mapped, so this takes milliseconds.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Config`], [`Error::Format`] or [`Error::Tensor`], with the place.
    pub fn open(source: &Source) -> Result<Self, Error> {
        let config = config::read(source)?;
        let tensors = Tensors::open(source)?;
        let (weights, tensors, unused) = weights::assign(&config, tensors)?;
        Ok(Self { shape: config.shape, weights, tensors, unused })
    }

    /// What the model takes and what its tokens cost.
    pub fn figures(&self) -> Figures {
        Figures::of(&self.shape, &self.tensors)
    }
}

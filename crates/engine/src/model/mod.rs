//! What the model is: its [`Shape`] and its [`Weights`] by role. The computation itself is the
//! forward pass of each backend; `backend/reference` is the one to read first.

mod shape;
mod weights;

pub use shape::{AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape};
pub use weights::{
    Attention, Bytes, DeltaNet, Experts, Layer, Linear, Mixer, Mlp, Moe, Swiglu, Weights,
};

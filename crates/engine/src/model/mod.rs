//! What the model is: its [`Shape`], its [`Weights`] by role, and the [`Figures`] that follow. The computation itself is the
//! forward pass of each backend; `backend/reference` is the one to read first.

mod figures;
pub mod random;
mod shape;
mod weights;

pub use figures::{ATTEND_FLOP, DELTA_FLOP, Figures, Role, RoleFigures, TensorInfo};
pub use shape::{AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape};
pub use weights::{
    Attention, Bytes, DeltaNet, Experts, Layer, Linear, Mixer, Mlp, Moe, Swiglu, Weights,
};

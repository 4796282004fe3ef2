//! The CUDA backend.

pub mod device;
mod dimensions;
mod memory;

//! Tokens in, tokens out. This crate knows no text and no HTTP.
//!
//! Two borders are public:
//!
//! * [`Engine`]: what a caller talks to. [`Engine::submit`] takes a [`Request`] (token ids) and
//!   gives an [`EventStream`]. The engine owns scheduling, the prefix cache and sampling; the
//!   caller must not know which sequences run together, or on what device.
//! * [`backend::Backend`]: what the engine talks to. It owns weights, KV pages and DeltaNet
//!   states; the engine only holds [`backend::SequenceId`]s and must not know how they are stored.
//!
//! A request's way through this crate, numbered as everywhere in the project:
//! 4. `scheduler`  5. `model` and the forward pass of each backend  6. kernels in `backend`
//! 7. `sampler`. Checkpoints are read by `checkpoint`, what finished sequences leave behind is
//! kept by `cache`.

#[cfg(not(unix))]
compile_error!(
    "calla runs on Linux and macOS. Windows is not supported: build and run it inside WSL 2."
);
#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!(
    "calla needs a 64-bit little-endian processor: checkpoints of many gigabytes are mapped whole, \
     and its arithmetic was never checked on a big-endian one."
);

pub mod backend;
mod cache;
pub mod checkpoint;
pub mod engine;
mod error;
pub mod model;
pub mod request;
pub mod sampler;
mod scheduler;

pub use engine::{Engine, EngineConfig, EventStream, Stats};
pub use error::Error;
pub use request::{Event, FinishReason, Limits, Request, Token, Usage};
pub use sampler::Sampling;

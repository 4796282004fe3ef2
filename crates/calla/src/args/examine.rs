//! Flags of the commands that look at a model and at the machine.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{DeviceArgs, ModelArgs, OutputArgs};

/// Show what a model is, what it takes and what fits here
///
/// Dimensions, weights by role with their bits, what a token costs, and which contexts fit in this
/// machine's memory. Nothing is computed: it takes milliseconds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla inspect
  calla inspect ~/models/Qwen3.6-35B-A3B-4bit --tensors
  calla inspect --json | jq .contexts")]
pub(crate) struct InspectArgs {
    /// What --model takes; wins over it
    #[arg(value_name = "DIR|REPO[@REV]", value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// List every tensor with its shape, bits, group size and bytes
    #[arg(long)]
    pub(crate) tensors: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Check whether this machine can run models
///
/// What it has, which backend would be taken and why, how fast memory is read, and whether every
/// kernel agrees with the reference here; with a model, whether it fits. The exit code is 0 only
/// when all is well.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla doctor
  calla doctor --model ~/models/Qwen3.6-35B-A3B-4bit --json")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

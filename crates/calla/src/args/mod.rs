//! Every command and its flags; what several commands share is in `shared`.

mod shared;

use std::{num::NonZeroUsize, path::PathBuf};

use calla_engine::checkpoint::synth::Preset;
use clap::{Args, Parser, Subcommand, builder::PossibleValuesParser};

pub(crate) use shared::{BackendArgs, ModelArgs, OutputArgs};

use crate::version;

/// Runs Qwen3.5 / Qwen3.6 language models, mixture-of-experts first of all, on this machine.
#[derive(Debug, Parser)]
#[command(name = "calla", version = version::SHORT, long_version = version::long())]
pub(crate) struct Cli {
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Say more on stderr: what was loaded (-v), what each step does (-vv)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(BenchArgs),
    Eval(EvalArgs),
    Synth(SynthArgs),
}

/// Measure prefill and decode speed
///
/// One sequence, greedy, a made-up prompt of each length after a warm-up of the same shape. `floor`
/// is the share of the time per token that reading its bytes must take at the memory bandwidth
/// measured here. The digest is of the first 64 tokens, and the same in every repetition or the
/// command fails.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla bench
  calla bench --model ~/models/Qwen3.6-35B-A3B-4bit --contexts 512,4096 --json")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Prompt lengths in tokens
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "512,4096")]
    pub(crate) contexts: Vec<NonZeroUsize>,
    /// Decode steps to time
    #[arg(long, value_name = "N", default_value = "64")]
    pub(crate) steps: NonZeroUsize,
    /// Timed runs of each context, after one that warms up
    #[arg(long, value_name = "N", default_value = "3")]
    pub(crate) repetitions: NonZeroUsize,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Judge the model's output
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Agree(AgreeArgs),
}

/// Compare logits with those of another implementation
///
/// The file holds `ids` [n] int32 and `logits` [n, vocab] float32: row i is what follows
/// ids[0..=i]. The ids are fed as they are, whatever the model would have said.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  python3 tests/parity/agree.py --model DIR --out golden.safetensors
  calla eval agree --model DIR --against golden.safetensors --precision exact")]
pub(crate) struct AgreeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// safetensors file with `ids` and `logits`
    #[arg(long, value_name = "FILE")]
    pub(crate) against: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Write a checkpoint with made-up weights
///
/// Names, formats and sizes are those of an MLX 4-bit checkpoint; the weights are random at a
/// realistic scale. For measuring speed and memory: what such a model says means nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla synth --shape qwen3.6-35b-a3b --layers 8 --out /tmp/eight-layers
  calla bench --model /tmp/eight-layers")]
pub(crate) struct SynthArgs {
    /// Dimensions of the model
    #[arg(long, value_name = "SHAPE", value_parser = preset_names())]
    shape: String,
    /// Layers, when not the shape's own number
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<NonZeroUsize>,
    /// Seed of the random numbers: the same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Folder to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Replace a checkpoint that is there already
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl SynthArgs {
    pub(crate) fn preset(&self) -> Preset {
        (Preset::ALL.into_iter())
            .find(|preset| preset.name() == self.shape)
            .expect("the parser takes no other name")
    }
}

fn preset_names() -> PossibleValuesParser {
    PossibleValuesParser::new(Preset::ALL.map(Preset::name))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}

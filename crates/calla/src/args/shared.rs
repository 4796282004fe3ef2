//! Groups of flags that several commands share.

use std::{num::NonZeroUsize, path::PathBuf};

use calla_engine::backend::{BackendOptions, Precision, select};
use clap::{Args, ValueEnum, builder::PossibleValuesParser};

/// Which model
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Checkpoint folder [default: the small model inside the program]
    #[arg(long, value_name = "DIR", env = "CALLA_MODEL")]
    pub(crate) model: Option<PathBuf>,
}

/// On what and how it is computed
#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    /// Device to run on [default: the best that works here]
    #[arg(long, value_name = "NAME", env = "CALLA_BACKEND", value_parser = backend_names())]
    pub(crate) backend: Option<String>,
    /// Arithmetic: as fast as is accurate enough, or float32 throughout
    #[arg(long, value_enum, default_value_t, env = "CALLA_PRECISION")]
    pub(crate) precision: PrecisionArg,
    /// Worker threads [default: as many as the cores allow]
    #[arg(long, value_name = "N", env = "CALLA_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// How the result is printed
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum PrecisionArg {
    #[default]
    Default,
    Exact,
}

impl BackendArgs {
    pub(crate) fn options(&self) -> BackendOptions {
        BackendOptions {
            precision: match self.precision {
                PrecisionArg::Default => Precision::Default,
                PrecisionArg::Exact => Precision::Exact,
            },
            threads: self.threads.map(NonZeroUsize::get),
        }
    }
}

fn backend_names() -> PossibleValuesParser {
    PossibleValuesParser::new(select::names())
}

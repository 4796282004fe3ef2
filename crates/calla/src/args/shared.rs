//! Groups of flags that several commands share.

use std::{num::NonZeroUsize, path::PathBuf, str::FromStr};

use calla_chat::SamplingOverrides;
use calla_engine::{
    EngineConfig,
    backend::{BackendOptions, Precision, select},
};
use clap::{Args, ValueEnum, ValueHint, builder::PossibleValuesParser};

/// More than the cores of any machine; each thread takes memory of its own.
const THREADS_MAX: usize = 1024;

/// Which model
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Checkpoint folder, or the name of a pulled model [default: the small one inside the program]
    #[arg(long, value_name = "DIR|REPO[@REV]", env = "CALLA_MODEL", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
}

/// On what and how it is computed, and whether it must fit
#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Load even what needs more memory than is free
    #[arg(long)]
    pub(crate) no_memory_check: bool,
}

/// On what and how it is computed
#[derive(Debug, Default, Args)]
pub(crate) struct DeviceArgs {
    /// Device to run on [default: the best that works here]
    #[arg(long, value_name = "NAME", env = "CALLA_BACKEND", value_parser = backend_names())]
    pub(crate) backend: Option<String>,
    /// Arithmetic: as fast as is accurate enough, or float32 throughout
    #[arg(long, value_enum, default_value_t, env = "CALLA_PRECISION")]
    pub(crate) precision: PrecisionArg,
    /// Worker threads [default: as many as the cores allow]
    #[arg(long, value_name = "N", env = "CALLA_THREADS")]
    #[arg(value_parser = count_to(THREADS_MAX))]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// A device and its arithmetic in one word, for commands that run two
#[derive(Debug, Clone)]
pub(crate) struct BackendChoice {
    pub(crate) backend: String,
    precision: PrecisionArg,
}

/// What a running model may take
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Tokens that a conversation may hold, answer included [default: all that the model can and
    /// the memory holds]
    #[arg(long, value_name = "N", env = "CALLA_MAX_CONTEXT")]
    #[arg(value_parser = count())]
    max_context: Option<NonZeroUsize>,
}

/// What a server keeps and lets wait
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// Memory in MiB for keeping what was computed, so that a conversation goes on at once
    #[arg(long, value_name = "N", default_value_t = 1024, env = "CALLA_CACHE_MB")]
    #[arg(value_parser = clap::value_parser!(u32))]
    cache_mb: u32,
    /// Requests that may wait; one more is refused with 503
    #[arg(long, value_name = "N", default_value_t = 64, env = "CALLA_MAX_QUEUE")]
    max_queue: usize,
}

/// How the next token is chosen; what is left out comes from the model
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Randomness: 0 takes the most probable token [default: the model's]
    #[arg(long, value_name = "0..2", env = "CALLA_TEMPERATURE")]
    #[arg(value_parser = within(0.0, 2.0))]
    temperature: Option<f32>,
    /// Choose among the N most probable tokens; 0 is all [default: the model's]
    #[arg(long, value_name = "N", env = "CALLA_TOP_K")]
    top_k: Option<usize>,
    /// Choose among the most probable tokens that make up this share [default: the model's]
    #[arg(long, value_name = "0..1", env = "CALLA_TOP_P")]
    #[arg(value_parser = above_zero(1.0))]
    top_p: Option<f32>,
    /// Choose among tokens at least this probable against the best [default: the model's]
    #[arg(long, value_name = "0..1", env = "CALLA_MIN_P")]
    #[arg(value_parser = within(0.0, 1.0))]
    min_p: Option<f32>,
    /// Against tokens that were generated already [default: the model's]
    #[arg(long, value_name = "-2..2", env = "CALLA_PRESENCE_PENALTY")]
    #[arg(value_parser = within(-2.0, 2.0))]
    presence_penalty: Option<f32>,
    /// Against tokens by how often they were generated [default: the model's]
    #[arg(long, value_name = "-2..2", env = "CALLA_FREQUENCY_PENALTY")]
    #[arg(value_parser = within(-2.0, 2.0))]
    frequency_penalty: Option<f32>,
    /// Divides the logits of generated tokens; 1 is off [default: the model's]
    #[arg(long, value_name = "X", env = "CALLA_REPETITION_PENALTY")]
    #[arg(value_parser = above_zero(f32::MAX))]
    repetition_penalty: Option<f32>,
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

impl DeviceArgs {
    pub(crate) fn options(&self) -> BackendOptions {
        BackendOptions {
            precision: self.precision.into(),
            threads: self.threads.map(NonZeroUsize::get),
        }
    }
}

impl BackendChoice {
    /// What the backend is told; the rest is as for the other one.
    pub(crate) fn options(&self, other: &DeviceArgs) -> BackendOptions {
        BackendOptions { precision: self.precision.into(), ..other.options() }
    }
}

impl FromStr for BackendChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (backend, precision) = text.split_once(':').unwrap_or((text, "default"));
        if !select::names().any(|name| name == backend) {
            let known: Vec<&str> = select::names().collect();
            return Err(format!("no backend `{backend}`: choose one of {}", known.join(", ")));
        }
        let precision = PrecisionArg::from_str(precision, false)
            .map_err(|_| format!("no precision `{precision}`: choose default or exact"))?;
        Ok(Self { backend: backend.to_owned(), precision })
    }
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Self {
        match precision {
            PrecisionArg::Default => Precision::Default,
            PrecisionArg::Exact => Precision::Exact,
        }
    }
}

impl EngineArgs {
    /// The engine's configuration; what serves one person keeps the defaults of the rest.
    pub(crate) fn config(&self, cache: Option<&CacheArgs>) -> EngineConfig {
        let mut config = EngineConfig {
            context_tokens: self.max_context.map(NonZeroUsize::get),
            ..EngineConfig::default()
        };
        if let Some(cache) = cache {
            config.cache_bytes = (cache.cache_mb as usize) << 20;
            config.queue_max = cache.max_queue;
        }
        config
    }
}

impl SamplingArgs {
    pub(crate) fn overrides(&self) -> SamplingOverrides {
        SamplingOverrides {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            ..SamplingOverrides::default()
        }
    }
}

fn backend_names() -> PossibleValuesParser {
    PossibleValuesParser::new(select::names())
}

/// A whole number of at least 1.
pub(super) fn count() -> impl Fn(&str) -> Result<NonZeroUsize, String> + Clone {
    |text| text.parse().map_err(|_| "expected a whole number of at least 1".into())
}

/// A whole number of at least 1 and at most this.
pub(super) fn count_to(max: usize) -> impl Fn(&str) -> Result<NonZeroUsize, String> + Clone {
    move |text| match text.parse::<NonZeroUsize>() {
        Ok(value) if value.get() <= max => Ok(value),
        _ => Err(format!("expected a whole number of at least 1 and at most {max}")),
    }
}

/// A number in a range, both ends included.
fn within(low: f32, high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| match text.parse::<f32>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {low} to {high}")),
    }
}

/// The same without 0.
fn above_zero(high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= high => Ok(value),
        _ if high == f32::MAX => Err("expected a number above 0".into()),
        _ => Err(format!("expected a number above 0, up to {high}")),
    }
}

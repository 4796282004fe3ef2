//! Every command and its flags; what several commands share is in `shared`.

mod examine;
mod examples;
mod program;
mod shared;

use std::{net::IpAddr, num::NonZeroUsize, path::PathBuf};

use calla_engine::checkpoint::synth::Preset;
use clap::{
    ArgGroup, Args, Parser, Subcommand, ValueHint,
    builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser},
    value_parser,
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

pub(crate) use examine::{DoctorArgs, InspectArgs};
pub(crate) use examples::examples;
pub(crate) use program::{CompletionsArgs, ConfigArgs, ManArgs, VersionArgs};
pub(crate) use shared::{
    BackendArgs, BackendChoice, CacheArgs, DeviceArgs, EngineArgs, ModelArgs, OutputArgs,
    SamplingArgs,
};
use shared::{count, count_to};

use crate::{hub::RepoName, version};

/// More than ten times as deep as any model of the family.
const LAYERS_MAX: usize = 1024;

/// What is measured unless told otherwise: a short prompt and a long one.
const CONTEXTS_DEFAULT: [usize; 2] = [512, 4096];

/// Runs Qwen3.5 / Qwen3.6 language models, mixture-of-experts first of all, on this machine.
#[derive(Debug, Parser)]
#[command(name = "calla", version = version::SHORT, long_version = version::long())]
#[command(after_help = "Examples:
  calla chat \"Hello\"
  calla serve --model ~/models/Qwen3.6-35B-A3B-4bit --port 8080
  calla chat --help")]
pub(crate) struct Cli {
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Say more on stderr: what was loaded (-v), what each step does (-vv)
    #[arg(short, long, global = true, display_order = 1000, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// File of settings [default: calla/config.toml under $XDG_CONFIG_HOME or ~/.config, if there]
    #[arg(long, global = true, display_order = 1000, value_name = "FILE", env = "CALLA_CONFIG")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// What to log, such as `debug` or `calla_server=debug` [default: what -v asks for]
    #[arg(long, global = true, display_order = 1000, value_name = "FILTER", env = "CALLA_LOG", value_parser = log_filter)]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Chat(Box<ChatArgs>),
    Serve(Box<ServeArgs>),
    Tokens(TokensArgs),
    Bench(BenchArgs),
    Eval(EvalArgs),
    Pull(PullArgs),
    List(ListArgs),
    Remove(RemoveArgs),
    Inspect(InspectArgs),
    Doctor(DoctorArgs),
    Quantize(QuantizeArgs),
    Synth(SynthArgs),
    Config(ConfigArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    Version(VersionArgs),
}

/// Talk to the model
///
/// With a prompt, or text through a pipe, it answers once: the argument first, then what is piped
/// in. Without either it opens a conversation; /help lists what can be typed there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla chat \"Why is the sky blue?\"
  git diff | calla chat --no-think \"Write a commit message for this change.\"
  calla chat --model ~/models/Qwen3.6-35B-A3B-4bit --system \"Be brief.\"")]
pub(crate) struct ChatArgs {
    /// What to ask
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Think before answering [default: what the model's template does]
    #[arg(long, overrides_with = "no_think")]
    think: bool,
    /// Answer at once
    #[arg(long, overrides_with = "think")]
    no_think: bool,
    /// Instructions that come before the conversation [default: none]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Most tokens to generate, thinking included [default: until the context is full]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = count())]
    pub(crate) max_tokens: Option<NonZeroUsize>,
    /// Start of the random numbers: the same seed and prompt give the same answer [default: chance]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// Answer over HTTP, as OpenAI's API does
///
/// Until the model is loaded, and while it stops, requests are answered with 503. SIGTERM and
/// Ctrl-C let running answers finish.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla serve --model ~/models/Qwen3.6-35B-A3B-4bit
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Address to listen on; 0.0.0.0 is every one of this machine
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", env = "CALLA_HOST")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080, env = "CALLA_PORT")]
    pub(crate) port: u16,
    /// Key that clients must send as `Authorization: Bearer KEY` [default: none]
    #[arg(long, value_name = "KEY", env = "CALLA_API_KEY", hide_env_values = true)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) api_key: Option<String>,
    /// File that holds the key [default: none]
    #[arg(long, value_name = "FILE", conflicts_with = "api_key", env = "CALLA_API_KEY_FILE")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Largest request body in MiB
    #[arg(long, value_name = "N", default_value = "32", env = "CALLA_MAX_BODY_MB")]
    #[arg(value_parser = value_parser!(u16).range(1..=4096))]
    pub(crate) max_body_mb: u16,
    /// Most connections at a time; further ones wait
    #[arg(long, value_name = "N", default_value = "1024", env = "CALLA_MAX_CONNECTIONS")]
    #[arg(value_parser = count())]
    pub(crate) max_connections: NonZeroUsize,
    /// Seconds that running answers have to finish after the server was told to stop
    #[arg(long, value_name = "N", default_value_t = 30, env = "CALLA_DRAIN_SECONDS")]
    pub(crate) drain_seconds: u64,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// Show how a text is cut into tokens
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla tokens \"Hello, world\"
  calla tokens --json - < notes.txt")]
pub(crate) struct TokensArgs {
    /// The text; `-` reads it from stdin
    #[arg(allow_hyphen_values = true)]
    pub(crate) text: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Measure prefill and decode speed
///
/// Greedy, a made-up prompt of each length after a warm-up of the same shape. `floor`
/// is the share of the time per token that reading its bytes must take at the memory bandwidth
/// measured here. The digest is of the first 64 tokens, and the same in every repetition or the
/// command fails.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla bench
  calla bench --model ~/models/Qwen3.6-35B-A3B-4bit --contexts 512,4096 --json
  calla bench --streams 32 --contexts 4096")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Prompt lengths in tokens [default: 512,4096, as far as the model holds them]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = count())]
    contexts: Vec<NonZeroUsize>,
    /// Sequences to decode together, each with a prompt of its own
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = count())]
    pub(crate) streams: NonZeroUsize,
    /// Decode steps to time
    #[arg(long, value_name = "N", default_value = "64")]
    #[arg(value_parser = count())]
    pub(crate) steps: NonZeroUsize,
    /// Timed runs of each context, after one that warms up
    #[arg(long, value_name = "N", default_value = "3")]
    #[arg(value_parser = count())]
    pub(crate) repetitions: NonZeroUsize,
    /// Show where the time of one more run goes, by stage and op
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Judge the model's output
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla eval --help
  calla eval agree --model DIR --against golden.safetensors")]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Exam(ExamArgs),
    Perplexity(PerplexityArgs),
    Agree(AgreeArgs),
}

/// Let the model sit the exam of the embedded one
///
/// Items that its training never saw, asked as a client of the server would, and answered with the
/// most probable token each time. The table gives the share of right answers for each skill, and
/// the mark that it has to reach where it has one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla eval exam
  calla eval exam --per-skill 5 --require-marks
  calla eval exam --model OUT/seedling --skills tools,json --failures wrong.jsonl")]
pub(crate) struct ExamArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Items to ask; training/make_exam.py gives the format [default: those inside the program]
    #[arg(long, value_name = "FILE")]
    pub(crate) exam: Option<PathBuf>,
    /// Skills to ask about, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) skills: Vec<String>,
    /// Items of each skill to ask [default: all]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = count())]
    pub(crate) per_skill: Option<NonZeroUsize>,
    /// Which items --per-skill takes: the same number, the same items
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write every wrong answer to this file, a JSON object a line: prompt, expected and got
    #[arg(long, value_name = "FILE")]
    pub(crate) failures: Option<PathBuf>,
    /// Fail with exit code 1 when a mark is missed
    #[arg(long)]
    pub(crate) require_marks: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Measure how well the model expects a text
///
/// Perplexity is the exponential of the mean of -ln p over the tokens of the text. It is read in
/// windows, each from an empty state, which start `--stride` tokens apart; a window scores the
/// tokens that the one before did not. The first token has nothing before it and is not scored.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla eval perplexity --text notes.txt
  calla eval perplexity --text - --window 512 --stride 256 --json < notes.txt")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// The text, UTF-8; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens read at a time [default: 2048, or what the model holds]
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<usize>,
    /// Tokens from the start of a window to that of the next [default: half a window]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = count())]
    pub(crate) stride: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Compare logits, position by position
///
/// With those of another implementation, from a file (`--against`), or with those of another
/// backend or precision on a text (`--with`). Tokens are fed as they are, whatever the model would
/// have said.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("other").args(["against", "with"]).required(true)))]
#[command(group(ArgGroup::new("input").args(["text", "exam"])))]
#[command(after_help = "Examples:
  python3 tests/parity/agree.py DIR golden.safetensors
  calla eval agree --model DIR --against golden.safetensors --precision exact
  calla eval agree --with reference --text notes.txt
  calla eval agree --with cpu:exact --exam --per-skill 4")]
pub(crate) struct AgreeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// safetensors file with `ids [n]` int32 and `logits [n, vocab]` float32: row i is what follows
    /// id i. `starts [sequences]` int32 tells where sequences begin when there are several
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// Backend to compare with, the same checkpoint on it; `:exact` computes in float32
    #[arg(long, value_name = "BACKEND[:PRECISION]", requires = "input")]
    pub(crate) with: Option<BackendChoice>,
    /// Text to compare on, UTF-8; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    pub(crate) text: Option<PathBuf>,
    /// Compare on the exam inside the program, its expected answers included
    #[arg(long, conflicts_with = "against")]
    pub(crate) exam: bool,
    /// Items of each skill of the exam [default: all]
    #[arg(long, value_name = "N", requires = "exam")]
    #[arg(value_parser = count())]
    pub(crate) per_skill: Option<NonZeroUsize>,
    /// Tokens of a sequence: a longer text is cut [default: 2048, or what the model holds]
    #[arg(long, value_name = "N", conflicts_with = "against")]
    #[arg(value_parser = count())]
    pub(crate) window: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Download a model from the Hugging Face hub
///
/// Into the cache that programs of that hub share; --model then takes the model's name. A download
/// that was cut goes on where it stopped, and every file is checked against its published hash.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla pull mlx-community/Qwen3.6-35B-A3B-4bit
  calla chat --model mlx-community/Qwen3.6-35B-A3B-4bit
  calla pull Qwen/Qwen3.5-0.8B --unquantised")]
pub(crate) struct PullArgs {
    /// owner/name, with a branch, tag or commit after @ when not `main`
    #[arg(value_name = "REPO[@REV]")]
    pub(crate) model: RepoName,
    /// Download every file of the repository, not only those that calla needs
    #[arg(long)]
    pub(crate) all: bool,
    /// Take weights that are not quantised yet, for `calla quantize`
    #[arg(long)]
    pub(crate) unquantised: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Show the models in the cache
///
/// Of each its name, revisions and commit, size, and whether it runs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla list
  calla list --json")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Remove a model from the cache
///
/// Without a revision, all of it. Files that another revision uses stay.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla remove mlx-community/Qwen3.6-35B-A3B-4bit
  calla remove Qwen/Qwen3.5-0.8B@main --yes")]
pub(crate) struct RemoveArgs {
    /// owner/name, with a branch, tag or commit after @ to remove that alone
    #[arg(value_name = "REPO[@REV]")]
    pub(crate) model: RepoName,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Convert an unquantised checkpoint to MLX's 4-bit format
///
/// The result is bit for bit that of mlx-lm's own conversion to bfloat16, and mlx-lm loads it: 4
/// bits, 8 for the router and the shared expert's gate. Tensors for vision and drafting are left
/// out. The folder appears only when it is complete.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla quantize ~/models/Qwen3.6-35B-A3B ~/models/Qwen3.6-35B-A3B-4bit
  calla quantize ~/models/Qwen3.5-0.8B /tmp/small --group 32 --keep-norm-float32")]
pub(crate) struct QuantizeArgs {
    /// Folder with config.json and weights in BF16, F16 or F32, or the name of a pulled model
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// Folder to make
    #[arg(value_name = "DST")]
    pub(crate) out: PathBuf,
    /// Bits of a weight
    #[arg(long, value_name = "N", default_value = "4", value_parser = number_of(["4", "8"]))]
    pub(crate) bits: usize,
    /// Weights that share a scale and a bias: fewer are more exact and take more room
    #[arg(long, value_name = "N", default_value = "64", value_parser = number_of(["32", "64", "128"]))]
    pub(crate) group: usize,
    /// Keep the gains of norms in float32, where mlx-lm rounds them to bfloat16
    #[arg(long)]
    pub(crate) keep_norm_float32: bool,
    /// Replace a checkpoint that is there already
    #[arg(long)]
    pub(crate) force: bool,
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
    /// Layers [default: as many as the shape has]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = count_to(LAYERS_MAX))]
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

impl Command {
    /// How much is logged: a server tells of its starts and stops without being asked.
    pub(crate) fn log_level(&self, verbose: u8) -> LevelFilter {
        match (verbose, self) {
            (0, Command::Serve(_)) | (1, _) => LevelFilter::INFO,
            (0, _) => LevelFilter::WARN,
            _ => LevelFilter::DEBUG,
        }
    }
}

impl ChatArgs {
    /// What the flags say about thinking.
    pub(crate) fn thinking(&self) -> Option<bool> {
        (self.think || self.no_think).then_some(self.think)
    }
}

impl BenchArgs {
    /// The contexts to measure on a model that holds `tokens_max` tokens, of which `extra` come
    /// after the prompt.
    pub(crate) fn contexts(&self, tokens_max: usize, extra: usize) -> Vec<usize> {
        if self.contexts.is_empty() {
            let fits = |context: &usize| context + extra <= tokens_max;
            return CONTEXTS_DEFAULT.into_iter().filter(fits).collect();
        }
        self.contexts.iter().map(|context| context.get()).collect()
    }
}

impl SynthArgs {
    pub(crate) fn preset(&self) -> Preset {
        (Preset::ALL.into_iter())
            .find(|preset| preset.name() == self.shape)
            .expect("the parser takes no other name")
    }
}

/// A filter that the log can use, as it was written.
fn log_filter(text: &str) -> Result<String, String> {
    EnvFilter::builder().parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn number_of<const N: usize>(choices: [&'static str; N]) -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(choices).map(|n| n.parse().expect("the choices are numbers"))
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

    #[test]
    fn a_variable_is_named_as_its_flag() {
        let mut open = vec![Cli::command()];
        while let Some(command) = open.pop() {
            for arg in command.get_arguments() {
                let Some(variable) = arg.get_env() else { continue };
                let long = arg.get_long().expect("what has a variable has a flag");
                let expected = format!("CALLA_{}", long.to_uppercase().replace('-', "_"));
                assert_eq!(variable.to_str(), Some(&*expected), "{}", command.get_name());
            }
            open.extend(command.get_subcommands().cloned());
        }
    }
}

//! Commands about the program itself.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, ValueHint};
use clap_complete::Shell;

use super::OutputArgs;

/// Show every setting, its value and where it comes from
///
/// A flag wins over its environment variable, the variable over the config file, the file over the
/// default. Behind a command, that command's flags may follow: they are read and shown, and nothing
/// is run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla config
  calla config serve --port 9000
  calla config --json chat")]
pub(crate) struct ConfigArgs {
    /// Command to show the settings of, with its flags [default: all commands]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) line: Vec<OsString>,
    /// Print a table of all settings in Markdown, whatever they are now: docs/env.md
    #[arg(long, conflicts_with_all = ["line", "json"])]
    pub(crate) reference: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Print a script that lets a shell complete commands and flags
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla completions bash > calla.bash
  calla completions zsh > _calla
  calla completions fish > calla.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Write the manual pages
///
/// One page for the program and one for each command, such as calla-chat.1; pages that are there
/// already are replaced.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla man > calla.1
  calla man share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder to write to [default: the program's page goes to stdout]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
}

/// Tell the version
///
/// With -v also what it was built from and for: source revision, target, instruction sets and
/// backends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calla version
  calla version -v
  calla version --json")]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

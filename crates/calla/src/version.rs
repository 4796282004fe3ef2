//! `calla version`, and what `--version` tells.

use std::{fmt, sync::LazyLock};

use calla_engine::backend::select;
use serde::Serialize;

use crate::{args::VersionArgs, error::Error, output};

/// The version alone.
pub(crate) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// What this program was built from, and what is in it.
#[derive(Debug, Serialize)]
struct Build {
    version: &'static str,
    /// Of the source; `None` where it was no git checkout.
    revision: Option<&'static str>,
    target: &'static str,
    profile: &'static str,
    instruction_sets: Vec<&'static str>,
    backends: Vec<&'static str>,
}

pub(crate) fn run(args: &VersionArgs, verbose: u8) -> Result<(), Error> {
    if args.output.json {
        return output::json(&Build::this());
    }
    let text = if verbose > 0 { long() } else { SHORT };
    output::text(&format!("calla {text}\n"))
}

/// The version and the rest, one thing a line.
pub(crate) fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| Build::this().to_string());
    &LONG
}

impl Build {
    fn this() -> Self {
        Build {
            version: SHORT,
            revision: option_env!("CALLA_REVISION").filter(|revision| !revision.is_empty()),
            target: env!("CALLA_TARGET"),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            instruction_sets: select::instruction_sets().map(|(name, _)| name).collect(),
            backends: select::names().collect(),
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.version)?;
        writeln!(f, "revision: {}", self.revision.unwrap_or("unknown"))?;
        writeln!(f, "target: {}", self.target)?;
        writeln!(f, "build: {}", self.profile)?;
        writeln!(f, "instruction sets: {}", self.instruction_sets.join(", "))?;
        write!(f, "backends: {}", self.backends.join(", "))
    }
}

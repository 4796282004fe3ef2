//! What goes to stdout and stderr, and in which form.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::error::Error;

/// Prints a result as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Prints lines of text.
pub(crate) fn text(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// A line about the way to the result: for people who watch, not for logs of scripts.
pub(crate) fn note(verbose: u8, line: &str) {
    if verbose > 0 || io::stderr().is_terminal() {
        // With stderr closed there is nobody to tell.
        let _ = writeln!(io::stderr(), "calla: {line}");
    }
}

/// Sends log lines to stderr, down to this level or as CALLA_LOG asks.
pub(crate) fn start_log(level: LevelFilter) {
    let filter =
        EnvFilter::try_from_env("CALLA_LOG").unwrap_or_else(|_| EnvFilter::new(level.to_string()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && !no_color())
        .init();
}

/// Whether the user asked for plain text (the NO_COLOR convention).
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

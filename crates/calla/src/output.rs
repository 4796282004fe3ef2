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

/// A number of bytes, as a person reads it.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
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

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_three_or_four_digits() {
        assert_eq!(size(999), "999 B");
        assert_eq!(size(1_500), "1.5 kB");
        assert_eq!(size(11_431_064), "11.4 MB");
        assert_eq!(size(19_510_000_000), "19.51 GB");
    }
}

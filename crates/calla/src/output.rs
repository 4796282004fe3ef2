//! What goes to stdout and stderr, and in which form.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
};

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
    bytes(text.as_bytes())
}

/// Prints bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
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

/// A checkpoint that was written, in one line.
pub(crate) fn checkpoint(
    out: &Path,
    tensors: usize,
    size_bytes: u64,
    shards: usize,
    seconds: f64,
) -> String {
    let files = if shards == 1 { "file" } else { "files" };
    let (out, size) = (out.display(), size(size_bytes));
    format!("{out}: {tensors} tensors, {size} in {shards} {files}, {seconds:.1} s\n")
}

/// A line about the way to the result: for people who watch, not for logs of scripts.
pub(crate) fn note(verbose: u8, line: &str) {
    if verbose > 0 || io::stderr().is_terminal() {
        // With stderr closed there is nobody to tell.
        let _ = writeln!(io::stderr(), "calla: {line}");
    }
}

/// A line that is worth reading wherever stderr goes.
pub(crate) fn warn(line: &str) {
    // With stderr closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "calla: {}", printable(line));
}

/// The text with control characters written out: names in a file must not steer the terminal.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && !matches!(c, '\n' | '\t') {
            true => printable.extend(c.escape_unicode()),
            false => printable.push(c),
        }
    }
    printable
}

/// Sends log lines to stderr, as the filter asks or else down to this level.
pub(crate) fn start_log(filter: Option<&str>, level: LevelFilter) {
    let filter = filter.filter(|filter| !filter.is_empty());
    let filter = filter.map_or_else(|| EnvFilter::new(level.to_string()), EnvFilter::new);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && !no_color())
        .init();
}

/// Whether text must be plain: the user asked for it (the NO_COLOR convention), or the terminal
/// knows nothing else.
pub(crate) fn no_color() -> bool {
    is_dumb() || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether the terminal knows no escape sequences.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb")
}

#[cfg(test)]
mod tests {
    use super::{printable, size};

    #[test]
    fn what_a_file_says_does_not_steer_the_terminal() {
        assert_eq!(printable("a\n\tb\u{1b}[2Jé\r\u{9b}"), "a\n\tb\\u{1b}[2Jé\\u{d}\\u{9b}");
    }

    #[test]
    fn sizes_have_three_or_four_digits() {
        assert_eq!(size(999), "999 B");
        assert_eq!(size(1_500), "1.5 kB");
        assert_eq!(size(11_431_064), "11.4 MB");
        assert_eq!(size(19_510_000_000), "19.51 GB");
    }
}

//! What comes through a pipe.

use std::io::{self, Read as _};

use crate::error::Error;

/// Longest text that is read: far more than any context holds.
const BYTES_MAX: u64 = 256 << 20;

/// All of stdin, as text.
pub(crate) fn stdin() -> Result<String, Error> {
    let failed = |problem: String| Error::Input { input: "stdin", problem };
    let mut text = String::new();
    let read = io::stdin().lock().take(BYTES_MAX + 1).read_to_string(&mut text);
    let len = read.map_err(|error| failed(error.to_string()))?;
    if len as u64 > BYTES_MAX {
        return Err(failed(format!("holds more than {BYTES_MAX} bytes")));
    }
    Ok(text)
}

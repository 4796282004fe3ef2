//! What comes through a pipe or out of a file.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use crate::error::Error;

/// Longest text that is read: far more than any context holds.
const BYTES_MAX: u64 = 256 << 20;

/// All of stdin, as text.
pub(crate) fn stdin() -> Result<String, Error> {
    read(io::stdin().lock()).map_err(|problem| Error::Input { input: "stdin", problem })
}

/// All of a file, as text.
pub(crate) fn file(path: &Path) -> Result<String, Error> {
    let failed = |problem: String| Error::File { path: path.to_owned(), problem };
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    read(file).map_err(failed)
}

fn read(from: impl Read) -> Result<String, String> {
    let mut text = String::new();
    let read = from.take(BYTES_MAX + 1).read_to_string(&mut text);
    let len = read.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => "is not UTF-8 text".into(),
        _ => error.to_string(),
    })?;
    if len as u64 > BYTES_MAX {
        return Err(format!("holds more than {BYTES_MAX} bytes"));
    }
    Ok(text)
}

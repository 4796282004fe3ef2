//! Small text files that the user names: keys and settings.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

/// All of a regular file, as text.
///
/// # Errors
/// What the system says; also when it is something else than a regular file (a pipe may wait
/// forever, a device may have no end), when it holds more than `bytes_max` bytes, or no UTF-8.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    let refused = |problem: String| Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    // Asked before it is opened: opening a pipe waits already.
    if !fs::metadata(path)?.is_file() {
        return refused("not a regular file".into());
    }
    let mut text = String::new();
    let read = File::open(path)?.take(bytes_max + 1).read_to_string(&mut text);
    match read {
        Ok(len) if len as u64 > bytes_max => refused(format!("holds more than {bytes_max} bytes")),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            refused("is not UTF-8 text".into())
        }
        Ok(_) => Ok(text),
        Err(error) => Err(error),
    }
}

//! Checkpoints that are damaged, incomplete or another engine's: each is refused with a message
//! that names the file, the tensor or the field, and says what to do.

mod damage;
mod files;
mod formats;
mod headers;
mod indices;
#[cfg(unix)]
mod links;
#[cfg(unix)]
mod mapped;

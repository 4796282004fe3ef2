//! Locks between programs that share the cache: `flock` on files that huggingface_hub locks too.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::Duration,
};

use crate::error::Error;

const POLL: Duration = Duration::from_millis(200);

/// A held lock, released when dropped. The file stays: whoever waits for it has it open.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, and waits for it while another program holds it; `waiting` is called once
    /// before the wait.
    pub(crate) fn take(path: &Path, waiting: impl FnOnce()) -> Result<Self, Error> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        waiting();
        loop {
            thread::sleep(POLL);
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
        }
    }

    /// Takes the lock; `None` while another program holds it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>, Error> {
        let failed = |error: std::io::Error| Error::file(path, error);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        loop {
            // A group that shares a cache locks each other's files.
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).mode(0o664).open(path);
            let file = file.map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Some versions of the other programs remove a lock's file when they release it: a
            // lock on a file that is gone locks nobody out.
            let held = file.metadata().map_err(failed)?.ino();
            if fs::metadata(path).is_ok_and(|there| there.ino() == held) {
                return Ok(Some(Self { _file: file }));
            }
        }
    }
}

//! Making and replacing checkpoint folders without touching what is not a checkpoint's.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::Error;

/// Small files that go with a model's weights: the tokenizer and how to use it.
pub(super) const SMALL_FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// The folder that holds the files while they are written.
pub(super) fn partial_of(out: &Path) -> Result<PathBuf, Error> {
    let name = out.file_name().ok_or_else(|| Error::Format {
        path: out.to_owned(),
        problem: "is no name for a new folder: give one".into(),
    })?;
    let mut partial = OsString::from(name);
    partial.push(".partial");
    Ok(out.with_file_name(partial))
}

/// The folder that files are written to, empty and this process's alone: locked as long as this
/// lives.
pub(super) struct Partial {
    pub(super) path: PathBuf,
    _lock: File,
}

impl Partial {
    /// Makes or empties the folder beside `out`; what a killed run left there goes.
    ///
    /// # Errors
    /// When another process writes there, or something in it is not a checkpoint's.
    pub(super) fn take(out: &Path) -> Result<Self, Error> {
        let path = partial_of(out)?;
        let failed = |source| io_error(&path, source);
        loop {
            fs::create_dir_all(&path).map_err(failed)?;
            let lock = File::open(&path).map_err(failed)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let problem = "is being written by another process: wait for it, or choose \
                                   another folder"
                        .into();
                    return Err(Error::Format { path, problem });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            // Before it was locked, its owner may have finished and given it its final name.
            let locked = lock.metadata().map_err(failed)?;
            match fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (locked.dev(), locked.ino()) => {}
                _ => continue,
            }
            empty_checkpoint(&path)?;
            return Ok(Self { path, _lock: lock });
        }
    }
}

/// Returns when all files of the folder, and their names, are on the disk.
pub(super) fn sync(folder: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(|source| io_error(folder, source))?;
    for entry in entries {
        let file = entry.map_err(|source| io_error(folder, source))?.path();
        sync_one(&file)?;
    }
    sync_one(folder)
}

/// The same for the name of the folder itself, where its parent lets us: a name that a power cut takes
/// back costs another run and nothing else.
pub(super) fn sync_name(folder: &Path) {
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let _ = sync_one(parent.unwrap_or(Path::new(".")));
}

fn sync_one(path: &Path) -> Result<(), Error> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|source| io_error(path, source))
}

/// Refuses a folder that is there, unless it is empty or a checkpoint that may be replaced, and a link.
pub(super) fn check_replaceable(out: &Path, replace: bool) -> Result<(), Error> {
    // A folder cannot take a link's name, which would be noticed only at the end.
    if out.is_symlink() {
        return Err(Error::Format {
            path: out.to_owned(),
            problem: "is a link: give the folder itself".into(),
        });
    }
    if out.is_file() {
        return Err(Error::Format {
            path: out.to_owned(),
            problem: "is a file, and stays: give a folder's name".into(),
        });
    }
    match (checkpoint_files(out)?.is_empty(), replace) {
        (true, _) | (_, true) => Ok(()),
        (false, false) => Err(Error::Format {
            path: out.to_owned(),
            problem: "exists: choose another folder, or replace it with --force".into(),
        }),
    }
}

/// Removes a folder that this crate could have made. config.json goes first: without it, what a
/// kill leaves does not look whole.
pub(super) fn remove_checkpoint(folder: &Path) -> Result<(), Error> {
    empty_checkpoint(folder)?;
    match fs::remove_dir(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(folder, source)),
        _ => Ok(()),
    }
}

fn empty_checkpoint(folder: &Path) -> Result<(), Error> {
    let mut files = checkpoint_files(folder)?;
    files.sort_by_key(|file| !file.ends_with("config.json"));
    for file in files {
        fs::remove_file(&file).map_err(|source| io_error(&file, source))?;
    }
    Ok(())
}

/// The files of a checkpoint folder; none when it does not exist. Anything else in it is an error.
fn checkpoint_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(io_error(folder, source)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| io_error(folder, source))?;
        let name = entry.file_name();
        let known = name.to_str().is_some_and(|name| {
            name == "config.json"
                || name == "model.safetensors.index.json"
                || (name.starts_with("model") && name.ends_with(".safetensors"))
                || SMALL_FILES.contains(&name)
        });
        if !known {
            return Err(Error::Format {
                path: folder.to_owned(),
                problem: format!(
                    "exists and holds {name:?}, which is not ours to remove: choose another folder"
                ),
            });
        }
        files.push(entry.path());
    }
    Ok(files)
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{Error, model::Bytes};

/// No text file of a checkpoint is larger; a tokenizer.json of the family has 20 MB.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Where a checkpoint's files come from: a folder, or the program itself.
#[derive(Debug, Clone)]
pub struct Source {
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Folder(PathBuf),
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl Source {
    /// A checkpoint folder.
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        Self { place: Place::Folder(path.into()) }
    }

    /// Files that were compiled into the program, by name.
    pub const fn embedded(files: &'static [(&'static str, &'static [u8])]) -> Self {
        Self { place: Place::Embedded(files) }
    }

    /// The folder, or a made-up path for embedded files: for messages.
    pub fn path(&self) -> PathBuf {
        match &self.place {
            Place::Folder(path) => path.clone(),
            Place::Embedded(_) => PathBuf::from("(embedded model)"),
        }
    }

    /// A whole small file.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read, [`Error::Format`] when it is absurdly long.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        self.read_optional(name)?.ok_or_else(|| self.absent(name))
    }

    /// A whole small file; `None` when there is none of that name.
    ///
    /// # Errors
    /// [`Error::Io`] when it is there and cannot be read, [`Error::Format`] when it is absurdly
    /// long.
    pub fn read_optional(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let folder = match &self.place {
            Place::Embedded(files) => {
                let file = files.iter().find(|(file, _)| *file == name);
                return Ok(file.map(|(_, bytes)| bytes.to_vec()));
            }
            Place::Folder(folder) => folder,
        };
        check_folder(folder)?;
        let path = folder.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { path, source }),
        };
        let mut bytes = Vec::new();
        // One byte more than allowed tells a long file from one that just fits.
        file.take(TEXT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| Error::Io { path: path.clone(), source })?;
        if bytes.len() as u64 > TEXT_BYTES_MAX {
            let problem = format!("longer than {TEXT_BYTES_MAX} bytes: not a file of a checkpoint");
            return Err(Error::Format { path, problem });
        }
        Ok(Some(bytes))
    }

    /// A whole file, mapped.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn map(&self, name: &str) -> Result<Bytes, Error> {
        let folder = match &self.place {
            Place::Embedded(files) => {
                let file = files.iter().find(|(file, _)| *file == name);
                let (_, bytes) = file.ok_or_else(|| self.absent(name))?;
                return Ok(Bytes::new(Arc::new(*bytes)));
            }
            Place::Folder(folder) => folder,
        };
        let path = folder.join(name);
        let io = |source| Error::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(Error::Format { path, problem: "not a file".into() });
        }
        // SAFETY: the mapping is read-only and lives in the Arc. A checkpoint that another program
        // changes while it is mapped gives wrong numbers and one that is cut short gives SIGBUS;
        // readers treat the contents as plain bytes, of which every value is valid.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Bytes::new(Arc::new(map)))
    }

    /// Whether there is a file of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        match &self.place {
            Place::Folder(folder) => folder.join(name).exists(),
            Place::Embedded(files) => files.iter().any(|(file, _)| *file == name),
        }
    }

    fn absent(&self, name: &str) -> Error {
        let problem = match &self.place {
            Place::Folder(folder) => foreign_format(folder),
            Place::Embedded(_) => None,
        };
        match problem {
            Some(problem) => Error::Format { path: self.path(), problem },
            None => Error::Io {
                path: self.path().join(name),
                source: std::io::ErrorKind::NotFound.into(),
            },
        }
    }
}

/// A path that is no folder is told from a folder that lacks the file.
fn check_folder(folder: &Path) -> Result<(), Error> {
    let path = folder.to_path_buf();
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            let problem = "not a folder: give the folder that holds config.json".into();
            Err(Error::Format { path, problem })
        }
        Err(source) => Err(Error::Io { path, source }),
    }
}

/// What to say about a folder that holds another engine's files.
fn foreign_format(folder: &Path) -> Option<String> {
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let gguf =
        names.into_iter().any(|name| Path::new(&name).extension().is_some_and(|e| e == "gguf"));
    gguf.then(|| "holds GGUF files: calla reads MLX checkpoints (config.json, safetensors)".into())
}

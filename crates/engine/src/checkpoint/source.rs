use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::map::Map;
use crate::{Error, model::Bytes};

/// No text file of a checkpoint is larger; a tokenizer.json of the family has 20 MB.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// The same for files that are read without knowing their form: a list of numbers takes a hundred
/// times its length in memory.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

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
        let Some(file) = open(&path)? else { return Ok(None) };
        let bytes_max = bytes_max(name);
        let mut bytes = Vec::new();
        // One byte more than allowed tells a long file from one that just fits.
        file.take(bytes_max + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| Error::Io { path: path.clone(), source })?;
        if bytes.len() as u64 > bytes_max {
            let problem = format!(
                "longer than {bytes_max} bytes: not a file of a checkpoint, fetch it again"
            );
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
        let file = open(&path)?.ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
        let map = Map::of(&file, &path).map_err(io)?;
        Ok(Bytes::new(Arc::new(map)))
    }

    /// Whether there is a file of that name.
    pub(super) fn has(&self, name: &str) -> Result<bool, Error> {
        match &self.place {
            Place::Folder(folder) => is_file(&folder.join(name)),
            Place::Embedded(files) => Ok(files.iter().any(|(file, _)| *file == name)),
        }
    }

    /// The names of all files.
    pub(super) fn names(&self) -> Result<Vec<String>, Error> {
        let folder = match &self.place {
            Place::Embedded(files) => {
                return Ok(files.iter().map(|&(name, _)| name.into()).collect());
            }
            Place::Folder(folder) => folder,
        };
        let entries = fs::read_dir(folder)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|source| Error::Io { path: folder.clone(), source })?;
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().ok();
        Ok(entries.iter().filter_map(name).collect())
    }

    /// What to say about a folder that holds another engine's files.
    pub(super) fn foreign_format(&self) -> Option<String> {
        let names = self.names().ok()?;
        names.iter().find_map(|name| foreign_format(Path::new(name)))
    }

    fn absent(&self, name: &str) -> Error {
        let problem = self.foreign_format().unwrap_or_else(|| {
            format!("holds no {name}: give the folder of an MLX checkpoint, or fetch it again")
        });
        Error::Format { path: self.path(), problem }
    }
}

/// A path that is no folder is told from a folder that lacks the file.
fn check_folder(folder: &Path) -> Result<(), Error> {
    let path = folder.to_path_buf();
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            let problem = foreign_format(folder)
                .unwrap_or_else(|| "not a folder: give the folder that holds config.json".into());
            Err(Error::Format { path, problem })
        }
        Err(source) => Err(Error::Io { path, source }),
    }
}

fn bytes_max(name: &str) -> u64 {
    match name {
        "config.json"
        | "generation_config.json"
        | "tokenizer_config.json"
        | "chat_template.jinja" => CONFIG_BYTES_MAX,
        _ => TEXT_BYTES_MAX,
    }
}

/// Opens a file; `None` when there is none of that name.
fn open(path: &Path) -> Result<Option<File>, Error> {
    if !is_file(path)? {
        return Ok(None);
    }
    File::open(path).map(Some).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// Whether there is a file. Something else of that name is an error: opening a pipe could wait
/// forever, and a link to nothing is not the same as no file.
fn is_file(path: &Path) -> Result<bool, Error> {
    let format = |problem: &str| Error::Format { path: path.to_owned(), problem: problem.into() };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(true),
        Ok(_) => Err(format("is not a regular file: fetch the checkpoint again")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            match fs::symlink_metadata(path) {
                Ok(_) => Err(format("links to a file that is not there: fetch it again")),
                Err(_) => Ok(false),
            }
        }
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

/// What to say about another engine's file.
fn foreign_format(file: &Path) -> Option<String> {
    let format = match file.extension()?.to_str()? {
        "gguf" => "GGUF",
        "bin" | "pt" | "pth" => "PyTorch",
        "onnx" => "ONNX",
        "npz" => "NumPy",
        _ => return None,
    };
    Some(format!(
        "{format} weights, which calla does not read: give the folder of an MLX checkpoint \
         (config.json, safetensors), or make one of the publisher's safetensors with `calla quantize \
         SRC DST`"
    ))
}

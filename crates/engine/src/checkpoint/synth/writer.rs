//! From a plan to files: shards, index, config.json, and a folder that appears complete or not.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Map, Value, json};

use super::{
    Summary,
    fill::Stream,
    plan::{Plan, Tensor},
};
use crate::Error;

/// Bytes of tensors in a file, as conversions to MLX split them.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;
/// Bytes filled and written at a time.
const BUFFER_BYTES: usize = 4 << 20;
/// Room to leave on the disk.
const DISK_RESERVE_BYTES: u64 = 256 << 20;
/// More threads than this only wait for the disk.
const THREADS_MAX: usize = 8;

pub(super) fn write(out: &Path, plan: &Plan, seed: u64, replace: bool) -> Result<Summary, Error> {
    check_replaceable(out, replace)?;
    let partial = partial_of(out)?;
    // Left behind by a run that was killed.
    remove_checkpoint(&partial)?;
    fs::create_dir_all(&partial).map_err(|source| io_error(&partial, source))?;
    let made = write_files(&partial, plan, seed).and_then(|summary| {
        remove_checkpoint(out)?;
        fs::rename(&partial, out).map_err(|source| io_error(out, source))?;
        Ok(summary)
    });
    if made.is_err() {
        // The first error is the one to report.
        let _ = remove_checkpoint(&partial);
    }
    made
}

fn write_files(folder: &Path, plan: &Plan, seed: u64) -> Result<Summary, Error> {
    let size_bytes = plan.tensors.iter().map(Tensor::size_bytes).sum();
    check_room(folder, size_bytes)?;
    let shards = Shard::split(&plan.tensors);
    for shard in &shards {
        shard.create(folder)?;
    }
    fill_shards(folder, &shards, seed)?;
    if shards.len() > 1 {
        write_json(&folder.join("model.safetensors.index.json"), &index(&shards, size_bytes))?;
    }
    write_json(&folder.join("config.json"), &plan.config)?;
    Ok(Summary { size_bytes, tensors: plan.tensors.len(), shards: shards.len() })
}

/// A safetensors file to write.
struct Shard<'a> {
    file: String,
    header: Vec<u8>,
    tensors: &'a [Tensor],
}

impl<'a> Shard<'a> {
    /// The tensors in order, cut before each one that would overfill a file.
    fn split(tensors: &'a [Tensor]) -> Vec<Shard<'a>> {
        let mut cuts = vec![0];
        let mut size = 0;
        for (i, tensor) in tensors.iter().enumerate() {
            if size > 0 && size + tensor.size_bytes() > SHARD_BYTES_MAX {
                cuts.push(i);
                size = 0;
            }
            size += tensor.size_bytes();
        }
        cuts.push(tensors.len());
        let count = cuts.len() - 1;
        (cuts.windows(2).enumerate())
            .map(|(i, cut)| {
                let tensors = &tensors[cut[0]..cut[1]];
                let file = match count {
                    1 => "model.safetensors".to_owned(),
                    _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
                };
                Shard { file, header: header(tensors), tensors }
            })
            .collect()
    }

    /// Makes the file with its header; the tensors follow in any order.
    fn create(&self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(&self.file);
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&path)?;
            file.write_all(&(self.header.len() as u64).to_le_bytes())?;
            file.write_all(&self.header)
        };
        write().map_err(|source| io_error(&path, source))
    }

    /// Each tensor with its place in the file.
    fn places(&self) -> impl Iterator<Item = (&'a Tensor, u64)> {
        self.tensors.iter().scan(8 + self.header.len() as u64, |end, tensor| {
            let start = *end;
            *end += tensor.size_bytes();
            Some((tensor, start))
        })
    }
}

/// The JSON that opens a safetensors file, padded with spaces so that the data is aligned.
fn header(tensors: &[Tensor]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.size_bytes();
        let entry = json!({
            "dtype": tensor.fill.dtype(),
            "shape": tensor.dims,
            "data_offsets": [start, end],
        });
        entries.insert(tensor.name.clone(), entry);
    }
    let mut bytes = Value::Object(entries).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

/// Fills every shard, each thread taking the next tensor.
fn fill_shards(folder: &Path, shards: &[Shard<'_>], seed: u64) -> Result<(), Error> {
    let work: Vec<(PathBuf, &Tensor, u64)> = (shards.iter())
        .flat_map(|shard| {
            let path = folder.join(&shard.file);
            shard.places().map(move |(tensor, start)| (path.clone(), tensor, start))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let worker = || {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some((path, tensor, start)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(source) = fill_tensor(path, tensor, *start, seed, &mut buffer) {
                next.store(work.len(), Ordering::Relaxed);
                let mut failed = failed.lock().expect("no holder panics");
                failed.get_or_insert_with(|| io_error(path, source));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(worker);
        }
        worker();
    });
    match failed.into_inner().expect("no holder panics") {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn fill_tensor(
    path: &Path,
    tensor: &Tensor,
    start: u64,
    seed: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.seek(SeekFrom::Start(start))?;
    let mut stream = Stream::new(tensor, seed);
    let mut left = tensor.size_bytes();
    while left > 0 {
        let len = left.min(buffer.len() as u64) as usize;
        stream.write(&mut buffer[..len]);
        file.write_all(&buffer[..len])?;
        left -= len as u64;
    }
    Ok(())
}

/// model.safetensors.index.json: which file holds which tensor.
fn index(shards: &[Shard<'_>], size_bytes: u64) -> Value {
    let files: Map<String, Value> = (shards.iter())
        .flat_map(|shard| shard.tensors.iter().map(|t| (t.name.clone(), json!(shard.file))))
        .collect();
    json!({"metadata": {"total_size": size_bytes}, "weight_map": files})
}

fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    fs::write(path, format!("{value:#}\n")).map_err(|source| io_error(path, source))
}

/// The folder that holds the files while they are written.
fn partial_of(out: &Path) -> Result<PathBuf, Error> {
    let name = out.file_name().ok_or_else(|| Error::Format {
        path: out.to_owned(),
        problem: "is no name for a new folder: give one".into(),
    })?;
    let mut partial = OsString::from(name);
    partial.push(".partial");
    Ok(out.with_file_name(partial))
}

/// Refuses a folder that is there, unless it is empty or a checkpoint that may be replaced.
fn check_replaceable(out: &Path, replace: bool) -> Result<(), Error> {
    match (checkpoint_files(out)?.is_empty(), replace) {
        (true, _) | (_, true) => Ok(()),
        (false, false) => Err(Error::Format {
            path: out.to_owned(),
            problem: "exists: choose another folder, or replace it with --force".into(),
        }),
    }
}

/// Removes a folder that this module could have made.
fn remove_checkpoint(folder: &Path) -> Result<(), Error> {
    for file in checkpoint_files(folder)? {
        fs::remove_file(&file).map_err(|source| io_error(&file, source))?;
    }
    match fs::remove_dir(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(folder, source)),
        _ => Ok(()),
    }
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

/// Refuses to begin what the disk cannot hold.
fn check_room(folder: &Path, size_bytes: u64) -> Result<(), Error> {
    let disk = rustix::fs::statvfs(folder).map_err(|errno| io_error(folder, errno.into()))?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed_bytes = size_bytes + DISK_RESERVE_BYTES;
    if free_bytes >= needed_bytes {
        return Ok(());
    }
    let problem = format!(
        "the disk has {:.1} GB free, the checkpoint takes {:.1} GB: choose another disk, or fewer \
         layers",
        free_bytes as f64 / 1e9,
        needed_bytes as f64 / 1e9,
    );
    Err(io_error(folder, io::Error::new(io::ErrorKind::StorageFull, problem)))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

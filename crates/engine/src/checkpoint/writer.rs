//! Checkpoint folders on the way to disk: shards, index, small files, and a folder that appears
//! complete or not at all.
//!
//! Whoever makes a checkpoint says which tensors it has ([`Entry`]) and fills them piece by piece
//! ([`Piece`]); files, places and threads are this module's.

use std::{
    fs::{self, File},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use serde_json::{Map, Value, json};

use super::{folder, safetensors::Dtype};
use crate::Error;

/// Bytes of tensors in a file, as conversions to MLX split them.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;
/// Room to leave on the disk.
const DISK_RESERVE_BYTES: u64 = 256 << 20;
/// More threads than this only wait for the disk.
const THREADS_MAX: usize = 8;

/// All that a checkpoint's folder will hold.
pub(super) struct Draft<'a, P> {
    pub(super) config: &'a Value,
    /// Tokenizer and such, by name.
    pub(super) small_files: &'a [(&'static str, Vec<u8>)],
    /// In the order in which the files hold them.
    pub(super) pieces: &'a [P],
}

/// Tensors that one thread fills together. They lie in one file, side by side.
pub(super) trait Piece: Sync {
    fn entries(&self) -> &[Entry];

    /// Appends all bytes of each tensor; `outs` are in the order of the entries.
    fn fill(&self, outs: &mut [TensorOut]) -> Result<(), Error>;
}

/// What a safetensors header says of a tensor, its place excepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) dims: Vec<usize>,
}

/// A tensor's place in a file, filled from its start.
pub(super) struct TensorOut {
    path: PathBuf,
    file: File,
    left_bytes: u64,
    progress: mpsc::Sender<u64>,
}

/// What was written.
pub(super) struct Written {
    pub(super) size_bytes: u64, // of all tensors
    pub(super) tensors: usize,
    pub(super) shards: usize,
}

/// Writes a checkpoint to the folder `out`, which appears only when it is complete: until then
/// everything lies beside it in a folder of the same name and `.partial`. `progress` is told the
/// bytes of tensors written so far and in all.
pub(super) fn write<P: Piece>(
    out: &Path,
    replace: bool,
    draft: &Draft<'_, P>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Written, Error> {
    folder::check_replaceable(out, replace)?;
    let partial = folder::Partial::take(out)?;
    // Who held it before may have made `out` since.
    folder::check_replaceable(out, replace)?;
    let made = write_files(&partial.path, draft, progress).and_then(|written| {
        // After a power cut the name must not stand for bytes that were never written.
        folder::sync(&partial.path)?;
        folder::remove_checkpoint(out)?;
        fs::rename(&partial.path, out).map_err(|source| io_error(out, source))?;
        folder::sync_name(out);
        Ok(written)
    });
    if made.is_err() {
        // The first error is the one to report.
        let _ = folder::remove_checkpoint(&partial.path);
    }
    made
}

fn write_files<P: Piece>(
    folder: &Path,
    draft: &Draft<'_, P>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Written, Error> {
    let shards = Shard::split(draft.pieces);
    let size_bytes = shards.iter().map(Shard::size_bytes).sum();
    check_room(folder, size_bytes)?;
    for shard in &shards {
        shard.create(folder)?;
    }
    fill_shards(folder, &shards, &mut |done| progress(done, size_bytes))?;
    for (name, bytes) in draft.small_files {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|source| io_error(&path, source))?;
    }
    if shards.len() > 1 {
        write_json(&folder.join("model.safetensors.index.json"), &index(&shards, size_bytes))?;
    }
    write_json(&folder.join("config.json"), draft.config)?;
    let tensors = draft.pieces.iter().map(|piece| piece.entries().len()).sum();
    Ok(Written { size_bytes, tensors, shards: shards.len() })
}

impl Entry {
    fn size_bytes(&self) -> u64 {
        let element = self.dtype.size_bytes().expect("only known types are written");
        self.dims.iter().product::<usize>() as u64 * element as u64
    }
}

impl TensorOut {
    pub(super) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let len = bytes.len() as u64;
        assert!(len <= self.left_bytes, "more bytes than {}'s header says", self.path.display());
        self.file.write_all(bytes).map_err(|source| io_error(&self.path, source))?;
        self.left_bytes -= len;
        // After a failure elsewhere nobody listens.
        let _ = self.progress.send(len);
        Ok(())
    }
}

/// A safetensors file to write.
struct Shard<'a, P> {
    file: String,
    header: Vec<u8>,
    pieces: &'a [P],
}

impl<'a, P: Piece> Shard<'a, P> {
    /// The pieces in order, cut before each one that would overfill a file.
    fn split(pieces: &'a [P]) -> Vec<Self> {
        let mut cuts = vec![0];
        let mut size = 0;
        for (i, piece) in pieces.iter().enumerate() {
            let piece_size: u64 = piece.entries().iter().map(Entry::size_bytes).sum();
            if size > 0 && size + piece_size > SHARD_BYTES_MAX {
                cuts.push(i);
                size = 0;
            }
            size += piece_size;
        }
        cuts.push(pieces.len());
        let count = cuts.len() - 1;
        (cuts.windows(2).enumerate())
            .map(|(i, cut)| {
                let pieces = &pieces[cut[0]..cut[1]];
                let file = match count {
                    1 => "model.safetensors".to_owned(),
                    _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
                };
                Shard { file, header: header(pieces), pieces }
            })
            .collect()
    }

    fn entries(&self) -> impl Iterator<Item = &'a Entry> {
        self.pieces.iter().flat_map(Piece::entries)
    }

    fn size_bytes(&self) -> u64 {
        self.entries().map(Entry::size_bytes).sum()
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

    /// Each piece with its place in the file.
    fn places(&self) -> impl Iterator<Item = (&'a P, u64)> {
        self.pieces.iter().scan(8 + self.header.len() as u64, |end, piece| {
            let start = *end;
            *end += piece.entries().iter().map(Entry::size_bytes).sum::<u64>();
            Some((piece, start))
        })
    }
}

/// The JSON that opens a safetensors file, padded with spaces so that the data is aligned.
fn header<P: Piece>(pieces: &[P]) -> Vec<u8> {
    let mut tensors = Map::new();
    tensors.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut end = 0;
    for entry in pieces.iter().flat_map(Piece::entries) {
        let start = end;
        end += entry.size_bytes();
        let value = json!({
            "dtype": entry.dtype,
            "shape": entry.dims,
            "data_offsets": [start, end],
        });
        tensors.insert(entry.name.clone(), value);
    }
    let mut bytes = Value::Object(tensors).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

/// Fills every shard, each thread taking the next piece.
fn fill_shards<P: Piece>(
    folder: &Path,
    shards: &[Shard<'_, P>],
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let work: Vec<(PathBuf, &P, u64)> = (shards.iter())
        .flat_map(|shard| {
            let path = folder.join(&shard.file);
            shard.places().map(move |(piece, start)| (path.clone(), piece, start))
        })
        .collect();
    let (work, next, failed) = (&work, &AtomicUsize::new(0), &Mutex::new(None));
    let worker = |progress: mpsc::Sender<u64>| {
        while let Some((path, piece, start)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = fill_piece(path, *piece, *start, &progress) {
                next.store(work.len(), Ordering::Relaxed);
                failed.lock().expect("no holder panics").get_or_insert(error);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(move || worker(sender));
        }
        drop(sender);
        let mut done = 0;
        for written in receiver {
            done += written;
            progress(done);
        }
    });
    match failed.lock().expect("no holder panics").take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn fill_piece<P: Piece>(
    path: &Path,
    piece: &P,
    start: u64,
    progress: &mpsc::Sender<u64>,
) -> Result<(), Error> {
    let open = |start: u64| -> io::Result<File> {
        let mut file = File::options().write(true).open(path)?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    };
    let mut outs = Vec::new();
    let mut end = start;
    for entry in piece.entries() {
        let file = open(end).map_err(|source| io_error(path, source))?;
        let left_bytes = entry.size_bytes();
        end += left_bytes;
        outs.push(TensorOut {
            path: path.to_owned(),
            file,
            left_bytes,
            progress: progress.clone(),
        });
    }
    piece.fill(&mut outs)?;
    for (entry, out) in piece.entries().iter().zip(&outs) {
        assert_eq!(out.left_bytes, 0, "{} has fewer bytes than its header says", entry.name);
    }
    Ok(())
}

/// model.safetensors.index.json: which file holds which tensor.
fn index<P: Piece>(shards: &[Shard<'_, P>], size_bytes: u64) -> Value {
    let files: Map<String, Value> = (shards.iter())
        .flat_map(|shard| shard.entries().map(|e| (e.name.clone(), json!(shard.file))))
        .collect();
    json!({"metadata": {"total_size": size_bytes}, "weight_map": files})
}

fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    fs::write(path, format!("{value:#}\n")).map_err(|source| io_error(path, source))
}

/// Refuses to begin what the disk cannot hold.
fn check_room(folder: &Path, size_bytes: u64) -> Result<(), Error> {
    let disk = rustix::fs::statvfs(folder).map_err(|errno| io_error(folder, errno.into()))?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free_bytes >= size_bytes + DISK_RESERVE_BYTES {
        return Ok(());
    }
    let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
    let problem = format!(
        "the disk has {} MB free, the checkpoint takes {} MB and {} MB stay free: make room or \
         choose another disk",
        free_bytes / 1_000_000,
        megabytes(size_bytes),
        megabytes(DISK_RESERVE_BYTES),
    );
    Err(io_error(folder, io::Error::new(io::ErrorKind::StorageFull, problem)))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

//! The cache's layout, which huggingface_hub defined and many programs share:
//!
//! ```text
//! models--OWNER--NAME/blobs/HASH                 a file's bytes
//! models--OWNER--NAME/blobs/HASH.incomplete      the same, as far as they came
//! models--OWNER--NAME/snapshots/COMMIT/FILE      a relative link to a blob
//! models--OWNER--NAME/refs/REVISION              a commit
//! .locks/models--OWNER--NAME/HASH.lock           held while the blob is made or linked
//! ```

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Component, Path, PathBuf},
};

use calla_engine::checkpoint::{Source, shard_names};

use super::{
    Digest, RepoFile, RepoName, environment,
    lock::Lock,
    name::{is_commit, is_hex},
};
use crate::{error::Error, output};

const PREFIX: &str = "models--";
/// Shortest beginning of a commit that may stand for it.
const COMMIT_PREFIX_MIN: usize = 7;
/// Kept free, for everything else that writes to the disk.
const DISK_RESERVE_BYTES: u64 = 256 << 20;
/// A ref holds 40 characters.
const REF_BYTES_MAX: u64 = 256;

/// The folder that programs of the hub share.
pub(crate) struct Cache {
    root: PathBuf,
}

/// A model's place in the cache, whether or not anything is there.
pub(crate) struct CachedRepo {
    /// `owner/name`.
    pub(crate) name: String,
    folder: PathBuf,
    locks: PathBuf,
}

/// The files of one commit.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// `owner/name`.
    pub(crate) repo: String,
    pub(crate) commit: String,
    /// Revisions that mean this commit.
    pub(crate) refs: Vec<String>,
    /// A folder that looks like the repository.
    pub(crate) folder: PathBuf,
}

impl Cache {
    /// The folder that the environment names. It need not exist.
    pub(crate) fn from_environment() -> Result<Self, Error> {
        Ok(Self { root: environment::cache_folder()? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn repo(&self, name: &RepoName) -> CachedRepo {
        self.repo_in(format!("{PREFIX}{}", name.repo().replace('/', "--")), name.repo())
    }

    /// Every model of which something is there, by name.
    pub(crate) fn repos(&self) -> Result<Vec<CachedRepo>, Error> {
        let mut repos = Vec::new();
        for entry in entries(&self.root)? {
            let Ok(folder) = entry.file_name().into_string() else { continue };
            if let Some(name) = folder.strip_prefix(PREFIX)
                && entry.path().is_dir()
            {
                let name = name.replace("--", "/");
                repos.push(self.repo_in(folder, name));
            }
        }
        repos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(repos)
    }

    fn repo_in(&self, folder: String, name: String) -> CachedRepo {
        let locks = self.root.join(".locks").join(&folder);
        CachedRepo { name, folder: self.root.join(folder), locks }
    }
}

impl CachedRepo {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    pub(super) fn refs_folder(&self) -> PathBuf {
        self.folder.join("refs")
    }

    pub(super) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    /// Where a blob's bytes wait until they are all there.
    pub(super) fn incomplete(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(format!("{}.incomplete", digest.hex()))
    }

    /// The lock of the blob with this name.
    pub(super) fn lock(&self, blob: &str) -> PathBuf {
        self.locks.join(format!("{blob}.lock"))
    }

    /// Refuses to begin what the disk cannot hold.
    pub(crate) fn check_room(&self, missing_bytes: u64) -> Result<(), Error> {
        let folder = self.folder.ancestors().find(|folder| folder.exists()).unwrap_or(&self.folder);
        let disk =
            rustix::fs::statvfs(folder).map_err(|errno| Error::file(folder, errno.into()))?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if missing_bytes == 0 || free_bytes >= missing_bytes.saturating_add(DISK_RESERVE_BYTES) {
            return Ok(());
        }
        let problem = format!(
            "the disk has {} free, the download takes {}, and {} stay free for the rest: make \
             room, or set HF_HUB_CACHE to a folder on another disk",
            output::size(free_bytes),
            output::size(missing_bytes),
            output::size(DISK_RESERVE_BYTES),
        );
        Err(Error::File { path: folder.to_owned(), problem })
    }

    /// Makes the folders that other programs expect of a model they scan.
    pub(crate) fn create(&self) -> Result<(), Error> {
        for folder in [self.blobs(), self.folder.join("snapshots")] {
            fs::create_dir_all(&folder).map_err(|error| Error::file(&folder, error))?;
        }
        Ok(())
    }

    /// Whether the blob is there with this length.
    pub(crate) fn holds(&self, digest: &Digest, size_bytes: u64) -> bool {
        fs::metadata(self.blob(digest)).is_ok_and(|blob| blob.is_file() && blob.len() == size_bytes)
    }

    /// Bytes of an unfinished blob.
    pub(crate) fn incomplete_bytes(&self, digest: &Digest) -> u64 {
        fs::metadata(self.incomplete(digest)).map_or(0, |file| file.len())
    }

    /// Gives a verified blob its place in a snapshot.
    pub(crate) fn link(
        &self,
        commit: &str,
        file: &RepoFile,
        digest: &Digest,
        waiting: impl FnOnce(),
    ) -> Result<(), Error> {
        let blob = self.blob(digest);
        let _lock = Lock::take(&self.lock(digest.hex()), waiting)?;
        if !blob.is_file() {
            let problem = "another program removed it meanwhile: pull again".into();
            return Err(Error::File { path: blob, problem });
        }
        let pointer = self.snapshot_folder(commit).join(file.as_str());
        let target = format!("{}../../blobs/{}", "../".repeat(file.depth()), digest.hex());
        set_link(&pointer, Path::new(&target)).map_err(|error| Error::file(&pointer, error))
    }

    /// Makes a revision mean this commit.
    pub(crate) fn set_ref(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit {
            return Ok(());
        }
        let path = self.refs_folder().join(revision);
        let failed = |error: io::Error| Error::file(&path, error);
        let partial = path.with_added_extension(format!("{}.tmp", std::process::id()));
        fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(failed)?;
        let mut file = File::create(&partial).map_err(failed)?;
        // After a power cut the name must not stand for bytes that were never written.
        let written = file.write_all(commit.as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&partial, &path)).map_err(failed)
    }

    /// The snapshot that a branch, a tag, a commit or the beginning of a commit means.
    pub(crate) fn snapshot(&self, revision: &str) -> Result<Option<Snapshot>, Error> {
        let mut snapshots = self.snapshots()?;
        let by_ref = |snapshot: &Snapshot| snapshot.refs.iter().any(|name| name == revision);
        if let Some(at) = snapshots.iter().position(by_ref) {
            return Ok(Some(snapshots.swap_remove(at)));
        }
        if revision.len() < COMMIT_PREFIX_MIN || !is_hex(revision) {
            return Ok(None);
        }
        snapshots.retain(|snapshot| snapshot.commit.starts_with(revision));
        match snapshots.len() {
            0 | 1 => Ok(snapshots.pop()),
            many => Err(Error::Hub {
                subject: format!("{}@{revision}", self.name),
                problem: format!("begins {many} commits in the cache: give more of the one meant"),
            }),
        }
    }

    /// Every commit of which something is there; those with a ref first.
    pub(crate) fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let refs = self.refs()?;
        let mut snapshots = Vec::new();
        for entry in entries(&self.folder.join("snapshots"))? {
            let Ok(commit) = entry.file_name().into_string() else { continue };
            // A link to a folder elsewhere is not of the cache.
            if !is_commit(&commit) || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let meant = refs.iter().filter(|(_, meant)| *meant == commit);
            snapshots.push(Snapshot {
                repo: self.name.clone(),
                refs: meant.map(|(name, _)| name.clone()).collect(),
                folder: entry.path(),
                commit,
            });
        }
        let order = |snapshot: &Snapshot| {
            (snapshot.refs.is_empty(), snapshot.refs.clone(), snapshot.commit.clone())
        };
        snapshots.sort_by_key(order);
        Ok(snapshots)
    }

    /// Bytes on the disk that no snapshot need use: unfinished blobs too.
    pub(crate) fn blob_bytes(&self) -> Result<u64, Error> {
        let sizes = entries(&self.blobs())?.into_iter().map(|entry| {
            // What a blob links to, outside of this model's folder, is not counted.
            entry.metadata().map_or(0, |file| if file.is_file() { file.len() } else { 0 })
        });
        Ok(sizes.sum())
    }

    pub(super) fn snapshot_folder(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The blob of this model that a snapshot's file links to; `None` for a file of its own and for
    /// a link to elsewhere.
    pub(super) fn linked_blob(&self, pointer: &Path) -> Option<PathBuf> {
        let target = fs::read_link(pointer).ok()?;
        let target = lexical(&pointer.parent()?.join(target));
        (target.parent()? == lexical(&self.blobs())).then_some(target)
    }

    /// Revisions and the commits they mean, by name.
    fn refs(&self) -> Result<Vec<(String, String)>, Error> {
        let folder = self.refs_folder();
        let mut refs = Vec::new();
        for path in files_below(&folder)? {
            let name = path.strip_prefix(&folder).ok().and_then(Path::to_str);
            if let (Some(name), Some(commit)) = (name, read_ref(&path)) {
                refs.push((name.to_owned(), commit));
            }
        }
        refs.sort();
        Ok(refs)
    }
}

impl Snapshot {
    /// Its files, in no order.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, Error> {
        files_below(&self.folder)
    }

    /// Bytes of its files, each blob counted once.
    pub(crate) fn size_bytes(&self) -> Result<u64, Error> {
        let mut seen = BTreeSet::new();
        let mut total = 0;
        for path in self.files()? {
            // A link to nothing has no bytes.
            let Ok(file) = fs::metadata(&path) else { continue };
            if seen.insert((file.dev(), file.ino())) {
                total += file.len();
            }
        }
        Ok(total)
    }

    /// The first file without which the model cannot run; `None` when all are there.
    pub(crate) fn missing(&self) -> Result<Option<String>, Error> {
        const INDEX: &str = "model.safetensors.index.json";
        let source = Source::folder(&self.folder);
        let mut needed = vec!["config.json".to_owned(), "tokenizer.json".to_owned()];
        match source.read_optional(INDEX)? {
            Some(text) => needed.extend(shard_names(&self.folder.join(INDEX), &text)?),
            None => needed.push("model.safetensors".into()),
        }
        Ok(needed.into_iter().find(|file| !self.folder.join(file).is_file()))
    }
}

/// Makes a link, in place of what stands there.
fn set_link(pointer: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(pointer.parent().unwrap_or(pointer))?;
    match symlink(target, pointer) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    if fs::read_link(pointer).is_ok_and(|there| there == target) {
        return Ok(());
    }
    // By way of another name, so that there is always one or the other.
    let other = pointer.with_added_extension(format!("{}.tmp", std::process::id()));
    symlink(target, &other)?;
    fs::rename(&other, pointer)
}

/// The commit that a ref's file holds, if it is one.
fn read_ref(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok().filter(|file| file.len() <= REF_BYTES_MAX)?;
    let text = if file.is_file() { fs::read_to_string(path).ok()? } else { return None };
    is_commit(text.trim()).then(|| text.trim().to_owned())
}

/// Everything below a folder that is no folder itself; links are not followed.
pub(super) fn files_below(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder)? {
            let kind = entry.file_type().map_err(|error| Error::file(&entry.path(), error))?;
            if kind.is_dir() { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    Ok(files)
}

/// What a folder holds; nothing when it does not exist.
pub(super) fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    let failed = |error| Error::file(folder, error);
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect::<Result<_, _>>().map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

/// The path with `.` and `..` worked out as text: links in it are not followed.
fn lexical(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

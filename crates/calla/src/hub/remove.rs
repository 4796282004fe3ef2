use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    CachedRepo, Snapshot,
    cache::{entries, files_below},
    lock::Lock,
};
use crate::error::Error;

/// What programs of the hub keep of a model. Anything else in its folder is left alone.
const NOTES: [&str; 3] = ["refs", "trees", ".no_exist"];
const FILES: [&str; 2] = ["snapshots", "blobs"];

/// Snapshots to be removed, and the blobs that nothing else uses.
pub(crate) struct Removal {
    repo: CachedRepo,
    snapshots: Vec<Snapshot>,
    /// Whether nothing of the model stays.
    whole: bool,
}

impl Removal {
    /// Plans to remove one revision, or all of a model. `None` when there is no such thing.
    pub(crate) fn plan(repo: CachedRepo, revision: Option<&str>) -> Result<Option<Self>, Error> {
        check_inside(&repo)?;
        let all = repo.snapshots()?;
        let snapshots = match revision {
            None if fs::symlink_metadata(repo.folder()).is_err() => return Ok(None),
            None => all,
            Some(revision) => match repo.snapshot(revision)? {
                None => return Ok(None),
                // The last one takes the folder along.
                Some(_) if all.len() == 1 => all,
                Some(snapshot) => vec![snapshot],
            },
        };
        let whole = snapshots.len() == repo.snapshots()?.len();
        Ok(Some(Self { repo, snapshots, whole }))
    }

    /// Commits that go.
    pub(crate) fn commits(&self) -> impl Iterator<Item = &str> {
        self.snapshots.iter().map(|snapshot| snapshot.commit.as_str())
    }

    /// Bytes on the disk that it frees.
    pub(crate) fn freed_bytes(&self) -> Result<u64, Error> {
        let size = |blob: &PathBuf| {
            let file = fs::symlink_metadata(blob).ok().filter(fs::Metadata::is_file);
            file.map_or(0, |file| file.len())
        };
        Ok(self.blobs()?.iter().map(size).sum())
    }

    /// Removes it: first the refs, then the links, then the bytes, so that nothing looks whole that
    /// is not.
    pub(crate) fn carry_out(self) -> Result<(), Error> {
        let _locks = self.lock_blobs()?;
        // Who links a blob holds its lock: from here on no other program adds a use of these.
        let blobs = self.blobs()?;
        for snapshot in &self.snapshots {
            for name in &snapshot.refs {
                remove_file(&self.repo.refs_folder().join(name))?;
            }
            remove_file(&snapshot.folder.join("config.json"))?;
            remove_folder(&snapshot.folder)?;
            remove_file(
                &self.repo.folder().join("trees").join(format!("{}.json", snapshot.commit)),
            )?;
            remove_folder(&self.repo.folder().join(".no_exist").join(&snapshot.commit))?;
        }
        for blob in blobs {
            remove_file(&blob)?;
        }
        if self.whole { self.remove_rest() } else { Ok(()) }
    }

    /// The folder itself, unless it holds what is not known, or what was pulled meanwhile.
    fn remove_rest(&self) -> Result<(), Error> {
        if !self.repo.snapshots()?.is_empty() {
            return Ok(());
        }
        for folder in NOTES {
            remove_folder(&self.repo.folder().join(folder))?;
        }
        for folder in FILES.map(|folder| self.repo.folder().join(folder)) {
            if files_below(&folder)?.is_empty() {
                remove_folder(&folder)?;
            }
        }
        match fs::remove_dir(self.repo.folder()) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(|error| Error::file(self.repo.folder(), error)),
        }
    }

    /// Blobs that no snapshot but these uses; with the last snapshot, the unfinished ones too.
    fn blobs(&self) -> Result<BTreeSet<PathBuf>, Error> {
        let mut used = BTreeSet::new();
        let mut kept = BTreeSet::new();
        for snapshot in self.repo.snapshots()? {
            let goes = self.commits().any(|commit| commit == snapshot.commit);
            let set = if goes { &mut used } else { &mut kept };
            set.extend(snapshot.files()?.iter().filter_map(|file| self.repo.linked_blob(file)));
        }
        if self.whole {
            let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_dir());
            let blobs = entries(&self.repo.blobs())?.into_iter().filter(is_file);
            used.extend(blobs.map(|entry| entry.path()));
        }
        Ok(used.difference(&kept).cloned().collect())
    }

    fn lock_blobs(&self) -> Result<Vec<Lock>, Error> {
        let blobs = self.blobs()?;
        let names: BTreeSet<&str> = blobs.iter().filter_map(|blob| blob_name(blob)).collect();
        let mut locks = Vec::new();
        for name in names {
            let lock = Lock::try_take(&self.repo.lock(name))?;
            locks.push(lock.ok_or_else(|| Error::Hub {
                subject: self.repo.name.clone(),
                problem: "another program is downloading it: stop that one first, or wait".into(),
            })?);
        }
        Ok(locks)
    }
}

/// A blob's name, also from that of its unfinished file.
fn blob_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)?.split('.').next()
}

/// Refuses a model whose folder, or one in it, is a link: what lies there is not the cache's.
fn check_inside(repo: &CachedRepo) -> Result<(), Error> {
    let inner = NOTES.iter().chain(&FILES).map(|folder| repo.folder().join(folder));
    for path in [repo.folder().to_owned()].into_iter().chain(inner) {
        if fs::symlink_metadata(&path).is_ok_and(|entry| !entry.is_dir()) {
            let problem = "is not a folder of the cache but a link or a file: remove it yourself";
            return Err(Error::File { path, problem: problem.into() });
        }
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<(), Error> {
    absent_is_fine(path, fs::remove_file(path))
}

fn remove_folder(path: &Path) -> Result<(), Error> {
    absent_is_fine(path, fs::remove_dir_all(path))
}

fn absent_is_fine(path: &Path, removed: io::Result<()>) -> Result<(), Error> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path, error)),
        _ => Ok(()),
    }
}

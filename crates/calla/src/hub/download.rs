use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use super::{
    CachedRepo, Progress, Published, Remote,
    client::Stream,
    digest::Hasher,
    lock::Lock,
    retry::{Failure, Patience},
};
use crate::error::Error;

const CHUNK_BYTES: usize = 1 << 20;

/// Makes a file's blob: goes on from what an earlier run left, checks the whole, and only then
/// gives it its name.
pub(crate) fn download(
    remote: &Remote<'_>,
    published: &Published,
    repo: &CachedRepo,
    progress: &Progress,
) -> Result<(), Error> {
    let waiting =
        || progress.note(&format!("another program downloads {}: waiting", published.file));
    let _lock = Lock::take(&repo.lock(published.digest.hex()), waiting)?;
    if repo.holds(&published.digest, published.size_bytes) {
        progress.found(published.size_bytes);
        return Ok(());
    }
    let subject = remote.subject(&published.file);
    let mut partial = Partial::open(repo.incomplete(&published.digest), published, progress)?;
    loop {
        let is_continued = partial.len > 0;
        fill(remote, &mut partial, Patience::new(&subject, progress))?;
        if partial.is_as_published() {
            return partial.finish(&repo.blob(&published.digest));
        }
        partial.restart()?;
        if !is_continued {
            return Err(Error::Hub {
                subject,
                problem: format!(
                    "what came is not the file that was published ({}): try again later, or \
                     without a mirror",
                    published.digest
                ),
            });
        }
        progress.note(&format!("{subject}: what an earlier run left is damaged, once more"));
    }
}

/// Asks for what is missing until nothing is.
fn fill(
    remote: &Remote<'_>,
    partial: &mut Partial<'_>,
    mut patience: Patience<'_>,
) -> Result<(), Error> {
    let mut furthest = partial.len;
    while partial.len < partial.published.size_bytes {
        let stream = remote.open(partial.published, partial.len);
        let attempt = stream.and_then(|stream| partial.append(stream));
        // A server that begins anew each time makes no progress, however much it sends.
        if partial.len > furthest {
            furthest = partial.len;
            patience.renew();
        }
        if let Err(failure) = attempt {
            patience.wait(failure)?;
        }
    }
    Ok(())
}

/// A blob as far as it came, and the hash of that.
struct Partial<'a> {
    path: PathBuf,
    file: File,
    len: u64,
    hasher: Hasher,
    published: &'a Published,
    progress: &'a Progress,
}

impl<'a> Partial<'a> {
    /// Opens what is there, or an empty file.
    fn open(
        path: PathBuf,
        published: &'a Published,
        progress: &'a Progress,
    ) -> Result<Self, Error> {
        let opened = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = opened.map_err(|error| Error::file(&path, error))?;
        let hasher = published.digest.hasher(published.size_bytes);
        let mut partial = Self { path, file, len: 0, hasher, published, progress };
        partial.read_what_is_there()?;
        Ok(partial)
    }

    fn read_what_is_there(&mut self) -> Result<(), Error> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let read = self.file.read(&mut buffer);
            let bytes = match read.map_err(|error| Error::file(&self.path, error))? {
                0 => return Ok(()),
                count => &buffer[..count],
            };
            self.hasher.update(bytes);
            self.len += bytes.len() as u64;
            self.progress.found(bytes.len() as u64);
            if self.len > self.published.size_bytes {
                return self.restart();
            }
        }
    }

    /// Throws away what is there.
    fn restart(&mut self) -> Result<(), Error> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|error| Error::file(&self.path, error))?;
        self.progress.lost(self.len);
        self.len = 0;
        self.hasher = self.published.digest.hasher(self.published.size_bytes);
        Ok(())
    }

    /// Writes what the server sends, until the file is whole.
    fn append(&mut self, mut stream: Stream) -> Result<(), Failure> {
        if stream.start != self.len {
            self.restart()?;
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        while self.len < self.published.size_bytes {
            let bytes = match stream.reader.read(&mut buffer) {
                Ok(0) => return Err(Failure::passing("the connection was cut")),
                Ok(count) => &buffer[..count],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::passing(format!("the connection was cut ({error})")));
                }
            };
            if self.len + bytes.len() as u64 > self.published.size_bytes {
                let problem = format!(
                    "the server sends more than the {} bytes that are published",
                    self.published.size_bytes
                );
                self.restart()?;
                let subject = self.published.file.to_string();
                return Err(Failure::Lasting(Error::Hub { subject, problem }));
            }
            self.file.write_all(bytes).map_err(|error| Error::file(&self.path, error))?;
            self.hasher.update(bytes);
            self.len += bytes.len() as u64;
            self.progress.came(bytes.len() as u64);
        }
        Ok(())
    }

    fn is_as_published(&self) -> bool {
        self.hasher.clone().finish() == self.published.digest
    }

    /// Gives it the blob's name.
    fn finish(self, blob: &Path) -> Result<(), Error> {
        // After a power cut the name must not stand for bytes that were never written.
        self.file.sync_all().map_err(|error| Error::file(&self.path, error))?;
        fs::rename(&self.path, blob).map_err(|error| Error::file(blob, error))
    }
}

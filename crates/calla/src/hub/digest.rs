//! What tells whether a file is the one that was published.

use std::fmt;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::name::is_hex;

/// The hash under which the hub publishes a file, and the name of its blob in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Digest {
    /// SHA-256 of the bytes, for files in large-file storage.
    Sha256(String),
    /// Git's id of a blob: SHA-1 of its kind, its length and its bytes.
    GitBlob(String),
}

/// Computes a digest while the bytes come in.
#[derive(Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Digest {
    /// Reads an ETag; `None` for one that is neither kind of hash.
    pub(crate) fn of_etag(etag: &str) -> Option<Self> {
        let text = etag.strip_prefix("W/").unwrap_or(etag);
        let text = text.trim_matches('"').to_owned();
        match text.len() {
            _ if !is_hex(&text) => None,
            64 => Some(Self::Sha256(text)),
            40 => Some(Self::GitBlob(text)),
            _ => None,
        }
    }

    /// Lower-case hexadecimal digits.
    pub(crate) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    /// A hasher of this kind for a file of this length.
    pub(crate) fn hasher(&self, size_bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Self::GitBlob(_) => {
                Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {size_bytes}\0")))
            }
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "SHA-256 {hex}"),
            Self::GitBlob(hex) => write!(f, "git blob {hex}"),
        }
    }
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self {
            Self::Sha256(hasher) => Digest::Sha256(hex(&hasher.finalize())),
            Self::GitBlob(hasher) => Digest::GitBlob(hex(&hasher.finalize())),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIT_HELLO: &str = "ce013625030ba8dba906f756967f9e9ca394464a"; // printf 'hello\n' | git hash-object --stdin
    const SHA256_HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn digests_are_those_of_git_and_sha256sum() {
        for known in [GIT_HELLO, SHA256_HELLO] {
            let digest = Digest::of_etag(&format!("W/\"{known}\"")).expect("a hash");
            assert_eq!(digest.hex(), known);
            let mut hasher = digest.hasher(6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), digest);
        }
    }

    #[test]
    fn etags_that_are_no_hash_are_refused() {
        let path = format!("../../{}", &SHA256_HELLO[6..]);
        for etag in ["", "\"\"", "\"abc\"", &SHA256_HELLO.to_uppercase(), &path] {
            assert_eq!(Digest::of_etag(etag), None, "{etag}");
        }
    }
}

//! Models of the Hugging Face hub, and the cache folder that programs of that hub share.
//!
//! * [`RepoName`], [`RepoFile`], [`Digest`]: names that were checked, so that what a user types or
//!   a server sends can neither leave the cache folder nor be taken for something else.
//! * [`Cache`]: the folder. It needs no network, and no other module knows its layout.
//! * [`Client`]: the hub. It owns tokens, redirects and retries, and does not know where files go.
//! * [`download()`]: one file from the client into the cache.
//!
//! Nothing in the cache looks whole before it is: a blob gets its name when its hash was checked,
//! a snapshot its links when all its blobs are there, config.json last, and after that a revision
//! its ref.

mod cache;
mod client;
mod digest;
mod download;
mod environment;
mod lock;
mod name;
mod progress;
mod redirect;
mod remove;
mod retry;

pub(crate) use self::{
    cache::{Cache, CachedRepo, Snapshot},
    client::{Client, Published, Remote},
    digest::Digest,
    download::download,
    environment::is_offline,
    name::{RepoFile, RepoName},
    progress::Progress,
    remove::Removal,
};

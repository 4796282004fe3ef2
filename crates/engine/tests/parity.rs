//! Every backend against mlx-lm in float32, on the checkpoints of `data/tiny`. How the golden
//! files are made: `tests/parity/tiny_checkpoints.py` at the root of the repository.

mod common;

use std::path::{Path, PathBuf};

use calla_engine::{
    Error,
    checkpoint::{Checkpoint, Source, Tensors},
};
use common::{candidates, feed, relative_error};

/// What the oracle says: the token ids and the logits after each of them.
struct Golden {
    ids: Vec<u32>,
    logits: Vec<f32>, // [ids, vocab]
}

#[test]
fn prefill_agrees_with_mlx_lm() {
    compare(|tokens| tokens);
}

#[test]
fn decode_agrees_with_mlx_lm() {
    compare(|_| 1);
}

/// Runs every candidate over every golden file in chunks of the given size.
fn compare(chunk: impl Fn(usize) -> usize) {
    for folder in folders() {
        let checkpoint =
            Checkpoint::open(&Source::folder(&folder)).expect("a good checkpoint opens");
        for path in golden_files(&folder) {
            let golden = read(&path, checkpoint.shape.vocab);
            for candidate in candidates() {
                let named = |names: &[&str]| names.iter().any(|name| folder.ends_with(name));
                if !candidate.only.is_empty() && !named(candidate.only) {
                    continue;
                }
                let backend = (candidate.start)(&checkpoint.shape, &checkpoint.weights);
                if named(candidate.refuses) {
                    assert!(matches!(backend, Err(Error::BackendUnavailable { .. })));
                    continue;
                }
                let mut backend = backend.expect("a checkpoint that it takes");
                let sequence = backend.open(golden.ids.len()).expect("memory for a short prompt");
                let chunk = chunk(golden.ids.len());
                let logits = feed(&mut *backend, sequence, &golden.ids, chunk);
                let error = relative_error(&logits, &golden.logits);
                let line = format!("{} on {}: {error:.2e}", candidate.name, path.display());
                println!("{line}");
                assert!(error <= candidate.oracle_tolerance, "{line}");
            }
        }
    }
}

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let folders = sorted(&root);
    assert!(folders.len() >= 9, "{} holds {} checkpoints", root.display(), folders.len());
    folders
}

fn golden_files(folder: &Path) -> Vec<PathBuf> {
    let is_golden = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("golden"))
    };
    let files: Vec<PathBuf> = sorted(folder).into_iter().filter(is_golden).collect();
    assert!(!files.is_empty(), "{} holds no golden file", folder.display());
    files
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder is part of the repository");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.sort();
    paths
}

fn read(path: &Path, vocab: usize) -> Golden {
    let mut tensors = Tensors::open_file(path).expect("a safetensors file");
    let ids = tensors.take("ids").expect("golden files hold `ids`").bytes;
    let logits = tensors.take("logits").expect("golden files hold `logits`");
    let ids: Vec<u32> = ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
    assert_eq!(logits.shape, [ids.len(), vocab]);
    Golden { ids, logits: logits.to_f32().expect("logits are float32") }
}

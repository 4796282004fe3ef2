//! Whole checkpoints: the committed tiny ones open. Damaged ones are refused in tests/bad_input.rs.

use std::path::{Path, PathBuf};

use super::{Checkpoint, Source};
use crate::model::MixerKind;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny")
}

#[test]
fn every_tiny_checkpoint_opens() {
    let mut opened = 0;
    for entry in std::fs::read_dir(tiny()).expect("the folder exists") {
        let path = entry.expect("readable").path();
        if !path.join("config.json").exists() {
            continue;
        }
        let checkpoint = Checkpoint::open(&Source::folder(&path))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(checkpoint.weights.layers.len(), checkpoint.shape.layers());
        assert!(checkpoint.shape.layers_of(MixerKind::DeltaNet) > 0);
        opened += 1;
    }
    assert!(opened >= 8, "{opened} checkpoints");
}

//! Whole checkpoints: the committed tiny ones open, and damaged copies are refused by name.

use std::path::{Path, PathBuf};

use super::{Checkpoint, Source};
use crate::{Error, model::MixerKind};

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

/// A copy of a tiny checkpoint that a test may damage; removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str, purpose: &str) -> Self {
        let unique = format!("calla-checkpoint-{}-{purpose}", std::process::id());
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        for entry in std::fs::read_dir(tiny().join(name)).expect("exists").flatten() {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
        }
        Self(folder)
    }

    fn error(&self) -> Error {
        Checkpoint::open(&Source::folder(&self.0)).expect_err("must be refused")
    }

    /// Renames a tensor in the header, keeping its length.
    fn rename(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        let path = self.0.join("model.safetensors");
        let mut bytes = std::fs::read(&path).expect("readable");
        let quoted = format!("\"{from}\"");
        let at = bytes
            .windows(quoted.len())
            .position(|window| window == quoted.as_bytes())
            .expect("the tensor is in the header");
        bytes[at + 1..at + 1 + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, bytes).expect("writable");
    }

    fn edit_config(&self, pointer: &str, value: serde_json::Value) {
        let path = self.0.join("config.json");
        let bytes = std::fs::read(&path).expect("readable");
        let mut config: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        *config.pointer_mut(pointer).expect("the field exists") = value;
        std::fs::write(&path, config.to_string()).expect("writable");
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_renamed_tensor_is_missing_and_unknown() {
    let copy = Copy::of("moe_base", "rename");
    copy.rename("language_model.model.norm.weight", "language_model.model.morn.weight");
    assert!(matches!(copy.error(), Error::Tensor { tensor, .. }
        if tensor == "language_model.model.norm.weight"));
    // A layer fewer in the configuration leaves tensors that no part of the model takes.
    let copy = Copy::of("dense", "unknown");
    let config = std::fs::read(copy.0.join("config.json")).expect("readable");
    let config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    let types = config["text_config"]["layer_types"].as_array().expect("a list").clone();
    copy.edit_config("/text_config/num_hidden_layers", (types.len() - 1).into());
    copy.edit_config("/text_config/layer_types", types[..types.len() - 1].into());
    let error = copy.error().to_string();
    assert!(error.contains("no part of this model"), "{error}");
    assert!(error.contains(&format!("model.layers.{}.", types.len() - 1)), "{error}");
}

#[test]
fn bits_that_disagree_with_the_width_are_named() {
    let copy = Copy::of("moe_base", "bits");
    copy.edit_config("/quantization/bits", 8.into());
    let error = copy.error().to_string();
    assert!(error.contains("embed_tokens.weight") && error.contains("8 bit"), "{error}");
}

#[test]
fn a_truncated_file_names_a_tensor() {
    let copy = Copy::of("moe_base", "cut");
    let path = copy.0.join("model.safetensors");
    let len = std::fs::metadata(&path).expect("exists").len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("writable");
    file.set_len(len - 4096).expect("cut");
    assert!(matches!(copy.error(), Error::Tensor { .. }));
    file.set_len(64).expect("cut");
    assert!(matches!(copy.error(), Error::Format { .. }));
    file.set_len(0).expect("cut");
    assert!(copy.error().to_string().contains("model.safetensors"));
}

#[test]
fn an_absent_shard_is_named() {
    let copy = Copy::of("moe_sharded", "shard");
    let shard = std::fs::read_dir(&copy.0)
        .expect("readable")
        .flatten()
        .map(|entry| entry.file_name().into_string().expect("UTF-8"))
        .find(|name| name.starts_with("model-0"))
        .expect("a shard");
    std::fs::remove_file(copy.0.join(&shard)).expect("removed");
    assert!(copy.error().to_string().contains(&shard));
}

#[test]
fn folders_that_are_none() {
    let nowhere = Checkpoint::open(&Source::folder("/nowhere/at/all")).expect_err("absent");
    assert!(nowhere.to_string().contains("/nowhere/at/all"));
    let file = tiny().join("moe_base/config.json");
    let error = Checkpoint::open(&Source::folder(&file)).expect_err("a file").to_string();
    assert!(error.contains("not a folder"), "{error}");
}

//! Made-up checkpoints: the files, names and formats of an MLX 4-bit checkpoint of the family,
//! filled with seeded random weights whose scale keeps activations sane through every layer.
//! They measure speed and memory, and test loaders, where no trained weights are at hand.
//!
//! A checkpoint is a pure function of the shape, the layer count and the seed: each tensor draws
//! from a stream of its own, so neither threads nor the order of writing change a byte.

mod fill;
mod plan;
mod preset;

use std::path::Path;

pub use preset::Preset;

use super::writer::{self, Draft};
use crate::Error;

/// What to make.
#[derive(Debug, Clone)]
pub struct Options {
    /// Dimensions.
    pub preset: Preset,
    /// Number of layers, when not the preset's own.
    pub layers: Option<usize>,
    /// Seed of every random stream.
    pub seed: u64,
    /// Replace a checkpoint that is there already. Any other file in the folder is an error.
    pub replace: bool,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of safetensors files.
    pub shards: usize,
}

/// Writes a checkpoint to the folder `out`, which appears only when it is complete: until then
/// everything lies beside it in a folder of the same name and `.partial`.
///
/// # Errors
/// [`Error::Io`] when a file cannot be written or the disk has no room, [`Error::Format`] when
/// `out` exists and may not be replaced, [`Error::Config`] for a layer count of zero.
pub fn write(out: &Path, options: &Options) -> Result<Summary, Error> {
    let shape = options.preset.shape(options.layers).ok_or_else(|| Error::Config {
        path: out.join("config.json"),
        field: "text_config.num_hidden_layers".into(),
        problem: "is 0, and a model has at least one layer".into(),
    })?;
    let plan = plan::Plan::new(&shape, options.seed);
    let draft = Draft { config: &plan.config, small_files: &[], pieces: &plan.tensors };
    let written = writer::write(out, options.replace, &draft, &mut |_, _| {})?;
    Ok(Summary { size_bytes: written.size_bytes, tensors: written.tensors, shards: written.shards })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::checkpoint::{Checkpoint, Source};

    #[test]
    fn same_seed_same_bytes_and_another_seed_other_bytes() {
        let folder = Scratch::new("seeds");
        for (name, seed) in [("a", 1), ("b", 1), ("c", 2)] {
            write(&folder.join(name), &tiny(seed)).expect("a tiny checkpoint fits");
        }
        let read =
            |name: &str| fs::read(folder.join(name).join("model.safetensors")).expect("made");
        assert_eq!(read("a"), read("b"));
        assert_ne!(read("a"), read("c"));
    }

    #[test]
    fn what_is_made_opens_as_the_shape_it_was_made_from() {
        let folder = Scratch::new("open");
        for preset in [Preset::Tiny, Preset::TinyDense] {
            let out = folder.join(preset.name());
            write(&out, &Options { preset, layers: Some(5), ..tiny(1) }).expect("fits");
            let checkpoint = Checkpoint::open(&Source::folder(&out)).expect("it is whole");
            assert_eq!(Some(checkpoint.shape), preset.shape(Some(5)));
        }
    }

    #[test]
    fn a_layer_keeps_its_weights_when_others_are_added() {
        let folder = Scratch::new("layers");
        let tensors = |layers: usize| {
            let out = folder.join(&layers.to_string());
            write(&out, &Options { layers: Some(layers), ..tiny(1) }).expect("fits");
            let bytes = fs::read(out.join("model.safetensors")).expect("made");
            tensor(&bytes, "language_model.model.layers.0.mlp.switch_mlp.up_proj.scales")
        };
        assert_eq!(tensors(1), tensors(4));
    }

    #[test]
    fn an_existing_folder_is_kept_unless_it_may_be_replaced() {
        let folder = Scratch::new("keep");
        let out = folder.join("model");
        write(&out, &tiny(1)).expect("fits");
        let before = fs::read(out.join("model.safetensors")).expect("made");
        let refused = write(&out, &tiny(2)).expect_err("it exists").to_string();
        assert!(refused.contains("exists"), "{refused}");
        assert_eq!(before, fs::read(out.join("model.safetensors")).expect("still there"));

        write(&out, &Options { replace: true, ..tiny(2) }).expect("it may be replaced");
        assert_ne!(before, fs::read(out.join("model.safetensors")).expect("made again"));

        fs::write(out.join("notes.txt"), "mine").expect("writable");
        let refused = write(&out, &Options { replace: true, ..tiny(3) }).expect_err("not ours");
        assert!(refused.to_string().contains("notes.txt"), "{refused}");
        assert!(out.join("notes.txt").exists());
    }

    #[test]
    fn zero_layers_are_refused() {
        let folder = Scratch::new("zero");
        let out = folder.join("model");
        let refused = write(&out, &Options { layers: Some(0), ..tiny(1) }).expect_err("no layer");
        assert!(refused.to_string().contains("num_hidden_layers"), "{refused}");
        assert!(!out.exists());
    }

    fn tiny(seed: u64) -> Options {
        Options { preset: Preset::Tiny, layers: None, seed, replace: false }
    }

    /// The bytes of one tensor of a safetensors file.
    fn tensor(file: &[u8], name: &str) -> Vec<u8> {
        let header_len = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
        let header: serde_json::Value =
            serde_json::from_slice(&file[8..8 + header_len]).expect("a JSON header");
        let offset = |i: usize| header[name]["data_offsets"][i].as_u64().expect("an offset");
        let data = &file[8 + header_len..];
        data[offset(0) as usize..offset(1) as usize].to_vec()
    }

    /// An empty folder of one test's own, removed when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let name = format!("calla-synth-{test}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).expect("the temporary folder is writable");
            Self(folder)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

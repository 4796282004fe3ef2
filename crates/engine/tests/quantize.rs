//! Unquantised checkpoints to MLX's format: against mlx-lm's own conversion, and damaged sources.
//! `tests/parity/quantize.py` makes the data.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use calla_engine::{
    Error,
    checkpoint::{
        Checkpoint, Dtype, Source, Tensors,
        quantize::{LeftOut, Options, Progress, Summary, quantize},
    },
};
use serde_json::{Value, json};

#[test]
fn every_tensor_and_the_configuration_are_mlx_lms() {
    for (name, weights_of) in [("moe", "moe"), ("moe_experts", "moe"), ("dense", "dense")] {
        let folder = Scratch::new(&format!("golden-{name}"));
        let out = folder.path("out");
        convert(&data(name), &out, &Options::default()).expect("a good source");

        let golden = tensors(&data(weights_of).join("golden"));
        let made = tensors(&out);
        assert_eq!(made.keys().collect::<Vec<_>>(), golden.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, golden) in &golden {
            assert!(made[tensor] == *golden, "{name}: {tensor} differs from mlx-lm's");
        }
        assert_eq!(config(&out), config(&data(name).join("golden")), "{name}");
        let keys: Vec<String> =
            config(&out).as_object().expect("an object").keys().cloned().collect();
        assert!(keys.is_sorted(), "{keys:?}");
    }
}

#[test]
fn what_is_made_opens_and_the_small_files_come_along() {
    for name in ["moe", "moe_experts", "dense"] {
        let folder = Scratch::new(&format!("open-{name}"));
        let out = folder.path("out");
        let mut told = Vec::new();
        let summary = quantize(&Source::folder(data(name)), &out, &Options::default(), &mut |p| {
            told.push(p);
        })
        .expect("a good source");
        let checkpoint = Checkpoint::open(&Source::folder(&out)).expect("it is whole");
        assert_eq!(checkpoint.shape.layers(), 2);
        assert_eq!(checkpoint.shape.tied_embeddings, name == "dense");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            let read = |folder: &Path| fs::read(folder.join(file)).expect("there");
            assert_eq!(read(&out), read(&data(name)), "{file}");
        }
        let whole = Progress { done_bytes: summary.size_bytes, total_bytes: summary.size_bytes };
        assert_eq!(told.last(), Some(&whole));
        assert!(told.is_sorted_by_key(|p| p.done_bytes));
        assert_eq!(summary.tensors, tensors(&out).len());
    }
}

#[test]
fn what_is_left_out_is_counted() {
    let folder = Scratch::new("left-out");
    let left_out = |name: &str| {
        let summary = convert(&data(name), &folder.path(name), &Options::default());
        summary.expect("a good source").left_out
    };
    assert_eq!(left_out("moe"), LeftOut { vision: 1, draft: 2, tied_head: 0 });
    assert_eq!(left_out("moe_experts"), LeftOut::default());
    assert_eq!(left_out("dense"), LeftOut { vision: 0, draft: 0, tied_head: 1 });
}

/// Gains as the source has them, plus 1, and nothing else changed.
#[test]
fn norms_may_stay_float32() {
    for name in ["moe", "dense"] {
        let folder = Scratch::new(&format!("float32-{name}"));
        let out = folder.path("out");
        let options = Options { keep_norm_float32: true, ..Options::default() };
        convert(&data(name), &out, &options).expect("a good source");
        let golden = tensors(&data(name).join("golden"));
        let mut source = Tensors::open(&Source::folder(data(name))).expect("opens");
        let full = |tensor: &str| match name {
            "moe" => tensor.replace("language_model.model.", "model.language_model."),
            _ => tensor.to_owned(),
        };
        let mut wider = 0;
        for (tensor, (dtype, shape, bytes)) in &tensors(&out) {
            if (dtype, shape, bytes) == tuple(&golden[tensor]) {
                continue;
            }
            assert!(tensor.contains("norm"), "{tensor}");
            assert_eq!(*dtype, Dtype::F32, "{tensor}");
            let plain = tensor.ends_with("linear_attn.norm.weight");
            let stored = source.take(&full(tensor)).expect("in the source").to_f32();
            let gains: Vec<u8> = (stored.expect("floats").iter())
                .flat_map(|v| if plain { *v } else { 1.0 + v }.to_le_bytes())
                .collect();
            assert!(gains == *bytes, "{tensor}");
            wider += 1;
        }
        // Two of each layer, the final one, query and key; the plain gain where it was float32.
        assert_eq!(wider, if name == "dense" { 8 } else { 7 });
        Checkpoint::open(&Source::folder(&out)).expect("it is whole");
    }
}

#[test]
fn other_bits_and_groups_open() {
    let folder = Scratch::new("packing");
    for (bits, group) in [(8, 64), (4, 32), (8, 32)] {
        let out = folder.path(&format!("{bits}-{group}"));
        convert(&data("moe"), &out, &Options { bits, group, ..Options::default() }).expect("fits");
        let checkpoint = Checkpoint::open(&Source::folder(&out)).expect("it is whole");
        let embed = &checkpoint.weights.embed;
        assert_eq!((embed.bits, embed.group), (bits, group));
    }
    // 64 inputs are no group of 128.
    let options = Options { group: 128, ..Options::default() };
    let error = convert(&data("moe"), &folder.path("128"), &options).expect_err("too wide");
    assert!(error.to_string().contains("embed_tokens.weight"), "{error}");
    for (bits, group, field) in [(3, 64, "bits"), (4, 48, "group_size")] {
        let options = Options { bits, group, ..Options::default() };
        let error = convert(&data("moe"), &folder.path("odd"), &options).expect_err("unknown");
        assert!(error.to_string().contains(&format!("quantization.{field}")), "{error}");
    }
}

#[test]
fn an_existing_folder_is_kept_unless_it_may_be_replaced() {
    let folder = Scratch::new("replace");
    let out = folder.path("out");
    let replace = Options { replace: true, ..Options::default() };
    convert(&data("dense"), &out, &Options::default()).expect("a new folder");
    let before = fs::read(out.join("config.json")).expect("made");
    let refused = convert(&data("moe"), &out, &Options::default()).expect_err("it exists");
    assert!(refused.to_string().contains("exists"), "{refused}");
    assert_eq!(fs::read(out.join("config.json")).expect("kept"), before);
    convert(&data("moe"), &out, &replace).expect("it may be replaced");
    assert_ne!(fs::read(out.join("config.json")).expect("made"), before);
    assert!(!out.join("generation_config.json").exists(), "the old checkpoint's");

    fs::write(out.join("notes.txt"), "mine").expect("writable");
    let refused = convert(&data("dense"), &out, &replace).expect_err("not ours");
    assert!(refused.to_string().contains("notes.txt"), "{refused}");
    assert!(out.join("notes.txt").exists());
}

#[test]
fn a_source_does_not_replace_itself() {
    let source = Damaged::of("dense", "itself");
    let replace = Options { replace: true, ..Options::default() };
    let error = convert(&source.0.0, &source.0.0, &replace).expect_err("its own source");
    assert!(error.to_string().contains("is the source"), "{error}");
    assert!(source.0.path("model.safetensors").exists());
}

/// A source that fails late leaves neither the folder nor a part of it, and a part that a killed
/// run left is no obstacle.
#[test]
fn only_whole_folders_appear() {
    let source = Damaged::of("dense", "whole");
    let out = source.0.path("out");
    let partial = source.0.path("out.partial");
    source.edit("model.safetensors", |bytes| {
        let len = bytes.len();
        bytes[len - 64..].fill(0xff);
    });
    let error = source.convert(&out).expect_err("not a number");
    assert!(matches!(&error, Error::Tensor { problem, .. } if problem.contains("not a number")));
    assert!(!out.exists() && !partial.exists());

    fs::create_dir(&partial).expect("writable");
    fs::write(partial.join("model.safetensors"), "half").expect("writable");
    convert(&data("dense"), &out, &Options::default()).expect("a good source");
    assert!(!partial.exists());
    assert_eq!(tensors(&out), tensors(&data("dense").join("golden")));
}

#[test]
fn two_writers_of_one_folder_do_not_meet() {
    let source = Damaged::of("dense", "two_writers");
    let (out, partial) = (source.0.path("out"), source.0.path("out.partial"));
    fs::create_dir(&partial).expect("writable");
    fs::write(partial.join("model.safetensors"), "the other's").expect("writable");
    let other = fs::File::open(&partial).expect("it is there");
    other.lock().expect("nobody has it");
    let error = source.convert(&out).expect_err("another process writes");
    assert!(error.to_string().contains("being written by another process"), "{error}");
    assert_eq!(fs::read(partial.join("model.safetensors")).expect("kept"), b"the other's");
    drop(other);
    source.convert(&out).expect("the other is gone");
    assert_eq!(tensors(&out), tensors(&data("dense").join("golden")));
}

#[test]
fn missing_and_unknown_tensors_are_named() {
    let cases = [
        ("moe", "model.language_model.norm.weight", "model.language_model.morn.weight"),
        (
            "moe",
            "model.language_model.layers.1.mlp.experts.down_proj",
            "model.language_model.layers.1.mlp.experts.town_proj",
        ),
        (
            "moe_experts",
            "model.layers.0.mlp.experts.2.up_proj.weight",
            "model.layers.0.mlp.experts.3.up_proj.weight",
        ),
    ];
    for (name, from, to) in cases {
        let source = Damaged::of(name, "renamed");
        source.rename(from, to);
        let error = source.convert(&source.0.path("out")).expect_err("one is missing");
        assert!(
            matches!(&error, Error::Tensor { tensor, problem, .. }
            if tensor == from && problem == "missing"),
            "{error}"
        );
    }
    // A tied model needs no head, so another name for it is unknown and nothing is missing.
    let source = Damaged::of("dense", "unknown");
    source.rename("language_model.lm_head.weight", "language_model.lm_herd.weight");
    let error = source.convert(&source.0.path("out")).expect_err("one is unknown");
    assert!(
        matches!(&error, Error::Tensor { tensor, problem, .. }
        if tensor == "language_model.lm_herd.weight" && problem.contains("no part")),
        "{error}"
    );
}

#[test]
fn one_tensor_under_two_names_is_refused() {
    let source = Damaged::of("dense", "twice");
    let at = "layers.1.self_attn";
    let (key, value) = (format!("{at}.k_proj.weight"), format!("{at}.v_proj.weight"));
    let twice = format!("model.language_model.{key}");
    source.rename(&format!("language_model.model.{value}"), &twice);
    let error = source.convert(&source.0.path("out")).expect_err("twice");
    assert!(
        matches!(&error, Error::Tensor { tensor, problem, .. }
        if *tensor == twice && problem.contains(&format!("`language_model.model.{key}`"))),
        "{error}"
    );
}

#[test]
fn wrong_shapes_and_configurations_are_named() {
    let cases: [(&str, Value, &str); 5] = [
        ("/text_config/vocab_size", json!(65), "embed_tokens.weight"),
        ("/text_config/moe_intermediate_size", json!(32), "gate_up_proj"),
        ("/model_type", json!("llama"), "model_type"),
        ("/quantization_config", json!({"quant_method": "fp8"}), "quantised already"),
        ("/text_config/num_experts", json!("3"), "text_config.num_experts"),
    ];
    for (pointer, value, wanted) in cases {
        let source = Damaged::of("moe", "config");
        source.edit("config.json", |bytes| {
            let mut config: Value = serde_json::from_slice(bytes).expect("JSON");
            match config.pointer_mut(pointer) {
                Some(field) => *field = value.clone(),
                None => config[&pointer[1..]] = value.clone(),
            }
            *bytes = config.to_string().into_bytes();
        });
        let error = source.convert(&source.0.path("out")).expect_err("contradicts the weights");
        assert!(error.to_string().contains(wanted), "{pointer}: {error}");
    }
}

#[test]
fn quantised_sources_and_broken_small_files_are_refused() {
    let folder = Scratch::new("refused");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/dense");
    let error = convert(&tiny, &folder.path("out"), &Options::default()).expect_err("quantised");
    assert!(error.to_string().contains("quantised already"), "{error}");

    let source = Damaged::of("dense", "generation");
    source.edit("generation_config.json", |bytes| bytes.truncate(5));
    let error = source.convert(&source.0.path("out")).expect_err("cut short").to_string();
    assert!(error.contains("generation_config.json"), "{error}");

    let nowhere = convert(Path::new("/nowhere/at/all"), &folder.path("out"), &Options::default());
    assert!(nowhere.expect_err("absent").to_string().contains("/nowhere/at/all"));
}

type Contents = (Dtype, Vec<usize>, Vec<u8>);

fn tuple(contents: &Contents) -> (&Dtype, &Vec<usize>, &Vec<u8>) {
    (&contents.0, &contents.1, &contents.2)
}

fn convert(source: &Path, out: &Path, options: &Options) -> Result<Summary, Error> {
    quantize(&Source::folder(source), out, options, &mut |_| {})
}

fn tensors(folder: &Path) -> BTreeMap<String, Contents> {
    let tensors = Tensors::open(&Source::folder(folder)).expect("a readable checkpoint");
    (tensors.iter())
        .map(|(name, t)| (name.clone(), (t.dtype, t.shape.clone(), t.bytes.to_vec())))
        .collect()
}

fn config(folder: &Path) -> Value {
    let bytes = fs::read(folder.join("config.json")).expect("there");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bf16").join(name)
}

/// An empty folder of one test's own, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let unique = format!("calla-quantize-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(unique);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A copy of a source that a test may damage.
struct Damaged(Scratch);

impl Damaged {
    fn of(name: &str, purpose: &str) -> Self {
        let folder = Scratch::new(&format!("{name}-{purpose}"));
        for entry in fs::read_dir(data(name)).expect("exists").flatten() {
            if entry.file_type().expect("known").is_file() {
                fs::copy(entry.path(), folder.path(&entry.file_name().to_string_lossy()))
                    .expect("copied");
            }
        }
        Self(folder)
    }

    fn convert(&self, out: &Path) -> Result<Summary, Error> {
        convert(&self.0.0, out, &Options::default())
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.0.path(file);
        let mut bytes = fs::read(&path).expect("readable");
        change(&mut bytes);
        fs::write(path, bytes).expect("writable");
    }

    /// Renames a tensor in headers and index, keeping the length.
    fn rename(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        let quoted = format!("\"{from}\"");
        let mut renamed = 0;
        for entry in fs::read_dir(&self.0.0).expect("exists").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("model") {
                continue;
            }
            self.edit(&name, |bytes| {
                let at = bytes.windows(quoted.len()).position(|w| w == quoted.as_bytes());
                if let Some(at) = at {
                    bytes[at + 1..at + 1 + to.len()].copy_from_slice(to.as_bytes());
                    renamed += 1;
                }
            });
        }
        assert!(renamed > 0, "{from} is in no header");
    }
}

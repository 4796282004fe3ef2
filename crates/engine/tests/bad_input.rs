//! Checkpoints that are damaged, incomplete or another engine's: each is refused with a message
//! that names the file, the tensor or the field, and says what to do.

use std::{
    fs,
    path::{Path, PathBuf},
};

use calla_engine::checkpoint::{Checkpoint, Source};
use serde_json::{Map, Value, json};

/// What is done to a copy of a good checkpoint, and words of the message.
struct Case {
    name: &'static str,
    of: &'static str,
    damage: fn(&Path),
    says: &'static [&'static str],
}

const NORM: &str = "language_model.model.norm.weight";
const EMBED: &str = "language_model.model.embed_tokens.weight";
const SCALES: &str = "language_model.model.embed_tokens.scales";
const A_LOG: &str = "language_model.model.layers.0.linear_attn.A_log";
const SHARD_2: &str = "model-00002-of-00003.safetensors";

const FILES: &[Case] = &[
    Case {
        name: "cut in the data",
        of: "moe_base",
        damage: |folder| cut(&folder.join("model.safetensors"), -4096),
        says: &["model.safetensors", "tensor `language_model.", "cut short", "fetch it again"],
    },
    Case {
        name: "cut in the header",
        of: "moe_base",
        damage: |folder| cut(&folder.join("model.safetensors"), 64),
        says: &["model.safetensors", "header claims", "the file has 64", "fetch it again"],
    },
    Case {
        name: "cut in the length",
        of: "moe_base",
        damage: |folder| cut(&folder.join("model.safetensors"), 7),
        says: &["model.safetensors", "7 bytes", "fetch it again"],
    },
    Case {
        name: "empty weights",
        of: "moe_base",
        damage: |folder| cut(&folder.join("model.safetensors"), 0),
        says: &["model.safetensors", "0 bytes", "fetch it again"],
    },
    Case {
        name: "a header of exabytes",
        of: "moe_base",
        damage: |folder| patch(&folder.join("model.safetensors"), 0, &u64::MAX.to_le_bytes()),
        says: &["model.safetensors", "header claims 18446744073709551615 bytes"],
    },
    Case {
        name: "a header that is no JSON",
        of: "moe_base",
        damage: |folder| patch(&folder.join("model.safetensors"), 8, b"?"),
        says: &["model.safetensors", "header", "line 1 column 1", "fetch it again"],
    },
    Case {
        name: "no weights",
        of: "moe_base",
        damage: |folder| {
            remove(&folder.join("model.safetensors"));
            remove(&folder.join("model.safetensors.index.json"));
        },
        says: &["holds neither model.safetensors nor model.safetensors.index.json", "fetch"],
    },
    Case {
        name: "no configuration",
        of: "moe_base",
        damage: |folder| remove(&folder.join("config.json")),
        says: &["holds no config.json", "give the folder of an MLX checkpoint"],
    },
    Case {
        name: "an empty configuration",
        of: "moe_base",
        damage: |folder| cut(&folder.join("config.json"), 0),
        says: &["config.json", "is empty: fetch it again"],
    },
    Case {
        name: "a configuration that is cut short",
        of: "moe_base",
        damage: |folder| cut(&folder.join("config.json"), -2),
        says: &["config.json", "EOF", "fetch it again"],
    },
    Case {
        name: "a configuration that is a list",
        of: "moe_base",
        damage: |folder| write(&folder.join("config.json"), b"[]"),
        says: &["config.json", "not a JSON object"],
    },
    Case {
        name: "a configuration as deep as it is long",
        of: "moe_base",
        damage: |folder| write(&folder.join("config.json"), &[b'['; 1_000_000]),
        says: &["config.json", "recursion limit", "fetch it again"],
    },
    Case {
        name: "a configuration of megabytes",
        of: "moe_base",
        damage: |folder| write(&folder.join("config.json"), &[b' '; 5 << 20]),
        says: &["config.json", "longer than 4194304 bytes", "fetch it again"],
    },
    Case {
        name: "a folder in the configuration's place",
        of: "moe_base",
        damage: |folder| {
            remove(&folder.join("config.json"));
            fs::create_dir(folder.join("config.json")).expect("created");
        },
        says: &["config.json", "not a regular file"],
    },
];

const HEADERS: &[Case] = &[
    Case {
        name: "overlapping tensors",
        of: "moe_base",
        damage: |folder| {
            edit_header(folder, |header| {
                header[SCALES]["data_offsets"] = header[EMBED]["data_offsets"].clone();
            });
        },
        says: &["model.safetensors", "language_model.model.embed_tokens", "overlap", "fetch"],
    },
    Case {
        name: "offsets past the end",
        of: "moe_base",
        damage: |folder| {
            edit_entry(folder, NORM, "data_offsets", &json!([1_u64 << 40, 1_u64 << 41]))
        },
        says: &["model.safetensors", NORM, "not inside the file's", "fetch it again"],
    },
    Case {
        name: "offsets that overflow",
        of: "moe_base",
        damage: |folder| edit_entry(folder, NORM, "data_offsets", &json!([u64::MAX, u64::MAX])),
        says: &["model.safetensors", NORM, "not inside the file's", "fetch it again"],
    },
    Case {
        name: "a negative offset",
        of: "moe_base",
        damage: |folder| edit_entry(folder, NORM, "data_offsets", &json!([-1, 8])),
        says: &["model.safetensors", "header", "`-1`", "fetch it again"],
    },
    Case {
        name: "a shape that does not fit its bytes",
        of: "moe_base",
        damage: |folder| edit_entry(folder, NORM, "shape", &json!([u64::MAX, u64::MAX])),
        says: &["model.safetensors", NORM, "does not fit", "fetch it again"],
    },
    Case {
        name: "a shape of a thousand dimensions",
        of: "moe_base",
        damage: |folder| edit_entry(folder, NORM, "shape", &json!(vec![0; 1000])),
        says: &["model.safetensors", "more than 8 dimensions", "fetch it again"],
    },
    Case {
        name: "a name twice in a header",
        of: "moe_base",
        damage: |folder| {
            let path = folder.join("model.safetensors");
            let (header, data) = read_header(&path);
            let text = Value::Object(header).to_string();
            let again =
                format!("{{{:?}:{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},", NORM);
            write_header(&path, &text.replacen('{', &again, 1), &data);
        },
        says: &["model.safetensors", NORM, "stands twice", "fetch it again"],
    },
    Case {
        name: "a name in two shards",
        of: "moe_sharded",
        damage: |folder| {
            let first = folder.join("model-00001-of-00003.safetensors");
            fs::copy(first, folder.join(SHARD_2)).expect("copied");
        },
        says: &[SHARD_2, "tensor `", "stands in", "model-00001-of-00003", "fetch"],
    },
    Case {
        name: "a missing tensor",
        of: "moe_base",
        damage: |folder| edit_header(folder, |header| drop(header.remove(NORM))),
        says: &[NORM, "missing", "fetch both again"],
    },
    Case {
        name: "an unknown tensor",
        of: "moe_base",
        damage: |folder| {
            edit_header(folder, |header| {
                let entry = json!({"dtype": "U8", "shape": [0], "data_offsets": [0, 0]});
                header.insert("language_model.model.stranger".into(), entry);
            });
        },
        says: &[
            "model.safetensors",
            "language_model.model.stranger",
            "no part of this model",
            "fetch",
        ],
    },
    Case {
        name: "scales of another type",
        of: "moe_base",
        damage: |folder| edit_entry(folder, SCALES, "dtype", &json!("F16")),
        says: &[SCALES, "F16", "BF16", "fetch both again"],
    },
    Case {
        name: "a vector of whole numbers",
        of: "moe_base",
        damage: |folder| edit_entry(folder, A_LOG, "dtype", &json!("I32")),
        says: &[A_LOG, "I32", "BF16, F16 or F32 is expected", "fetch both again"],
    },
    Case {
        name: "a gain of another shape",
        of: "moe_base",
        damage: |folder| {
            edit_header(folder, |header| {
                let len = header[NORM]["shape"][0].as_u64().expect("a vector");
                header[NORM]["shape"] = json!([2, len / 2]);
            });
        },
        says: &[NORM, "shape [2, ", "is expected", "fetch both again"],
    },
    Case {
        name: "codes of another type",
        of: "moe_base",
        damage: |folder| edit_entry(folder, EMBED, "dtype", &json!("I32")),
        says: &[EMBED, "I32", "U32", "fetch both again"],
    },
    Case {
        name: "a matrix that is not quantised",
        of: "moe_base",
        damage: |folder| edit_entry(folder, EMBED, "dtype", &json!("F32")),
        says: &[EMBED, "F32", "not quantised", "`calla quantize SRC DST`"],
    },
];

const INDICES: &[Case] = &[
    Case {
        name: "a shard that is missing",
        of: "moe_sharded",
        damage: |folder| remove(&folder.join(SHARD_2)),
        says: &["model.safetensors.index.json", SHARD_2, "not in the folder", "fetch"],
    },
    Case {
        name: "a shard that the index does not name",
        of: "moe_sharded",
        damage: |folder| {
            edit_index(folder, |map| map.retain(|_, file| file.as_str() != Some(SHARD_2)));
        },
        says: &[SHARD_2, "is not named by model.safetensors.index.json", "remove it"],
    },
    Case {
        name: "a tensor in another shard",
        of: "moe_sharded",
        damage: |folder| edit_index(folder, move_tensor),
        says: &["model.safetensors.index.json", "tensor `", "does not hold it", "fetch"],
    },
    Case {
        name: "a path out of the folder",
        of: "moe_sharded",
        damage: |folder| edit_index(folder, |map| map[EMBED] = json!("../../model.safetensors")),
        says: &[
            "model.safetensors.index.json",
            "../../model.safetensors",
            "plain file name",
            "trust",
        ],
    },
    Case {
        name: "an absolute path",
        of: "moe_sharded",
        damage: |folder| edit_index(folder, |map| map[EMBED] = json!("/etc/passwd")),
        says: &["model.safetensors.index.json", "/etc/passwd", "plain file name"],
    },
    Case {
        name: "the folder above",
        of: "moe_sharded",
        damage: |folder| edit_index(folder, |map| map[EMBED] = json!("..")),
        says: &["model.safetensors.index.json", "`..`", "plain file name"],
    },
    Case {
        name: "a name twice in the index",
        of: "moe_sharded",
        damage: |folder| {
            let path = folder.join("model.safetensors.index.json");
            let text = fs::read_to_string(&path).expect("readable");
            let (before, after) = text.split_once("\"weight_map\": {").expect("an index");
            let text = format!("{before}\"weight_map\": {{{EMBED:?}: {SHARD_2:?},{after}");
            write(&path, text.as_bytes());
        },
        says: &["model.safetensors.index.json", EMBED, "stands twice", "fetch it again"],
    },
    Case {
        name: "an index without a map",
        of: "moe_sharded",
        damage: |folder| write(&folder.join("model.safetensors.index.json"), b"{}"),
        says: &["model.safetensors.index.json", "weight_map", "fetch it again"],
    },
    Case {
        name: "an empty index",
        of: "moe_sharded",
        damage: |folder| cut(&folder.join("model.safetensors.index.json"), 0),
        says: &["model.safetensors.index.json", "EOF", "fetch it again"],
    },
];

const FORMATS: &[Case] = &[
    Case {
        name: "bits that disagree with the width",
        of: "moe_base",
        damage: |folder| edit_config(folder, |config| config["quantization"]["bits"] = json!(8)),
        says: &[EMBED, "8 bit in groups of", "fetch both again"],
    },
    Case {
        name: "another layer than the weights have",
        of: "dense",
        damage: |folder| {
            edit_config(folder, |config| {
                let text = &mut config["text_config"];
                let types = text["layer_types"].as_array_mut().expect("a list");
                types.pop();
                text["num_hidden_layers"] = json!(types.len());
            });
        },
        says: &["language_model.model.layers.3.", "no part of this model", "fetch both again"],
    },
    Case {
        name: "GGUF",
        of: "moe_base",
        damage: |folder| replace_all(folder, "model-q4_k_m.gguf"),
        says: &["GGUF", "MLX checkpoint", "`calla quantize SRC DST`"],
    },
    Case {
        name: "PyTorch weights beside a configuration",
        of: "moe_base",
        damage: |folder| {
            let weights = folder.join("model.safetensors");
            fs::rename(weights, folder.join("pytorch_model.bin")).expect("renamed");
            remove(&folder.join("model.safetensors.index.json"));
        },
        says: &["PyTorch", "`calla quantize SRC DST`"],
    },
    Case {
        name: "AWQ",
        of: "moe_base",
        damage: |folder| {
            quantised_by(folder, &json!({"quant_method": "awq", "bits": 4, "group_size": 128}));
        },
        says: &[
            "config.json",
            "quantization_config.quant_method",
            "awq",
            "`calla quantize SRC DST`",
        ],
    },
    Case {
        name: "GPTQ",
        of: "moe_base",
        damage: |folder| {
            quantised_by(folder, &json!({"quant_method": "gptq", "bits": 4, "group_size": 128}));
        },
        says: &[
            "config.json",
            "quantization_config.quant_method",
            "gptq",
            "`calla quantize SRC DST`",
        ],
    },
    Case {
        name: "FP8",
        of: "moe_base",
        damage: |folder| {
            let method = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
            quantised_by(folder, &method);
        },
        says: &[
            "config.json",
            "quantization_config.quant_method",
            "fp8",
            "`calla quantize SRC DST`",
        ],
    },
    Case {
        name: "MXFP4",
        of: "moe_base",
        damage: |folder| {
            edit_config(folder, |config| config["quantization"]["mode"] = json!("mxfp4"))
        },
        says: &["config.json", "quantization.mode", "mxfp4", "`calla quantize SRC DST`"],
    },
    Case {
        name: "not quantised",
        of: "moe_base",
        damage: |folder| quantised_by(folder, &Value::Null),
        says: &["config.json", "`quantization`", "not quantised", "`calla quantize SRC DST`"],
    },
    Case {
        name: "another family",
        of: "moe_base",
        damage: |folder| edit_config(folder, |config| config["model_type"] = json!("llama")),
        says: &["config.json", "model_type", "llama", "Qwen3.5 and Qwen3.6"],
    },
];

#[cfg(unix)]
const LINKS: &[Case] = &[
    Case {
        name: "a configuration that links to itself",
        of: "moe_base",
        damage: |folder| relink(&folder.join("config.json"), "config.json"),
        says: &["config.json", "symbolic links"],
    },
    Case {
        name: "weights that link to themselves",
        of: "moe_base",
        damage: |folder| relink(&folder.join("model.safetensors"), "model.safetensors"),
        says: &["model.safetensors", "symbolic links"],
    },
    Case {
        name: "an index that links to itself",
        of: "moe_base",
        damage: |folder| {
            relink(&folder.join("model.safetensors.index.json"), "model.safetensors.index.json");
        },
        says: &["model.safetensors.index.json", "symbolic links"],
    },
    Case {
        name: "weights that link to nothing",
        of: "moe_base",
        damage: |folder| relink(&folder.join("model.safetensors"), "../blobs/0123"),
        says: &["model.safetensors", "links to a file that is not there", "fetch it again"],
    },
    Case {
        name: "a pipe in the configuration's place",
        of: "moe_base",
        damage: |folder| make_pipe(&folder.join("config.json")),
        says: &["config.json", "not a regular file"],
    },
    Case {
        name: "a pipe in the weights' place",
        of: "moe_base",
        damage: |folder| make_pipe(&folder.join("model.safetensors")),
        says: &["model.safetensors", "not a regular file"],
    },
];

#[test]
fn damaged_files_are_named() {
    refuse(FILES);
}

#[test]
fn headers_that_lie_are_named() {
    refuse(HEADERS);
}

#[test]
fn indices_that_lie_are_named() {
    refuse(INDICES);
}

#[test]
fn other_formats_are_told_what_to_run() {
    refuse(FORMATS);
}

#[cfg(unix)]
#[test]
fn links_and_pipes_are_named() {
    refuse(LINKS);
}

#[test]
fn what_is_no_folder_is_told_from_one() {
    let base = tiny("moe_base");
    let copy = Copy::of("moe_base", "no folder");
    let gguf = copy.0.join("model.gguf");
    write(&gguf, b"GGUF");
    for (path, says) in [
        (PathBuf::from("/nowhere/at/all"), "/nowhere/at/all"),
        (base.join("config.json"), "not a folder: give the folder"),
        (gguf, "`calla quantize SRC DST`"),
    ] {
        let message = open(&path).expect_err("no folder");
        assert!(message.contains(says), "{message}");
    }
    #[cfg(unix)]
    {
        relink(&copy.0.join("loop"), "loop");
        let message = open(&copy.0.join("loop")).expect_err("a loop");
        assert!(message.contains("loop") && message.contains("symbolic links"), "{message}");
    }
}

/// Root may read everything, so this shows nothing where the tests run as root.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt as _;

    for file in ["config.json", "model.safetensors"] {
        let copy = Copy::of("moe_base", "permission");
        let path = copy.0.join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("set");
        if fs::File::open(&path).is_err() {
            let message = open(&copy.0).expect_err("unreadable");
            assert!(message.contains(file) && message.contains("ermission"), "{message}");
        }
    }
}

/// The child maps a checkpoint, cuts its file, and reads on.
#[cfg(unix)]
#[test]
fn a_file_that_is_cut_while_mapped_ends_the_program_with_its_name() {
    const VARIABLE: &str = "CALLA_TEST_CUT_WHILE_MAPPED";
    if let Some(folder) = std::env::var_os(VARIABLE) {
        let folder = PathBuf::from(folder);
        calla_engine::checkpoint::explain_lost_files();
        let gone = Checkpoint::open(&Source::folder(tiny("dense"))).expect("good");
        drop(gone);
        let checkpoint = Checkpoint::open(&Source::folder(&folder)).expect("good");
        cut(&folder.join("model.safetensors"), 0);
        let sum: u64 = checkpoint.weights.embed.weight.iter().map(|&byte| u64::from(byte)).sum();
        panic!("read a file that is gone: {sum}");
    }
    let copy = Copy::of("moe_base", "cut while mapped");
    let test = "a_file_that_is_cut_while_mapped_ends_the_program_with_its_name";
    let child = std::process::Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", test, "--nocapture"])
        .env(VARIABLE, &copy.0)
        .output()
        .expect("it starts");
    let message = String::from_utf8_lossy(&child.stderr);
    let path = copy.0.join("model.safetensors");
    let wanted = format!("calla: {}: cannot be read any more", path.display());
    assert!(message.contains(&wanted) && message.contains("fetch it again"), "{message}");
    assert_eq!(child.status.code(), Some(1), "{}: {message}", child.status);
}

/// A fault in memory that is no checkpoint's ends the program as ever.
#[cfg(unix)]
#[test]
fn other_bus_errors_are_left_alone() {
    use std::os::unix::process::ExitStatusExt as _;

    const VARIABLE: &str = "CALLA_TEST_BUS_ERROR";
    if let Some(path) = std::env::var_os(VARIABLE) {
        calla_engine::checkpoint::explain_lost_files();
        let file = fs::File::open(&path).expect("readable");
        // SAFETY: read-only, and the fault on reading it is what this is about.
        let map = unsafe { memmap2::Mmap::map(&file) }.expect("mapped");
        cut(Path::new(&path), 0);
        panic!("read a file that is gone: {}", map[0]);
    }
    let copy = Copy::of("moe_base", "bus error");
    let child = std::process::Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "other_bus_errors_are_left_alone", "--nocapture"])
        .env(VARIABLE, copy.0.join("model.safetensors"))
        .output()
        .expect("it starts");
    assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{}", child.status);
}

/// Damages a copy for each case and looks for the words in the message.
fn refuse(cases: &[Case]) {
    for case in cases {
        let copy = Copy::of(case.of, case.name);
        open(&copy.0).expect("good before it is damaged");
        (case.damage)(&copy.0);
        let Err(message) = open(&copy.0) else { panic!("{}: opens", case.name) };
        for word in case.says {
            assert!(message.contains(word), "{}: no `{word}` in: {message}", case.name);
        }
        assert!(message.len() < 1_000, "{}: {} bytes", case.name, message.len());
    }
}

fn open(folder: &Path) -> Result<Checkpoint, String> {
    Checkpoint::open(&Source::folder(folder)).map_err(|error| error.to_string())
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name)
}

/// A copy of a tiny checkpoint that may be damaged; removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str, purpose: &str) -> Self {
        let purpose = purpose.replace([' ', '\''], "-");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{purpose}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the target folder is writable");
        for entry in fs::read_dir(tiny(name)).expect("exists").flatten() {
            if entry.file_name() != "golden.safetensors" {
                fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
            }
        }
        Self(folder)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Cuts a file to a length, or by one if that is negative.
fn cut(path: &Path, len: i64) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("writable");
    let whole = file.metadata().expect("readable").len();
    file.set_len(if len < 0 { whole - len.unsigned_abs() } else { len.unsigned_abs() })
        .expect("cut");
}

fn patch(path: &Path, at: usize, bytes: &[u8]) {
    let mut content = fs::read(path).expect("readable");
    content[at..at + bytes.len()].copy_from_slice(bytes);
    write(path, &content);
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("writable");
}

fn remove(path: &Path) {
    fs::remove_file(path).expect("removed");
}

#[cfg(unix)]
fn relink(path: &Path, target: &str) {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink(target, path).expect("linked");
}

#[cfg(unix)]
fn make_pipe(path: &Path) {
    remove(path);
    let status = std::process::Command::new("mkfifo").arg(path).status();
    assert!(status.expect("mkfifo is there").success());
}

/// Leaves one file of another format.
fn replace_all(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).expect("readable").flatten() {
        remove(&entry.path());
    }
    write(&folder.join(name), b"GGUF");
}

fn edit_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
    change(&mut config);
    write(&path, config.to_string().as_bytes());
}

/// A configuration with this instead of MLX's quantisation.
fn quantised_by(folder: &Path, method: &Value) {
    edit_config(folder, |config| {
        config["quantization"] = Value::Null;
        config["quantization_config"] = method.clone();
    });
}

fn edit_index(folder: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.join("model.safetensors.index.json");
    let mut index: Value =
        serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
    change(index["weight_map"].as_object_mut().expect("a map"));
    write(&path, index.to_string().as_bytes());
}

/// Says of a tensor of the second shard that the first holds it.
fn move_tensor(map: &mut Map<String, Value>) {
    let file = map.values_mut().find(|file| file.as_str() == Some(SHARD_2));
    *file.expect("the second shard holds some") = json!("model-00001-of-00003.safetensors");
}

fn edit_entry(folder: &Path, tensor: &str, field: &str, value: &Value) {
    edit_header(folder, |header| header[tensor][field] = value.clone());
}

fn edit_header(folder: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.join("model.safetensors");
    let (mut header, data) = read_header(&path);
    change(&mut header);
    write_header(&path, &Value::Object(header).to_string(), &data);
}

fn read_header(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = fs::read(path).expect("readable");
    let (len, rest) = bytes.split_first_chunk().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    (serde_json::from_slice(header).expect("a header"), data.to_vec())
}

fn write_header(path: &Path, header: &str, data: &[u8]) {
    let len = (header.len() as u64).to_le_bytes();
    write(path, &[&len, header.as_bytes(), data].concat());
}

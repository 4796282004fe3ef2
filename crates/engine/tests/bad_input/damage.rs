//! Good checkpoints to damage, and ways to do it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use calla_engine::checkpoint::{Checkpoint, Source};
use serde_json::{Map, Value, json};

/// What is done to a copy of a good checkpoint, and words of the message.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) of: &'static str,
    pub(crate) damage: fn(&Path),
    pub(crate) says: &'static [&'static str],
}

pub(crate) const NORM: &str = "language_model.model.norm.weight";
pub(crate) const EMBED: &str = "language_model.model.embed_tokens.weight";
pub(crate) const SCALES: &str = "language_model.model.embed_tokens.scales";
pub(crate) const A_LOG: &str = "language_model.model.layers.0.linear_attn.A_log";
pub(crate) const SHARD_2: &str = "model-00002-of-00003.safetensors";

/// Damages a copy for each case and looks for the words in the message.
pub(crate) fn refuse(cases: &[Case]) {
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

pub(crate) fn open(folder: &Path) -> Result<Checkpoint, String> {
    Checkpoint::open(&Source::folder(folder)).map_err(|error| error.to_string())
}

pub(crate) fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name)
}

/// A copy of a tiny checkpoint that may be damaged; removed when dropped.
pub(crate) struct Copy(pub(crate) PathBuf);

impl Copy {
    pub(crate) fn of(name: &str, purpose: &str) -> Self {
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
pub(crate) fn cut(path: &Path, len: i64) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("writable");
    let whole = file.metadata().expect("readable").len();
    file.set_len(if len < 0 { whole - len.unsigned_abs() } else { len.unsigned_abs() })
        .expect("cut");
}

pub(crate) fn patch(path: &Path, at: usize, bytes: &[u8]) {
    let mut content = fs::read(path).expect("readable");
    content[at..at + bytes.len()].copy_from_slice(bytes);
    write(path, &content);
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("writable");
}

pub(crate) fn remove(path: &Path) {
    fs::remove_file(path).expect("removed");
}

#[cfg(unix)]
pub(crate) fn relink(path: &Path, target: &str) {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink(target, path).expect("linked");
}

#[cfg(unix)]
pub(crate) fn make_pipe(path: &Path) {
    remove(path);
    let status = std::process::Command::new("mkfifo").arg(path).status();
    assert!(status.expect("mkfifo is there").success());
}

/// Leaves one file of another format.
pub(crate) fn replace_all(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).expect("readable").flatten() {
        remove(&entry.path());
    }
    write(&folder.join(name), b"GGUF");
}

pub(crate) fn edit_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
    change(&mut config);
    write(&path, config.to_string().as_bytes());
}

/// A configuration with this instead of MLX's quantisation.
pub(crate) fn quantised_by(folder: &Path, method: &Value) {
    edit_config(folder, |config| {
        config["quantization"] = Value::Null;
        config["quantization_config"] = method.clone();
    });
}

pub(crate) fn edit_index(folder: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.join("model.safetensors.index.json");
    let mut index: Value =
        serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
    change(index["weight_map"].as_object_mut().expect("a map"));
    write(&path, index.to_string().as_bytes());
}

/// Says of a tensor of the second shard that the first holds it.
pub(crate) fn move_tensor(map: &mut Map<String, Value>) {
    let file = map.values_mut().find(|file| file.as_str() == Some(SHARD_2));
    *file.expect("the second shard holds some") = json!("model-00001-of-00003.safetensors");
}

pub(crate) fn edit_entry(folder: &Path, tensor: &str, field: &str, value: &Value) {
    edit_header(folder, |header| header[tensor][field] = value.clone());
}

pub(crate) fn edit_header(folder: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.join("model.safetensors");
    let (mut header, data) = read_header(&path);
    change(&mut header);
    write_header(&path, &Value::Object(header).to_string(), &data);
}

pub(crate) fn read_header(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = fs::read(path).expect("readable");
    let (len, rest) = bytes.split_first_chunk().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    (serde_json::from_slice(header).expect("a header"), data.to_vec())
}

pub(crate) fn write_header(path: &Path, header: &str, data: &[u8]) {
    let len = (header.len() as u64).to_le_bytes();
    write(path, &[&len, header.as_bytes(), data].concat());
}

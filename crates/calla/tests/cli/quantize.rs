//! From an unquantised folder to one that runs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{failure, json, scratch, stdout, text};

#[test]
fn an_unquantised_folder_becomes_one_that_runs() {
    let (source, out) = (unquantised("moe"), scratch("quantize").join("model"));
    let made = json(&["quantize", text(&source), text(&out), "--json"]);
    assert_eq!(made["left_out"]["vision"], 1);
    assert_eq!(made["left_out"]["draft"], 2);
    let file = fs::metadata(out.join("model.safetensors")).expect("made").len();
    let size = made["size_bytes"].as_u64().expect("a number");
    assert!(0 < size && size < file, "{size} bytes of tensors in {file}");

    let measured = json(&["bench", "--model", text(&out), "--contexts", "4", "--json"]);
    assert!(measured.is_object(), "{measured}");
    // Before it was quantised it did not run, and the message says what to do.
    let message = failure(&["bench", "--model", text(&source), "--contexts", "4"], 1);
    assert!(message.contains("calla quantize"), "{message}");
}

#[test]
fn flags_reach_the_checkpoint() {
    let (source, out) = (unquantised("dense"), scratch("quantize-flags").join("model"));
    let flags = ["--bits", "8", "--group", "32", "--keep-norm-float32"];
    let printed = stdout(&[&["quantize", text(&source), text(&out)][..], &flags].concat());
    assert!(printed.contains("left out: 1 of a head"), "{printed}");
    let config = fs::read(out.join("config.json")).expect("made");
    let config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!(config["quantization"]["bits"], 8);
    assert_eq!(config["quantization"]["group_size"], 32);
    let weights = fs::read(out.join("model.safetensors")).expect("made");
    let gain = br#""language_model.model.norm.weight":{"dtype":"F32""#;
    assert!(weights.windows(gain.len()).any(|window| window == gain));
}

#[test]
fn nothing_is_overwritten_by_mistake() {
    let (source, out) = (unquantised("dense"), scratch("quantize-force").join("model"));
    let arguments = ["quantize", text(&source), text(&out)];
    stdout(&arguments);
    let message = failure(&arguments, 1);
    assert!(message.contains("--force"), "{message}");
    stdout(&[&arguments[..], &["--force"]].concat());
}

/// A power cut must not leave a folder that looks whole and is not.
#[cfg(target_os = "linux")]
#[test]
fn everything_is_on_the_disk_before_the_folder_has_its_name() {
    let folder = scratch("quantize-durable").canonicalize().expect("made");
    let (out, partial) = (folder.join("model"), folder.join("model.partial"));
    let mut command = crate::calla(&["quantize", text(&unquantised("dense")), text(&out)]);
    let calls = crate::calls::Calls::of(&mut command, &folder);
    crate::success(&command.output().expect("it starts"));
    let mut files: Vec<PathBuf> = fs::read_dir(&out)
        .expect("made")
        .map(|entry| partial.join(entry.expect("readable").file_name()))
        .collect();
    assert!(files.len() > 2, "{files:?}");
    files.push(partial.clone());
    calls.assert_durable_before(&files, &partial);
}

#[test]
fn a_file_is_not_replaced_by_a_folder() {
    let file = scratch("quantize-file").join("model");
    fs::write(&file, "mine").expect("writable");
    let message = failure(&["quantize", text(&unquantised("dense")), text(&file), "--force"], 1);
    assert!(message.contains("is a file") && message.contains(text(&file)), "{message}");
    assert_eq!(fs::read(&file).expect("still there"), b"mine");
}

/// A committed source without golden logits.
fn unquantised(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/bf16").join(name)
}

//! Files that are missing, cut short or no such file at all.

use std::{fs, path::PathBuf};

use crate::damage::{Case, Copy, cut, open, patch, refuse, relink, remove, tiny, write};

const CASES: &[Case] = &[
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

#[test]
fn damaged_files_are_named() {
    refuse(CASES);
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

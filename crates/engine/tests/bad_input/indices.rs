//! Indices of shards that lie.

use std::fs;

use serde_json::json;

use crate::damage::{Case, EMBED, SHARD_2, cut, edit_index, move_tensor, refuse, remove, write};

const CASES: &[Case] = &[
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

#[test]
fn indices_that_lie_are_named() {
    refuse(CASES);
}

//! Links, pipes and folders where a file should be.

use crate::damage::{Case, make_pipe, refuse, relink};

const CASES: &[Case] = &[
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
fn links_and_pipes_are_named() {
    refuse(CASES);
}

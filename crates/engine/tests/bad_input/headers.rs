//! Safetensors files whose header lies.

use std::fs;

use serde_json::{Value, json};

use crate::damage::{
    A_LOG, Case, EMBED, NORM, SCALES, SHARD_2, edit_entry, edit_header, read_header, refuse,
    write_header,
};

const CASES: &[Case] = &[
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

#[test]
fn headers_that_lie_are_named() {
    refuse(CASES);
}

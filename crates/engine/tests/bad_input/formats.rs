//! Checkpoints of other engines and other formats.

use std::fs;

use serde_json::{Value, json};

use crate::damage::{Case, EMBED, edit_config, quantised_by, refuse, remove, replace_all};

const CASES: &[Case] = &[
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

#[test]
fn other_formats_are_told_what_to_run() {
    refuse(CASES);
}

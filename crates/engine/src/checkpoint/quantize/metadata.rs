//! config.json and the other small files of a quantised checkpoint.

use serde_json::{Map, Value, json};

use super::Options;
use crate::{
    Error,
    checkpoint::{Source, config::Packing, folder::SMALL_FILES},
    model::{MlpShape, Shape},
};

/// What mlx-lm gives the router and the shared expert's gate, whatever the rest has.
pub(super) const GATE_PACKING: Packing = Packing { bits: 8, group: 64 };

/// The tokenizer and such, as they are.
pub(super) fn small_files(source: &Source) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
    let mut files = Vec::new();
    for name in SMALL_FILES {
        if let Some(bytes) = source.read_optional(name)? {
            files.push((name, bytes));
        }
    }
    Ok(files)
}

/// The source's config.json as `mlx_lm.convert -q` leaves it: without vision, with `quantization`
/// twice, sorted.
pub(super) fn config(
    source: &Source,
    mut fields: Map<String, Value>,
    shape: &Shape,
    options: &Options,
) -> Result<Value, Error> {
    fields.shift_remove("_name_or_path");
    fields.shift_remove("vision_config");
    if let Some(eos) = eos_for_generation(source)? {
        fields.insert("eos_token_id".into(), eos);
    }
    // mlx-lm has no model of the text-only type's name.
    if let Some(kind) = fields.get("model_type").and_then(Value::as_str)
        && let Some(whole) = kind.strip_suffix("_text")
    {
        let whole = whole.to_owned();
        fields.insert("model_type".into(), whole.into());
    }
    match fields.get_mut("text_config").and_then(Value::as_object_mut) {
        Some(text) => rename_rope_type(text),
        None => rename_rope_type(&mut fields),
    }
    let quantization = quantization(shape, options);
    fields.insert("quantization".into(), quantization.clone());
    fields.insert("quantization_config".into(), quantization);
    fields.sort_keys();
    Ok(Value::Object(fields))
}

/// The end tokens of generation_config.json, which mlx-lm prefers.
fn eos_for_generation(source: &Source) -> Result<Option<Value>, Error> {
    let name = "generation_config.json";
    let Some(bytes) = source.read_optional(name)? else { return Ok(None) };
    let mut value: Value = serde_json::from_slice(&bytes).map_err(|error| Error::Format {
        path: source.path().join(name),
        problem: error.to_string(),
    })?;
    let eos = value.get_mut("eos_token_id").map(Value::take);
    // What Python counts as false does not replace anything.
    Ok(eos.filter(|eos| match eos {
        Value::Number(id) => id.as_f64() != Some(0.0),
        Value::Array(ids) => !ids.is_empty(),
        _ => false,
    }))
}

/// mlx-lm's name for the kind of RoPE.
fn rename_rope_type(text: &mut Map<String, Value>) {
    if let Some(rope) = text.get_mut("rope_parameters").and_then(Value::as_object_mut)
        && !rope.contains_key("type")
        && let Some(kind) = rope.shift_remove("rope_type")
    {
        rope.insert("type".into(), kind);
    }
}

fn quantization(shape: &Shape, options: &Options) -> Value {
    let mut fields = Map::new();
    fields.insert("group_size".into(), options.group.into());
    fields.insert("bits".into(), options.bits.into());
    fields.insert("mode".into(), "affine".into());
    if let MlpShape::Moe { .. } = shape.mlp {
        let gate = json!({"group_size": GATE_PACKING.group, "bits": GATE_PACKING.bits});
        for layer in 0..shape.layers() {
            for module in ["gate", "shared_expert_gate"] {
                let name = format!("language_model.model.layers.{layer}.mlp.{module}");
                fields.insert(name, gate.clone());
            }
        }
    }
    Value::Object(fields)
}

//! `config.json` to a [`Shape`] and the rules of quantisation.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::Source;
use crate::{
    Error,
    model::{AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape},
};

/// No dimension of the family comes near; larger ones could overflow a product of three.
const DIMENSION_MAX: usize = 1 << 20;

/// What to do with weights that are packed in another way.
const WAY_OUT: &str = "calla reads MLX affine 4 and 8 bit; fetch the publisher's unquantised model and \
                       run `calla quantize SRC DST`";

/// What `config.json` says.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) path: PathBuf,
    pub(super) shape: Shape,
    pub(super) quantization: Quantization,
}

/// How matrices are packed: a default and exceptions by module name.
#[derive(Debug)]
pub(super) struct Quantization {
    default: Packing,
    overrides: HashMap<String, Packing>,
}

/// Packing of one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packing {
    pub(super) bits: usize,
    pub(super) group: usize,
}

impl Quantization {
    /// The packing of the module with this full name.
    pub(super) fn of(&self, module: &str) -> Packing {
        self.overrides.get(module).copied().unwrap_or(self.default)
    }
}

/// Reads and checks `config.json`.
pub(super) fn read(source: &Source) -> Result<Config, Error> {
    let path = source.path().join("config.json");
    let map = parse_object(&path, &source.read("config.json")?)?;
    parse(path, &map)
}

/// Reads and checks the `config.json` of a checkpoint that is not quantised yet: its dimensions,
/// and all its fields.
pub(super) fn read_unquantised(source: &Source) -> Result<(Shape, Map<String, Value>), Error> {
    let path = source.path().join("config.json");
    parse_unquantised(path, &source.read("config.json")?)
}

/// Checks the text of a `config.json`: whether what it describes can be run.
///
/// `path` is where the text comes from, for messages.
///
/// # Errors
/// [`Error::Config`] with the field, [`Error::Format`] for what is no JSON object.
pub fn check_config(path: &Path, text: &[u8]) -> Result<Shape, Error> {
    Ok(parse(path.to_owned(), &parse_object(path, text)?)?.shape)
}

/// Checks the text of a `config.json` of weights that are not quantised yet: whether what it
/// describes can be quantised.
///
/// `path` is where the text comes from, for messages.
///
/// # Errors
/// [`Error::Config`] with the field, [`Error::Format`] for what is no JSON object.
pub fn check_unquantised_config(path: &Path, text: &[u8]) -> Result<Shape, Error> {
    Ok(parse_unquantised(path.to_owned(), text)?.0)
}

fn parse_unquantised(path: PathBuf, text: &[u8]) -> Result<(Shape, Map<String, Value>), Error> {
    let map = parse_object(&path, text)?;
    let top = Fields { path: &path, prefix: "", map: &map };
    let (shape, text) = parse_shape(&top)?;
    for fields in [&top, &text] {
        for field in ["quantization", "quantization_config"] {
            if fields.has(field) {
                let problem = "present: these weights are quantised already; give the folder of \
                               the unquantised model";
                return Err(fields.wrong(field, problem));
            }
        }
    }
    Ok((shape, map))
}

fn parse_object(path: &Path, text: &[u8]) -> Result<Map<String, Value>, Error> {
    let problem = match serde_json::from_slice(text) {
        Ok(Value::Object(map)) => return Ok(map),
        _ if text.is_empty() => "is empty: fetch it again".into(),
        Ok(_) => "not a JSON object: fetch it again".into(),
        Err(error) => format!("{error}: cut short or damaged, fetch it again"),
    };
    Err(Error::Format { path: path.to_owned(), problem })
}

fn parse(path: PathBuf, map: &Map<String, Value>) -> Result<Config, Error> {
    let top = Fields { path: &path, prefix: "", map };
    let (shape, _) = parse_shape(&top)?;
    let quantization = quantization(&top)?;
    Ok(Config { path: path.clone(), shape, quantization })
}

/// The dimensions, and the part of the configuration that gives them.
fn parse_shape<'a>(top: &Fields<'a>) -> Result<(Shape, Fields<'a>), Error> {
    let kind = ModelKind::of(top)?;
    // A text-only conversion may be flat.
    let text = match top.object("text_config")? {
        Some(map) => Fields { path: top.path, prefix: "text_config.", map },
        None => Fields { path: top.path, prefix: "", map: top.map },
    };
    Ok((shape(top, &text, kind)?, text))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ModelKind {
    Dense,
    Moe,
}

impl ModelKind {
    fn of(top: &Fields<'_>) -> Result<Self, Error> {
        match top.string("model_type")?.as_deref() {
            Some("qwen3_5_moe" | "qwen3_5_moe_text") => Ok(Self::Moe),
            Some("qwen3_5" | "qwen3_5_text") => Ok(Self::Dense),
            Some(other) => Err(top.wrong(
                "model_type",
                format!(
                    "`{other}` is not of this family: calla runs Qwen3.5 and Qwen3.6, whose types are \
                     `qwen3_5_moe` and `qwen3_5`"
                ),
            )),
            None => Err(top.missing("model_type")),
        }
    }
}

fn shape(top: &Fields<'_>, text: &Fields<'_>, kind: ModelKind) -> Result<Shape, Error> {
    refuse_unsupported(text)?;
    let shape = Shape {
        hidden: text.dimension("hidden_size")?,
        vocab: text.dimension("vocab_size")?,
        mixers: mixers(text)?,
        attention: attention(text)?,
        delta_net: delta_net(text)?,
        mlp: mlp(text, kind)?,
        norm_eps: text.positive("rms_norm_eps")? as f32,
        context_max: text.dimension_up_to("max_position_embeddings", 1 << 30)?,
        tied_embeddings: match text.boolean("tie_word_embeddings")? {
            Some(tied) => tied,
            None => top.boolean("tie_word_embeddings")?.unwrap_or(false),
        },
        eos: if top.has("eos_token_id") {
            top.token_ids("eos_token_id")?
        } else {
            text.token_ids("eos_token_id")?
        },
    };
    Ok(shape)
}

/// Variants that the family's code knows and this engine does not compute.
fn refuse_unsupported(text: &Fields<'_>) -> Result<(), Error> {
    if let Some(act) = text.string("hidden_act")?
        && act != "silu"
    {
        return Err(text.wrong("hidden_act", format!("`{act}` is not supported, only `silu`")));
    }
    if text.boolean("attn_output_gate")? == Some(false) {
        return Err(text.wrong("attn_output_gate", "false is not supported"));
    }
    if text.boolean("attention_bias")? == Some(true) {
        return Err(text.wrong("attention_bias", "true is not supported"));
    }
    if text.map.get("mlp_only_layers").and_then(Value::as_array).is_some_and(|l| !l.is_empty()) {
        return Err(text.wrong("mlp_only_layers", "layers without experts are not supported"));
    }
    if text.optional_integer("decoder_sparse_step")?.is_some_and(|step| step != 1) {
        return Err(text.wrong("decoder_sparse_step", "only 1 is supported"));
    }
    Ok(())
}

fn mixers(text: &Fields<'_>) -> Result<Vec<MixerKind>, Error> {
    let layers = text.dimension_up_to("num_hidden_layers", 4096)?;
    let interval = text.optional_integer("full_attention_interval")?;
    if interval == Some(0) {
        return Err(text.wrong("full_attention_interval", "must be at least 1"));
    }
    let by_interval = |interval: u64| -> Vec<MixerKind> {
        let is_attention = |layer: u64| (layer + 1).is_multiple_of(interval);
        (0..layers as u64)
            .map(|l| if is_attention(l) { MixerKind::Attention } else { MixerKind::DeltaNet })
            .collect()
    };
    let Some(list) = text.map.get("layer_types").filter(|value| !value.is_null()) else {
        return Ok(by_interval(interval.unwrap_or(4)));
    };
    let listed = list
        .as_array()
        .and_then(|list| list.iter().map(mixer_kind).collect::<Option<Vec<MixerKind>>>())
        .ok_or_else(|| {
            let problem = "must be a list of `linear_attention` and `full_attention`";
            text.wrong("layer_types", problem)
        })?;
    if listed.len() != layers {
        let problem = format!("has {} entries for {layers} layers", listed.len());
        return Err(text.wrong("layer_types", problem));
    }
    if let Some(interval) = interval
        && by_interval(interval) != listed
    {
        let problem = format!("disagrees with full_attention_interval {interval}");
        return Err(text.wrong("layer_types", problem));
    }
    Ok(listed)
}

fn mixer_kind(value: &Value) -> Option<MixerKind> {
    match value.as_str()? {
        "linear_attention" => Some(MixerKind::DeltaNet),
        "full_attention" => Some(MixerKind::Attention),
        _ => None,
    }
}

fn attention(text: &Fields<'_>) -> Result<AttentionShape, Error> {
    let heads = text.dimension("num_attention_heads")?;
    let kv_heads = text.dimension("num_key_value_heads")?;
    let head_dim = text.dimension("head_dim")?;
    if !heads.is_multiple_of(kv_heads) {
        let problem = format!("{kv_heads} does not divide num_attention_heads {heads}");
        return Err(text.wrong("num_key_value_heads", problem));
    }
    let Some(rope) = text.object("rope_parameters")? else {
        return Err(text.missing("rope_parameters"));
    };
    let prefix = format!("{}rope_parameters.", text.prefix);
    let rope = Fields { path: text.path, prefix: &prefix, map: rope };
    for field in ["rope_type", "type"] {
        if let Some(kind) = rope.string(field)?
            && kind != "default"
        {
            return Err(rope.wrong(field, format!("`{kind}` is not supported, only `default`")));
        }
    }
    let factor = rope.positive("partial_rotary_factor")?;
    let rotary_dims = (head_dim as f64 * factor) as usize;
    if factor > 1.0 || rotary_dims == 0 || rotary_dims % 2 == 1 {
        let problem =
            format!("gives {rotary_dims} of {head_dim} dimensions: must be even, above 0");
        return Err(rope.wrong("partial_rotary_factor", problem));
    }
    let rope_theta = rope.positive("rope_theta")?;
    Ok(AttentionShape { heads, kv_heads, head_dim, rotary_dims, rope_theta })
}

fn delta_net(text: &Fields<'_>) -> Result<DeltaNetShape, Error> {
    let key_heads = text.dimension("linear_num_key_heads")?;
    let value_heads = text.dimension("linear_num_value_heads")?;
    if !value_heads.is_multiple_of(key_heads) {
        let problem = format!("{key_heads} does not divide linear_num_value_heads {value_heads}");
        return Err(text.wrong("linear_num_key_heads", problem));
    }
    let conv_taps = text.dimension_up_to("linear_conv_kernel_dim", 64)?;
    if conv_taps < 2 {
        return Err(text.wrong("linear_conv_kernel_dim", "must be at least 2"));
    }
    Ok(DeltaNetShape {
        key_heads,
        value_heads,
        key_dim: text.dimension("linear_key_head_dim")?,
        value_dim: text.dimension("linear_value_head_dim")?,
        conv_taps,
    })
}

fn mlp(text: &Fields<'_>, kind: ModelKind) -> Result<MlpShape, Error> {
    if kind == ModelKind::Dense {
        return Ok(MlpShape::Dense { width: text.dimension("intermediate_size")? });
    }
    let experts = text.dimension("num_experts")?;
    let experts_per_token = text.dimension("num_experts_per_tok")?;
    if experts_per_token > experts {
        let problem = format!("{experts_per_token} is more than num_experts {experts}");
        return Err(text.wrong("num_experts_per_tok", problem));
    }
    Ok(MlpShape::Moe {
        experts,
        experts_per_token,
        expert_width: text.dimension("moe_intermediate_size")?,
        shared_width: text.dimension("shared_expert_intermediate_size")?,
        renormalise: text.boolean("norm_topk_prob")?.unwrap_or(true),
    })
}

fn quantization(top: &Fields<'_>) -> Result<Quantization, Error> {
    let field = ["quantization", "quantization_config"].into_iter().find(|field| top.has(field));
    let Some(field) = field else {
        let problem = "missing: these weights are not quantised; convert them to MLX 4-bit first, \
                       with `calla quantize SRC DST`";
        return Err(top.wrong("quantization", problem));
    };
    let map = top.object(field)?.ok_or_else(|| top.missing(field))?;
    let prefix = format!("{field}.");
    let fields = Fields { path: top.path, prefix: &prefix, map };
    if let Some(method) = fields.string("quant_method")? {
        let problem = format!("`{method}` is not supported: {WAY_OUT}");
        return Err(fields.wrong("quant_method", problem));
    }
    let default = packing(&fields)?;
    let mut overrides = HashMap::new();
    for (name, value) in map {
        match value {
            Value::Object(map) => {
                let prefix = format!("{field}.{name}.");
                let fields = Fields { path: top.path, prefix: &prefix, map };
                overrides.insert(name.clone(), packing(&fields)?);
            }
            Value::Bool(false) => {
                let problem =
                    format!("leaves a matrix unquantised, which is not supported: {WAY_OUT}");
                return Err(fields.wrong(name, problem));
            }
            _ => {}
        }
    }
    Ok(Quantization { default, overrides })
}

fn packing(fields: &Fields<'_>) -> Result<Packing, Error> {
    if let Some(mode) = fields.string("mode")?
        && mode != "affine"
    {
        let problem = format!("`{mode}` is not supported, only `affine`: {WAY_OUT}");
        return Err(fields.wrong("mode", problem));
    }
    let bits = fields.dimension("bits")?;
    if ![4, 8].contains(&bits) {
        let problem = format!("{bits} is not supported, only 4 and 8: {WAY_OUT}");
        return Err(fields.wrong("bits", problem));
    }
    let group = fields.dimension("group_size")?;
    if ![32, 64, 128].contains(&group) {
        let problem = format!("{group} is not supported, only 32, 64 and 128: {WAY_OUT}");
        return Err(fields.wrong("group_size", problem));
    }
    Ok(Packing { bits, group })
}

/// A JSON object and where it stands, so that every complaint names its field.
struct Fields<'a> {
    path: &'a Path,
    prefix: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn wrong(&self, field: &str, problem: impl Into<String>) -> Error {
        let field = format!("{}{field}", self.prefix);
        Error::Config { path: self.path.to_path_buf(), field, problem: problem.into() }
    }

    fn missing(&self, field: &str) -> Error {
        self.wrong(field, "missing")
    }

    fn has(&self, field: &str) -> bool {
        self.present(field).is_some()
    }

    /// The field's value; JSON's null counts as absent, as in Python's configurations.
    fn present(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        field: &str,
        wanted: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.present(field) else { return Ok(None) };
        match convert(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(field, format!("must be {wanted}"))),
        }
    }

    fn object(&self, field: &str) -> Result<Option<&'a Map<String, Value>>, Error> {
        self.typed(field, "an object", Value::as_object)
    }

    fn string(&self, field: &str) -> Result<Option<String>, Error> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn boolean(&self, field: &str) -> Result<Option<bool>, Error> {
        self.typed(field, "true or false", Value::as_bool)
    }

    fn optional_integer(&self, field: &str) -> Result<Option<u64>, Error> {
        self.typed(field, "a whole number", Value::as_u64)
    }

    fn dimension(&self, field: &str) -> Result<usize, Error> {
        self.dimension_up_to(field, DIMENSION_MAX)
    }

    fn dimension_up_to(&self, field: &str, max: usize) -> Result<usize, Error> {
        let value = self.optional_integer(field)?.ok_or_else(|| self.missing(field))?;
        match usize::try_from(value) {
            Ok(value) if (1..=max).contains(&value) => Ok(value),
            _ => Err(self.wrong(field, format!("{value} is not between 1 and {max}"))),
        }
    }

    fn positive(&self, field: &str) -> Result<f64, Error> {
        let value = self.typed(field, "a number", Value::as_f64)?;
        let value = value.ok_or_else(|| self.missing(field))?;
        if !(value > 0.0 && value.is_finite()) {
            return Err(self.wrong(field, format!("{value} is not above 0")));
        }
        Ok(value)
    }

    /// A token id or a list of them; none when the field is absent.
    fn token_ids(&self, field: &str) -> Result<Vec<u32>, Error> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.typed(field, "a token id or a list of them", |value| match value {
            Value::Array(list) => list.iter().map(id).collect::<Option<Vec<u32>>>(),
            single => id(single).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({
            "model_type": "qwen3_5_moe",
            "eos_token_id": [7, 8],
            "quantization": {"group_size": 64, "bits": 4, "mode": "affine",
                "language_model.lm_head": {"group_size": 32, "bits": 8}},
            "text_config": {
                "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 1024,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4, "num_experts": 16, "num_experts_per_tok": 4,
                "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "eos_token_id": 3,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7,
                    "partial_rotary_factor": 0.25}
            }
        })
    }

    fn parse_value(value: &Value) -> Result<Config, Error> {
        parse("config.json".into(), value.as_object().expect("an object"))
    }

    #[test]
    fn a_good_configuration() {
        let config = parse_value(&good()).expect("good");
        assert_eq!(config.shape.mixers[2..], [MixerKind::DeltaNet, MixerKind::Attention]);
        assert_eq!(config.shape.attention.rotary_dims, 64);
        assert_eq!(config.shape.eos, [7, 8]);
        assert_eq!(config.quantization.of("x"), Packing { bits: 4, group: 64 });
        assert_eq!(
            config.quantization.of("language_model.lm_head"),
            Packing { bits: 8, group: 32 }
        );
    }

    #[test]
    fn a_flat_configuration_is_the_same() {
        let mut value = good();
        let text = value["text_config"].take();
        let top = value.as_object_mut().expect("an object");
        top.remove("text_config");
        for (key, field) in text.as_object().expect("an object") {
            top.entry(key).or_insert(field.clone());
        }
        assert_eq!(
            parse_value(&value).expect("good").shape,
            parse_value(&good()).expect("good").shape
        );
    }

    /// Each change makes an error that names the field.
    #[test]
    fn wrong_fields_are_named() {
        let cases: &[(&str, Value, &str)] = &[
            ("/model_type", json!("llama"), "model_type"),
            ("/quantization", Value::Null, "quantization"),
            ("/quantization/bits", json!(3), "quantization.bits"),
            ("/quantization/group_size", json!(48), "quantization.group_size"),
            ("/quantization/mode", json!("mxfp4"), "quantization.mode"),
            ("/text_config/hidden_size", json!(0), "text_config.hidden_size"),
            ("/text_config/hidden_size", json!(1e30), "text_config.hidden_size"),
            ("/text_config/hidden_size", json!("256"), "text_config.hidden_size"),
            ("/text_config/vocab_size", Value::Null, "text_config.vocab_size"),
            ("/text_config/num_key_value_heads", json!(3), "text_config.num_key_value_heads"),
            ("/text_config/num_experts_per_tok", json!(17), "text_config.num_experts_per_tok"),
            ("/text_config/rope_parameters", Value::Null, "text_config.rope_parameters"),
            (
                "/text_config/rope_parameters/partial_rotary_factor",
                json!(1.5),
                "text_config.rope_parameters.partial_rotary_factor",
            ),
            (
                "/text_config/rope_parameters/rope_type",
                json!("yarn"),
                "text_config.rope_parameters.rope_type",
            ),
            ("/text_config/rms_norm_eps", json!(-1), "text_config.rms_norm_eps"),
            ("/eos_token_id", json!(["x"]), "eos_token_id"),
        ];
        for (pointer, new, wanted) in cases {
            let mut value = good();
            *value.pointer_mut(pointer).expect("the field exists") = new.clone();
            match parse_value(&value) {
                Err(Error::Config { field, .. }) => assert_eq!(field, *wanted, "{pointer} = {new}"),
                other => panic!("{pointer} = {new}: {other:?}"),
            }
        }
    }

    #[test]
    fn layer_types_and_interval_must_agree() {
        let mut value = good();
        value["text_config"]["layer_types"] =
            json!(["full_attention", "linear_attention", "full_attention", "linear_attention"]);
        let config = parse_value(&value).expect("layer_types alone");
        assert_eq!(config.shape.mixers[0], MixerKind::Attention);
        value["text_config"]["full_attention_interval"] = json!(4);
        assert!(parse_value(&value).is_err());
    }
}

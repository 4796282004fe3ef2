//! The fields that steer generation, the same in every endpoint.

use calla_chat::{GenerationOptions, SamplingOverrides};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{body::Body, error::ApiError};

/// Most stop strings in a request.
const STOP_MAX: usize = 16;

/// Fields as clients send them. Ranges are checked by the engine, which knows them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationFields {
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<Value>,
    logit_bias: Option<Map<String, Value>>,
}

/// How the answer is delivered.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct StreamFields {
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl StreamFields {
    pub(crate) fn read(body: &Body) -> Result<Self, ApiError> {
        // serde would also take a list for the object.
        object_or_null(&body.0, "stream_options")?;
        body.read()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.stream == Some(true)
    }

    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }
}

/// Refuses a field that is there and no object.
pub(crate) fn object_or_null(body: &Map<String, Value>, field: &str) -> Result<(), ApiError> {
    match body.get(field) {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err(ApiError::field(field, "expected an object")),
    }
}

/// Reads everything but the log-probabilities, which each endpoint spells in its own way.
pub(crate) fn read_options(body: &Body) -> Result<GenerationOptions, ApiError> {
    let fields: GenerationFields = body.read()?;
    let sampling = SamplingOverrides {
        temperature: fields.temperature,
        top_k: fields.top_k.map(read_top_k).transpose()?,
        top_p: fields.top_p,
        min_p: fields.min_p,
        presence_penalty: fields.presence_penalty,
        frequency_penalty: fields.frequency_penalty,
        repetition_penalty: fields.repetition_penalty,
        logit_bias: read_logit_bias(fields.logit_bias.unwrap_or_default())?,
        // Clients may send any 64 bits; the sign is one of them.
        seed: fields.seed.map(|seed| seed as u64),
    };
    Ok(GenerationOptions {
        sampling,
        tokens_max: read_tokens_max(fields.max_tokens, fields.max_completion_tokens)?,
        stop: read_stop(fields.stop.as_ref())?,
        logprobs: None,
        deadline: None,
    })
}

/// -1 is another common spelling of "all".
fn read_top_k(top_k: i64) -> Result<usize, ApiError> {
    match top_k {
        -1 => Ok(0),
        _ => usize::try_from(top_k).map_err(|_| ApiError::field("top_k", "must not be negative")),
    }
}

/// The newer name wins.
fn read_tokens_max(older: Option<u64>, newer: Option<u64>) -> Result<Option<usize>, ApiError> {
    for (field, value) in [("max_completion_tokens", newer), ("max_tokens", older)] {
        match value {
            None => {}
            Some(0) => return Err(ApiError::field(field, "must be at least 1")),
            Some(tokens) => return Ok(Some(usize::try_from(tokens).unwrap_or(usize::MAX))),
        }
    }
    Ok(None)
}

/// A text or a list of texts; empty ones stop nothing.
fn read_stop(value: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let texts = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items.iter().collect(),
        Some(value) => vec![value],
    };
    if texts.len() > STOP_MAX {
        return Err(ApiError::field("stop", format!("at most {STOP_MAX} texts are supported")));
    }
    let mut stop = Vec::new();
    for text in texts {
        match text.as_str() {
            Some("") => {}
            Some(text) => stop.push(text.to_owned()),
            None => return Err(ApiError::field("stop", "expected a text or a list of texts")),
        }
    }
    Ok(stop)
}

fn read_logit_bias(biases: Map<String, Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let mut list = Vec::with_capacity(biases.len());
    for (token, bias) in &biases {
        let place = || format!("logit_bias.{token}");
        let id = token.parse();
        let id = id.map_err(|_| ApiError::field(place(), "the key must be a token id"))?;
        let bias = bias.as_f64();
        let bias = bias.ok_or_else(|| ApiError::field(place(), "expected a number"))?;
        list.push((id, bias as f32));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<GenerationOptions, String> {
        let body = Body(body.as_object().expect("an object").clone());
        read_options(&body).map_err(|error| error.to_string())
    }

    #[test]
    fn stop_may_be_a_text_a_list_or_empty() {
        for (stop, expected) in [
            (json!("a"), vec!["a"]),
            (json!(["a", "", "b"]), vec!["a", "b"]),
            (json!([]), vec![]),
            (json!(null), vec![]),
            (json!(""), vec![]),
        ] {
            assert_eq!(read(json!({ "stop": stop })).expect("well-formed").stop, expected);
        }
    }

    #[test]
    fn the_newer_name_of_the_limit_wins() {
        let options = read(json!({ "max_tokens": 3, "max_completion_tokens": 5 }));
        assert_eq!(options.expect("well-formed").tokens_max, Some(5));
    }

    #[test]
    fn an_error_names_its_field() {
        for (body, place) in [
            (json!({ "temperature": "hot" }), "`temperature`"),
            (json!({ "max_tokens": 0 }), "`max_tokens`"),
            (json!({ "max_tokens": -4 }), "`max_tokens`"),
            (json!({ "max_completion_tokens": 1.5 }), "`max_completion_tokens`"),
            (json!({ "top_k": -2 }), "`top_k`"),
            (json!({ "stop": 3 }), "`stop`"),
            (json!({ "stop": ["a", 3] }), "`stop`"),
            (json!({ "logit_bias": { "hello": 1 } }), "`logit_bias.hello`"),
            (json!({ "logit_bias": { "5": "x" } }), "`logit_bias.5`"),
            (json!({ "logit_bias": [] }), "`logit_bias`"),
            (json!({ "seed": "s" }), "`seed`"),
        ] {
            let error = read(body).expect_err(place);
            assert!(error.starts_with(place), "{error}, expected {place}");
        }
    }

    #[test]
    fn nulls_count_as_absent() {
        let options = read(json!({ "temperature": null, "top_k": null, "logit_bias": null }));
        assert_eq!(options.expect("well-formed").sampling, SamplingOverrides::default());
    }
}

//! Where a sampling value comes from when a request does not give it.

use calla_engine::{
    Error, Sampling,
    model::{MlpShape, Shape},
};
use serde::Serialize;
use serde_json::Value;

use crate::ChatError;

/// Sampling values that are given; the others come from the next source in line.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SamplingOverrides {
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`Sampling::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`Sampling::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling::logit_bias`].
    #[serde(skip)]
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`Sampling::seed`].
    pub seed: Option<u64>,
}

/// What fills the values that a request leaves out, first the server's flags, then one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingSource {
    /// The publisher's recommendation for this very model, by mode.
    Preset,
    /// The checkpoint's generation_config.json.
    GenerationConfig,
    /// Nothing is known: the most probable token.
    Greedy,
}

/// The defaults of a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingDefaults {
    flags: SamplingOverrides,
    preset: bool,
    generation_config: Option<SamplingOverrides>,
}

/// What the publisher recommends for Qwen3.6-35B-A3B when it thinks, from the model's card.
const THINKING: SamplingOverrides = preset(1.0, 0.95);
/// The same when it answers at once.
const NON_THINKING: SamplingOverrides = preset(0.7, 0.8);

const fn preset(temperature: f32, top_p: f32) -> SamplingOverrides {
    SamplingOverrides {
        temperature: Some(temperature),
        top_k: Some(20),
        top_p: Some(top_p),
        min_p: Some(0.0),
        presence_penalty: Some(1.5),
        frequency_penalty: None,
        repetition_penalty: None,
        logit_bias: Vec::new(),
        seed: None,
    }
}

impl SamplingDefaults {
    /// Defaults for the model of this shape. `flags` come from whoever started the program,
    /// `generation_config` is the checkpoint's file, parsed.
    ///
    /// # Errors
    /// [`ChatError::BadFile`] when that file holds a value that cannot be.
    pub fn new(
        shape: &Shape,
        flags: SamplingOverrides,
        generation_config: Option<&Value>,
    ) -> Result<Self, ChatError> {
        let read = generation_config.map(|config| read_generation_config(config, shape.vocab));
        let generation_config = read.transpose().map_err(|problem| ChatError::BadFile {
            file: "generation_config.json",
            problem: format!("{problem}: damaged, fetch it again"),
        })?;
        Ok(Self {
            flags,
            preset: is_35b_a3b(shape),
            generation_config: generation_config.flatten(),
        })
    }

    /// The values for a request: its own, else the flags', else the source's, else neutral ones
    /// with temperature 0.
    pub fn resolve(&self, request: &SamplingOverrides, thinking: bool) -> Sampling {
        let source = match self.source() {
            SamplingSource::Preset if thinking => THINKING,
            SamplingSource::Preset => NON_THINKING,
            SamplingSource::GenerationConfig => self.generation_config.clone().unwrap_or_default(),
            SamplingSource::Greedy => SamplingOverrides::default(),
        };
        request.clone().or(&self.flags).or(&source).or_neutral()
    }

    /// Where values come from that neither a request nor a flag gives.
    pub fn source(&self) -> SamplingSource {
        if self.preset {
            SamplingSource::Preset
        } else if self.generation_config.is_some() {
            SamplingSource::GenerationConfig
        } else {
            SamplingSource::Greedy
        }
    }

    /// The values that the program was started with.
    pub fn flags(&self) -> &SamplingOverrides {
        &self.flags
    }
}

impl SamplingOverrides {
    fn or(self, next: &SamplingOverrides) -> Self {
        Self {
            temperature: self.temperature.or(next.temperature),
            top_k: self.top_k.or(next.top_k),
            top_p: self.top_p.or(next.top_p),
            min_p: self.min_p.or(next.min_p),
            presence_penalty: self.presence_penalty.or(next.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(next.frequency_penalty),
            repetition_penalty: self.repetition_penalty.or(next.repetition_penalty),
            logit_bias: if self.logit_bias.is_empty() {
                next.logit_bias.clone()
            } else {
                self.logit_bias
            },
            seed: self.seed.or(next.seed),
        }
    }

    fn or_neutral(self) -> Sampling {
        let neutral = Sampling::default();
        Sampling {
            temperature: self.temperature.unwrap_or(neutral.temperature),
            top_k: self.top_k.unwrap_or(neutral.top_k),
            top_p: self.top_p.unwrap_or(neutral.top_p),
            min_p: self.min_p.unwrap_or(neutral.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            logit_bias: self.logit_bias,
            seed: self.seed,
        }
    }
}

/// The dimensions in the card of Qwen3.6-35B-A3B. Folder names are what users make of them.
fn is_35b_a3b(shape: &Shape) -> bool {
    let experts = match shape.mlp {
        MlpShape::Moe { experts, experts_per_token, .. } => (experts, experts_per_token),
        MlpShape::Dense { .. } => return false,
    };
    shape.layers() == 40 && shape.hidden == 2048 && experts == (256, 8)
}

/// `None` when the file gives no sampling value at all; an error tells the field and what is wrong.
fn read_generation_config(
    config: &Value,
    vocab: usize,
) -> Result<Option<SamplingOverrides>, String> {
    let given = |field: &str| config.get(field).filter(|value| !value.is_null());
    let wrong = |field: &str, value: &Value, expected: &str| {
        format!("{field}: expected {expected}, found {value}")
    };
    let number = |field: &str| match given(field) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number as f32)),
            None => Err(wrong(field, value, "a number")),
        },
    };
    let mut values = SamplingOverrides {
        temperature: number("temperature")?,
        top_k: match given("top_k").map(|value| (value, value.as_u64())) {
            None => None,
            Some((_, Some(count))) => usize::try_from(count).ok(),
            Some((value, None)) => {
                return Err(wrong("top_k", value, "a whole number, not negative"));
            }
        },
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repetition_penalty: number("repetition_penalty")?,
        ..SamplingOverrides::default()
    };
    match given("do_sample") {
        None | Some(Value::Bool(true)) => {}
        Some(Value::Bool(false)) => values.temperature = Some(0.0),
        Some(value) => return Err(wrong("do_sample", value, "true or false")),
    }
    if values == SamplingOverrides::default() {
        return Ok(None);
    }
    // The file's own default, as its format defines it.
    values.temperature.get_or_insert(1.0);
    match values.clone().or_neutral().check(vocab) {
        Ok(()) => Ok(Some(values)),
        Err(Error::Request { field, problem }) => Err(format!("{field}: {problem}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn defaults(preset: bool, flags: SamplingOverrides, config: Option<Value>) -> SamplingDefaults {
        let read = config.as_ref().map(|config| read_generation_config(config, 100));
        let generation_config = read.transpose().expect("well-formed").flatten();
        SamplingDefaults { flags, preset, generation_config }
    }

    #[test]
    fn a_request_wins_over_flags_and_flags_over_the_preset() {
        let flags = SamplingOverrides {
            temperature: Some(0.3),
            top_k: Some(5),
            ..SamplingOverrides::default()
        };
        let request = SamplingOverrides { temperature: Some(0.1), ..SamplingOverrides::default() };
        let sampling = defaults(true, flags, None).resolve(&request, true);
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.1, 5, 0.95));
        assert_eq!(sampling.presence_penalty, 1.5);
    }

    #[test]
    fn the_preset_depends_on_the_mode() {
        let model = defaults(true, SamplingOverrides::default(), None);
        let thinking = model.resolve(&SamplingOverrides::default(), true);
        let direct = model.resolve(&SamplingOverrides::default(), false);
        assert_eq!((thinking.temperature, thinking.top_p), (1.0, 0.95));
        assert_eq!((direct.temperature, direct.top_p), (0.7, 0.8));
    }

    #[test]
    fn an_unknown_model_follows_its_generation_config() {
        let config =
            json!({ "do_sample": true, "temperature": 0.6, "top_k": 20, "eos_token_id": [1] });
        let model = defaults(false, SamplingOverrides::default(), Some(config));
        let sampling = model.resolve(&SamplingOverrides::default(), true);
        assert_eq!((sampling.temperature, sampling.top_k), (0.6, 20));
        assert_eq!(model.source(), SamplingSource::GenerationConfig);
    }

    #[test]
    fn do_sample_false_means_greedy() {
        let config = json!({ "do_sample": false, "temperature": 0.6 });
        let model = defaults(false, SamplingOverrides::default(), Some(config));
        assert_eq!(model.resolve(&SamplingOverrides::default(), true).temperature, 0.0);
    }

    #[test]
    fn values_that_cannot_be_are_named() {
        for (config, says) in [
            (json!({ "temperature": "hot" }), "temperature: expected a number, found \"hot\""),
            (json!({ "temperature": -5 }), "temperature: -5, expected in [0, 2]"),
            (json!({ "temperature": 1e300 }), "temperature: inf, expected"),
            (json!({ "do_sample": false, "top_p": 3 }), "top_p: 3, expected in (0, 1]"),
            (json!({ "top_k": -1 }), "top_k: expected a whole number, not negative, found -1"),
            (json!({ "repetition_penalty": 0 }), "repetition_penalty: 0, expected above 0"),
            (json!({ "do_sample": 1 }), "do_sample: expected true or false, found 1"),
        ] {
            let error = read_generation_config(&config, 100).expect_err(says);
            assert!(error.starts_with(says), "{error}");
        }
        let nulls = json!({ "temperature": null, "top_k": null, "do_sample": null });
        assert_eq!(read_generation_config(&nulls, 100), Ok(None));
    }

    #[test]
    fn without_any_source_the_choice_is_greedy() {
        let model =
            defaults(false, SamplingOverrides::default(), Some(json!({ "eos_token_id": 3 })));
        assert_eq!(model.source(), SamplingSource::Greedy);
        assert_eq!(model.resolve(&SamplingOverrides::default(), true), Sampling::default());
    }
}

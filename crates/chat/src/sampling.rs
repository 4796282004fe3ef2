//! Where a sampling value comes from when a request does not give it.

use calla_engine::Sampling;
use calla_engine::model::{MlpShape, Shape};
use serde::Serialize;
use serde_json::Value;

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
    pub fn new(shape: &Shape, flags: SamplingOverrides, generation_config: Option<&Value>) -> Self {
        Self {
            flags,
            preset: is_35b_a3b(shape),
            generation_config: generation_config.and_then(read_generation_config),
        }
    }

    /// The values for a request: its own, else the flags', else the source's, else neutral ones
    /// with temperature 0.
    pub fn resolve(&self, request: &SamplingOverrides, thinking: bool) -> Sampling {
        let neutral = Sampling::default();
        let source = match self.source() {
            SamplingSource::Preset if thinking => THINKING,
            SamplingSource::Preset => NON_THINKING,
            SamplingSource::GenerationConfig => self.generation_config.clone().unwrap_or_default(),
            SamplingSource::Greedy => SamplingOverrides::default(),
        };
        let given = request.clone().or(&self.flags).or(&source);
        Sampling {
            temperature: given.temperature.unwrap_or(neutral.temperature),
            top_k: given.top_k.unwrap_or(neutral.top_k),
            top_p: given.top_p.unwrap_or(neutral.top_p),
            min_p: given.min_p.unwrap_or(neutral.min_p),
            presence_penalty: given.presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: given.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            repetition_penalty: given.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            logit_bias: given.logit_bias,
            seed: given.seed,
        }
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
}

/// The dimensions in the card of Qwen3.6-35B-A3B. Folder names are what users make of them.
fn is_35b_a3b(shape: &Shape) -> bool {
    let experts = match shape.mlp {
        MlpShape::Moe { experts, experts_per_token, .. } => (experts, experts_per_token),
        MlpShape::Dense { .. } => return false,
    };
    shape.layers() == 40 && shape.hidden == 2048 && experts == (256, 8)
}

/// `None` when the file gives no sampling value at all.
fn read_generation_config(config: &Value) -> Option<SamplingOverrides> {
    let number = |field: &str| config.get(field).and_then(Value::as_f64).map(|value| value as f32);
    let mut values = SamplingOverrides {
        temperature: number("temperature"),
        top_k: config.get("top_k").and_then(Value::as_u64).map(|value| value as usize),
        top_p: number("top_p"),
        min_p: number("min_p"),
        repetition_penalty: number("repetition_penalty"),
        ..SamplingOverrides::default()
    };
    if config.get("do_sample") == Some(&Value::Bool(false)) {
        values.temperature = Some(0.0);
    } else if values != SamplingOverrides::default() && values.temperature.is_none() {
        // The file's own default, as its format defines it.
        values.temperature = Some(1.0);
    }
    (values != SamplingOverrides::default()).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn defaults(preset: bool, flags: SamplingOverrides, config: Option<Value>) -> SamplingDefaults {
        let generation_config = config.as_ref().and_then(read_generation_config);
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
    fn without_any_source_the_choice_is_greedy() {
        let model =
            defaults(false, SamplingOverrides::default(), Some(json!({ "eos_token_id": 3 })));
        assert_eq!(model.source(), SamplingSource::Greedy);
        assert_eq!(model.resolve(&SamplingOverrides::default(), true), Sampling::default());
    }
}

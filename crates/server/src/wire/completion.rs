//! `POST /v1/completions`: its body, and its answer, whole or in chunks.

use calla_chat::{Answer, ChatEvent, CompletionRequest, Prompt, TokenLogprob, random_id};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    SYSTEM_FINGERPRINT,
    chat_answer::cut_short,
    generation::{self, StreamFields},
    refused, unix_time_s,
    usage::{finish_reason, usage},
};
use crate::{body::Body, error::ApiError, sse::Chunks};

/// What this endpoint generates when the request does not say, as its clients expect.
const TOKENS_MAX_DEFAULT: usize = 16;

/// A completion request and how its answer is delivered.
pub(crate) struct CompletionBody {
    pub(crate) request: CompletionRequest,
    pub(crate) stream: StreamFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionFields {
    logprobs: Option<u32>,
}

impl CompletionBody {
    /// Reads all that changes the answer, and refuses what cannot be honoured.
    pub(crate) fn read(body: &Body) -> Result<Self, ApiError> {
        refused::check(&body.0, &[refused::EVERYWHERE, refused::COMPLETION])?;
        let fields: CompletionFields = body.read()?;
        let mut options = generation::read_options(body)?;
        options.logprobs = fields.logprobs.map(|count| count as usize);
        options.tokens_max.get_or_insert(TOKENS_MAX_DEFAULT);
        let prompt = read_prompt(body.0.get("prompt"))?;
        Ok(Self {
            request: CompletionRequest { prompt, options },
            stream: StreamFields::read(body)?,
        })
    }
}

/// A text, a list of ids, or a list of exactly one of these.
fn read_prompt(value: Option<&Value>) -> Result<Prompt, ApiError> {
    match value {
        None | Some(Value::Null) => Err(ApiError::field("prompt", "is required")),
        Some(Value::String(text)) => Ok(Prompt::Text(text.clone())),
        Some(Value::Array(items)) => match items.as_slice() {
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [Value::Array(ids)] => read_ids(ids, "prompt[0]"),
            [Value::String(_) | Value::Array(_), ..] => {
                Err(ApiError::field("prompt", "one prompt a request is supported"))
            }
            ids => read_ids(ids, "prompt"),
        },
        Some(_) => Err(ApiError::field("prompt", "expected text or a list of token ids")),
    }
}

fn read_ids(ids: &[Value], place: &str) -> Result<Prompt, ApiError> {
    let read = |(index, id): (usize, &Value)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| ApiError::field(format!("{place}[{index}]"), "expected a token id"))
    };
    ids.iter().enumerate().map(read).collect::<Result<_, _>>().map(Prompt::Tokens)
}

/// The whole answer as one object. `with_logprobs`: the request asked for them.
pub(crate) fn whole(answer: Answer, model: &str, with_logprobs: bool) -> Result<Value, ApiError> {
    let (finish, used) = answer.end.as_ref().ok_or_else(cut_short)?;
    let finish_reason = finish_reason(finish)?;
    let logprobs = with_logprobs.then(|| logprobs(&answer.logprobs, &mut 0));
    Ok(json!({
        "id": random_id("cmpl-"),
        "object": "text_completion",
        "created": unix_time_s(),
        "model": model,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "choices": [{
            "index": 0,
            "text": answer.content,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }],
        "usage": usage(used),
    }))
}

/// Turns events into `text_completion` objects.
pub(crate) struct CompletionChunks {
    id: String,
    created: u64,
    model: String,
    includes_usage: bool,
    /// Wait for the text that they belong to.
    logprobs: Vec<TokenLogprob>,
    text_offset: usize, // characters
}

impl CompletionChunks {
    pub(crate) fn new(model: &str, includes_usage: bool) -> Self {
        Self {
            id: random_id("cmpl-"),
            created: unix_time_s(),
            model: model.to_owned(),
            includes_usage,
            logprobs: Vec::new(),
            text_offset: 0,
        }
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": choices,
        });
        if self.includes_usage {
            chunk["usage"] = usage;
        }
        chunk
    }

    fn text(&mut self, text: &str, finish_reason: Option<&str>) -> Value {
        let logprobs = match std::mem::take(&mut self.logprobs) {
            tokens if tokens.is_empty() => Value::Null,
            tokens => logprobs(&tokens, &mut self.text_offset),
        };
        let choice = json!({
            "index": 0,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        });
        self.chunk(json!([choice]), Value::Null)
    }
}

impl Chunks for CompletionChunks {
    fn chunks(&mut self, event: ChatEvent) -> Result<Vec<Value>, ApiError> {
        match event {
            ChatEvent::Logprob(logprob) => self.logprobs.push(logprob),
            ChatEvent::Content(text) => return Ok(vec![self.text(&text, None)]),
            ChatEvent::End { finish, usage: used } => {
                let mut chunks = vec![self.text("", Some(finish_reason(&finish)?))];
                if self.includes_usage {
                    chunks.push(self.chunk(json!([]), usage(&used)));
                }
                return Ok(chunks);
            }
            // A raw completion has no other events that clients could be told of.
            _ => {}
        }
        Ok(Vec::new())
    }
}

/// The older shape of log-probabilities: lists side by side. `text_offset` moves on.
fn logprobs(tokens: &[TokenLogprob], text_offset: &mut usize) -> Value {
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(*text_offset);
        *text_offset += token.token.text.chars().count();
    }
    let top = tokens.iter().map(|token| {
        let pairs = token.alternatives.iter().map(|(text, p)| (text.text.clone(), json!(p)));
        Value::Object(pairs.collect::<Map<_, _>>())
    });
    json!({
        "tokens": tokens.iter().map(|token| &token.token.text).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<CompletionRequest, String> {
        let body = Body(body.as_object().expect("an object").clone());
        CompletionBody::read(&body).map(|body| body.request).map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_is_text_or_ids() {
        for (prompt, expected) in [
            (json!("a"), Prompt::Text("a".into())),
            (json!(["a"]), Prompt::Text("a".into())),
            (json!([1, 2]), Prompt::Tokens(vec![1, 2])),
            (json!([[1, 2]]), Prompt::Tokens(vec![1, 2])),
        ] {
            assert_eq!(read(json!({ "prompt": prompt })).expect("well-formed").prompt, expected);
        }
    }

    #[test]
    fn an_error_names_its_field() {
        for (body, place) in [
            (json!({}), "`prompt`"),
            (json!({ "prompt": ["a", "b"] }), "`prompt`"),
            (json!({ "prompt": [1, -2] }), "`prompt[1]`"),
            (json!({ "prompt": [1, "b"] }), "`prompt[1]`"),
            (json!({ "prompt": [[1.5]] }), "`prompt[0][0]`"),
            (json!({ "prompt": 3 }), "`prompt`"),
            (json!({ "prompt": "a", "echo": true }), "`echo`"),
            (json!({ "prompt": "a", "suffix": "b" }), "`suffix`"),
            (json!({ "prompt": "a", "best_of": 2 }), "`best_of`"),
            (json!({ "prompt": "a", "logprobs": true }), "`logprobs`"),
        ] {
            let error = read(body).expect_err(place);
            assert!(error.starts_with(place), "{error}, expected {place}");
        }
    }
}

//! The answer of `POST /v1/chat/completions`, whole or in chunks.

use calla_chat::{Answer, ChatEvent, TokenLogprob, random_id};
use serde_json::{Value, json};

use super::{
    SYSTEM_FINGERPRINT, unix_time_s,
    usage::{finish_reason, usage},
};
use crate::{error::ApiError, sse::Chunks};

/// The whole answer as one object. `with_logprobs`: the request asked for them.
pub(crate) fn whole(answer: Answer, model: &str, with_logprobs: bool) -> Result<Value, ApiError> {
    let (finish, used) = answer.end.as_ref().ok_or_else(cut_short)?;
    let finish_reason = finish_reason(finish)?;
    let mut message = json!({ "role": "assistant", "content": answer.content, "refusal": null });
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = json!(answer.reasoning);
    }
    if !answer.tool_calls.is_empty() {
        if answer.content.is_empty() {
            message["content"] = Value::Null;
        }
        let calls = answer.tool_calls.iter().map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        });
        message["tool_calls"] = calls.collect();
    }
    let logprobs = with_logprobs.then(|| logprobs(&answer.logprobs));
    Ok(json!({
        "id": random_id("chatcmpl-"),
        "object": "chat.completion",
        "created": unix_time_s(),
        "model": model,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }],
        "usage": usage(used),
    }))
}

/// Turns events into `chat.completion.chunk` objects.
pub(crate) struct ChatChunks {
    id: String,
    created: u64,
    model: String,
    includes_usage: bool,
    has_role: bool,
    /// Wait for the content that they belong to.
    logprobs: Vec<TokenLogprob>,
}

impl ChatChunks {
    pub(crate) fn new(model: &str, includes_usage: bool) -> Self {
        Self {
            id: random_id("chatcmpl-"),
            created: unix_time_s(),
            model: model.to_owned(),
            includes_usage,
            has_role: false,
            logprobs: Vec::new(),
        }
    }

    fn chunk(&mut self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": choices,
        });
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&mut self, delta: Value, finish_reason: Option<&str>) -> Value {
        let logprobs = match std::mem::take(&mut self.logprobs) {
            tokens if tokens.is_empty() => Value::Null,
            tokens => logprobs(&tokens),
        };
        self.chunk(json!([{
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }]))
    }

    /// The first chunk only says who speaks.
    fn role(&mut self) -> Option<Value> {
        let first = !std::mem::replace(&mut self.has_role, true);
        first.then(|| self.delta(json!({ "role": "assistant", "content": "" }), None))
    }

    fn call(&mut self, call: Value) -> Value {
        self.delta(json!({ "tool_calls": [call] }), None)
    }
}

impl Chunks for ChatChunks {
    fn chunks(&mut self, event: ChatEvent) -> Result<Vec<Value>, ApiError> {
        let mut chunks = Vec::new();
        match event {
            ChatEvent::Started { .. } | ChatEvent::Queued { .. } | ChatEvent::Prefill { .. } => {}
            ChatEvent::Logprob(logprob) => self.logprobs.push(logprob),
            ChatEvent::Reasoning(text) => {
                chunks.extend(self.role());
                chunks.push(self.delta(json!({ "reasoning_content": text }), None));
            }
            ChatEvent::Content(text) => {
                // The role's chunk must not take the log-probabilities with it.
                let tokens = std::mem::take(&mut self.logprobs);
                chunks.extend(self.role());
                self.logprobs = tokens;
                chunks.push(self.delta(json!({ "content": text }), None));
            }
            ChatEvent::ToolCallStart { index, id, name } => {
                chunks.extend(self.role());
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": index, "id": id, "type": "function" });
                chunks.push(self.call(with(call, "function", function)));
            }
            ChatEvent::ToolCallArguments { index, json: text } => {
                let function = json!({ "arguments": text });
                chunks.push(self.call(json!({ "index": index, "function": function })));
            }
            ChatEvent::End { finish, usage: used } => {
                let reason = finish_reason(&finish)?;
                chunks.extend(self.role());
                chunks.push(self.delta(json!({}), Some(reason)));
                if self.includes_usage {
                    let last = self.chunk(json!([]));
                    chunks.push(with(last, "usage", usage(&used)));
                }
            }
        }
        Ok(chunks)
    }
}

/// An answer without an end: the engine went away.
pub(crate) fn cut_short() -> ApiError {
    ApiError::Internal("the answer was cut short".to_owned())
}

fn with(mut object: Value, field: &str, value: Value) -> Value {
    object[field] = value;
    object
}

fn logprobs(tokens: &[TokenLogprob]) -> Value {
    let content: Vec<Value> = tokens.iter().map(token_logprob).collect();
    json!({ "content": content, "refusal": null })
}

fn token_logprob(token: &TokenLogprob) -> Value {
    let entry = |text: &calla_chat::TokenText, logprob: f32| json!({ "token": text.text, "logprob": logprob, "bytes": text.bytes });
    let top: Vec<Value> = token.alternatives.iter().map(|(text, p)| entry(text, *p)).collect();
    with(entry(&token.token, token.logprob), "top_logprobs", json!(top))
}

//! The body of `POST /v1/chat/completions`.

use calla_chat::ChatRequest;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    body::Body,
    error::ApiError,
    wire::{
        generation::{self, StreamFields},
        message, refused, thinking,
    },
};

/// A chat request and how its answer is delivered.
pub(crate) struct ChatBody {
    pub(crate) request: ChatRequest,
    pub(crate) stream: StreamFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatFields {
    chat_template_kwargs: Option<Map<String, Value>>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    parallel_tool_calls: Option<bool>,
    preserve_thinking: Option<bool>,
}

impl ChatBody {
    /// Reads all that changes the answer, and refuses what cannot be honoured.
    pub(crate) fn read(body: &Body) -> Result<Self, ApiError> {
        refused::check(&body.0, &[refused::EVERYWHERE, refused::CHAT])?;
        let fields: ChatFields = body.read()?;
        let mut options = generation::read_options(body)?;
        options.logprobs = read_logprobs(&fields)?;
        let messages = body.0.get("messages").unwrap_or(&Value::Null);
        if messages.is_null() {
            return Err(ApiError::field("messages", "is required"));
        }
        let request = ChatRequest {
            messages: message::read_messages(messages)?,
            tools: read_tools(&body.0)?,
            thinking: thinking::read(&body.0)?,
            template_kwargs: read_template_kwargs(&fields)?,
            single_tool_call: fields.parallel_tool_calls == Some(false),
            options,
        };
        Ok(Self { request, stream: StreamFields::read(body)? })
    }
}

/// With `tool_choice` "none" the model is not shown the tools, so it cannot call one.
fn read_tools(body: &Map<String, Value>) -> Result<Vec<Value>, ApiError> {
    let tools = match body.get("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(tools) => message::read_tools(tools)?,
    };
    match body.get("tool_choice") {
        None | Some(Value::Null) => Ok(tools),
        Some(choice) if choice == "auto" => Ok(tools),
        Some(choice) if choice == "none" => Ok(Vec::new()),
        Some(_) => Err(ApiError::field(
            "tool_choice",
            "only \"auto\" and \"none\" are supported: the model cannot be forced to call",
        )),
    }
}

fn read_logprobs(fields: &ChatFields) -> Result<Option<usize>, ApiError> {
    match (fields.logprobs, fields.top_logprobs) {
        (Some(true), top) => Ok(Some(top.unwrap_or(0) as usize)),
        (_, None | Some(0)) => Ok(None),
        (_, Some(_)) => Err(ApiError::field("top_logprobs", "needs `logprobs`: true")),
    }
}

/// Variables for the template, without the one that [`thinking`] reads.
fn read_template_kwargs(fields: &ChatFields) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = fields.chat_template_kwargs.clone().unwrap_or_default();
    kwargs.remove("enable_thinking");
    for reserved in ["messages", "tools", "documents", "add_generation_prompt"] {
        if kwargs.contains_key(reserved) {
            let place = format!("chat_template_kwargs.{reserved}");
            return Err(ApiError::field(place, "is set by the server"));
        }
    }
    if let Some(preserve) = fields.preserve_thinking {
        kwargs.entry("preserve_thinking").or_insert(Value::Bool(preserve));
    }
    Ok(kwargs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(mut body: Value) -> Result<ChatBody, String> {
        let fields = body.as_object_mut().expect("an object");
        fields.entry("messages").or_insert(json!([{ "role": "user", "content": "x" }]));
        ChatBody::read(&Body(fields.clone())).map_err(|error| error.to_string())
    }

    #[test]
    fn what_sdks_always_send_is_neutral() {
        let body = read(json!({
            "model": "m", "store": false, "metadata": {}, "user": "u", "service_tier": "auto", "n": 1,
            "logprobs": false, "stop": [], "stream_options": { "include_usage": true },
            "parallel_tool_calls": true, "tools": [], "tool_choice": "auto", "top_logprobs": 0,
        }));
        let body = body.unwrap_or_else(|error| panic!("{error}"));
        assert!(body.request.options.logprobs.is_none() && !body.request.single_tool_call);
        assert!(body.stream.includes_usage() && !body.stream.is_stream());
    }

    #[test]
    fn tool_choice_none_hides_the_tools() {
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        let shown = read(json!({ "tools": tools })).expect("well-formed");
        let hidden = read(json!({ "tools": tools, "tool_choice": "none" }));
        assert_eq!(shown.request.tools.len(), 1);
        assert_eq!(hidden.expect("well-formed").request.tools.len(), 0);
    }

    #[test]
    fn an_error_names_its_field() {
        for (body, place) in [
            (json!({ "messages": null }), "`messages`"),
            (json!({ "messages": "hi" }), "`messages`"),
            (json!({ "tool_choice": "required" }), "`tool_choice`"),
            (json!({ "tool_choice": { "type": "function" } }), "`tool_choice`"),
            (json!({ "top_logprobs": 3 }), "`top_logprobs`"),
            (json!({ "logprobs": 3 }), "`logprobs`"),
            (json!({ "n": 2 }), "`n`"),
            (json!({ "stream": "yes" }), "`stream`"),
            (json!({ "stream_options": { "include_usage": 1 } }), "`stream_options.include_usage`"),
            (
                json!({ "chat_template_kwargs": { "messages": [] } }),
                "`chat_template_kwargs.messages`",
            ),
            (json!({ "stream_options": [] }), "`stream_options`: expected an object"),
            (json!({ "stream_options": true }), "`stream_options`: expected an object"),
            (json!({ "tools": [1] }), "`tools[0]`: expected an object"),
            (json!({ "chat_template_kwargs": 3 }), "`chat_template_kwargs`"),
        ] {
            let error = read(body).err().unwrap_or_else(|| panic!("{place} was accepted"));
            assert!(error.starts_with(place), "{error}, expected {place}");
        }
    }
}

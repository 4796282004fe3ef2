//! `messages` and `tools` of a chat body. An error names its place: `messages[2].content[0].type`.

use calla_chat::{Message, Role, ToolCall};
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Reads the whole conversation.
pub(crate) fn read_messages(value: &Value) -> Result<Vec<Message>, ApiError> {
    let messages = list(value, "messages")?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "must hold at least one message"));
    }
    let indexed = messages.iter().enumerate();
    indexed.map(|(index, message)| read_message(message, &format!("messages[{index}]"))).collect()
}

/// Checks the tools; the template gets them as they came, since the order of their keys counts.
pub(crate) fn read_tools(value: &Value) -> Result<Vec<Value>, ApiError> {
    let tools = list(value, "tools")?;
    for (index, tool) in tools.iter().enumerate() {
        let place = format!("tools[{index}]");
        object(tool, &place)?;
        if tool["type"] != "function" {
            return Err(ApiError::field(format!("{place}.type"), "only \"function\" is supported"));
        }
        let function = &tool["function"];
        if function["name"].as_str().is_none_or(str::is_empty) {
            let place = format!("{place}.function.name");
            return Err(ApiError::field(place, "expected the function's name"));
        }
        if !matches!(function["parameters"], Value::Null | Value::Object(_)) {
            let place = format!("{place}.function.parameters");
            return Err(ApiError::field(place, "expected a JSON schema object"));
        }
        if function["strict"] == Value::Bool(true) {
            let place = format!("{place}.function.strict");
            return Err(ApiError::field(place, "constrained output is not supported: send false"));
        }
    }
    Ok(tools.clone())
}

fn read_message(value: &Value, place: &str) -> Result<Message, ApiError> {
    let message = object(value, place)?;
    let role = match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        _ => {
            let expected = "expected system, developer, user, assistant or tool";
            return Err(ApiError::field(format!("{place}.role"), expected));
        }
    };
    let content = read_content(message.get("content"), &format!("{place}.content"))?;
    if role != Role::Assistant {
        return Ok(Message { role, content, ..Message::default() });
    }
    Ok(Message {
        role,
        content,
        reasoning: read_reasoning(message, place)?,
        tool_calls: read_tool_calls(message, place)?,
    })
}

/// Text, a list of text parts (which the template would join without a separator), or nothing.
fn read_content(value: Option<&Value>, place: &str) -> Result<String, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let indexed = parts.iter().enumerate();
            indexed.map(|(index, part)| read_part(part, &format!("{place}[{index}]"))).collect()
        }
        Some(_) => Err(ApiError::field(place, "expected text or a list of parts")),
    }
}

fn read_part<'a>(part: &'a Value, place: &str) -> Result<&'a str, ApiError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let fields = object(part, place)?;
    let field = match fields.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("image_url" | "image" | "input_image") => {
            return Err(ApiError::field(format!("{place}.type"), "images are not supported"));
        }
        Some(kind @ ("input_audio" | "video" | "video_url" | "file" | "input_file")) => {
            return Err(ApiError::field(
                format!("{place}.type"),
                format!("{kind} is not supported"),
            ));
        }
        _ => return Err(ApiError::field(format!("{place}.type"), "only \"text\" is supported")),
    };
    let text = fields.get(field).and_then(Value::as_str);
    text.ok_or_else(|| ApiError::field(format!("{place}.{field}"), "expected text"))
}

fn read_reasoning(message: &Map<String, Value>, place: &str) -> Result<Option<String>, ApiError> {
    for field in ["reasoning_content", "reasoning"] {
        match message.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => return Ok(Some(text.clone())),
            Some(_) => return Err(ApiError::field(format!("{place}.{field}"), "expected text")),
        }
    }
    Ok(None)
}

/// `tool_calls`, or the one call of the older `function_call`.
fn read_tool_calls(message: &Map<String, Value>, place: &str) -> Result<Vec<ToolCall>, ApiError> {
    match (message.get("tool_calls"), message.get("function_call")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => Ok(Vec::new()),
        (None | Some(Value::Null), Some(call)) => {
            Ok(vec![read_call(call, &format!("{place}.function_call"))?])
        }
        (Some(calls), _) => {
            let place = format!("{place}.tool_calls");
            let indexed = list(calls, &place)?.iter().enumerate();
            indexed
                .map(|(index, call)| {
                    read_call(&call["function"], &format!("{place}[{index}].function"))
                })
                .collect()
        }
    }
}

fn read_call(function: &Value, place: &str) -> Result<ToolCall, ApiError> {
    let name = function["name"].as_str().filter(|name| !name.is_empty());
    let name = name
        .ok_or_else(|| ApiError::field(format!("{place}.name"), "expected the function's name"))?;
    let arguments = match &function["arguments"] {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments.clone(),
        Value::String(text) => ToolCall::parse_arguments(text)
            .map_err(|problem| ApiError::field(format!("{place}.arguments"), problem))?,
        _ => {
            let place = format!("{place}.arguments");
            return Err(ApiError::field(place, "expected a JSON object, or one as text"));
        }
    };
    Ok(ToolCall { name: name.to_owned(), arguments })
}

fn list<'a>(value: &'a Value, place: &str) -> Result<&'a Vec<Value>, ApiError> {
    value.as_array().ok_or_else(|| ApiError::field(place, "expected a list"))
}

fn object<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, ApiError> {
    value.as_object().ok_or_else(|| ApiError::field(place, "expected an object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(messages: Value) -> Result<Vec<Message>, String> {
        read_messages(&messages).map_err(|error| error.to_string())
    }

    #[test]
    fn content_may_be_text_parts_null_or_absent() {
        let parts =
            json!([{ "type": "text", "text": "a" }, "b", { "type": "refusal", "refusal": "c" }]);
        for (content, expected) in
            [(json!("x"), "x"), (parts, "abc"), (json!(null), ""), (json!([]), "")]
        {
            let messages = read(json!([{ "role": "user", "content": content }]));
            assert_eq!(messages, Ok(vec![Message::user(expected)]));
        }
        assert_eq!(read(json!([{ "role": "developer" }])), Ok(vec![Message::system("")]));
    }

    #[test]
    fn arguments_may_be_text_an_object_or_nothing() {
        for arguments in [json!("{\"a\": 1}"), json!({ "a": 1 }), json!(""), json!(null)] {
            let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": arguments } });
            let messages =
                read(json!([{ "role": "assistant", "content": null, "tool_calls": [call] }]));
            let call = &messages.expect("well-formed")[0].tool_calls[0];
            let empty = arguments.is_null() || arguments == "";
            assert_eq!(call.arguments.len(), usize::from(!empty));
        }
    }

    #[test]
    fn both_names_of_reasoning_are_read() {
        for field in ["reasoning", "reasoning_content"] {
            let messages = read(json!([{ "role": "assistant", "content": "a", field: "hm" }]));
            assert_eq!(messages.expect("well-formed")[0].reasoning.as_deref(), Some("hm"));
        }
    }

    #[test]
    fn an_error_names_its_place() {
        let user = json!({ "role": "user", "content": "x" });
        let calls = |call: Value| json!({ "role": "assistant", "tool_calls": [call] });
        for (message, place) in [
            (json!({ "content": "x" }), "`messages[1].role`"),
            (json!({ "role": "king", "content": "x" }), "`messages[1].role`"),
            (json!({ "role": "user", "content": 3 }), "`messages[1].content`"),
            (
                json!({ "role": "user", "content": [{ "type": "text" }] }),
                "`messages[1].content[0].text`",
            ),
            (
                json!({ "role": "user", "content": ["a", { "type": "image_url", "image_url": {} }] }),
                "`messages[1].content[1].type`",
            ),
            (
                calls(json!({ "function": { "arguments": "{}" } })),
                "`messages[1].tool_calls[0].function.name`",
            ),
            (
                calls(json!({ "function": { "name": "f", "arguments": "{" } })),
                "`messages[1].tool_calls[0].function.arguments`",
            ),
            (json!("hello"), "`messages[1]`"),
        ] {
            let error = read(json!([user, message])).expect_err(place);
            assert!(error.starts_with(place), "{error}, expected {place}");
        }
        assert!(read(json!([])).expect_err("no messages").starts_with("`messages`"));
    }

    #[test]
    fn tools_must_be_named_functions() {
        for (tool, place) in [
            (json!({ "type": "custom" }), "`tools[0].type`"),
            (json!({ "type": "function", "function": {} }), "`tools[0].function.name`"),
            (
                json!({ "type": "function", "function": { "name": "f", "parameters": 1 } }),
                "`tools[0].function.parameters`",
            ),
            (
                json!({ "type": "function", "function": { "name": "f", "strict": true } }),
                "`tools[0].function.strict`",
            ),
        ] {
            let error = read_tools(&json!([tool])).expect_err(place).to_string();
            assert!(error.starts_with(place), "{error}");
        }
    }
}

//! Messages as callers give them, and what the chat template is shown instead.
//!
//! The family's template refuses what clients send every day: a second system message, a system
//! message that is not first, no user message. [`for_template`] rewrites such conversations so
//! that they keep their words and render.

use serde_json::{Map, Value, json};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; may be empty.
    pub content: String,
    /// What an assistant thought before. The template decides which turns still show it.
    pub reasoning: Option<String>,
    /// Calls that an assistant made.
    pub tool_calls: Vec<ToolCall>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Instructions. Several system messages count as one, in order.
    System,
    /// The one who asks.
    #[default]
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// A call that the model made in an earlier turn.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments in the order in which the model wrote them.
    pub arguments: Map<String, Value>,
}

impl Message {
    /// A message of instructions.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: Role::System, content: content.into(), ..Self::default() }
    }

    /// A user's message.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: Role::User, content: content.into(), ..Self::default() }
    }

    /// A model's answer.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: Role::Assistant, content: content.into(), ..Self::default() }
    }

    /// The result of a tool call.
    pub fn tool(content: impl Into<String>) -> Self {
        Self { role: Role::Tool, content: content.into(), ..Self::default() }
    }

    fn to_template(&self) -> Value {
        let mut value = json!({ "role": self.role.name(), "content": self.content });
        if let Some(reasoning) = &self.reasoning {
            value["reasoning_content"] = json!(reasoning);
        }
        if !self.tool_calls.is_empty() {
            value["tool_calls"] = self.tool_calls.iter().map(ToolCall::to_template).collect();
        }
        value
    }

    /// The template takes a user message of this form for a tool result, not for a question.
    fn is_wrapped_tool_response(&self) -> bool {
        let content = self.content.trim();
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>")
    }
}

impl Role {
    /// The word that ChatML uses.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl ToolCall {
    /// Reads arguments that came as JSON text; empty text means no arguments.
    ///
    /// # Errors
    /// What is wrong, when the text is not a JSON object.
    pub fn parse_arguments(text: &str) -> Result<Map<String, Value>, String> {
        if text.trim().is_empty() {
            return Ok(Map::new());
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(arguments)) => Ok(arguments),
            Ok(_) => Err("expected a JSON object".to_owned()),
            Err(error) => Err(format!("not valid JSON: {error}")),
        }
    }

    fn to_template(&self) -> Value {
        json!({
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

/// The conversation as the template takes it: one system message, first; at least one question of
/// a user, and never a tool result with nothing before it.
pub(crate) fn for_template(messages: &[Message]) -> Vec<Value> {
    let system: Vec<&Message> = messages.iter().filter(|m| m.role == Role::System).collect();
    let turns: Vec<&Message> = messages.iter().filter(|m| m.role != Role::System).collect();
    let has_question = turns.iter().any(|m| m.role == Role::User && !m.is_wrapped_tool_response());
    let opens_with_tool = turns.first().is_some_and(|m| m.role == Role::Tool);

    let mut rendered = Vec::with_capacity(messages.len() + 1);
    if !system.is_empty() {
        rendered.push(Message::system(merge_texts(&system)).to_template());
    }
    if !has_question || opens_with_tool {
        rendered.push(Message::user("").to_template());
    }
    rendered.extend(turns.into_iter().map(Message::to_template));
    rendered
}

fn merge_texts(messages: &[&Message]) -> String {
    let texts: Vec<&str> =
        messages.iter().map(|m| m.content.trim()).filter(|text| !text.is_empty()).collect();
    texts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(messages: &[Value]) -> Vec<&str> {
        messages.iter().map(|m| m["role"].as_str().expect("a role is a string")).collect()
    }

    #[test]
    fn system_messages_become_one_first_message_in_order() {
        let rendered = for_template(&[
            Message::system(" a "),
            Message::user("q"),
            Message::system(""),
            Message::assistant("r"),
            Message::system("b"),
        ]);
        assert_eq!(roles(&rendered), ["system", "user", "assistant"]);
        assert_eq!(rendered[0]["content"], "a\n\nb");
    }

    #[test]
    fn a_late_system_message_moves_to_the_front() {
        let rendered = for_template(&[Message::user("q"), Message::system("late")]);
        assert_eq!(roles(&rendered), ["system", "user"]);
    }

    #[test]
    fn a_conversation_without_a_question_gets_an_empty_one() {
        let wrapped = Message::user(" <tool_response>\nx\n</tool_response> ");
        for messages in [
            vec![Message::system("s")],
            vec![Message::assistant("hello")],
            vec![Message::system("s"), Message::assistant("hello"), wrapped],
        ] {
            let rendered = for_template(&messages);
            let question = rendered.iter().position(|m| m["role"] == "user" && m["content"] == "");
            assert_eq!(question, Some(usize::from(messages[0].role == Role::System)));
        }
    }

    #[test]
    fn a_leading_tool_result_gets_a_frame_to_stand_in() {
        let rendered = for_template(&[Message::tool("42"), Message::user("so?")]);
        assert_eq!(roles(&rendered), ["user", "tool", "user"]);
    }

    #[test]
    fn ordinary_conversations_pass_unchanged() {
        let call =
            ToolCall { name: "f".into(), arguments: Map::from_iter([("b".into(), json!(1))]) };
        let answer = Message {
            reasoning: Some("hm".into()),
            tool_calls: vec![call],
            ..Message::assistant("")
        };
        let rendered = for_template(&[Message::user("q"), answer, Message::tool("r")]);
        assert_eq!(roles(&rendered), ["user", "assistant", "tool"]);
        assert_eq!(rendered[1]["reasoning_content"], "hm");
        assert_eq!(rendered[1]["tool_calls"][0]["function"]["arguments"], json!({ "b": 1 }));
    }

    #[test]
    fn arguments_are_an_object_or_an_error() {
        assert_eq!(ToolCall::parse_arguments(" "), Ok(Map::new()));
        let parsed = ToolCall::parse_arguments(r#"{"z":1,"a":"é"}"#).expect("an object");
        assert_eq!(parsed.keys().collect::<Vec<_>>(), ["z", "a"]);
        for bad in ["[1]", "{", "null", "\"x\""] {
            assert!(ToolCall::parse_arguments(bad).is_err(), "{bad} was accepted");
        }
    }
}

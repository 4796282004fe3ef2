use crate::{ChatEvent, Finish, TokenLogprob, Usage};

/// A whole answer: the events of a [`crate::ChatStream`] put together.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// What the model thought.
    pub reasoning: String,
    /// What it says.
    pub content: String,
    /// The calls that it makes, in order.
    pub tool_calls: Vec<AnswerCall>,
    /// Log-probabilities of the content's tokens, when asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Why it ended and what it took; `None` until the end.
    pub end: Option<(Finish, Usage)>,
}

/// A call that the model makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerCall {
    /// Made up here; the client sends it back beside the result.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Its arguments: the text of a JSON object.
    pub arguments: String,
}

impl Answer {
    /// Adds what the event brings.
    pub fn add(&mut self, event: ChatEvent) {
        match event {
            ChatEvent::Started { .. } | ChatEvent::Queued { .. } | ChatEvent::Prefill { .. } => {}
            ChatEvent::Reasoning(text) => self.reasoning.push_str(&text),
            ChatEvent::Content(text) => self.content.push_str(&text),
            ChatEvent::ToolCallStart { id, name, .. } => {
                self.tool_calls.push(AnswerCall { id, name, arguments: String::new() });
            }
            ChatEvent::ToolCallArguments { index, json } => {
                if let Some(call) = self.tool_calls.get_mut(index) {
                    call.arguments.push_str(&json);
                }
            }
            ChatEvent::Logprob(logprob) => self.logprobs.push(logprob),
            ChatEvent::End { finish, usage } => self.end = Some((finish, usage)),
        }
    }
}

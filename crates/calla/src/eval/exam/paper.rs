//! The exam's file. The head of training/make_exam.py is its description.

use std::num::NonZeroUsize;

use calla_chat::{ChatRequest, GenerationOptions, Message, Role, SamplingOverrides, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest text of one message, fillers written out.
const CONTENT_BYTES_MAX: usize = 4 << 20;

/// All items, and the sentences that they share.
#[derive(Debug)]
pub(super) struct Paper {
    filler: Vec<String>,
    pub(super) items: Vec<Item>,
}

/// One question and how its answer is judged.
#[derive(Debug, Deserialize)]
#[serde(try_from = "ItemFields")]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) skill: String,
    pub(super) messages: Vec<ItemMessage>,
    pub(super) tools: Vec<Value>,
    pub(super) thinking: bool,
    tokens_max: usize,
    pub(super) judge: Judge,
}

/// What the answer is compared with. Every judge asks for a well-formed answer besides.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Judge {
    Exact(String),
    Json(Value),
    ToolCalls(Vec<Call>),
    Format,
}

/// A tool call, made or to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// A message as the file has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemMessage {
    role: ItemRole,
    content: Content,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ItemCall>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemRole {
    System,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Lines(Vec<Line>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    /// The shared sentences from the first number up to the second.
    Filler(usize, usize),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "function", rename_all = "lowercase")]
enum ItemCall {
    Function(Call),
}

impl Paper {
    /// Reads the whole file and checks that every item can be asked.
    ///
    /// # Errors
    /// What is wrong and where.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let Head { filler } =
            Head::deserialize(&mut json).map_err(|error| format!("the first line: {error}"))?;
        let mut items = Vec::new();
        while json.end().is_err() {
            items.push(Item::deserialize(&mut json).map_err(|error| error.to_string())?);
        }
        if items.is_empty() {
            return Err("holds no items".into());
        }
        let paper = Self { filler, items };
        for item in &paper.items {
            paper.messages(item).map_err(|problem| format!("item {}: {problem}", item.id))?;
        }
        Ok(paper)
    }

    /// Skills in the order of the file.
    pub(super) fn skills(&self) -> Vec<&str> {
        let mut skills = Vec::new();
        for item in &self.items {
            if !skills.contains(&item.skill.as_str()) {
                skills.push(&item.skill);
            }
        }
        skills
    }

    /// Items of a skill in the order of the file: all, or `count` that `seed` chooses.
    pub(super) fn choose(&self, skill: &str, count: Option<usize>, seed: u64) -> Vec<&Item> {
        let mut chosen: Vec<(usize, &Item)> =
            self.items.iter().filter(|item| item.skill == skill).enumerate().collect();
        if let Some(count) = count {
            chosen.sort_by_key(|(index, _)| mixed(seed, *index));
            chosen.truncate(count);
            chosen.sort_by_key(|(index, _)| *index);
        }
        chosen.into_iter().map(|(_, item)| item).collect()
    }

    /// The item as a client of the server would ask it, greedy.
    ///
    /// # Errors
    /// What is wrong with its messages.
    pub(super) fn request(&self, item: &Item) -> Result<ChatRequest, String> {
        Ok(ChatRequest {
            messages: self.messages(item)?,
            tools: item.tools.clone(),
            thinking: Some(item.thinking),
            options: GenerationOptions {
                sampling: greedy(),
                tokens_max: Some(item.tokens_max),
                ..GenerationOptions::default()
            },
            ..ChatRequest::default()
        })
    }

    fn messages(&self, item: &Item) -> Result<Vec<Message>, String> {
        item.messages.iter().map(|message| self.message(message)).collect()
    }

    fn message(&self, message: &ItemMessage) -> Result<Message, String> {
        let calls = message.tool_calls.iter().map(|ItemCall::Function(call)| call.to_message());
        Ok(Message {
            role: match message.role {
                ItemRole::System => Role::System,
                ItemRole::User => Role::User,
                ItemRole::Assistant => Role::Assistant,
                ItemRole::Tool => Role::Tool,
            },
            content: self.content(&message.content)?,
            reasoning: message.reasoning_content.clone(),
            tool_calls: calls.collect(),
        })
    }

    fn content(&self, content: &Content) -> Result<String, String> {
        let lines = match content {
            Content::Text(text) => return Ok(text.clone()),
            Content::Lines(lines) => lines,
        };
        let mut text = String::new();
        let mut add = |line: &str| {
            text.push_str(line);
            text.push('\n');
            match text.len() <= CONTENT_BYTES_MAX {
                true => Ok(()),
                false => Err(format!("a message is longer than {CONTENT_BYTES_MAX} bytes")),
            }
        };
        for line in lines {
            match line {
                Line::Text(line) => add(line)?,
                &Line::Filler(from, to) => {
                    let sentences = self.filler.get(from..to).ok_or_else(|| {
                        let count = self.filler.len();
                        format!("filler {from} to {to}: the first line holds {count} sentences")
                    })?;
                    sentences.iter().try_for_each(|line| add(line))?;
                }
            }
        }
        text.pop();
        Ok(text)
    }
}

impl Item {
    /// The right answer, where there is only one.
    pub(super) fn answer(&self) -> Option<Message> {
        match &self.judge {
            Judge::Exact(text) => Some(Message::assistant(text.clone())),
            Judge::Json(value) => Some(Message::assistant(value.to_string())),
            Judge::ToolCalls(calls) => Some(Message {
                tool_calls: calls.iter().map(Call::to_message).collect(),
                ..Message::assistant("")
            }),
            Judge::Format => None,
        }
    }
}

impl Call {
    fn to_message(&self) -> ToolCall {
        ToolCall { name: self.name.clone(), arguments: self.arguments.clone() }
    }
}

/// The most probable token, whatever the model's publisher recommends.
fn greedy() -> SamplingOverrides {
    SamplingOverrides {
        temperature: Some(0.0),
        presence_penalty: Some(0.0),
        frequency_penalty: Some(0.0),
        repetition_penalty: Some(1.0),
        ..SamplingOverrides::default()
    }
}

/// A number that looks random: the finaliser of splitmix64.
fn mixed(seed: u64, index: usize) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_mul(STEP) ^ (index as u64 + 1).wrapping_mul(STEP).rotate_left(32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    filler: Vec<String>,
}

/// An item as it stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemFields {
    id: String,
    skill: String,
    messages: Vec<ItemMessage>,
    #[serde(default)]
    tools: Vec<Value>,
    thinking: bool,
    max_tokens: NonZeroUsize,
    judge: JudgeName,
    expect: Option<Value>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JudgeName {
    Exact,
    Json,
    ToolCalls,
    Format,
}

impl TryFrom<ItemFields> for Item {
    type Error = String;

    fn try_from(fields: ItemFields) -> Result<Self, String> {
        let ItemFields { id, skill, messages, tools, thinking, max_tokens, judge, expect } = fields;
        let judge = match (judge, expect) {
            (JudgeName::Exact, Some(Value::String(text))) => Ok(Judge::Exact(text)),
            (JudgeName::Json, Some(value)) => Ok(Judge::Json(value)),
            (JudgeName::ToolCalls, Some(calls)) => serde_json::from_value(calls)
                .map(Judge::ToolCalls)
                .map_err(|error| format!("`expect`: {error}")),
            (JudgeName::Format, None) => Ok(Judge::Format),
            (judge, _) => Err(format!("`expect` does not go with the judge {judge:?}")),
        };
        let judge = judge.map_err(|problem| format!("item {id}: {problem}"))?;
        Ok(Item { id, skill, messages, tools, thinking, tokens_max: max_tokens.get(), judge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"filler":["zero","one","two"]}"#;

    fn paper(item: &str) -> Result<Paper, String> {
        Paper::parse(&format!("{HEAD}\n{item}\n"))
    }

    fn item(content: &str, rest: &str) -> String {
        format!(
            r#"{{"id":"a-00","skill":"a","messages":[{{"role":"user","content":{content}}}],"thinking":false,"max_tokens":9,{rest}}}"#
        )
    }

    #[test]
    fn lines_are_joined_and_fillers_written_out() {
        let content = r#"["first",[0,2],"then",[2,3]]"#;
        let paper = paper(&item(content, r#""judge":"format""#)).expect("it is well formed");
        let request = paper.request(&paper.items[0]).expect("checked");
        assert_eq!(request.messages, [Message::user("first\nzero\none\nthen\ntwo")]);
        assert_eq!(request.thinking, Some(false));
        assert_eq!(request.options.tokens_max, Some(9));
    }

    #[test]
    fn what_cannot_be_asked_or_judged_is_refused_with_its_place() {
        let format = r#""judge":"format""#;
        for (text, words) in [
            (item(r#"[[2,4]]"#, format), &["a-00", "2 to 4", "3 sentences"][..]),
            (item(r#"[[2,1]]"#, format), &["a-00", "2 to 1"]),
            (item("3", format), &["line 2"]),
            (item(r#""q""#, r#""judge":"exact""#), &["a-00", "expect"]),
            (item(r#""q""#, r#""judge":"exact","expect":3"#), &["a-00", "expect"]),
            (item(r#""q""#, r#""judge":"format","expect":"x""#), &["a-00", "expect"]),
            (item(r#""q""#, r#""judge":"tool_calls","expect":[{"name":"f"}]"#), &["arguments"]),
            (item(r#""q""#, r#""judge":"taste""#), &["taste", "line 2"]),
            (item(r#""q""#, r#""judge":"format","more":1"#), &["more", "line 2"]),
            (String::new(), &["no items"]),
            ("{".into(), &["line 3"]),
        ] {
            let problem = paper(&text).expect_err(&text);
            for word in words {
                assert!(problem.contains(word), "{word:?} is missing from {problem:?}");
            }
        }
        assert!(Paper::parse("").expect_err("empty").contains("first line"));
    }

    #[test]
    fn fillers_cannot_make_a_message_of_any_length() {
        let head = format!(r#"{{"filler":["{}"]}}"#, "x".repeat(1 << 20));
        let content = "[[0,1],[0,1],[0,1],[0,1],[0,1]]";
        let text = format!("{head}\n{}", item(content, r#""judge":"format""#));
        assert!(Paper::parse(&text).expect_err("too long").contains("bytes"));
    }

    #[test]
    fn a_seed_chooses_items_and_keeps_their_order() {
        let text: String = (0..50).map(|_| item(r#""q""#, r#""judge":"format""#) + "\n").collect();
        let mut paper = paper(&text).expect("well formed");
        for (index, item) in paper.items.iter_mut().enumerate() {
            item.id = format!("{index:02}");
        }
        let ids = |seed: u64| -> Vec<&str> {
            paper.choose("a", Some(9), seed).iter().map(|item| item.id.as_str()).collect()
        };
        let first = ids(0);
        assert_eq!(first.len(), 9);
        assert!(first.is_sorted());
        assert_eq!(first, ids(0));
        assert!((1..5).all(|seed| ids(seed) != first));
        assert_eq!(paper.choose("a", None, 0).len(), 50);
        assert_eq!(paper.choose("a", Some(99), 0).len(), 50);
    }
}

//! Right or wrong: the judges that the head of training/make_exam.py describes.

use calla_chat::{Answer, ChatStream, Finish};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::paper::{Call, Item, Judge};

const THINK_TAGS: [&str; 2] = ["<think>", "</think>"];

/// The model's answer as a client of the server sees it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Reply {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) tool_calls: Vec<ReplyCall>,
    /// Ended by the model, not by the limit on tokens.
    #[serde(skip)]
    pub(super) ended: bool,
    #[serde(skip)]
    pub(super) thought_open: bool,
    #[serde(skip)]
    pub(super) thought_tokens: usize,
}

/// A call as the model made it.
#[derive(Debug, Serialize)]
pub(super) struct ReplyCall {
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
}

/// What is wrong with a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is not well formed.
    Form(&'static str),
    /// It is, and says something else than expected.
    Answer(&'static str),
}

impl Reply {
    /// Waits for the answer's end.
    ///
    /// # Errors
    /// When the engine could not finish it.
    pub(super) fn of(mut stream: ChatStream) -> Result<Self, String> {
        let mut answer = Answer::default();
        while let Some(event) = stream.next_blocking() {
            answer.add(event);
        }
        let (finish, usage) = answer.end.ok_or("the engine ended without finishing the answer")?;
        let ended = match finish {
            Finish::Stop | Finish::ToolCalls => true,
            Finish::Length | Finish::Cancelled | Finish::Deadline => false,
            Finish::NotANumber => {
                return Err("the model gave values that are not numbers: is it damaged?".into());
            }
            Finish::Failed(error) => return Err(error.to_string()),
        };
        let calls = answer.tool_calls.into_iter();
        Ok(Self {
            reasoning: answer.reasoning,
            content: answer.content,
            tool_calls: calls
                .map(|call| ReplyCall { name: call.name, arguments: call.arguments })
                .collect(),
            ended,
            thought_open: stream.thought_open(),
            thought_tokens: usage.reasoning_tokens,
        })
    }

    /// Whether it is what the item expects.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn judge(&self, item: &Item) -> Result<(), Wrong> {
        self.form(item.thinking).map_err(Wrong::Form)?;
        self.compare(&item.judge).map_err(Wrong::Answer)
    }

    fn form(&self, thinking: bool) -> Result<(), &'static str> {
        let calls = self.tool_calls.iter().flat_map(|call| [&call.name, &call.arguments]);
        let said = || std::iter::once(&self.content).chain(calls.clone());
        let tagged = said().any(|text| THINK_TAGS.iter().any(|tag| text.contains(tag)));
        match () {
            () if !self.ended => Err("did not end by itself"),
            () if self.thought_open => Err("the thought was not closed"),
            () if !thinking && self.thought_tokens > 0 => Err("thought without being asked to"),
            () if tagged => Err("a think tag stands in the answer"),
            () if self.content.trim().is_empty() && self.tool_calls.is_empty() => {
                Err("nothing was said")
            }
            () => Ok(()),
        }
    }

    fn compare(&self, judge: &Judge) -> Result<(), &'static str> {
        match judge {
            Judge::Format => Ok(()),
            Judge::ToolCalls(expected) => self.compare_calls(expected),
            Judge::Exact(_) | Judge::Json(_) if !self.tool_calls.is_empty() => {
                Err("a tool was called")
            }
            Judge::Exact(expected) if self.content.trim() == expected => Ok(()),
            Judge::Exact(_) => Err("another text"),
            Judge::Json(expected) => match serde_json::from_str(self.content.trim()) {
                Ok(value) if equal(&value, expected) => Ok(()),
                Ok(_) => Err("another JSON value"),
                Err(_) => Err("no JSON"),
            },
        }
    }

    fn compare_calls(&self, expected: &[Call]) -> Result<(), &'static str> {
        if self.tool_calls.len() != expected.len() {
            return Err("another number of calls");
        }
        for (call, expected) in self.tool_calls.iter().zip(expected) {
            if call.name != expected.name {
                return Err("another tool");
            }
            match serde_json::from_str(&call.arguments) {
                Ok(Value::Object(arguments)) if same_arguments(&arguments, &expected.arguments) => {
                }
                Ok(_) => return Err("other arguments"),
                Err(_) => return Err("arguments that are no JSON"),
            }
        }
        Ok(())
    }
}

impl Wrong {
    pub(super) fn why(self) -> &'static str {
        match self {
            Wrong::Form(why) | Wrong::Answer(why) => why,
        }
    }
}

/// Equal JSON values; 5 and 5.0 are the same number.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => same_number(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => same_fields(a, b, equal),
        _ => a == b,
    }
}

fn same_number(a: &Number, b: &Number) -> bool {
    // Integers beyond 2^53 differ even where their nearest floats do not.
    a == b || ((a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64())
}

/// Arguments of a call: "5" is as good as 5, since the model writes both alike.
fn same_arguments(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    same_fields(a, b, |a, b| match (a, b) {
        (Value::String(text), other) | (other, Value::String(text)) if !other.is_string() => {
            let written = other.to_string();
            *text == written
        }
        _ => equal(a, b),
    })
}

fn same_fields(
    a: &Map<String, Value>,
    b: &Map<String, Value>,
    same: impl Fn(&Value, &Value) -> bool,
) -> bool {
    let same_field = |(name, a): (&String, &Value)| b.get(name).is_some_and(|b| same(a, b));
    a.len() == b.len() && a.iter().all(same_field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(content: &str) -> Reply {
        Reply { content: content.into(), ended: true, ..Reply::default() }
    }

    fn called(calls: &[(&str, &str)]) -> Reply {
        let tool_calls = calls
            .iter()
            .map(|&(name, arguments)| ReplyCall { name: name.into(), arguments: arguments.into() });
        Reply { tool_calls: tool_calls.collect(), ended: true, ..Reply::default() }
    }

    fn calls(calls: Value) -> Judge {
        Judge::ToolCalls(serde_json::from_value(calls).expect("well formed"))
    }

    #[test]
    fn a_text_is_exact_but_for_white_space_around_it() {
        let judge = Judge::Exact("The code is 7.".into());
        assert_eq!(said("\n The code is 7. ").compare(&judge), Ok(()));
        assert_eq!(said("The code is 8.").compare(&judge), Err("another text"));
        assert_eq!(said("the code is 7.").compare(&judge), Err("another text"));
        assert_eq!(said("The  code is 7.").compare(&judge), Err("another text"));
        let talkative = Reply { content: "The code is 7.".into(), ..called(&[("f", "{}")]) };
        assert_eq!(talkative.compare(&judge), Err("a tool was called"));
    }

    #[test]
    fn json_is_compared_by_value() {
        let judge = Judge::Json(json!({"a": 5, "b": [1.5, null, {"c": "x"}]}));
        let compare = |text: &str| said(text).compare(&judge);
        assert_eq!(compare(r#" {"b": [1.5, null, {"c": "x"}], "a": 5} "#), Ok(()));
        assert_eq!(compare(r#"{"a": 5.0, "b": [1.50, null, {"c": "x"}]}"#), Ok(()));
        for other in [
            r#"{"a": "5", "b": [1.5, null, {"c": "x"}]}"#,
            r#"{"a": 5, "b": [1.5, null, {"c": "x"}], "d": 1}"#,
            r#"{"a": 5, "b": [null, 1.5, {"c": "x"}]}"#,
            r#"{"a": 5, "b": [1.5, null, {"c": "X"}]}"#,
            r#"{"a": 5}"#,
        ] {
            assert_eq!(compare(other), Err("another JSON value"), "{other}");
        }
        assert_eq!(compare("Here: {}"), Err("no JSON"));
        assert!(!equal(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
    }

    #[test]
    fn calls_are_compared_by_name_order_and_arguments() {
        let judge = calls(json!([
            {"name": "f", "arguments": {"code": "9800", "n": 5, "on": true}},
            {"name": "g", "arguments": {}},
        ]));
        let compare = |f: &str| called(&[("f", f), ("g", "{}")]).compare(&judge);
        assert_eq!(compare(r#"{"n": 5, "code": "9800", "on": true}"#), Ok(()));
        // As text where one side is a string.
        assert_eq!(compare(r#"{"n": "5", "code": 9800, "on": "true"}"#), Ok(()));
        assert_eq!(compare(r#"{"n": 5.0, "code": "9800", "on": true}"#), Ok(()));
        for other in [
            r#"{"n": 5, "code": "9801", "on": true}"#,
            r#"{"n": 5, "code": "9800"}"#,
            r#"{"n": 5, "code": "9800", "on": true, "more": 1}"#,
            r#"{"n": "5.0", "code": "9800", "on": true}"#,
            r#"{"n": 5, "code": " 9800", "on": true}"#,
        ] {
            assert_eq!(compare(other), Err("other arguments"), "{other}");
        }
        assert_eq!(compare("{"), Err("arguments that are no JSON"));
        let f = r#"{"code": "9800", "n": 5, "on": true}"#;
        assert_eq!(called(&[("f", f)]).compare(&judge), Err("another number of calls"));
        assert_eq!(called(&[("g", "{}"), ("f", f)]).compare(&judge), Err("another tool"));
        assert_eq!(said("f").compare(&judge), Err("another number of calls"));
    }

    #[test]
    fn a_reply_of_bad_form_is_wrong_whatever_it_says() {
        let good = || said("Yes.");
        assert_eq!(good().form(false), Ok(()));
        assert_eq!(Reply { thought_tokens: 3, ..good() }.form(true), Ok(()));
        assert_eq!(called(&[("f", "{}")]).form(false), Ok(()));
        for (reply, thinking) in [
            (Reply { ended: false, ..good() }, false),
            (Reply { thought_open: true, ..called(&[("f", "{}")]) }, true),
            (Reply { thought_tokens: 1, ..good() }, false),
            (said(" \n"), false),
            (said("a</think>b"), true),
            (said("<think>"), false),
            (called(&[("f", r#"{"a": "</think>"}"#)]), false),
        ] {
            assert!(reply.form(thinking).is_err(), "{reply:?}");
        }
    }
}

//! Tool calls in generated text:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Values are not escaped. A value ends at a `</parameter>` that the format continues after; one
//! inside a value, followed by anything else, is part of the value.

use crate::output_parser::{Delta, Deltas};
use crate::stop_strings::overlap;
use crate::tool_schema::{ToolSchemas, ValueTypes};

pub(crate) const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION_OPEN: &str = "<function=";
const FUNCTION_CLOSE: &str = "</function>";
const PARAMETER_OPEN: &str = "<parameter=";
const PARAMETER_CLOSE: &str = "</parameter>";

/// Longer names are prose, not a call: bounds what is held back.
const NAME_BYTES_MAX: usize = 256;
/// White space between two tags of a call, in bytes: bounds what is held back.
const SPACE_BYTES_MAX: usize = 64;

/// Why a scan found nothing: the text ended too early, or it is something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoMatch {
    NeedMore,
    Fail,
}

/// The beginning of a call up to where its first value starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: String,
    first: Next,
    /// Bytes of text it takes.
    pub(crate) len: usize,
}

/// What follows the function's name or a value.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Parameter(String),
    FunctionClose,
    CallClose,
}

impl Header {
    /// Scans text that starts with `<tool_call>`.
    pub(crate) fn scan(text: &str) -> Result<Self, NoMatch> {
        let mut cursor = Cursor { rest: text };
        cursor.literal(OPEN)?;
        cursor.space()?;
        cursor.literal(FUNCTION_OPEN)?;
        let name = cursor.name()?;
        cursor.space()?;
        let first = cursor.next()?;
        if first == Next::CallClose {
            return Err(NoMatch::Fail);
        }
        Ok(Self { name, first, len: text.len() - cursor.rest.len() })
    }
}

/// A call under way: turns parameter text into argument deltas.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    index: usize,
    name: String,
    place: Place,
    has_arguments: bool,
}

#[derive(Debug, Clone)]
enum Place {
    Value(Value),
    AfterFunction,
}

#[derive(Debug, Clone)]
struct Value {
    types: ValueTypes,
    collected: String, // the value so far, unless it streams
    at_start: bool,
}

/// What [`Call::step`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    NeedMore,
    Advanced,
    /// The call is over. `closed`: its closing tag was read too.
    Done {
        closed: bool,
    },
}

impl Call {
    pub(crate) fn start(
        index: usize,
        header: Header,
        tools: &ToolSchemas,
        out: &mut Deltas,
    ) -> Self {
        out.push(Delta::ToolCallStart { index, name: header.name.clone() });
        let place = Place::AfterFunction;
        let mut call = Self { index, name: header.name, place, has_arguments: false };
        call.arguments(out, "{");
        call.enter(header.first, tools, out);
        call
    }

    /// Takes what it can from the front of `held`.
    pub(crate) fn step(
        &mut self,
        held: &mut String,
        tools: &ToolSchemas,
        out: &mut Deltas,
    ) -> Progress {
        match &mut self.place {
            Place::AfterFunction => {
                let mut cursor = Cursor { rest: held };
                match cursor.space().and_then(|()| cursor.literal(CLOSE)) {
                    Ok(()) => {
                        let len = held.len() - cursor.rest.len();
                        held.drain(..len);
                        Progress::Done { closed: true }
                    }
                    Err(NoMatch::NeedMore) => Progress::NeedMore,
                    Err(NoMatch::Fail) => Progress::Done { closed: false },
                }
            }
            Place::Value(value) => {
                if value.at_start && !held.is_empty() {
                    value.at_start = false;
                    if held.starts_with('\n') {
                        held.remove(0);
                    }
                }
                let end = ValueEnd::find(held);
                let text: String = held.drain(..end.value_len).collect();
                self.value_text(&text, out);
                let Some((tag_len, next)) = end.next else { return Progress::NeedMore };
                held.drain(..tag_len);
                self.close_value(out);
                if self.enter(next, tools, out) {
                    return Progress::Done { closed: true };
                }
                Progress::Advanced
            }
        }
    }

    /// The text ended here. Returns whether the call was cut off: its arguments are then closed so
    /// that they stay valid JSON, but the model had not finished them.
    pub(crate) fn finish(&mut self, held: &str, out: &mut Deltas) -> bool {
        if let Place::AfterFunction = self.place {
            return false;
        }
        let text = match held.rfind(PARAMETER_CLOSE) {
            Some(at) if continues(&held[at..]) == Err(NoMatch::NeedMore) => {
                held[..at].strip_suffix('\n').unwrap_or(&held[..at])
            }
            _ => held,
        };
        self.value_text(text, out);
        self.close_value(out);
        self.close_arguments(out);
        true
    }

    /// Goes to what follows; true when that ends the call with its closing tag.
    fn enter(&mut self, next: Next, tools: &ToolSchemas, out: &mut Deltas) -> bool {
        match next {
            Next::Parameter(key) => {
                let types = tools.types_of(&self.name, &key);
                let comma = if self.has_arguments { ", " } else { "" };
                let quote = if types.is_text_only() { "\"" } else { "" };
                self.has_arguments = true;
                self.arguments(out, &format!("{comma}{}: {quote}", json_string(&key)));
                let value = Value { types, collected: String::new(), at_start: true };
                self.place = Place::Value(value);
                false
            }
            Next::FunctionClose => {
                self.close_arguments(out);
                self.place = Place::AfterFunction;
                false
            }
            Next::CallClose => {
                self.close_arguments(out);
                true
            }
        }
    }

    fn value_text(&mut self, text: &str, out: &mut Deltas) {
        let Place::Value(value) = &mut self.place else { return };
        if !value.types.is_text_only() {
            value.collected.push_str(text);
        } else if !text.is_empty() {
            let quoted = json_string(text);
            self.arguments(out, &quoted[1..quoted.len() - 1]);
        }
    }

    fn close_value(&self, out: &mut Deltas) {
        let Place::Value(value) = &self.place else { return };
        if value.types.is_text_only() {
            self.arguments(out, "\"");
        } else {
            self.arguments(out, &value.types.to_json(&value.collected));
        }
    }

    fn close_arguments(&self, out: &mut Deltas) {
        self.arguments(out, "}");
        out.push(Delta::ToolCallEnd { index: self.index });
    }

    fn arguments(&self, out: &mut Deltas, delta: &str) {
        out.push(Delta::ToolCallArguments { index: self.index, delta: delta.to_owned() });
    }
}

/// How much of the held text is surely value, and what ends the value if that is there.
struct ValueEnd {
    value_len: usize,
    next: Option<(usize, Next)>, // bytes of the frame after the value
}

impl ValueEnd {
    fn find(held: &str) -> Self {
        let mut from = 0;
        let undecided = loop {
            let Some(at) = held[from..].find(PARAMETER_CLOSE).map(|at| from + at) else {
                break held.len() - overlap(held, PARAMETER_CLOSE);
            };
            match continues(&held[at..]) {
                Ok((len, next)) => {
                    let value_len = at - usize::from(held[..at].ends_with('\n'));
                    return Self { value_len, next: Some((at + len - value_len, next)) };
                }
                Err(NoMatch::NeedMore) => break at,
                Err(NoMatch::Fail) => from = at + PARAMETER_CLOSE.len(),
            }
        };
        // A newline before what may be the closing tag may be frame.
        let value_len = undecided - usize::from(held[..undecided].ends_with('\n'));
        Self { value_len, next: None }
    }
}

/// Scans a `</parameter>` and the tag that must follow for it to count; also gives their length.
fn continues(text: &str) -> Result<(usize, Next), NoMatch> {
    let mut cursor = Cursor { rest: text };
    cursor.literal(PARAMETER_CLOSE)?;
    cursor.space()?;
    let next = cursor.next()?;
    Ok((text.len() - cursor.rest.len(), next))
}

struct Cursor<'a> {
    rest: &'a str,
}

impl Cursor<'_> {
    fn literal(&mut self, literal: &str) -> Result<(), NoMatch> {
        if let Some(rest) = self.rest.strip_prefix(literal) {
            self.rest = rest;
            return Ok(());
        }
        Err(if literal.starts_with(self.rest) { NoMatch::NeedMore } else { NoMatch::Fail })
    }

    fn space(&mut self) -> Result<(), NoMatch> {
        let rest = self.rest.trim_start();
        if self.rest.len() - rest.len() > SPACE_BYTES_MAX {
            return Err(NoMatch::Fail);
        }
        self.rest = rest;
        Ok(())
    }

    fn name(&mut self) -> Result<String, NoMatch> {
        let end = self.rest.find(['>', '<', '\n']);
        match end {
            Some(end) if end > 0 && end <= NAME_BYTES_MAX && self.rest[end..].starts_with('>') => {
                let name = self.rest[..end].to_owned();
                self.rest = &self.rest[end + 1..];
                Ok(name)
            }
            None if self.rest.len() <= NAME_BYTES_MAX => Err(NoMatch::NeedMore),
            _ => Err(NoMatch::Fail),
        }
    }

    fn next(&mut self) -> Result<Next, NoMatch> {
        let mut no_match = NoMatch::Fail;
        for (tag, next) in [(FUNCTION_CLOSE, Next::FunctionClose), (CLOSE, Next::CallClose)] {
            match self.literal(tag) {
                Ok(()) => return Ok(next),
                Err(NoMatch::NeedMore) => no_match = NoMatch::NeedMore,
                Err(NoMatch::Fail) => {}
            }
        }
        match self.literal(PARAMETER_OPEN) {
            Ok(()) => self.name().map(Next::Parameter),
            Err(NoMatch::NeedMore) => Err(NoMatch::NeedMore),
            Err(NoMatch::Fail) => Err(no_match),
        }
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

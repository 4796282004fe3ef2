//! Step 8: generated text to reasoning, content and tool calls, as it arrives.
//!
//! What belongs to the frame and is not passed on, besides the markers: one newline after `<think>`
//! and one before `</think>`; up to two newlines after `</think>`, before `<tool_call>` and after
//! `</tool_call>`. Rendering the parsed turn again puts them back.
//!
//! A marker counts only where it can be one: `<think>` before any content, `</think>` inside
//! reasoning, `<tool_call>` when tools are declared and a well-formed call follows. Everywhere else
//! it is text like any other and passed on byte for byte.

use crate::reasoning::{self, Start};
use crate::tool_call::{self, Call, Header, NoMatch, Progress};
use crate::tool_schema::ToolSchemas;

/// A piece of the answer. Pieces of one kind, joined, are the same however the text was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text of the model's thinking.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A tool call begins; calls are numbered from 0.
    ToolCallStart {
        /// Number of the call.
        index: usize,
        /// The function called, not necessarily one that was declared.
        name: String,
    },
    /// More of the call's arguments: joined, they are one JSON object.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// A piece of JSON text.
        delta: String,
    },
    /// The call's arguments are complete.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
    },
}

/// Splits one answer.
#[derive(Debug, Clone)]
pub struct OutputParser {
    tools: ToolSchemas,
    place: Place,
    held: String,
    /// Newlines that are frame if they come next.
    newlines_due: usize,
    /// Reasoning that a tool call ended; its `</think>` may still come.
    thinking_left_open: bool,
    /// Something other than white space was passed on in the present place.
    has_text: bool,
    call_count: usize,
    cut_call: bool,
}

#[derive(Debug, Clone)]
enum Place {
    Reasoning,
    Content,
    Call(Call),
}

impl OutputParser {
    /// A parser for the answer to a prompt.
    ///
    /// `prompt_tail` is the end of the rendered prompt, at least the assistant's opener: whether it
    /// leaves `<think>` open decides where the answer starts. `tools` are the request's tools; with
    /// none, `<tool_call>` is text.
    pub fn new(prompt_tail: &str, tools: &[serde_json::Value]) -> Self {
        let start = Start::from_prompt_tail(prompt_tail);
        Self {
            tools: ToolSchemas::new(tools),
            place: if start.inside_reasoning { Place::Reasoning } else { Place::Content },
            held: String::new(),
            newlines_due: start.newlines_due,
            thinking_left_open: false,
            has_text: false,
            call_count: 0,
            cut_call: false,
        }
    }

    /// Takes the next text; returns what is decided by now.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut out = Deltas::default();
        while self.step(&mut out) {}
        out.0
    }

    /// The text is over: returns what was held back, and closes an open call.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Deltas::default();
        let held = std::mem::take(&mut self.held);
        match &mut self.place {
            Place::Call(call) => self.cut_call = call.finish(&held, &mut out),
            Place::Reasoning | Place::Content => self.text(&held, &mut out),
        }
        out.0
    }

    /// Whether the answer is inside its reasoning.
    pub fn in_reasoning(&self) -> bool {
        matches!(self.place, Place::Reasoning)
    }

    /// Whether the model has opened a thought, or was given an open one, and not closed it: a tool
    /// call ends the reasoning, but does not close the thought.
    pub fn thought_open(&self) -> bool {
        self.in_reasoning() || self.thinking_left_open
    }

    /// After [`OutputParser::finish`]: whether the last call was cut off inside its arguments. They
    /// were closed to stay valid JSON, but are not what the model would have sent.
    pub fn cut_call(&self) -> bool {
        self.cut_call
    }

    /// One decision; false when more text is needed for the next.
    fn step(&mut self, out: &mut Deltas) -> bool {
        if let Place::Call(call) = &mut self.place {
            match call.step(&mut self.held, &self.tools, out) {
                Progress::NeedMore => return false,
                Progress::Advanced => {}
                Progress::Done { closed } => {
                    self.enter(Place::Content, if closed { NEWLINES_AROUND_CALL } else { 0 });
                }
            }
            return true;
        }
        while self.newlines_due > 0 && self.held.starts_with('\n') {
            self.held.remove(0);
            self.newlines_due -= 1;
        }
        if self.held.is_empty() {
            return false;
        }
        self.newlines_due = 0;
        self.prose_step(out)
    }

    /// Passes text on up to the next marker and obeys the marker.
    fn prose_step(&mut self, out: &mut Deltas) -> bool {
        let (marker, at) = self.next_marker();
        let newlines_of_frame = match &marker {
            Marker::ThinkClose => 1,
            Marker::ThinkOpen | Marker::Call(_) => NEWLINES_AROUND_CALL,
            Marker::Undecided if self.expects_marker() => NEWLINES_AROUND_CALL,
            Marker::Undecided => 0,
        };
        let before = &self.held[..at];
        let newlines = before.len() - before.trim_end_matches('\n').len();
        let text_len = at - newlines.min(newlines_of_frame);
        let text: String = self.held.drain(..text_len).collect();
        self.text(&text, out);
        let marker_at = at - text_len;
        match marker {
            Marker::Undecided => return false,
            Marker::ThinkOpen => {
                self.held.drain(..marker_at + reasoning::OPEN.len());
                self.enter(Place::Reasoning, reasoning::NEWLINES_AFTER_OPEN);
            }
            Marker::ThinkClose => {
                self.held.drain(..marker_at + reasoning::CLOSE.len());
                self.thinking_left_open = false;
                self.enter(Place::Content, reasoning::NEWLINES_AFTER_CLOSE);
            }
            Marker::Call(header) => {
                self.held.drain(..marker_at + header.len);
                self.thinking_left_open |= self.in_reasoning();
                let call = Call::start(self.call_count, header, &self.tools, out);
                self.call_count += 1;
                self.enter(Place::Call(call), 0);
            }
        }
        true
    }

    /// The first marker in the held text and where it, or what may become it, starts.
    fn next_marker(&self) -> (Marker, usize) {
        for (at, _) in self.held.match_indices('<') {
            let rest = &self.held[at..];
            let open_counts = !self.has_text && self.held[..at].trim().is_empty();
            let close_counts = self.in_reasoning() || self.thinking_left_open;
            let candidates = [
                (reasoning::OPEN, open_counts),
                (reasoning::CLOSE, close_counts),
                (tool_call::OPEN, !self.tools.is_empty()),
            ];
            for (marker, _) in candidates.iter().filter(|(_, counts)| *counts) {
                if marker.len() > rest.len() && marker.starts_with(rest) {
                    return (Marker::Undecided, at);
                }
                match *marker {
                    _ if !rest.starts_with(marker) => {}
                    reasoning::OPEN => return (Marker::ThinkOpen, at),
                    reasoning::CLOSE => return (Marker::ThinkClose, at),
                    _ => match Header::scan(rest) {
                        Ok(header) => return (Marker::Call(header), at),
                        Err(NoMatch::NeedMore) => return (Marker::Undecided, at),
                        Err(NoMatch::Fail) => {}
                    },
                }
            }
        }
        (Marker::Undecided, self.held.len())
    }

    /// Whether a marker may still come that takes newlines before it as frame.
    fn expects_marker(&self) -> bool {
        self.in_reasoning() || !self.tools.is_empty() || !self.has_text || self.thinking_left_open
    }

    fn enter(&mut self, place: Place, newlines_due: usize) {
        // After a call or reasoning nothing may open reasoning again.
        self.has_text = matches!(place, Place::Content);
        self.newlines_due = newlines_due;
        self.place = place;
    }

    fn text(&mut self, text: &str, out: &mut Deltas) {
        if text.is_empty() {
            return;
        }
        self.has_text |= !text.trim().is_empty();
        out.push(match self.place {
            Place::Reasoning => Delta::Reasoning(text.to_owned()),
            Place::Content | Place::Call(_) => Delta::Content(text.to_owned()),
        });
    }
}

/// Newlines that the template writes between content and a call, the most it writes around one.
const NEWLINES_AROUND_CALL: usize = 2;

#[derive(Debug)]
enum Marker {
    ThinkOpen,
    ThinkClose,
    Call(Header),
    /// No marker, or too little text to know.
    Undecided,
}

/// Collects deltas, joining neighbours of one kind.
#[derive(Debug, Default)]
pub(crate) struct Deltas(Vec<Delta>);

impl Deltas {
    pub(crate) fn push(&mut self, delta: Delta) {
        match (self.0.last_mut(), &delta) {
            (Some(Delta::Reasoning(old)), Delta::Reasoning(new))
            | (Some(Delta::Content(old)), Delta::Content(new)) => old.push_str(new),
            (
                Some(Delta::ToolCallArguments { index: at, delta: old }),
                Delta::ToolCallArguments { index, delta: new },
            ) if at == index => old.push_str(new),
            _ => self.0.push(delta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lcg;
    use serde_json::json;

    const THINKING: &str = "<|im_start|>assistant\n<think>\n";
    const ANSWERING: &str = "<|im_start|>assistant\n<think>\n\n</think>\n\n";

    /// Tool `f` with parameters of every kind.
    fn tools() -> Vec<serde_json::Value> {
        vec![json!({"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "properties": {
                "zip": {"type": "string"},
                "n": {"type": "integer"},
                "on": {"type": "boolean"},
                "o": {"type": "object"},
            },
        }}})]
    }

    /// The answer put together again: reasoning, content, calls as (name, arguments, ended).
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Answer {
        reasoning: String,
        content: String,
        calls: Vec<(String, String, bool)>,
    }

    impl Answer {
        fn add(&mut self, deltas: Vec<Delta>) {
            for delta in deltas {
                match delta {
                    Delta::Reasoning(text) => self.reasoning.push_str(&text),
                    Delta::Content(text) => self.content.push_str(&text),
                    Delta::ToolCallStart { index, name } => {
                        assert_eq!(index, self.calls.len());
                        self.calls.push((name, String::new(), false));
                    }
                    Delta::ToolCallArguments { index, delta } => self.calls[index].1 += &delta,
                    Delta::ToolCallEnd { index } => self.calls[index].2 = true,
                }
            }
        }
    }

    fn parse<'a>(
        tail: &str,
        tools: &[serde_json::Value],
        pieces: impl IntoIterator<Item = &'a str>,
    ) -> Answer {
        let mut parser = OutputParser::new(tail, tools);
        let mut answer = Answer::default();
        for piece in pieces {
            answer.add(parser.push(piece));
        }
        answer.add(parser.finish());
        answer
    }

    /// Parses whole, at every split in two, by characters and at random; all must agree.
    fn parse_every_way(tail: &str, tools: &[serde_json::Value], text: &str) -> Answer {
        let whole = parse(tail, tools, [text]);
        for (at, _) in text.char_indices() {
            let (a, b) = text.split_at(at);
            assert_eq!(parse(tail, tools, [a, b]), whole, "{a:?} | {b:?}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(parse(tail, tools, chars.iter().map(String::as_str)), whole);
        let mut random = Lcg(1);
        for _ in 0..50 {
            let mut pieces = vec![String::new()];
            for c in text.chars() {
                if random.below(5) == 0 {
                    pieces.push(String::new());
                }
                pieces.last_mut().expect("never empty").push(c);
            }
            assert_eq!(parse(tail, tools, pieces.iter().map(String::as_str)), whole, "{pieces:?}");
        }
        whole
    }

    fn answer(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Answer {
        let calls = calls.iter().map(|(name, args)| (name.to_string(), args.to_string(), true));
        Answer {
            reasoning: reasoning.to_owned(),
            content: content.to_owned(),
            calls: calls.collect(),
        }
    }

    #[test]
    fn reasoning_and_content_part_at_the_marker() {
        let cases = [
            (THINKING, "why\n</think>\n\nHi <b>", "why", "Hi <b>"),
            (THINKING, "a\n\n</think>\n\n\nb\n", "a\n", "\nb\n"),
            (THINKING, "never closed\n", "never closed\n", ""),
            (THINKING, "<think>\ntwice</think>x", "twice", "x"),
            (THINKING, "x < y <thin\n</thinker> \n</think>", "x < y <thin\n</thinker> ", ""),
            (THINKING, "a</think>b</think>c<think>d", "a", "b</think>c<think>d"),
            (ANSWERING, "Hi\n\n", "", "Hi\n\n"),
            (ANSWERING, "a </think> b <think> c", "", "a </think> b <think> c"),
            (ANSWERING, "<think>\nhm\n</think>\n\nok", "hm", "ok"),
            (ANSWERING, "\n\n<think>hm</think>ok", "hm", "ok"),
            ("<|im_start|>assistant\n<think>", "\nhm\n</think>\n\nok", "hm", "ok"),
            (
                ANSWERING,
                "tool <tool_call> here </tool_call>",
                "",
                "tool <tool_call> here </tool_call>",
            ),
            (ANSWERING, "", "", ""),
        ];
        for (tail, text, reasoning, content) in cases {
            for tools in [vec![], tools()] {
                let got = parse_every_way(tail, &tools, text);
                assert_eq!(got, answer(reasoning, content, &[]), "{tail:?} {text:?}");
            }
        }
    }

    #[test]
    fn calls_are_typed_and_numbered() {
        let text = "Let me look.\n\n<tool_call>\n<function=f>\n<parameter=zip>\n02134\n</parameter>\n\
                    <parameter=n>\n5\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n\
                    <parameter=o>\n{\"a\": [1, {\"b\": null}]}\n</parameter>\n</function>\n</tool_call>\n\
                    <tool_call>\n<function=g>\n</function>\n</tool_call>\n\
                    <tool_call>\n<function=f>\n<parameter=zip>\ndef f():\n\n  return \"é\"\n\n</parameter>\n\
                    </function>\n</tool_call>";
        let calls = [
            ("f", r#"{"zip": "02134", "n": 5, "on": true, "o": {"a": [1, {"b": null}]}}"#),
            ("g", "{}"),
            ("f", r#"{"zip": "def f():\n\n  return \"é\"\n"}"#),
        ];
        let got = parse_every_way(ANSWERING, &tools(), text);
        assert_eq!(got, answer("", "Let me look.", &calls));
        // Without tools the same text is content, byte for byte.
        assert_eq!(parse_every_way(ANSWERING, &[], text), answer("", text, &[]));
    }

    #[test]
    fn a_call_ends_open_thinking() {
        let call =
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>";
        let calls = [("f", r#"{"n": 1}"#)];
        let text = format!("I should call.\n\n{call}");
        let got = parse_every_way(THINKING, &tools(), &text);
        assert_eq!(got, answer("I should call.", "", &calls));
        let text = format!("I should call.\n{call}\n</think>\n\nDone.");
        let got = parse_every_way(THINKING, &tools(), &text);
        assert_eq!(got, answer("I should call.", "Done.", &calls));
        // Thinking about the markup is no call.
        let got = parse_every_way(THINKING, &tools(), "the <tool_call> tag\n</think>\n\nok");
        assert_eq!(got, answer("the <tool_call> tag", "ok", &[]));
    }

    #[test]
    fn a_thought_is_open_until_its_own_marker_closes_it() {
        let open = |tail: &str, text: &str| {
            let mut parser = OutputParser::new(tail, &tools());
            parser.push(text);
            parser.finish();
            parser.thought_open()
        };
        let call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
        assert!(open(THINKING, "So"));
        assert!(open(THINKING, &format!("So\n{call}")));
        assert!(open(ANSWERING, "<think>\nSo"));
        assert!(!open(THINKING, &format!("So\n</think>\n\n{call}")));
        assert!(!open(THINKING, &format!("So\n{call}\n</think>\n\nDone.")));
        assert!(!open(ANSWERING, "Yes."));
    }

    #[test]
    fn what_is_no_call_comes_back_as_content() {
        let texts = [
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>\n<function=f>\nfree text\n</function>\n</tool_call>",
            "<tool_call>\n<function=>\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=a\nb>\n1\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>\n<func",
            "a <tool_call",
            "</tool_call>",
            "</function>\n</parameter>",
        ];
        for text in texts {
            let got = parse_every_way(ANSWERING, &tools(), text);
            assert_eq!(got, answer("", text, &[]), "{text:?}");
        }
        // A broken call before a good one.
        let text = "<tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call> and more";
        let got = parse_every_way(ANSWERING, &tools(), text);
        assert_eq!(got, answer("", "<tool_call> and more", &[("g", "{}")]));
    }

    #[test]
    fn values_may_hold_the_markup() {
        let value = "<parameter=x>\n</parameter> </function>\n</tool_call>\n</think>\n<tool_call>";
        let text = format!(
            "<tool_call>\n<function=f>\n<parameter=zip>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        // A closing tag that the format goes on after does end the value.
        let got = parse_every_way(ANSWERING, &tools(), &text);
        assert_eq!(got.calls[0].1, json!({"zip": "<parameter=x>"}).to_string().replace(":", ": "));
        let value = "<parameter=x>\n</parameter> x</function>\n</tool_call>\n</think>\n<tool_call>";
        let text = format!(
            "<tool_call>\n<function=f>\n<parameter=zip>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        let got = parse_every_way(ANSWERING, &tools(), &text);
        let arguments: serde_json::Value = serde_json::from_str(&got.calls[0].1).expect("JSON");
        assert_eq!(arguments, json!({"zip": value}));
    }

    #[test]
    fn a_cut_call_keeps_valid_arguments() {
        let text = "<tool_call>\n<function=f>\n<parameter=zip>\n02\n</parameter>\n<parameter=n>\n12\n\
                    </parameter>\n</function>\n</tool_call>";
        let header_len = text.find("02").expect("in the text");
        for (at, _) in text.char_indices().filter(|(at, _)| *at >= header_len) {
            let mut parser = OutputParser::new(ANSWERING, &tools());
            let mut got = Answer::default();
            got.add(parser.push(&text[..at]));
            got.add(parser.finish());
            assert_eq!(got.content, "", "cut at {at}");
            let arguments: serde_json::Value =
                serde_json::from_str(&got.calls[0].1).expect("valid JSON at every cut");
            assert!(arguments.is_object());
            let complete = text[..at].contains("</function>");
            assert_eq!(parser.cut_call(), !complete, "cut at {at}");
        }
    }

    #[test]
    fn text_streams_before_its_end_is_known() {
        let mut parser = OutputParser::new(THINKING, &tools());
        assert_eq!(parser.push("Let me"), [Delta::Reasoning("Let me".to_owned())]);
        assert!(parser.in_reasoning());
        assert_eq!(parser.push("\n</think>\n\nHi"), [Delta::Content("Hi".to_owned())]);
        let start = "<tool_call>\n<function=f>\n<parameter=zip>\nab";
        let want = [
            Delta::ToolCallStart { index: 0, name: "f".to_owned() },
            Delta::ToolCallArguments { index: 0, delta: "{\"zip\": \"ab".to_owned() },
        ];
        assert_eq!(parser.push(start), want);
        let want = [Delta::ToolCallArguments { index: 0, delta: "c\\\"".to_owned() }];
        assert_eq!(parser.push("c\"\n</param"), want);
    }

    #[test]
    fn random_marker_soup_loses_nothing_and_splits_alike() {
        const PARTS: [&str; 16] = [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<parameter=zip>",
            "<parameter=n>",
            "</parameter>",
            "\n",
            "\n\n",
            "<",
            ">",
            "ab",
            "7",
            "é ",
        ];
        let mut random = Lcg(42);
        for round in 0..400 {
            let count = random.below(24);
            let text: String = (0..count).map(|_| PARTS[random.below(PARTS.len())]).collect();
            let tail = if round % 2 == 0 { THINKING } else { ANSWERING };
            let got = parse_every_way(tail, &tools(), &text);
            for (_, arguments, ended) in &got.calls {
                let value: Result<serde_json::Value, _> = serde_json::from_str(arguments);
                assert!(value.is_ok() && *ended, "{text:?}: {arguments}");
            }
            let words = |text: &str| text.matches("ab").count() + text.matches("é").count();
            let calls: usize = got.calls.iter().map(|call| words(&call.1)).sum();
            let kept = words(&got.reasoning) + words(&got.content) + calls;
            assert_eq!(kept, words(&text), "{text:?} gave {got:?}");
        }
    }
}

use std::{collections::VecDeque, sync::Arc};

use calla_engine::{FinishReason, Token};
use calla_text::{Delta, Detokenizer, OutputParser, StopStrings, Tail, Tokenizer};

use super::{ChatEvent, Finish, logprobs::HeldLogprobs};
use crate::id::random_id;

/// What the answer's text is taken for.
pub(crate) enum Output {
    /// Content as it comes.
    Raw,
    /// Reasoning, content and tool calls.
    Parsed {
        /// Tells them apart.
        parser: OutputParser,
        /// End after the first call.
        single_tool_call: bool,
    },
}

/// One answer's way from tokens to events.
pub(crate) struct Decoder {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    output: Output,
    stops: StopStrings,
    logprobs: HeldLogprobs,
    tokens: usize,
    /// Of these, the ones before which nothing is held back: all that they say is delivered.
    tokens_kept: usize,
    reasoning_tokens: usize,
    calls: usize,
}

type Events = VecDeque<ChatEvent>;

impl Decoder {
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        detokenizer: Detokenizer,
        output: Output,
        stops: StopStrings,
    ) -> Self {
        let logprobs = HeldLogprobs::new(matches!(output, Output::Parsed { .. }));
        Self {
            tokenizer,
            detokenizer,
            output,
            stops,
            logprobs,
            tokens: 0,
            tokens_kept: 0,
            reasoning_tokens: 0,
            calls: 0,
        }
    }

    /// Takes a token. With `Some`, the answer is over whatever the engine would add.
    pub(crate) fn token(&mut self, token: &Token, events: &mut Events) -> Option<Finish> {
        self.tokens += 1;
        let in_reasoning = self.in_reasoning();
        self.reasoning_tokens += usize::from(in_reasoning);
        // A control token has a name but stands for no text.
        if self.tokenizer.is_special(token.id) {
            return None;
        }
        if !in_reasoning {
            self.logprobs.add(token, &self.tokenizer);
        }
        let text = self.detokenizer.push(token.id);
        let finish = self.text(&text, events);
        if finish.is_none() && !self.detokenizer.holds_partial() && !self.stops.holds_text() {
            self.tokens_kept = self.tokens;
        }
        finish
    }

    /// The engine is done: gives out what was held back. With `Some`, that text ended the answer
    /// in another way than the engine says.
    pub(crate) fn end(&mut self, reason: &FinishReason, events: &mut Events) -> Option<Finish> {
        let tail = match reason {
            FinishReason::Stop(_) => Tail::Replace,
            _ => Tail::Withhold,
        };
        let text = self.detokenizer.finish(tail);
        let mut finish = self.text(&text, events);
        if finish.is_none()
            && let Output::Parsed { parser, .. } = &mut self.output
        {
            let deltas = parser.finish();
            finish = self.deltas(deltas, events);
        }
        if finish.is_none() {
            let held = self.stops.finish();
            self.content(&held, events);
            events.extend(self.logprobs.finish());
        }
        finish
    }

    /// Tokens taken.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens whose text was delivered whole, from the start on.
    pub(crate) fn tokens_kept(&self) -> usize {
        self.tokens_kept
    }

    /// Tokens that came while the answer was inside its reasoning.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Whether the answer holds a tool call.
    pub(crate) fn made_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether the answer has left a thought open.
    pub(crate) fn thought_open(&self) -> bool {
        match &self.output {
            Output::Raw => false,
            Output::Parsed { parser, .. } => parser.thought_open(),
        }
    }

    fn in_reasoning(&self) -> bool {
        match &self.output {
            Output::Raw => false,
            Output::Parsed { parser, .. } => parser.in_reasoning(),
        }
    }

    fn text(&mut self, text: &str, events: &mut Events) -> Option<Finish> {
        if text.is_empty() {
            return None;
        }
        let deltas = match &mut self.output {
            Output::Raw => vec![Delta::Content(text.to_owned())],
            Output::Parsed { parser, .. } => parser.push(text),
        };
        self.deltas(deltas, events)
    }

    fn deltas(&mut self, deltas: Vec<Delta>, events: &mut Events) -> Option<Finish> {
        for delta in deltas {
            let finish = self.delta(delta, events);
            if finish.is_some() {
                return finish;
            }
        }
        None
    }

    fn delta(&mut self, delta: Delta, events: &mut Events) -> Option<Finish> {
        match delta {
            Delta::Content(text) => {
                let step = self.stops.push(&text);
                self.content(&step.text, events);
                return step.hit.map(|_| Finish::Stop);
            }
            Delta::Reasoning(text) => {
                self.leave_content(events);
                events.push_back(ChatEvent::Reasoning(text));
            }
            Delta::ToolCallStart { index, name } => {
                self.leave_content(events);
                self.calls += 1;
                events.push_back(ChatEvent::ToolCallStart { index, id: random_id("call_"), name });
            }
            Delta::ToolCallArguments { index, delta: json } => {
                events.push_back(ChatEvent::ToolCallArguments { index, json });
            }
            Delta::ToolCallEnd { .. } => {
                self.logprobs.leave_content();
                let ends = matches!(self.output, Output::Parsed { single_tool_call: true, .. });
                return ends.then_some(Finish::ToolCalls);
            }
        }
        None
    }

    fn content(&mut self, text: &str, events: &mut Events) {
        if !text.is_empty() {
            events.extend(self.logprobs.release(text));
            events.push_back(ChatEvent::Content(text.to_owned()));
        }
    }

    /// A stop string does not reach over what stands between two pieces of content.
    fn leave_content(&mut self, events: &mut Events) {
        let held = self.stops.finish();
        self.content(&held, events);
        self.logprobs.leave_content();
    }
}

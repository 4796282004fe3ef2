//! Step 8: the engine's tokens become events that a reader understands.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use calla_engine::{Event, EventStream, FinishReason};

pub(crate) use decoder::{Decoder, Output};
pub use logprobs::{TokenLogprob, TokenText};

mod decoder;
mod logprobs;

/// What happens to a request, in order: `Started`, then `Queued` and `Prefill` any number of times,
/// then the answer's pieces, then one `End`.
#[derive(Debug, Clone)]
pub enum ChatEvent {
    /// The request is accepted.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// The request waits; `position` requests are before it.
    Queued {
        /// Requests that come first.
        position: usize,
    },
    /// A part of the prompt has been computed.
    Prefill {
        /// Prompt tokens computed by now, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Text of the model's thinking.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A tool call begins; calls are numbered from 0.
    ToolCallStart {
        /// Number of the call.
        index: usize,
        /// A name for the call, to send back beside its result.
        id: String,
        /// The function called.
        name: String,
    },
    /// More of a call's arguments: joined, they are one JSON object.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// A piece of JSON text.
        json: String,
    },
    /// Log-probability of a content token; comes before the text it belongs to.
    Logprob(TokenLogprob),
    /// The answer is over; nothing follows.
    End {
        /// Why.
        finish: Finish,
        /// What it took.
        usage: Usage,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone)]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// The limit on tokens was reached, or the context is full.
    Length,
    /// The model waits for the results of its tool calls.
    ToolCalls,
    /// The engine was told to stop.
    Cancelled,
    /// The deadline passed.
    Deadline,
    /// The model gave a value that is not a number.
    NotANumber,
    /// The engine failed.
    Failed(Arc<calla_engine::Error>),
}

/// What an answer took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was reused from an earlier request.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Of these, tokens of reasoning.
    pub reasoning_tokens: usize,
    /// From admission (when a stop string ended the answer: from submission) to the last prompt
    /// token's logits.
    pub prefill: Duration,
    /// From there to the end.
    pub decode: Duration,
}

/// One answer as it is made. Dropping it cancels the generation.
pub struct ChatStream {
    /// `None` once nothing more is wanted from the engine.
    events: Option<EventStream>,
    /// Events that the last one of the engine gave and that are not taken yet.
    ready: VecDeque<ChatEvent>,
    decoder: Decoder,
    progress: Progress,
}

/// What is known of the usage before the engine tells it at the end, which it does not when a stop
/// string ends the request.
struct Progress {
    prompt_tokens: usize,
    cached_tokens: usize,
    submitted: Instant,
    prefilled: Option<Instant>,
}

impl ChatStream {
    pub(crate) fn new(events: EventStream, prompt_tokens: usize, decoder: Decoder) -> Self {
        let submitted = Instant::now();
        Self {
            events: Some(events),
            ready: VecDeque::from([ChatEvent::Started { prompt_tokens }]),
            decoder,
            progress: Progress { prompt_tokens, cached_tokens: 0, submitted, prefilled: None },
        }
    }

    /// The next event; `None` after the end. For async callers. Cancel safe: a dropped call loses
    /// no event.
    pub async fn next(&mut self) -> Option<ChatEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.events.as_mut()?.next().await;
            self.advance(event);
        }
    }

    /// The next event; `None` after the end. For threads outside an async runtime.
    ///
    /// # Panics
    /// When called inside an async runtime, which it would block.
    pub fn next_blocking(&mut self) -> Option<ChatEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.events.as_mut()?.next_blocking();
            self.advance(event);
        }
    }

    /// Whether the answer, as far as it came, has left a thought open. Its events do not tell: a tool
    /// call counts as such inside a thought too.
    pub fn thought_open(&self) -> bool {
        self.decoder.thought_open()
    }

    fn advance(&mut self, event: Option<Event>) {
        match event {
            // The engine's thread is gone without an end; so is this stream.
            None => self.events = None,
            Some(Event::Queued { position }) => {
                self.ready.push_back(ChatEvent::Queued { position })
            }
            Some(Event::Prefill { done, cached, total }) => {
                self.progress.cached_tokens = cached;
                self.ready.push_back(ChatEvent::Prefill { done, total });
            }
            Some(Event::Token(token)) => {
                self.progress.prefilled.get_or_insert_with(Instant::now);
                if let Some(finish) = self.decoder.token(&token, &mut self.ready) {
                    self.cut(finish);
                }
            }
            Some(Event::End { reason, usage }) => {
                let finish = self.decoder.end(&reason, &mut self.ready);
                let finish = finish.unwrap_or_else(|| self.finish(reason));
                let usage = Usage {
                    prompt_tokens: usage.prompt_tokens,
                    cached_tokens: usage.cached_tokens,
                    completion_tokens: usage.completion_tokens,
                    reasoning_tokens: self.decoder.reasoning_tokens(),
                    prefill: usage.prefill,
                    decode: usage.decode,
                };
                self.ready.push_back(ChatEvent::End { finish, usage });
                self.events = None;
            }
        }
    }

    /// Ends the request from this side.
    fn cut(&mut self, finish: Finish) {
        if let Some(events) = self.events.take() {
            events.finish(self.decoder.tokens_kept());
        }
        let usage = self.progress.usage(&self.decoder);
        self.ready.push_back(ChatEvent::End { finish, usage });
    }

    fn finish(&self, reason: FinishReason) -> Finish {
        match reason {
            FinishReason::Stop(_) if self.decoder.made_calls() => Finish::ToolCalls,
            FinishReason::Stop(_) => Finish::Stop,
            FinishReason::Length | FinishReason::ContextFull => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
            FinishReason::Deadline => Finish::Deadline,
            FinishReason::NotANumber => Finish::NotANumber,
            FinishReason::Failed(error) => Finish::Failed(error),
        }
    }
}

impl Progress {
    fn usage(&self, decoder: &Decoder) -> Usage {
        let prefilled = self.prefilled.unwrap_or(self.submitted);
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: decoder.tokens(),
            reasoning_tokens: decoder.reasoning_tokens(),
            prefill: prefilled - self.submitted,
            decode: prefilled.elapsed(),
        }
    }
}

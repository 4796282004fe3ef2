//! Short ways to say what the tests say often.

use calla_engine::{
    Engine, EngineConfig, Event, EventStream, FinishReason, Limits, Request, Token, Usage,
};

use crate::fake::{CONTEXT_MAX, Fake, Probe};

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        context_tokens: None,
        prefill_chunk_tokens: Some(16),
        cache_bytes: 0,
        queue_max: 8,
    }
}

pub(crate) fn start(config: EngineConfig) -> (Engine, Probe) {
    let probe = Probe::default();
    let engine = Engine::start(Box::new(Fake::new(&probe)), config).expect("a valid config");
    (engine, probe)
}

/// `count` harmless token ids that depend on `seed`.
pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (seed % 1000 * 31 + i * i + i * 7) % 50).collect()
}

pub(crate) fn request(prompt: Vec<u32>, tokens_max: usize) -> Request {
    let limits = Limits { tokens_max: Some(tokens_max), ..Limits::default() };
    Request { prompt, limits, ..Request::default() }
}

/// Everything that a request gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<Token>,
    pub(crate) prefill: Vec<(usize, usize)>,
    pub(crate) queued: Vec<usize>,
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
}

impl Outcome {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// Reads to the end, and checks that the events come in their order.
pub(crate) fn collect(mut stream: EventStream) -> Outcome {
    let (mut tokens, mut prefill, mut queued) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match stream.next_blocking().expect("an end comes before the stream closes") {
            Event::Queued { position } => {
                assert!(prefill.is_empty() && tokens.is_empty());
                queued.push(position);
            }
            Event::Prefill { done, total, .. } => {
                assert!(tokens.is_empty() && done <= total);
                prefill.push((done, total));
            }
            Event::Token(token) => {
                assert!(prefill.last().is_some_and(|&(done, total)| done == total));
                tokens.push(token);
            }
            Event::End { reason, usage } => {
                assert_eq!(usage.completion_tokens, tokens.len());
                assert!(stream.next_blocking().is_none(), "nothing follows the end");
                return Outcome { tokens, prefill, queued, reason, usage };
            }
        }
    }
}

pub(crate) fn run(engine: &Engine, request: Request) -> Outcome {
    collect(engine.submit(request).expect("a valid request"))
}

/// Reads up to and including the `count`th token.
pub(crate) fn read_tokens(stream: &mut EventStream, count: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    while ids.len() < count {
        match stream.next_blocking().expect("the stream has not ended") {
            Event::Token(token) => ids.push(token.id),
            Event::End { reason, .. } => panic!("ended early: {reason:?}"),
            Event::Queued { .. } | Event::Prefill { .. } => {}
        }
    }
    ids
}

/// Ends the engine, and checks that it has given every handle back.
pub(crate) fn end(engine: Engine, probe: &Probe) {
    drop(engine);
    let state = probe.state();
    assert!(state.dropped, "the last handle's drop waits for the engine's thread");
    assert!(state.open.is_empty(), "sequences left open: {:?}", state.open.keys());
    assert!(state.snapshots.is_empty(), "snapshots left: {:?}", state.snapshots.keys());
}

#[test]
fn test_prompts_are_harmless() {
    assert!(tokens(u32::MAX, CONTEXT_MAX).iter().all(|&id| id < crate::fake::FAILS));
}

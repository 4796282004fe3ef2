//! What a request gives: tokens, ends, usage.

use calla_engine::{Engine, EngineConfig, Error, Event, FinishReason, Limits, Request, Sampling};

use crate::{
    fake::{CONTEXT_MAX, Fake, LOSES_DEVICE, PANICS, Probe, TURNS_NAN, VOCAB, greedy},
    harness::{collect, config, end, request, run, start, tokens},
};

#[test]
fn greedy_tokens_are_the_models_whatever_the_chunk_size() {
    let prompt = tokens(1, 100);
    for prefill_chunk_tokens in [1, 7, 64, 99, 100, 101, 100_000] {
        let (engine, probe) =
            start(EngineConfig { prefill_chunk_tokens: Some(prefill_chunk_tokens), ..config() });
        let outcome = run(&engine, request(prompt.clone(), 20));
        assert_eq!(outcome.ids(), greedy(&prompt, 20));
        assert!(matches!(outcome.reason, FinishReason::Length));
        let chunk = prefill_chunk_tokens.min(100);
        assert_eq!(outcome.prefill.len(), 100_usize.div_ceil(chunk));
        assert_eq!(outcome.prefill[0], (chunk, 100));
        assert_eq!(outcome.usage.prompt_tokens, 100);
        assert_eq!(outcome.usage.cached_tokens, 0);
        // The last token is delivered, and needs no forward pass.
        assert_eq!(probe.tokens_computed(), 119);
        end(engine, &probe);
    }
}

#[test]
fn a_chunk_is_at_most_what_the_backend_takes() {
    let config = EngineConfig { prefill_chunk_tokens: Some(100_000), ..config() };
    let (engine, probe) = start(config);
    run(&engine, request(tokens(2, 1300), 1));
    assert_eq!(probe.state().forwards, [512, 512, 276]);
    end(engine, &probe);
}

#[test]
fn tokens_max_counts_delivered_tokens() {
    let (engine, probe) = start(config());
    for count in [0, 1, 2, 33] {
        let outcome = run(&engine, request(tokens(3, 5), count));
        assert_eq!(outcome.tokens.len(), count);
        assert!(matches!(outcome.reason, FinishReason::Length));
    }
    end(engine, &probe);
}

#[test]
fn a_stop_token_ends_and_is_not_delivered() {
    let (engine, probe) = start(config());
    let prompt = tokens(4, 9);
    let expected = greedy(&prompt, 40);
    for place in [0, 1, 17] {
        let stop = expected[place];
        let first = expected.iter().position(|&id| id == stop).unwrap();
        let stop_ids = vec![VOCAB as u32 - 1, stop];
        let outcome = run(&engine, Request { stop_ids, ..request(prompt.clone(), 40) });
        assert_eq!(outcome.ids(), expected[..first]);
        assert!(matches!(outcome.reason, FinishReason::Stop(id) if id == stop));
    }
    end(engine, &probe);
}

#[test]
fn a_full_context_ends_the_answer() {
    let (engine, probe) = start(EngineConfig { context_tokens: Some(32), ..config() });
    assert_eq!(engine.context_tokens(), 32);
    for prompt_tokens in [1, 30, 31] {
        let prompt = tokens(5, prompt_tokens);
        let unlimited = Request { prompt: prompt.clone(), ..Request::default() };
        let outcome = run(&engine, unlimited);
        assert_eq!(outcome.ids(), greedy(&prompt, 32 - prompt_tokens));
        assert!(matches!(outcome.reason, FinishReason::ContextFull));
    }
    let refused = engine.submit(request(tokens(5, 32), 1)).unwrap_err();
    assert!(matches!(refused, Error::ContextExceeded { prompt_tokens: 32, context_tokens: 32 }));
    end(engine, &probe);
}

#[test]
fn a_seed_repeats_a_sampled_answer() {
    let (engine, probe) = start(config());
    let sampled = |seed| {
        let sampling = Sampling { temperature: 1.0, top_p: 0.95, seed, ..Sampling::default() };
        run(&engine, Request { sampling, ..request(tokens(6, 20), 30) }).ids()
    };
    assert_eq!(sampled(Some(9)), sampled(Some(9)));
    assert_ne!(sampled(Some(9)), sampled(Some(10)));
    assert_ne!(sampled(None), sampled(None));
    end(engine, &probe);
}

#[test]
fn log_probabilities_come_when_asked_for() {
    let (engine, probe) = start(config());
    let plain = run(&engine, request(tokens(7, 4), 3));
    assert!(plain.tokens.iter().all(|one| one.logprob.is_none() && one.alternatives.is_empty()));
    let asked = run(&engine, Request { logprobs: Some(4), ..request(tokens(7, 4), 3) });
    assert_eq!(asked.ids(), plain.ids());
    for token in &asked.tokens {
        assert_eq!(token.alternatives.len(), 4);
        // Greedy: the chosen one is the most probable.
        assert_eq!(Some(token.alternatives[0].1), token.logprob);
        assert_eq!(token.alternatives[0].0, token.id);
        assert!(token.alternatives.is_sorted_by(|a, b| a.1 >= b.1));
    }
    end(engine, &probe);
}

#[test]
fn not_a_number_ends_the_request_and_not_the_engine() {
    let (engine, probe) = start(config());
    let outcome = run(&engine, request(vec![1, TURNS_NAN, 2], 5));
    assert!(matches!(outcome.reason, FinishReason::NotANumber));
    assert_eq!(outcome.tokens, []);
    let next = run(&engine, request(vec![1, 2], 5));
    assert_eq!(next.ids(), greedy(&[1, 2], 5));
    end(engine, &probe);
}

#[test]
fn bad_requests_are_refused_with_the_field_named() {
    let (engine, probe) = start(config());
    let field = |request: Request| match engine.submit(request) {
        Err(Error::Request { field, .. }) => field,
        other => panic!("expected a refusal, got {:?}", other.map(collect)),
    };
    let good = || request(vec![1, 2, 3], 1);
    assert_eq!(field(Request { prompt: vec![], ..good() }), "prompt");
    assert_eq!(field(Request { prompt: vec![1, VOCAB as u32], ..good() }), "prompt");
    assert_eq!(field(Request { stop_ids: vec![VOCAB as u32], ..good() }), "stop_ids");
    assert_eq!(field(Request { logprobs: Some(21), ..good() }), "logprobs");
    assert_eq!(field(Request { snapshot_at: vec![4], ..good() }), "snapshot_at");
    let sampling = Sampling { top_p: f32::NAN, ..Sampling::default() };
    assert_eq!(field(Request { sampling, ..good() }), "top_p");
    let limits = Limits::default();
    let long = Request { prompt: tokens(0, CONTEXT_MAX), limits, ..good() };
    assert!(matches!(engine.submit(long), Err(Error::ContextExceeded { .. })));
    assert!(probe.state().forwards.is_empty());
    end(engine, &probe);
}

#[test]
fn a_bad_configuration_is_refused_with_the_field_named() {
    let field = |config: EngineConfig| match Engine::start(
        Box::new(Fake::new(&Probe::default())),
        config,
    ) {
        Err(Error::Engine { field, .. }) => field,
        Err(error) => panic!("{error}"),
        Ok(_) => "none",
    };
    assert_eq!(field(config()), "none");
    assert_eq!(
        field(EngineConfig { prefill_chunk_tokens: Some(0), ..config() }),
        "prefill_chunk_tokens"
    );
    for tokens in [0, 1, CONTEXT_MAX + 1] {
        let context_tokens = Some(tokens);
        assert_eq!(field(EngineConfig { context_tokens, ..config() }), "context_tokens");
    }
}

#[test]
fn a_panic_ends_every_request_and_refuses_more() {
    let (engine, probe) = start(config());
    probe.hold();
    let first = engine.submit(request(vec![1, PANICS], 5)).unwrap();
    let second = engine.submit(request(vec![1, 2], 5)).unwrap();
    probe.release();
    for stream in [first, second] {
        let FinishReason::Failed(error) = collect(stream).reason else { panic!("it failed") };
        assert!(error.to_string().contains("asked to panic"), "{error}");
    }
    engine.join();
    let refused = engine.submit(request(vec![1], 1)).unwrap_err();
    assert!(matches!(&refused, Error::EngineFailed { message } if message == "asked to panic"));
    assert_eq!((engine.stats().running, engine.stats().waiting), (0, 0));
    drop(engine);
    assert!(probe.state().dropped);
}

#[test]
fn a_lost_device_ends_every_request_and_is_told() {
    let (engine, probe) = start(config());
    probe.hold();
    let first = engine.submit(request(vec![1, LOSES_DEVICE], 5)).unwrap();
    let second = engine.submit(request(vec![1, 2], 5)).unwrap();
    assert_eq!(engine.failure(), None);
    probe.release();
    for stream in [first, second] {
        let FinishReason::Failed(error) = collect(stream).reason else { panic!("it failed") };
        assert!(error.to_string().contains("asked to be lost"), "{error}");
    }
    engine.join();
    assert!(engine.failure().is_some_and(|message| message.contains("asked to be lost")));
    assert!(matches!(engine.submit(request(vec![1], 1)), Err(Error::EngineFailed { .. })));
}

#[test]
fn no_stream_closes_without_an_end_wherever_the_panic_is() {
    // While the prompt is computed, and when the sequence is already taken out of the loop.
    for prompt_tokens in [1, 20] {
        let (engine, probe) = start(EngineConfig { cache_bytes: 1 << 20, ..config() });
        probe.state().snapshot_panics = true;
        let mut stream = engine.submit(request(tokens(8, prompt_tokens), 3)).unwrap();
        let last = std::iter::from_fn(|| stream.next_blocking()).last();
        assert!(matches!(last, Some(Event::End { reason: FinishReason::Failed(_), .. })));
        engine.join();
        assert!(matches!(engine.submit(request(vec![1], 1)), Err(Error::EngineFailed { .. })));
    }
}

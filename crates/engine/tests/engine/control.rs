//! Who waits, who goes, and how it ends.

use std::time::{Duration, Instant};

use calla_engine::{
    Engine, EngineConfig, Error, Event, EventStream, FinishReason, Limits, Request,
};

use crate::{
    fake::{FAILS, greedy},
    harness::{collect, config, end, read_tokens, request, run, start, tokens},
};

/// Reads up to the event that says that the prompt's first `done` tokens are computed.
fn read_prefill(stream: &mut EventStream, done: usize) {
    loop {
        match stream.next_blocking().expect("the stream has not ended") {
            Event::Prefill { done: now, .. } if now == done => return,
            Event::Queued { .. } | Event::Prefill { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_run_in_order_and_hear_their_position() {
    let (engine, probe) = start(config());
    probe.hold();
    let mut first = engine.submit(request(vec![1], 3)).unwrap();
    let second = engine.submit(request(vec![2], 3)).unwrap();
    let third = engine.submit(request(vec![3], 3)).unwrap();
    probe.allow(1);
    read_tokens(&mut first, 1);
    assert_eq!((engine.stats().running, engine.stats().waiting), (1, 2));
    probe.release();
    let (second, third) = (collect(second), collect(third));
    assert_eq!(second.queued, [1]);
    assert_eq!(third.queued, [2, 1]);
    assert_eq!(second.ids(), greedy(&[2], 3));
    assert_eq!(third.ids(), greedy(&[3], 3));
    while first.next_blocking().is_some() {}
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.prompt_tokens, stats.generated_tokens), (3, 3, 9));
    assert_eq!((stats.running, stats.waiting), (0, 0));
    end(engine, &probe);
}

#[test]
fn one_more_than_the_queue_holds_is_refused() {
    let (engine, probe) = start(EngineConfig { queue_max: 2, ..config() });
    probe.hold();
    let streams: Vec<EventStream> =
        (0..3).map(|_| engine.submit(request(vec![1], 1)).unwrap()).collect();
    let refused = engine.submit(request(vec![1], 1)).unwrap_err();
    assert!(matches!(refused, Error::QueueFull { waiting: 2 }));
    probe.release();
    for stream in streams {
        collect(stream);
    }
    // Who has seen an end finds room at once.
    run(&engine, request(vec![1], 1));
    end(engine, &probe);
}

#[test]
fn without_a_queue_one_request_runs_at_a_time() {
    let (engine, probe) = start(EngineConfig { queue_max: 0, ..config() });
    probe.hold();
    let running = engine.submit(request(vec![1], 1)).unwrap();
    assert!(matches!(engine.submit(request(vec![1], 1)), Err(Error::QueueFull { waiting: 0 })));
    probe.release();
    collect(running);
    end(engine, &probe);
}

#[test]
fn a_dropped_stream_stops_prefill_before_the_next_chunk() {
    let (engine, probe) = start(config());
    probe.hold();
    let mut stream = engine.submit(request(tokens(1, 400), 5)).unwrap();
    probe.allow(2);
    read_prefill(&mut stream, 32);
    drop(stream);
    // The third chunk may be under way already; no fourth is.
    probe.release();
    let next = run(&engine, request(vec![1, 2], 4));
    assert_eq!(next.ids(), greedy(&[1, 2], 4));
    assert!(probe.tokens_computed() <= 48 + 5, "{:?}", probe.state().forwards);
    end(engine, &probe);
}

#[test]
fn a_dropped_stream_stops_decode_before_the_next_token() {
    let (engine, probe) = start(config());
    probe.hold();
    let mut stream = engine.submit(request(vec![5, 6], 1000)).unwrap();
    probe.allow(3);
    assert_eq!(read_tokens(&mut stream, 3), greedy(&[5, 6], 3));
    drop(stream);
    probe.release();
    let next = run(&engine, request(vec![1, 2], 4));
    assert_eq!(next.ids(), greedy(&[1, 2], 4));
    assert!(probe.tokens_computed() <= 2 + 3 + 5);
    end(engine, &probe);
}

#[test]
fn a_stream_dropped_in_the_queue_never_runs() {
    let (engine, probe) = start(config());
    probe.hold();
    let first = engine.submit(request(vec![1], 2)).unwrap();
    let second = engine.submit(request(tokens(2, 100), 50)).unwrap();
    let third = engine.submit(request(vec![3], 2)).unwrap();
    drop(second);
    probe.release();
    assert_eq!(collect(first).ids(), greedy(&[1], 2));
    assert_eq!(collect(third).ids(), greedy(&[3], 2));
    assert_eq!(probe.tokens_computed(), 4);
    end(engine, &probe);
}

#[test]
fn finishing_early_ends_the_request() {
    let (engine, probe) = start(config());
    probe.hold();
    let mut stream = engine.submit(request(vec![5, 6], 1000)).unwrap();
    probe.allow(4);
    read_tokens(&mut stream, 4);
    stream.finish(2);
    probe.release();
    run(&engine, request(vec![1], 1));
    assert!(probe.tokens_computed() <= 2 + 4 + 1);
    end(engine, &probe);
}

#[test]
fn a_passed_deadline_ends_a_request_that_runs_or_waits() {
    let (engine, probe) = start(config());
    probe.hold();
    let now = Instant::now();
    let with_deadline = |deadline| {
        let limits = Limits { tokens_max: None, deadline: Some(deadline) };
        Request { limits, ..request(vec![1, 2], 0) }
    };
    let past = engine.submit(with_deadline(now)).unwrap();
    assert!(matches!(collect(past).reason, FinishReason::Deadline));
    let mut running = engine.submit(with_deadline(now + Duration::from_millis(300))).unwrap();
    let waiting = engine.submit(with_deadline(now + Duration::from_millis(301))).unwrap();
    probe.allow(1);
    read_tokens(&mut running, 1);
    std::thread::sleep((now + Duration::from_millis(310)).duration_since(Instant::now()));
    probe.release();
    assert!(matches!(collect(waiting).reason, FinishReason::Deadline));
    while let Some(event) = running.next_blocking() {
        if let Event::End { reason, .. } = event {
            assert!(matches!(reason, FinishReason::Deadline));
        }
    }
    end(engine, &probe);
}

#[test]
fn a_failed_forward_ends_its_own_request_only() {
    let (engine, probe) = start(config());
    let failed = run(&engine, request(vec![1, FAILS], 5));
    assert!(matches!(&failed.reason, FinishReason::Failed(error)
        if error.to_string().contains("asked to fail")));
    assert_eq!(run(&engine, request(vec![1, 2], 5)).ids(), greedy(&[1, 2], 5));
    end(engine, &probe);
}

#[test]
fn the_last_drop_finishes_what_runs_and_waits() {
    let (engine, probe) = start(config());
    let streams: Vec<EventStream> =
        (1..5).map(|id| engine.submit(request(vec![id], 50)).unwrap()).collect();
    drop(engine.clone());
    end(engine, &probe);
    for (id, stream) in (1..).zip(streams) {
        let outcome = collect(stream);
        assert_eq!(outcome.ids(), greedy(&[id], 50));
        assert!(matches!(outcome.reason, FinishReason::Length));
    }
}

#[test]
fn shutdown_refuses_new_requests_and_finishes_old_ones() {
    let (engine, probe) = start(config());
    probe.hold();
    let running = engine.submit(request(vec![1], 5)).unwrap();
    let waiting = engine.submit(request(vec![2], 5)).unwrap();
    engine.shutdown(Duration::from_secs(3600));
    assert!(matches!(engine.submit(request(vec![3], 5)), Err(Error::ShuttingDown)));
    probe.release();
    engine.join();
    assert_eq!(collect(running).ids(), greedy(&[1], 5));
    assert_eq!(collect(waiting).ids(), greedy(&[2], 5));
    end(engine, &probe);
}

#[test]
fn shutdown_cancels_what_outlives_the_grace() {
    let (engine, probe) = start(config());
    probe.hold();
    let mut running = engine.submit(request(vec![1], 1000)).unwrap();
    let waiting = engine.submit(request(vec![2], 1000)).unwrap();
    probe.allow(1);
    read_tokens(&mut running, 1);
    engine.shutdown(Duration::from_secs(3600));
    engine.shutdown(Duration::ZERO);
    probe.release();
    engine.join();
    assert!(matches!(collect(waiting).reason, FinishReason::Cancelled));
    let last = std::iter::from_fn(|| running.next_blocking()).last();
    assert!(matches!(last, Some(Event::End { reason: FinishReason::Cancelled, .. })));
    end(engine, &probe);
}

#[test]
fn an_idle_engine_stops_when_told() {
    let (engine, probe) = start(config());
    let waiter = std::thread::spawn({
        let engine: Engine = engine.clone();
        move || engine.join()
    });
    engine.shutdown(Duration::ZERO);
    waiter.join().unwrap();
    assert!(probe.state().dropped);
    end(engine, &probe);
}

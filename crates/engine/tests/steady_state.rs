//! Once warm, a forward pass of the cpu backend asks the allocator for nothing.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use calla_engine::backend::{
    Backend, BackendOptions, Batch, Logits, Precision, Row, SequenceId, Wants, cpu::Cpu,
};
use common::random::{self, Random};

/// Counts requests for memory, of every thread.
struct Counting;

static REQUESTS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        REQUESTS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: passed on from the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Prompts that end inside a page and past one.
const PROMPT_TOKENS: usize = 200;

// One test in the file: others would allocate beside it.
#[test]
fn a_warm_forward_allocates_nothing() {
    for (model, shape, weights) in random::models() {
        for (precision, threads) in [(Precision::Default, 3), (Precision::Exact, 1)] {
            let options = BackendOptions { precision, threads: Some(threads) };
            let mut backend = Cpu::new(shape.clone(), weights.clone(), &options).unwrap();
            let tokens = Random(1).tokens(PROMPT_TOKENS, shape.vocab);
            let mut logits = Logits::new();
            // the first round takes the pages that the others find free; the last is profiled
            for round in 0..3 {
                if round == 2 {
                    backend.start_profile().unwrap();
                }
                let sequences = [(); 2].map(|()| backend.open(2 * PROMPT_TOKENS).unwrap());
                let before = REQUESTS.load(Ordering::SeqCst);
                prefill_and_decode(&mut backend, sequences, &tokens, &mut logits);
                let requests = REQUESTS.load(Ordering::SeqCst) - before;
                if round == 0 {
                    assert!(requests > 0, "pages and logits come from somewhere: is it counted?");
                } else {
                    assert_eq!(requests, 0, "{model}, {precision:?}, {threads} threads, {round}");
                }
                for sequence in sequences {
                    backend.close(sequence).unwrap();
                }
            }
        }
    }
}

fn prefill_and_decode(
    backend: &mut Cpu,
    sequences: [SequenceId; 2],
    tokens: &[u32],
    logits: &mut Logits,
) {
    let mut forward = |tokens: [&[u32]; 2], wants| {
        let row = |index: usize| Row { sequence: sequences[index], tokens: tokens[index], wants };
        backend.forward(&Batch { rows: &[row(0), row(1)] }, logits).expect("a good batch");
    };
    forward([&tokens[..150], &tokens[..30]], Wants::Nothing);
    forward([&tokens[150..], &tokens[30..40]], Wants::All);
    for token in tokens.chunks(1) {
        forward([token, token], Wants::Last);
    }
}

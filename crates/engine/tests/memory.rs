//! Memory is what was predicted: of a device before it is set up, and of a sequence.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use calla_engine::backend::{Backend as _, BackendOptions, Precision, Wants, cpu::Cpu, select};
use common::random;

/// Counts the bytes that are in use, of every thread.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tables that grow with nothing, and what the system keeps for threads.
const SMALL_BYTES: usize = 100_000;

// One test in the file: others would allocate beside it.
#[test]
fn a_device_takes_what_was_predicted() {
    for (model, shape, weights) in random::models() {
        for (precision, threads) in [(Precision::Default, 3), (Precision::Exact, 1)] {
            let options = BackendOptions { precision, threads: Some(threads) };
            let choice = select::choose(Some("cpu"), &shape, &weights).unwrap();
            let predicted = choice.footprint(&shape, &options, 1000);
            let (own_shape, own_weights) = (shape.clone(), weights.clone());
            let before = BYTES.load(Ordering::SeqCst);
            let mut backend = Cpu::new(own_shape, own_weights, &options).unwrap();
            let taken = BYTES.load(Ordering::SeqCst) - before;
            println!("{model}, {precision:?}: {taken} bytes, predicted {}", predicted.scratch);
            let difference = taken.abs_diff(predicted.scratch);
            assert!(
                difference < SMALL_BYTES,
                "{model}, {precision:?}: {taken} bytes, predicted {}",
                predicted.scratch
            );

            let before = BYTES.load(Ordering::SeqCst);
            let sequence = backend.open(1000).unwrap();
            let state = BYTES.load(Ordering::SeqCst) - before;
            assert!(state.abs_diff(predicted.sequence.state) < 1000, "{model}: {state}");
            let before = BYTES.load(Ordering::SeqCst);
            let tokens = random::Random(3).tokens(1000, shape.vocab);
            for chunk in tokens.chunks(500) {
                common::step(&mut backend, sequence, chunk, Wants::Nothing);
            }
            let kv = BYTES.load(Ordering::SeqCst) - before;
            assert!(kv.abs_diff(predicted.sequence.kv) < 10_000, "{model}, {precision:?}: {kv}");
        }
    }
}

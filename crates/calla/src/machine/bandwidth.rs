//! Read bandwidth of the memory.

use std::{hint::black_box, thread, time::Instant};

/// Buffer that the bandwidth is measured on: far more than any cache.
pub(crate) const READ_BUFFER_BYTES: usize = 1 << 30;
/// Passes over the buffer; the fastest counts.
const PASSES: usize = 5;

/// Bytes a second at which this many threads read a large buffer together.
pub(crate) fn read_bytes_s(threads: usize) -> f64 {
    let words = vec![1u64; READ_BUFFER_BYTES / 8];
    let part = words.len().div_ceil(threads.max(1));
    let pass = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(move || {
                    black_box(part.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
                });
            }
        });
        start.elapsed().as_secs_f64()
    };
    let fastest_s = (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min);
    READ_BUFFER_BYTES as f64 / fastest_s
}

//! Speed of the CPU backend's inner loops, in medians: `cargo run --release --example kernel_bench`.
//! `CALLA_SIMD` chooses the instruction set; an argument keeps the lines that contain it.

use std::{hint::black_box, sync::Arc, time::Instant};

use calla_engine::{
    Error,
    backend::{
        Precision,
        cpu::kernels::{Activations, AttendBlock, Cached, DeltaStep, Kernels, Running},
    },
    model::{Bytes, Linear},
};

fn main() -> Result<(), Error> {
    let kernels = Kernels::detect()?;
    let only = std::env::args().nth(1).unwrap_or_default();
    println!("instruction set {}", kernels.name);
    let benches: [(&str, Bench); 7] = [
        ("read", |_| read()),
        ("gemv", gemv),
        ("gemm", gemm),
        ("prepare", prepare),
        ("delta", delta),
        ("attend", attend),
        ("silu", silu),
    ];
    for (name, bench) in benches {
        if name.contains(&only) {
            bench(kernels);
        }
    }
    Ok(())
}

type Bench = fn(&'static Kernels);

/// Median seconds of `repetitions` calls, after one that warms up.
fn median(repetitions: usize, mut body: impl FnMut()) -> f64 {
    body();
    let mut seconds: Vec<f64> = (0..repetitions)
        .map(|_| {
            let start = Instant::now();
            body();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[repetitions / 2]
}

/// Runs `body(thread)` on each thread.
fn on_threads(threads: usize, body: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let body = &body;
            scope.spawn(move || body(thread));
        }
        body(0);
    });
}

/// The bandwidth that everything else is measured against: words of 256 MiB, summed.
fn read() {
    let data = vec![1u64; 32 << 20];
    for threads in [1, 2] {
        let seconds = median(9, || {
            on_threads(threads, |thread| {
                let share = data.len() / threads;
                let sums = data[thread * share..][..share]
                    .chunks_exact(8)
                    .fold([0u64; 8], |s, x| std::array::from_fn(|i| s[i].wrapping_add(x[i])));
                black_box(sums);
            });
        });
        println!("read     {threads} threads {:7.1} GB/s", data.len() as f64 * 8e-9 / seconds);
    }
}

fn matrix(outputs: usize, inputs: usize, bits: usize) -> Linear {
    let mut state = 1u32;
    let mut bytes = |len: usize, mask: u8| {
        let data: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 & mask
            })
            .collect();
        Bytes::new(Arc::new(data))
    };
    let groups = outputs * inputs / 64 * 2;
    Linear {
        outputs,
        inputs,
        bits,
        group: 64,
        weight: bytes(outputs * inputs * bits / 8, 0xFF),
        scales: bytes(groups, 0x3C),
        biases: bytes(groups, 0x3C),
    }
}

fn activations(kernels: &Kernels, rows: usize, inputs: usize, precision: Precision) -> Activations {
    let mut x = Activations::with_capacity(rows, inputs, precision);
    x.reset(rows, inputs);
    for row in 0..rows {
        let values: Vec<f32> = (0..inputs).map(|i| ((i * 7 + row) % 13) as f32 - 6.0).collect();
        // SAFETY: one thread.
        unsafe { kernels.prepare(&x, row, &values) };
    }
    x
}

/// Where threads write disjoint outputs.
#[derive(Clone, Copy)]
struct Target(*mut f32);
// SAFETY: each thread writes other places.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    fn at(self, index: usize) -> *mut f32 {
        self.0.wrapping_add(index)
    }
}

/// One row through weights that no cache holds.
fn gemv(kernels: &'static Kernels) {
    for (bits, inputs) in [(4, 2048), (4, 512), (8, 2048)] {
        let outputs = 8192 * 2048 / inputs;
        let one = matrix(outputs, inputs, bits);
        // Copies, so that more than 200 MB stream by.
        let matrices: Vec<Linear> = (0..24).map(|_| copy(&one)).collect();
        for precision in [Precision::Default, Precision::Exact] {
            let x = activations(kernels, 1, inputs, precision);
            for threads in [1, 2] {
                let mut y = vec![0.0f32; outputs];
                let target = Target(y.as_mut_ptr());
                let seconds = median(9, || {
                    on_threads(threads, |thread| {
                        let share = outputs / threads;
                        for w in &matrices {
                            let range = thread * share..(thread + 1) * share;
                            // SAFETY: row 0 is prepared; threads have disjoint outputs.
                            unsafe { kernels.matmul(w, &x, &[0], range, target.at(0), outputs) };
                        }
                    });
                });
                let bytes = (one.size_bytes() * matrices.len()) as f64;
                println!(
                    "gemv     {bits} bits {inputs:5} inputs {precision:?} {threads} threads {:7.1} GB/s",
                    bytes * 1e-9 / seconds
                );
            }
        }
    }
}

fn copy(w: &Linear) -> Linear {
    let bytes = |x: &Bytes| Bytes::new(Arc::new(x.to_vec()));
    Linear {
        weight: bytes(&w.weight),
        scales: bytes(&w.scales),
        biases: bytes(&w.biases),
        ..w.clone()
    }
}

/// Many rows through one matrix, on one thread.
fn gemm(kernels: &'static Kernels) {
    for (bits, inputs, precision) in [
        (4, 2048, Precision::Default),
        (4, 512, Precision::Default),
        (8, 2048, Precision::Default),
        (4, 2048, Precision::Exact),
    ] {
        let outputs = 512;
        let w = matrix(outputs, inputs, bits);
        for rows in [2, 4, 16, 64, 256] {
            let x = activations(kernels, rows, inputs, precision);
            let indices: Vec<u32> = (0..rows as u32).collect();
            let mut y = vec![0.0f32; rows * outputs];
            let seconds = median(9, || {
                // SAFETY: every row is prepared, y holds [rows, outputs].
                unsafe { kernels.matmul(&w, &x, &indices, 0..outputs, y.as_mut_ptr(), outputs) };
            });
            println!(
                "gemm     {bits} bits {inputs:5} inputs {rows:4} rows {precision:?} {:7.1} GFLOP/s",
                2e-9 * (outputs * inputs * rows) as f64 / seconds
            );
        }
    }
}

fn prepare(kernels: &'static Kernels) {
    let mut x = Activations::with_capacity(1, 2048, Precision::Default);
    x.reset(1, 2048);
    let values: Vec<f32> = (0..2048).map(|i| (i % 13) as f32).collect();
    let seconds = median(9, || {
        for _ in 0..1000 {
            // SAFETY: one thread.
            unsafe { kernels.prepare(&x, 0, black_box(&values)) };
        }
    });
    println!("prepare  {:7.2} Gelement/s", 2048.0 * 1000.0 * 1e-9 / seconds);
}

/// The states of 30 layers of 32 heads: 63 MB.
fn delta(kernels: &'static Kernels) {
    let heads = 960;
    let mut states = vec![0.01f32; heads * 128 * 128];
    let vector: Vec<f32> = (0..128).map(|i| (i % 5) as f32 * 0.03).collect();
    for threads in [1, 2] {
        let target = Target(states.as_mut_ptr());
        let seconds = median(9, || {
            on_threads(threads, |thread| {
                let mut out = [0.0; 128];
                for head in (thread..heads).step_by(threads) {
                    let step =
                        DeltaStep { q: &vector, k: &vector, v: &vector, decay: 0.9, beta: 0.5 };
                    let start = target.at(head * 128 * 128);
                    // SAFETY: threads have disjoint heads.
                    let state = unsafe { std::slice::from_raw_parts_mut(start, 128 * 128) };
                    kernels.delta_step(&step, state, &mut out);
                }
                black_box(out);
            });
        });
        let bytes = 2.0 * 4.0 * (heads * 128 * 128) as f64;
        println!("delta    {threads} threads {:7.1} GB/s read and written", bytes * 1e-9 / seconds);
    }
}

/// Eight query heads of 256 over pages of 64 tokens.
fn attend(kernels: &'static Kernels) {
    let (heads, head_dim, tokens) = (8, 256, 4096);
    let queries = vec![0.1f32; heads * head_dim];
    let cache = vec![0x2E66u16; tokens * head_dim]; // 0.1
    let (mut max, mut sum) = (vec![0.0; heads], vec![0.0; heads]);
    let mut acc = vec![0.0; heads * head_dim];
    let mut running = Running { max: &mut max, sum: &mut sum, acc: &mut acc };
    let seconds = median(9, || {
        running.clear();
        for page in cache.chunks(64 * head_dim) {
            let (keys, values) = (Cached::F16(page), Cached::F16(page));
            let scale = 0.0625;
            let (stride, tokens) = (head_dim, 64);
            let block =
                AttendBlock { queries: &queries, head_dim, scale, keys, values, stride, tokens };
            kernels.attend(&block, &mut running);
        }
        running.finish();
    });
    println!(
        "attend   {:7.1} GFLOP/s, {:.1} GB/s of KV",
        4e-9 * (heads * head_dim * tokens) as f64 / seconds,
        4e-9 * (head_dim * tokens) as f64 / seconds
    );
}

fn silu(kernels: &'static Kernels) {
    let source: Vec<f32> = (0..4096).map(|i| i as f32 * 0.001 - 2.0).collect();
    let (mut gate, up) = (source.clone(), vec![1.0f32; 4096]);
    let seconds = median(9, || {
        for _ in 0..500 {
            gate.copy_from_slice(&source);
            kernels.silu_mul(black_box(&mut gate), &up);
        }
    });
    println!("silu     {:7.2} Gelement/s", 4096.0 * 500.0 * 1e-9 / seconds);
}

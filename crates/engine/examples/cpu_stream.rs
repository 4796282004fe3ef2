//! How near one row's products come to the speed at which memory can be read:
//!
//!     cargo run --release -p calla-engine --example cpu_stream -- [TURNS] [FILTER]
//!
//! All cores multiply one row with matrices of the 35B-A3B that no cache holds, and read plain words
//! before and after. The ratio of the two is what to compare: where memory changes its speed within
//! seconds, as in virtual machines, it keeps still when both move. Each turn takes the cases in
//! another order.

use std::{hint::black_box, sync::Arc, thread, time::Instant};

use calla_engine::{
    backend::{
        Precision,
        cpu::kernels::{Activations, Kernels},
    },
    model::{Bytes, Linear, random::Random},
};

/// Packed elements of all matrices of a shape.
const ELEMENT_BYTES: usize = 768 << 20;
const GROUP: usize = 64;

/// Name, outputs, inputs.
const SHAPES: [(&str, usize, usize); 4] = [
    ("in_proj", 12_352, 2_048),
    ("out_proj", 2_048, 4_096),
    ("expert_gate", 512, 2_048),
    ("expert_down", 2_048, 512),
];

struct Case {
    name: String,
    kernels: &'static Kernels,
    matrices: Vec<Linear>,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let turns = args.next().map_or(Ok(9), |turns| turns.parse::<usize>());
    let Ok(turns @ 1..) = turns else {
        eprintln!("turns: a number from 1 on");
        std::process::exit(2);
    };
    let filter = args.next().unwrap_or_default();
    let memory = memory();
    let cases: Vec<_> = cases(&memory).filter(|case| case.name.contains(&filter)).collect();
    let mut random = Random(1);
    let mut samples = vec![Vec::new(); cases.len()];
    for _ in 0..turns {
        let mut order: Vec<usize> = (0..cases.len()).collect();
        order.sort_by_cached_key(|_| random.next_u64());
        for case in order {
            let before = read(&memory[..ELEMENT_BYTES]);
            let speed = multiply(&cases[case]);
            let after = read(&memory[..ELEMENT_BYTES]);
            samples[case].push((speed, 2.0 * speed / (before + after)));
        }
    }
    println!("{:<24} {:>6}   of plain reading (quartiles)", "", "GB/s");
    for (case, samples) in cases.iter().zip(samples) {
        let quartiles = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
        };
        let speed = quartiles(samples.iter().map(|sample| sample.0).collect());
        let [low, ratio, high] = quartiles(samples.iter().map(|sample| sample.1).collect());
        println!("{:<24} {:>6.1}   {ratio:.2} ({low:.2} to {high:.2})", case.name, speed[1] / 1e9);
    }
}

/// Random elements, then room for scales and biases: 0.0115 as bf16.
fn memory() -> Bytes {
    let mut random = Random(1);
    let mut words: Vec<u64> = (0..ELEMENT_BYTES / 8).map(|_| random.next_u64()).collect();
    words.resize(ELEMENT_BYTES * 9 / 8 / 8, 0x3c3c_3c3c_3c3c_3c3c);
    Bytes::new(Arc::new(Words(words)))
}

struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: words are plain bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), 8 * self.0.len()) }
    }
}

/// Each shape with each instruction set that this processor has, but the slow portable one.
fn cases(memory: &Bytes) -> impl Iterator<Item = Case> {
    let sets = Kernels::available().filter(|kernels| kernels.name != "portable");
    let sets: Vec<_> = sets.collect();
    SHAPES.into_iter().flat_map(move |(name, outputs, inputs)| {
        let (elements, factors) = (outputs * inputs / 2, outputs * inputs / GROUP * 2);
        let part = |start: usize, len: usize| {
            memory.slice(start..start + len).expect("an eighth of the elements' bytes are factors")
        };
        let matrix = |i: usize| Linear {
            outputs,
            inputs,
            bits: 4,
            group: GROUP,
            weight: part(i * elements, elements),
            scales: part(ELEMENT_BYTES + 2 * i * factors, factors),
            biases: part(ELEMENT_BYTES + (2 * i + 1) * factors, factors),
        };
        let matrices = || (0..ELEMENT_BYTES / elements).map(matrix).collect();
        let case = |&kernels: &&'static Kernels| Case {
            name: format!("{name} {}", kernels.name),
            kernels,
            matrices: matrices(),
        };
        sets.iter().map(case).collect::<Vec<_>>()
    })
}

/// Bytes a second of plain reading, by all cores.
fn read(memory: &[u8]) -> f64 {
    let part = memory.len().div_ceil(cores());
    on_all(memory.len(), |core| {
        let lines = memory[core * part..memory.len().min((core + 1) * part)].as_chunks::<64>().0;
        let sums = lines.iter().fold([0u64; 8], |sums, line| {
            let (words, _) = line.as_chunks::<8>();
            std::array::from_fn(|i| sums[i].wrapping_add(u64::from_le_bytes(words[i])))
        });
        black_box(sums);
    })
}

/// Bytes a second of one row's products, each core with its own outputs of every matrix.
fn multiply(case: &Case) -> f64 {
    let (outputs, inputs) = (case.matrices[0].outputs, case.matrices[0].inputs);
    let values = Random(2).vector(inputs, -1.0, 1.0);
    let bytes = case.matrices.iter().map(|w| w.outputs * w.output_bytes()).sum();
    on_all(bytes, |core| {
        let mut x = Activations::with_capacity(1, inputs, Precision::Default);
        x.reset(1, inputs);
        // SAFETY: this thread's own row.
        unsafe { case.kernels.prepare(&x, 0, &values) };
        let mut y = vec![0.0; outputs];
        let part = outputs.div_ceil(cores()).next_multiple_of(32);
        let own = (core * part).min(outputs)..((core + 1) * part).min(outputs);
        for matrix in &case.matrices {
            // SAFETY: this thread's own outputs.
            unsafe { case.kernels.matmul(matrix, &x, &[0], own.clone(), y.as_mut_ptr(), outputs) };
        }
        black_box(y);
    })
}

/// Bytes a second at which all cores together go through `bytes` bytes.
fn on_all(bytes: usize, work: impl Fn(usize) + Sync) -> f64 {
    let work = &work;
    let start = Instant::now();
    thread::scope(|scope| {
        for core in 0..cores() {
            scope.spawn(move || work(core));
        }
    });
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

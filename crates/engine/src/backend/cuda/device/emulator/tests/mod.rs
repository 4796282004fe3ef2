//! The emulator against what a card does: here the device that runs tests.cu.

mod kernels;
mod refusals;

use super::*;
use crate::backend::cuda::dimensions::PRELUDE;

const KERNELS: &str = include_str!("tests.cu");

/// Two bytes of memory that nobody has written, and four.
const POISON: u32 = 0x7ff7_7ff7;

/// A device with all kernels of tests.cu, by name.
struct Fixture {
    device: Emulator,
    kernels: HashMap<String, Kernel>,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let device = Emulator::with(1 << 30, seed).expect("a C++ compiler");
        let names: Vec<String> = KERNELS
            .lines()
            .filter_map(|line| line.strip_prefix("KERNEL void "))
            .map(|rest| rest.split('(').next().unwrap_or_default().to_owned())
            .collect();
        let source = format!(
            "#define GROUP 64\n#define PIECES 1\n{PRELUDE}\n#line 1 \"tests.cu\"\n{KERNELS}"
        );
        let unit = Unit { name: "tests", source, kernels: names.clone(), stamps: None };
        let kernels = device.compile(&unit).expect("kernels that compile");
        Self { device, kernels: names.into_iter().zip(kernels).collect() }
    }

    /// Every order of threads that a test tries.
    fn each(test: impl Fn(&Self)) {
        for seed in [0, 1, 2, 3] {
            test(&Self::new(seed));
        }
    }

    fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let kernel = self.kernels[name];
        self.device.launch(&Launch { kernel, grid, block, shared_bytes, arguments })
    }

    fn run(&self, name: &str, blocks: u32, threads: u32, arguments: &[Argument]) {
        self.launch(name, [blocks, 1, 1], threads, 768, arguments).expect("a correct kernel");
    }

    /// What a launch of two blocks is refused with.
    fn refused(
        &self,
        name: &str,
        threads: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> String {
        self.launch(name, [2, 1, 1], threads, shared_bytes, arguments).expect_err(name).to_string()
    }
}

/// Numbers that look random.
fn numbers(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Numbers in [-1, 1).
fn floats(count: usize, seed: u64) -> Vec<f32> {
    numbers(count, seed).into_iter().map(|x| x as i32 as f32 / 2_f32.powi(31)).collect()
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

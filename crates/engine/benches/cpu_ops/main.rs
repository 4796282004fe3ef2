//! Speed of the CPU backend's ops, one core each, at the dimensions of the 35B-A3B:
//!
//!     cargo bench -p calla-engine -- [FILTER] [--max-time SECONDS]
//!     CALLA_SIMD=avx2 cargo bench -p calla-engine -- product::in_proj
//!
//! Beside the time stand bytes and floating-point operations (divan's *items*) a second. What a
//! decoded token reads from memory (matrices, KV pages, states) is another part of memory in every
//! call, so that no cache holds it; `memory::read` is the bandwidth to compare it with. Activations
//! and the vectors of a token are where the op before has left them: in a cache.
//!
//! Ops are called as the stages call them. What threads add, `calla bench --profile` shows.

mod attention;
mod delta_net;
mod memory;
mod product;
mod vectors;

use std::{sync::LazyLock, time::Duration};

use calla_engine::{
    backend::cpu::kernels::Kernels,
    checkpoint::synth::Preset,
    model::{MlpShape, Shape},
};
use divan::{
    Bencher, Divan,
    counter::{BytesCount, ItemsCount},
};

fn main() {
    match Kernels::detect() {
        Ok(kernels) => eprintln!("instruction set {}", kernels.name),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
    let (least, most) = (Duration::from_millis(200), Duration::from_secs(1));
    Divan::default().min_time(least).max_time(most).skip_ext_time(true).config_with_args().main();
}

/// The dimensions that ops are timed at.
static SHAPE: LazyLock<Shape> =
    LazyLock::new(|| Preset::Qwen36Moe35bA3b.shape(None).expect("the preset has layers"));

/// Width of a routed expert, and how many there are.
fn experts() -> (usize, usize) {
    match SHAPE.mlp {
        MlpShape::Moe { experts, expert_width, .. } => (expert_width, experts),
        MlpShape::Dense { .. } => unreachable!("the preset is a mixture of experts"),
    }
}

/// The kernels that `main` found.
fn kernels() -> &'static Kernels {
    Kernels::detect().expect("main has asked")
}

/// What a call moves, and what it computes; without a figure where that says nothing.
fn counted<'a, 'b>(bencher: Bencher<'a, 'b>, bytes: usize, flop: usize) -> Bencher<'a, 'b> {
    let bencher = bencher.counter(BytesCount::new(bytes));
    if flop == 0 { bencher } else { bencher.counter(ItemsCount::new(flop)) }
}

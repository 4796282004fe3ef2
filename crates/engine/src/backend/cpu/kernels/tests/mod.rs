//! Every instruction set of this processor against plain loops in f64.

mod attention;
mod helpers;
mod matmul;

use super::Kernels;

/// Runs a test body for each instruction set and says which one it was about.
fn for_each(test: impl Fn(&'static Kernels)) {
    let mut tested = 0;
    for kernels in Kernels::available() {
        println!("instruction set {}", kernels.name);
        test(kernels);
        tested += 1;
    }
    assert!(tested > 0, "no instruction set is available");
}

/// Repeatable made-up numbers (splitmix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// About normal, variance 1.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }

    fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// ‖a − b‖ / ‖b‖
fn error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    difference.sqrt() / norm.sqrt().max(1e-300)
}

#[test]
fn a_name_gives_its_table_or_says_what_there_is() {
    assert_eq!(Kernels::named("portable").unwrap().name, "portable");
    for (name, problem) in [("sse9", "no such instruction set"), ("neon", "lacks it")] {
        if cfg!(target_arch = "aarch64") && name == "neon" {
            continue;
        }
        let message = Kernels::named(name).err().expect("it must be refused").to_string();
        assert!(message.contains(problem) && message.contains("portable"), "{message}");
    }
    let last = Kernels::available().last().unwrap();
    assert_eq!(last.name, "portable", "the fallback comes last");
}

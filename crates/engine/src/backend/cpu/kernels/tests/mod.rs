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

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
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

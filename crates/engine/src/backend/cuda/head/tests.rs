//! The kernels that find candidates against the candidates' definition, on an emulated device.

use super::{
    super::{
        device::{Argument, Device, Launch, Unit, emulator::Emulator},
        dimensions::PRELUDE,
    },
    *,
};
use crate::backend::SUM_ERROR;

/// One chunk and less, a few, more than are chosen, and more than there are threads; none round.
const VOCABS: [usize; 7] = [1, 63, 64, 257, 3001, 17_003, 262_500];

const TEMPERATURES: [f32; 4] = [1.0, 0.0, 0.3, 1.7];

/// A device with the kernels for a vocabulary.
struct Fixture {
    device: Emulator,
    kernels: HeadKernels,
    vocab: usize,
}

impl Fixture {
    fn new(vocab: usize, seed: u64) -> Self {
        let device = Emulator::with(1 << 30, seed).expect("a C++ compiler");
        let constants = [("GROUP", 64), ("PIECES", 1), ("VOCAB", vocab)];
        let constants = constants.into_iter().chain([("CANDIDATES", CANDIDATES_MAX)]);
        let lines = constants.map(|(name, value)| format!("#define {name} {value}\n"));
        let source = lines.collect::<String>() + PRELUDE + SOURCE;
        let kernels = KERNELS.map(String::from).to_vec();
        let unit = Unit { name: "head", source, kernels, stamps: None };
        let kernels = HeadKernels::new(&device.compile(&unit).expect("kernels that compile"));
        Self { device, kernels, vocab }
    }

    fn launch(&self, kernel: Kernel, grid: [usize; 3], block: usize, arguments: &[Argument]) {
        let [grid, block] = [grid, [block, 0, 0]].map(|sizes| sizes.map(|size| size as u32));
        let launch = Launch { kernel, grid, block: block[0], shared_bytes: 0, arguments };
        self.device.launch(&launch).expect("a kernel without fault");
    }

    /// Candidates of rows, each with its temperature.
    fn candidates(&self, rows: &[(Vec<f32>, f32)]) -> Vec<Candidates> {
        let logits: Vec<f32> = rows.iter().flat_map(|(logits, _)| logits.iter().copied()).collect();
        let temperatures: Vec<f32> = rows.iter().map(|(_, temperature)| *temperature).collect();
        let [logits, temperatures] = [logits, temperatures].map(|x| self.device.memory_of(&x));
        let (count, vocab) = (rows.len(), self.vocab);
        let sums = self.device.fresh::<u8>(count * chunks(vocab) * CHUNK_BYTES);
        let out = self.device.fresh::<u8>(count * size_of::<Candidates>());
        let arguments = [logits, temperatures, sums, out].map(Argument::from);
        let grid = [chunks(vocab).div_ceil(CHUNK_WARPS), count, 1];
        self.launch(self.kernels.chunks, grid, CHUNK_WARPS * 32, &arguments[..3]);
        let threads = merge_threads(vocab);
        self.launch(self.kernels.candidates, [count, 1, 1], threads, &arguments);
        let mut found = vec![Candidates::NONE; count];
        self.device.download(out, candidate_bytes(&mut found)).expect("memory of that size");
        for address in [logits, temperatures, sums, out] {
            self.device.free(address);
        }
        found
    }
}

/// Reproducible values in about [-8, 8].
fn noise(seed: usize, len: usize) -> Vec<f32> {
    let mut state = seed as u32 ^ 0x9e37_79b9;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 20) as f32 - 8.0
    };
    (0..len).map(|_| next()).collect()
}

/// Rows of every kind: apart, with ties, all equal, zeros of both signs, the best side by side, in
/// order, of extreme size, and with what is no number.
fn rows(vocab: usize) -> Vec<(Vec<f32>, f32)> {
    let of = |f: &dyn Fn(usize, f32) -> f32| -> Vec<f32> {
        noise(vocab, vocab).into_iter().enumerate().map(|(id, x)| f(id, x)).collect()
    };
    let logits = [
        of(&|_, x| x),
        of(&|_, x| x.round()),
        of(&|_, _| -2.5),
        of(&|_, x| if x < 0.0 { -0.0 } else { 0.0 }),
        of(&|id, x| if id / 300 == vocab / 600 { x.abs() + 9.0 } else { x }),
        of(&|id, _| id as f32),
        of(&|id, _| -(id as f32)),
        of(&|_, x| x * 4e37),
        of(&|id, x| if id % 1000 == vocab % 1000 / 2 { f32::NAN } else { x }),
        of(&|id, x| if id == vocab - 1 { f32::NEG_INFINITY } else { x }),
        of(&|id, x| if id == 0 { f32::INFINITY } else { x }),
    ];
    let temperatures = TEMPERATURES.into_iter().cycle();
    logits.into_iter().zip(temperatures).collect()
}

fn assert_found(found: &Candidates, logits: &[f32], temperature: f32, what: &str) {
    let expected = Candidates::of(logits, temperature);
    assert_eq!(found.is_finite(), expected.is_finite(), "{what}");
    if !expected.is_finite() {
        return;
    }
    let bits = |of: &Candidates| -> Vec<(u32, u32)> {
        of.best().iter().map(|one| (one.id, one.logit.to_bits())).collect()
    };
    assert_eq!(bits(found), bits(&expected), "{what}");
    let near = |ours: f32, exact: f32| {
        let error = (f64::from(ours) / f64::from(exact) - 1.0).abs();
        assert!(error < SUM_ERROR / 4.0, "{what}: {ours} is off by {error:.1e}");
    };
    near(found.sum(), expected.sum());
    near(found.sum_at_temperature(), expected.sum_at_temperature());
}

#[test]
fn candidates_are_those_of_the_definition() {
    for vocab in VOCABS {
        let fixture = Fixture::new(vocab, 0);
        // The largest takes time: one row of each way through the kernels.
        let rows: Vec<_> = rows(vocab).into_iter().step_by(1 + vocab / 100_000).collect();
        for (row, found) in fixture.candidates(&rows).iter().enumerate() {
            let (logits, temperature) = &rows[row];
            assert_found(found, logits, *temperature, &format!("vocab {vocab}, row {row}"));
        }
    }
}

#[test]
fn any_number_of_rows_in_any_order_of_threads_gives_the_same_bits() {
    for vocab in [257, 17_003] {
        let rows: Vec<_> = rows(vocab).into_iter().take(9).collect();
        let mut expected = Fixture::new(vocab, 0).candidates(&rows);
        for seed in [1, 2] {
            let fixture = Fixture::new(vocab, seed);
            for count in 1..=rows.len() {
                let mut found = fixture.candidates(&rows[..count]);
                // What is no number leaves the rest unwritten.
                found.truncate(8);
                let expected = candidate_bytes(&mut expected[..found.len()]).to_vec();
                assert!(candidate_bytes(&mut found) == expected, "vocab {vocab}, {count} rows");
            }
        }
    }
}

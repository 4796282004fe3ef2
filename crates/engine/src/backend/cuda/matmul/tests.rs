//! Kernels that only a large matrix has, emulated, against those that sum in the same order.

use super::*;
use crate::backend::cuda::{
    device::{Launch, Matrix, Unit, emulator::Emulator},
    dimensions::PRELUDE,
};

const INPUTS: usize = 1024;
const GROUP: usize = 64;

/// More tiles than any block has at a time, the last of them not whole.
const OUTPUTS: usize = 29 * TILE_OUTPUTS - 3;

/// Where the results stand in a row.
const COLUMN: usize = 16;
const WIDTH: usize = COLUMN + OUTPUTS + 5;

/// A device with both kernels.
struct Fixture {
    device: Emulator,
    bits: usize,
    kernels: Vec<Kernel>,
}

impl Fixture {
    fn new(bits: usize, seed: u64) -> Self {
        let device = Emulator::with(1 << 30, seed).expect("a C++ compiler");
        let source = format!(
            "#define GROUP {GROUP}\n#define PIECES 1\n#define HIDDEN {INPUTS}\n\
             #define NORM_EPS 1e-6f\n#define WIDE_STAGES 3\n{PRELUDE}\n{SOURCE}\n\
             LINEAR_FEW(few, {INPUTS}, {bits}, 16, {HELD_SPLIT}, 1)\n\
             LINEAR_HELD(held, {INPUTS}, {bits}, {HELD_ROWS}, {HELD_SPLIT}, {HELD_PAIRS})\n"
        );
        let kernels = ["few", "held"].map(str::to_owned).into();
        let unit = Unit { name: "matmul", source, kernels, stamps: None };
        let kernels = device.compile(&unit).expect("kernels that compile");
        Self { device, bits, kernels }
    }

    /// Results of both kernels.
    fn both(&self, rows: usize, add: bool) -> [Vec<f32>; 2] {
        let mut numbers = Numbers(5);
        let (tiles, groups) = (OUTPUTS.div_ceil(TILE_OUTPUTS), INPUTS / GROUP);
        let words: Vec<u32> =
            (0..tiles * TILE_OUTPUTS * INPUTS * self.bits / 32).map(|_| numbers.bits()).collect();
        // two bfloat16 between 1/2 and 1, of either sign
        let affine: Vec<u32> = (0..tiles * TILE_OUTPUTS * groups)
            .map(|_| numbers.bits() & 0x807f_807f | 0x3f00_3f00)
            .collect();
        let halves: Vec<u16> =
            (0..rows * INPUTS).map(|_| (numbers.bits() & 0x83ff | 0x3800) as u16).collect();
        let sums: Vec<f32> =
            (0..rows * groups).map(|_| numbers.bits() as f32 / 2.0_f32.powi(31) - 1.0).collect();
        let before: Vec<f32> = (0..rows * WIDTH).map(|at| at as f32).collect();
        let device = &self.device;
        let matrix = Matrix {
            words: device.memory_of(&words),
            affine: device.memory_of(&affine),
            range: Address::default(),
        };
        let x = Activations {
            halves: device.memory_of(&halves),
            sums: device.memory_of(&sums),
            rows: rows as u32,
        };
        let key = Key { inputs: INPUTS, bits: self.bits, height: Height::Middle };
        let grid = |tiles_at_once: usize, rows_at_once: usize| {
            [tiles.div_ceil(tiles_at_once), rows.div_ceil(rows_at_once), 1]
        };
        let (few, held) = (32 * HELD_SPLIT, 32 * HELD_SPLIT * HELD_PAIRS);
        let launches = [
            (self.kernels[0], grid(1, 16), few, 0),
            (self.kernels[1], grid(2 * HELD_PAIRS, HELD_ROWS), held, key.held_bytes(GROUP)),
        ];
        launches.map(|(kernel, grid, block, shared_bytes)| {
            let out = device.memory_of(&before);
            let numbers = [WIDTH, COLUMN, OUTPUTS, usize::from(add)];
            let [width, column, outputs, add] = numbers.map(|n| Argument::from(n as u32));
            let rows_argument = (rows as u32).into();
            let arguments =
                [matrix.into(), x.into(), rows_argument, out.into(), width, column, outputs, add];
            let launch = Launch {
                kernel,
                grid: grid.map(|blocks| blocks as u32),
                block: block as u32,
                shared_bytes: shared_bytes as u32,
                arguments: &arguments,
            };
            device.launch(&launch).expect("a kernel without fault");
            device.read(out, rows * WIDTH)
        })
    }
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

#[test]
fn held_rows_give_the_bits_of_rows_that_are_read() {
    for (bits, seed) in [(4, 0), (8, 1)] {
        let fixture = Fixture::new(bits, seed);
        for (rows, add) in [(20, true), (HELD_ROWS, false), (HELD_ROWS + 9, false)] {
            let [few, held] = fixture.both(rows, add);
            let same = few.iter().zip(&held).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{bits} bits, {rows} rows");
            let changed = few.iter().enumerate().filter(|&(at, &value)| value != at as f32).count();
            assert!(changed * 10 > rows * OUTPUTS * 9, "{changed} results");
        }
    }
}

//! The recurrence's kernels, emulated, against the reference.

use super::*;
use crate::backend::{
    cuda::{
        device::{Argument, Device, Launch, Unit, emulator::Emulator},
        dimensions::PRELUDE,
    },
    reference::ops::{DeltaInputs, delta_recurrent},
};

/// Full-size heads: two that share a key head.
const SHAPE: DeltaNetShape =
    DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 128, value_dim: 128, conv_taps: 4 };

/// Rows of the sequences: chunks that are full, begun and barely worth it, and too few rows for one.
const ROWS: [usize; 6] = [70, 3, 16, 0, 15, 64];

/// What is hard about a prompt, as inputs that are not normalised yet.
struct Case {
    name: &'static str,
    query: fn(&mut Numbers, usize) -> f32, // by dimension
    key: fn(&mut Numbers, usize) -> f32,   // likewise
    value: fn(&mut Numbers, usize) -> f32, // by row
    decay_log: fn(&mut Numbers) -> f32,
    beta: fn(&mut Numbers) -> f32,
}

const CASES: [Case; 4] = [
    Case {
        name: "random",
        query: |numbers, _| 3.0 * numbers.next(),
        key: |numbers, _| 0.2 * numbers.next(),
        value: |numbers, _| numbers.next(),
        decay_log: |numbers| -0.3 * numbers.next().abs(),
        beta: |numbers| numbers.next().abs(),
    },
    Case {
        name: "one token over and over, slow decay, strong writes",
        query: |numbers, dim| dim as f32 + 1e-3 * numbers.next(),
        key: |numbers, dim| 100.0 - dim as f32 + 1e-3 * numbers.next(),
        value: |_, _| 0.7,
        decay_log: |_| -1e-5,
        beta: |_| 0.999,
    },
    Case {
        name: "decays from none to all",
        query: |numbers, _| numbers.next(),
        key: |numbers, _| numbers.next(),
        value: |numbers, _| numbers.next(),
        decay_log: |numbers| -100.0 * numbers.next().max(0.0),
        beta: |numbers| numbers.next().abs(),
    },
    Case {
        name: "values of all sizes",
        query: |numbers, _| numbers.next(),
        key: |numbers, _| numbers.next(),
        value: |numbers, row| numbers.next() * 1e-7_f32.powi(3 - (row / 9 % 5) as i32),
        decay_log: |numbers| -0.01 * numbers.next().abs(),
        beta: |numbers| numbers.next().abs(),
    },
];

/// Numbers in [-1, 1) that look random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as i32 as f32 / 2_f32.powi(31)
    }
}

/// A device with the kernels for [`SHAPE`].
struct Fixture {
    device: Emulator,
    kernels: DeltaNetKernels,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let device = Emulator::with(1 << 30, seed).expect("a C++ compiler");
        let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, conv_taps } = SHAPE;
        let channels = SHAPE.conv_channels();
        let source = format!(
            "#define KEY_HEADS {key_heads}\n#define VALUE_HEADS {value_heads}\n\
             #define KEY_DIM {key_dim}\n#define VALUE_DIM {value_dim}\n\
             #define CONV_TAPS {conv_taps}\n#define CONV_CHANNELS {channels}\n\
             #define COLUMN_QKV 0\n#define COLUMN_Z 0\n#define COLUMN_B 0\n#define COLUMN_A 0\n\
             #define GROUP 64\n#define PIECES 1\n#define NORM_EPS 1e-6f\n{PRELUDE}\n{SOURCE}"
        );
        let kernels = NAMES.map(str::to_owned).to_vec();
        let unit = Unit { name: "delta_net", source, kernels, stamps: None };
        let kernels = DeltaNetKernels::new(&device.compile(&unit).expect("kernels that compile"));
        Self { device, kernels }
    }

    fn run(&self, kernel: Kernel, grid: [usize; 2], shared: usize, arguments: &[Argument]) {
        let [x, y] = grid.map(|blocks| blocks as u32);
        let launch =
            Launch { kernel, grid: [x, y, 1], block: 128, shared_bytes: shared as u32, arguments };
        self.device.launch(&launch).expect("a correct kernel");
    }

    /// The recurrence as a pass runs it: what is read [rows, value_width], and the states after.
    fn recurrence(&self, prompt: &Prompt, states: &[Vec<f32>]) -> (Vec<f32>, Vec<Vec<f32>>) {
        let rows = prompt.factors.len() / SHAPE.value_heads;
        let channels = SHAPE.conv_channels();
        let ring = vec![0.0_f32; SHAPE.conv_taps * channels];
        let blocks: Vec<Address> = states
            .iter()
            .map(|state| self.device.memory_of(&[&state[..], &ring].concat()))
            .collect();
        let mut first_row = vec![0_u32];
        first_row.extend(ROWS.iter().scan(0, |row, rows| {
            *row += *rows as u32;
            Some(*row)
        }));
        let first_row: Argument = self.device.memory_of(&first_row).into();
        let position = self.device.memory_of(&vec![0_u32; rows]).into();
        let (qkv, factors) = (
            self.device.memory_of(&prompt.qkv).into(),
            self.device.memory_of(&prompt.factors).into(),
        );
        let addresses: Vec<u64> = blocks.iter().map(|block| block.0).collect();
        let (addresses, proj) =
            (self.device.memory_of(&addresses).into(), self.device.memory_of(&prompt.qkv).into());
        let bytes = |bytes| self.device.allocate(bytes, "a test").expect("memory");
        let solved = bytes(rows * SHAPE.value_heads * SOLVED_HALVES * 2).into();
        let decays = bytes(rows * SHAPE.value_heads * 8).into();
        let out = bytes(rows * SHAPE.value_width() * 4);
        let ld = (channels as u32).into();
        let grid = [SHAPE.value_width() / STEP_VALUES, ROWS.len()];

        let arguments =
            [qkv, factors, proj, ld, position, first_row, addresses, 0_u64.into(), out.into()];
        self.run(self.kernels.delta_step, grid, 0, &arguments);
        let arguments = [first_row, (ROWS.len() as u32).into(), factors, qkv, solved, decays];
        let blocks_max = rows / CHUNK + ROWS.len();
        self.run(self.kernels.chunk_solve, [blocks_max, SHAPE.key_heads], 0, &arguments);
        let arguments = [
            qkv,
            solved,
            decays,
            proj,
            ld,
            position,
            first_row,
            addresses,
            0_u64.into(),
            out.into(),
        ];
        self.run(self.kernels.delta_chunk, grid, 2 * stage_bytes(&SHAPE), &arguments);

        let state_len = SHAPE.value_width() * SHAPE.key_dim;
        let states = blocks.iter().map(|&block| self.device.read(block, state_len)).collect();
        (self.device.read(out, rows * SHAPE.value_width()), states)
    }
}

/// The rows of all sequences, as the kernels take them and as the reference does.
struct Prompt {
    qkv: Vec<f32>,          // [rows, conv_channels]
    factors: Vec<[f32; 8]>, // [rows, value_heads]
    inputs: DeltaInputs,
}

impl Prompt {
    fn new(case: &Case, numbers: &mut Numbers) -> Self {
        let mut prompt = Self {
            qkv: Vec::new(),
            factors: Vec::new(),
            inputs: DeltaInputs {
                queries: Vec::new(),
                keys: Vec::new(),
                values: Vec::new(),
                decay_log: Vec::new(),
                beta: Vec::new(),
            },
        };
        for row in 0..ROWS.iter().sum() {
            let mut dims = |of: fn(&mut Numbers, usize) -> f32| -> Vec<f32> {
                (0..SHAPE.key_dim).map(|dim| of(numbers, dim)).collect()
            };
            let (query, key) = (dims(case.query), dims(case.key));
            let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let query_scale = (dot(&query, &query) * SHAPE.key_dim as f32).sqrt().recip();
            let key_scale = dot(&key, &key).sqrt().recip();
            let values: Vec<f32> =
                (0..SHAPE.value_width()).map(|_| (case.value)(numbers, row)).collect();
            prompt.inputs.queries.extend(query.iter().map(|x| x * query_scale));
            prompt.inputs.keys.extend(key.iter().map(|x| x * key_scale));
            prompt.inputs.values.extend(&values);
            prompt.qkv.extend([&query[..], &key, &values].concat());
            for _ in 0..SHAPE.value_heads {
                let (decay_log, beta) = ((case.decay_log)(numbers), (case.beta)(numbers));
                prompt.inputs.decay_log.push(decay_log);
                prompt.inputs.beta.push(beta);
                let decay = decay_log.exp();
                prompt.factors.push([
                    decay,
                    decay * key_scale,
                    beta * key_scale,
                    beta,
                    decay * query_scale,
                    query_scale * dot(&query, &key),
                    query_scale,
                    key_scale,
                ]);
            }
        }
        prompt
    }

    /// The reference's inputs of some rows.
    fn rows(&self, rows: std::ops::Range<usize>) -> DeltaInputs {
        let part = |all: &[f32], width: usize| all[rows.start * width..rows.end * width].to_vec();
        DeltaInputs {
            queries: part(&self.inputs.queries, SHAPE.key_width()),
            keys: part(&self.inputs.keys, SHAPE.key_width()),
            values: part(&self.inputs.values, SHAPE.value_width()),
            decay_log: part(&self.inputs.decay_log, SHAPE.value_heads),
            beta: part(&self.inputs.beta, SHAPE.value_heads),
        }
    }
}

/// Norm of the difference over norm.
fn error(ours: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    let difference = norm(&mut ours.iter().zip(expected).map(|(a, b)| a - b));
    difference / norm(&mut expected.iter().copied()).max(f64::MIN_POSITIVE)
}

#[test]
fn the_recurrence_keeps_what_float32_keeps() {
    for seed in [0, 1] {
        let fixture = Fixture::new(seed);
        for case in &CASES {
            let mut numbers = Numbers(7);
            let prompt = Prompt::new(case, &mut numbers);
            let state_len = SHAPE.value_width() * SHAPE.key_dim;
            let mut states: Vec<Vec<f32>> = ROWS
                .map(|rows| (0..state_len).map(|_| numbers.next() * (rows % 2) as f32).collect())
                .into();
            let (read, after) = fixture.recurrence(&prompt, &states);
            let mut first = 0;
            for (sequence, &rows) in ROWS.iter().enumerate() {
                let range = first..first + rows;
                let state = &mut states[sequence];
                let expected = delta_recurrent(&SHAPE, &prompt.rows(range.clone()), state);
                let width = SHAPE.value_width();
                let read = error(&read[range.start * width..range.end * width], &expected);
                let kept = error(&after[sequence], state);
                let line = format!("{}, {rows} rows: read {read:.1e}, state {kept:.1e}", case.name);
                println!("{line}");
                assert!(read <= 4e-6 && kept <= 4e-6, "{line}");
                first += rows;
            }
        }
    }
}

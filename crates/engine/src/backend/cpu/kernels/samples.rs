//! Made-up inputs for the kernels, and how far results are from what they should be: what the
//! self-test and the unit tests have in common.

use std::sync::Arc;

use super::{Activations, AttendBlock, Cached, Kernels, Running, supports};
use crate::{
    backend::Precision,
    model::{Bytes, Linear},
};

/// Lengths around the widths of vectors, and one beyond every unrolled loop.
pub(super) const LENGTHS: [usize; 7] = [1, 7, 8, 16, 30, 128, 2049];

/// Bits and group size of every format that the kernels multiply with.
pub(super) const FORMATS: [(usize, usize); 6] =
    [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)];

/// Repeatable made-up numbers (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// About normal, variance 1.
    pub(super) fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }

    pub(super) fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }
}

/// ‖a − b‖ / ‖b‖; not a number when a value of `a` is none.
pub(super) fn error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    difference.sqrt() / norm.sqrt().max(1e-300)
}

/// A random matrix.
pub(super) fn matrix(outputs: usize, inputs: usize, bits: usize, group: usize) -> Linear {
    let mut random = Random((outputs * inputs + bits * group) as u64);
    let levels = ((1u32 << bits) - 1) as f32;
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..outputs * inputs / group {
        let scale = half::bf16::from_f32(0.02 * (random.normal().abs() + 0.1) / levels);
        let middle = -scale.to_f32() * levels / 2.0;
        scales.extend(scale.to_le_bytes());
        biases.extend(half::bf16::from_f32(middle + 0.001 * random.normal()).to_le_bytes());
    }
    let weight = (0..outputs * inputs * bits / 8).map(|_| random.bits() as u8).collect();
    let linear = Linear {
        outputs,
        inputs,
        bits,
        group,
        weight: unaligned(weight),
        scales: unaligned(scales),
        biases: unaligned(biases),
    };
    assert_eq!(supports(&linear), Ok(()));
    linear
}

/// The bytes behind one more: alignment is not promised.
fn unaligned(data: Vec<u8>) -> Bytes {
    let shifted = [vec![0], data].concat();
    let len = shifted.len();
    Bytes::new(Arc::new(shifted)).slice(1..len).expect("the range is inside")
}

pub(super) fn prepared(kernels: &Kernels, x: &[Vec<f32>], precision: Precision) -> Activations {
    let inputs = x[0].len();
    let mut activations = Activations::with_capacity(x.len() + 1, inputs + 64, precision);
    activations.reset(x.len(), inputs);
    for (row, x) in x.iter().enumerate() {
        // SAFETY: one thread.
        unsafe { kernels.prepare(&activations, row, x) };
    }
    activations
}

/// Products with all outputs [rows, outputs], computed range by range; nothing when a kernel
/// wrote beyond the outputs.
pub(super) fn multiply(
    kernels: &Kernels,
    linear: &Linear,
    x: &Activations,
    rows: &[u32],
    cuts: &[usize],
) -> Option<Vec<f32>> {
    let stride = linear.outputs + 3;
    let mut y = vec![f32::NAN; rows.len() * stride];
    for range in cuts.windows(2) {
        // SAFETY: every row is prepared, the ranges lie inside the stride.
        unsafe { kernels.matmul(linear, x, rows, range[0]..range[1], y.as_mut_ptr(), stride) };
    }
    let clean = y.chunks(stride).all(|row| row[linear.outputs..].iter().all(|y| y.is_nan()));
    clean.then(|| y.chunks(stride).flat_map(|row| row[..linear.outputs].to_vec()).collect())
}

/// Queries of some heads, and the cache of the KV head that they share.
pub(super) struct Cache {
    pub(super) head_dim: usize,
    pub(super) stride: usize,
    pub(super) queries: Vec<f32>, // [heads, head_dim]
    pub(super) keys: Vec<f32>,    // [tokens, stride]
    pub(super) values: Vec<f32>,  // [tokens, stride]
}

impl Cache {
    pub(super) fn new(head_dim: usize, heads: usize, tokens: usize) -> Self {
        let mut random = Random((head_dim * heads + tokens) as u64);
        let stride = head_dim + 16;
        Self {
            head_dim,
            stride,
            queries: random.normals(heads * head_dim),
            keys: random.normals(tokens * stride).iter().map(|x| 2.0 * x).collect(),
            values: random.normals(tokens * stride),
        }
    }

    /// Attends to the tokens in runs that end at `ends`; with `half`, to a cache of half floats.
    pub(super) fn attend(
        &self,
        kernels: &Kernels,
        half: bool,
        ends: &[usize],
        heads: usize,
    ) -> Vec<f32> {
        let to_half = |x: &[f32]| -> Vec<u16> {
            x.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect()
        };
        let (keys, values) = (to_half(&self.keys), to_half(&self.values));
        let (mut max, mut sum) = (vec![0.0; heads], vec![0.0; heads]);
        let mut acc = vec![0.0; heads * self.head_dim];
        let mut running = Running { max: &mut max, sum: &mut sum, acc: &mut acc };
        running.clear();
        let mut start = 0;
        for &end in ends {
            let from = start * self.stride;
            let (keys, values) = if half {
                (Cached::F16(&keys[from..]), Cached::F16(&values[from..]))
            } else {
                (Cached::F32(&self.keys[from..]), Cached::F32(&self.values[from..]))
            };
            let block = AttendBlock {
                queries: &self.queries[..heads * self.head_dim],
                head_dim: self.head_dim,
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                keys,
                values,
                stride: self.stride,
                tokens: end - start,
                // An address to ask for changes nothing.
                next: (start == 0).then_some([keys, values]),
            };
            kernels.attend(&block, &mut running);
            start = end;
        }
        running.finish();
        acc
    }
}

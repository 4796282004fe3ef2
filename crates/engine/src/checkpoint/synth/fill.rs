//! Seeded values for tensors, at the speed of memory.

use half::bf16;

use super::plan::{Fill, Tensor};

/// The values of one tensor, in order, as little-endian bytes.
pub(super) struct Stream {
    fill: Fill,
    key: u64,
    draws: u64, // taken so far
}

impl Stream {
    pub(super) fn new(tensor: &Tensor) -> Self {
        // The scales and biases of a matrix share a stream: a bias must know its scale.
        let name = match tensor.fill {
            Fill::Scales(_) | Fill::Biases { .. } => tensor.module(),
            _ => &tensor.entry.name,
        };
        Stream { fill: tensor.fill, key: mix(tensor.seed ^ mix(hash(name))), draws: 0 }
    }

    /// The next values; the length is a multiple of the element size.
    pub(super) fn write(&mut self, out: &mut [u8]) {
        match self.fill {
            Fill::Codes => self.codes(out),
            Fill::Scales(scale) => self.each(out, |unit| bf16_bytes(jittered(scale, unit))),
            Fill::Biases { scale, centre } => {
                // From the rounded scale, so that the values' mean is zero but for a last rounding.
                let bias = |unit| -centre * bf16::from_f64(jittered(scale, unit)).to_f64();
                self.each(out, |unit| bf16_bytes(bias(unit)));
            }
            Fill::Uniform(low, high) => {
                self.each(out, |unit| bf16_bytes(low + (high - low) * unit));
            }
            Fill::UniformF32(low, high) => {
                self.each(out, |unit| ((low + (high - low) * unit) as f32).to_le_bytes());
            }
        }
    }

    /// Random bits, 8 bytes a draw.
    fn codes(&mut self, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut::<8>();
        for word in words {
            *word = self.draw().to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.draw().to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// One draw in [0, 1) for each element of `N` bytes.
    fn each<const N: usize>(&mut self, out: &mut [u8], value: impl Fn(f64) -> [u8; N]) {
        for element in out.as_chunks_mut::<N>().0 {
            *element = value((self.draw() >> 11) as f64 / (1u64 << 53) as f64);
        }
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        // Odd step, so that a stream repeats after 2^64 draws only.
        mix(self.key.wrapping_add(self.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// Up to 10 % more or less than `scale`.
fn jittered(scale: f64, unit: f64) -> f64 {
    scale * (0.9 + 0.2 * unit)
}

fn bf16_bytes(value: f64) -> [u8; 2] {
    bf16::from_f64(value).to_le_bytes()
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every input bit moves
/// every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// FNV-1a, 64 bits.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{safetensors::Dtype, writer::Entry};

    #[test]
    fn the_split_into_writes_changes_nothing() {
        for fill in [Fill::Codes, Fill::Scales(0.01), Fill::UniformF32(0.0, 2.5)] {
            let tensor = tensor("a.weight", fill, 7);
            let mut whole = [0; 256];
            Stream::new(&tensor).write(&mut whole);
            let mut parts = [0; 256];
            let mut stream = Stream::new(&tensor);
            for part in parts.chunks_mut(64) {
                stream.write(part);
            }
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn quantised_values_are_centred_and_have_the_asked_deviation() {
        let (scale, centre, groups, group) = (0.01, 7.5, 2000, 64);
        let column = |suffix: &str, fill, len: usize| {
            let mut bytes = vec![0; len];
            Stream::new(&tensor(&format!("m.{suffix}"), fill, 3)).write(&mut bytes);
            bytes
        };
        let codes = column("weight", Fill::Codes, groups * group / 2);
        let scales = column("scales", Fill::Scales(scale), 2 * groups);
        let biases = column("biases", Fill::Biases { scale, centre }, 2 * groups);
        let at =
            |bytes: &[u8], i: usize| bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f64();
        let values: Vec<f64> = (0..groups * group)
            .map(|i| {
                let code = (codes[i / 2] >> (4 * (i % 2))) & 15;
                at(&scales, i / group) * f64::from(code) + at(&biases, i / group)
            })
            .collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let deviation = (values.iter().map(|v| v * v).sum::<f64>() / count).sqrt();
        // Whole numbers 0..=15 deviate by 4.61 from their mean.
        assert!(mean.abs() < 0.01 * deviation, "mean {mean}");
        assert!((deviation / (scale * 4.61) - 1.0).abs() < 0.02, "deviation {deviation}");
    }
    fn tensor(name: &str, fill: Fill, seed: u64) -> Tensor {
        // Dimensions and dtype say how much is asked of a stream, not what it gives.
        let entry = Entry { name: name.into(), dtype: Dtype::BF16, dims: Vec::new() };
        Tensor { entry, fill, seed }
    }
}

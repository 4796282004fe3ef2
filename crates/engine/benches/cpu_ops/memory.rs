//! Memory that ops stream through, and how fast it can be read.

use std::sync::{Arc, LazyLock};

use calla_engine::model::{Bytes, Linear, random::Random};
use divan::Bencher;

use crate::counted;

/// More than the last-level caches that two cores are likely to have.
const STREAM_BYTES: usize = 256 << 20;

/// Group size of the matrices.
const GROUP: usize = 64;

/// Packed elements for matrices of any shape.
static ELEMENTS: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = Random(1);
    let words = (0..STREAM_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes());
    Bytes::new(Arc::new(words.collect::<Vec<u8>>()))
});

/// Scales and biases for all of [`ELEMENTS`] with 4 bits: 0.0115 as bf16.
static FACTORS: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::new(Arc::new(vec![0x3C; STREAM_BYTES * 2 / GROUP * 2 * 2])));

/// Whose turn it is: 0, 1, … and again, over as many things of `bytes` bytes as no cache holds.
pub(crate) struct Turns {
    count: usize,
    next: usize,
}

impl Turns {
    pub(crate) fn of(bytes: usize) -> Self {
        Self { count: (STREAM_BYTES / bytes).max(1), next: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn next(&mut self) -> usize {
        self.next = (self.next + 1) % self.count;
        self.next
    }
}

/// Matrices of one shape, in different places of the memory.
pub(crate) fn matrices(outputs: usize, inputs: usize, bits: usize) -> Vec<Linear> {
    let (elements, factors) = (outputs * inputs * bits / 8, outputs * inputs / GROUP * 2);
    let part = |of: &Bytes, index: usize, len: usize| {
        of.slice(index * len..(index + 1) * len).expect("there is as much as the turns need")
    };
    let matrix = |turn: usize| Linear {
        outputs,
        inputs,
        bits,
        group: GROUP,
        weight: part(&ELEMENTS, turn, elements),
        scales: part(&FACTORS, 2 * turn, factors),
        biases: part(&FACTORS, 2 * turn + 1, factors),
    };
    (0..Turns::of(elements).count()).map(matrix).collect()
}

/// Words of a part of the memory, summed: the bandwidth that one core has.
#[divan::bench]
fn read(bencher: Bencher<'_, '_>) {
    const BYTES: usize = 16 << 20;
    let (memory, mut turns) = (&**ELEMENTS, Turns::of(BYTES));
    counted(bencher, BYTES, 0).with_inputs(|| turns.next()).bench_local_values(|turn| {
        let words = memory[turn * BYTES..][..BYTES].as_chunks::<64>().0.iter();
        words.fold([0u64; 8], |sums, line| {
            let (words, _) = line.as_chunks::<8>();
            std::array::from_fn(|i| sums[i].wrapping_add(u64::from_le_bytes(words[i])))
        })
    });
}

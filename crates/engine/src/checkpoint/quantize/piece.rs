//! One module of the model on its way from the source's bytes to the checkpoint's.

use std::path::PathBuf;

use half::{bf16, f16};

use super::affine;
use crate::{
    Error,
    checkpoint::{
        config::Packing,
        safetensors::{Dtype, Tensor},
        writer::{self, Entry, TensorOut},
    },
    model::Bytes,
};

/// Elements read, converted and written at a time: a multiple of every group.
const CHUNK: usize = 1 << 20;

/// Tensors to write and what they are made of.
pub(super) struct Piece {
    pub(super) entries: Vec<Entry>,
    pub(super) source: Vec<Block>,
    pub(super) make: Make,
}

/// Consecutive elements of a source tensor.
pub(super) struct Block {
    pub(super) path: PathBuf,
    pub(super) dtype: Dtype,
    pub(super) bytes: Bytes,
}

/// What is made of the source's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    /// Three tensors: codes, scales and biases.
    Matrix(Packing),
    /// The same values, in bfloat16.
    Bf16,
    /// The same bytes.
    Same,
    /// 1 + value, in the source's precision and then in bfloat16, as mlx-lm does.
    GainBf16,
    /// 1 + value in float32.
    GainF32,
    /// The same values, in float32.
    F32,
}

impl Block {
    pub(super) fn whole(tensor: Tensor) -> Self {
        Block { path: tensor.path, dtype: tensor.dtype, bytes: tensor.bytes }
    }

    /// The n-th of `parts` equal parts of a tensor.
    pub(super) fn part(tensor: &Tensor, n: usize, parts: usize) -> Self {
        let len = tensor.bytes.len() / parts;
        let bytes = tensor.bytes.slice(n * len..(n + 1) * len).expect("n is below parts");
        Block { path: tensor.path.clone(), dtype: tensor.dtype, bytes }
    }

    /// Hands out the elements as f32, some at a time.
    fn each_chunk(&self, mut take: impl FnMut(&[f32]) -> Result<(), Error>) -> Result<(), Error> {
        let bytes: &[u8] = &self.bytes;
        let mut values = Vec::with_capacity(CHUNK.min(bytes.len() / 2));
        for chunk in bytes.chunks(CHUNK * self.element_bytes()) {
            values.clear();
            match self.dtype {
                Dtype::BF16 => values.extend(
                    chunk.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()),
                ),
                Dtype::F16 => values.extend(
                    chunk.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()),
                ),
                Dtype::F32 => values
                    .extend(chunk.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))),
                _ => unreachable!("only float tensors are taken"),
            }
            take(&values)?;
        }
        Ok(())
    }

    fn element_bytes(&self) -> usize {
        self.dtype.size_bytes().expect("float types have a size")
    }
}

impl writer::Piece for Piece {
    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn fill(&self, outs: &mut [TensorOut]) -> Result<(), Error> {
        for block in &self.source {
            match (self.make, &mut *outs) {
                (Make::Matrix(packing), [codes, scales, biases]) => {
                    self.fill_matrix(block, packing, [codes, scales, biases])?;
                }
                (Make::Same, [out]) => out.append(&block.bytes)?,
                (_, [out]) => block.each_chunk(|values| out.append(&self.vector(block, values)))?,
                _ => unreachable!("a matrix has three tensors, anything else one"),
            }
        }
        Ok(())
    }
}

impl Piece {
    fn fill_matrix(
        &self,
        block: &Block,
        packing: Packing,
        mut outs: [&mut TensorOut; 3],
    ) -> Result<(), Error> {
        let mut made: [Vec<u8>; 3] = Default::default();
        let mut rounded = Vec::new();
        block.each_chunk(|values| {
            made.iter_mut().for_each(Vec::clear);
            let [codes, scales, biases] = &mut made;
            rounded.clear();
            rounded.extend(values.iter().map(|&value| bf16::from_f32(value).to_f32()));
            if !affine::quantise(&rounded, packing.group, packing.bits, codes, scales, biases) {
                return Err(self.not_finite(block));
            }
            outs.iter_mut().zip(&made).try_for_each(|(out, bytes)| out.append(bytes))
        })
    }

    /// The bytes of a vector's elements.
    fn vector(&self, block: &Block, values: &[f32]) -> Vec<u8> {
        let in_bf16 = |value: f32| bf16::from_f32(value).to_le_bytes();
        let values = values.iter();
        match self.make {
            Make::Bf16 => values.flat_map(|&value| in_bf16(value)).collect(),
            Make::GainBf16 => {
                values.flat_map(|&value| in_bf16(round_to(block.dtype, 1.0 + value))).collect()
            }
            Make::GainF32 => values.flat_map(|&value| (1.0 + value).to_le_bytes()).collect(),
            Make::F32 => values.flat_map(|&value| value.to_le_bytes()).collect(),
            Make::Same | Make::Matrix(_) => unreachable!("filled otherwise"),
        }
    }

    fn not_finite(&self, block: &Block) -> Error {
        Error::Tensor {
            path: block.path.clone(),
            tensor: self.entries[0].name.clone(),
            problem: "has values that are infinite, not a number, or too large to quantise: the \
                      source may be damaged, fetch it again"
                .into(),
        }
    }
}

/// The value as a float type holds it.
fn round_to(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
        Dtype::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

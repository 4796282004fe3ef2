//! Ids, and the logits that another implementation gives for them, in a file.

use std::path::{Path, PathBuf};

use calla_engine::{
    checkpoint::{Dtype, Tensor, Tensors},
    model::Shape,
};

use crate::error::Error;

/// One file: sequences one behind the other.
pub(super) struct Golden {
    path: PathBuf,
    ids: Vec<u32>,
    /// Where sequences begin; the first is 0, and each is beyond the one before.
    starts: Vec<usize>,
    logits: Tensor, // [ids, vocab] f32
}

impl Golden {
    /// Reads `ids`, `logits` and, where it is there, `starts`.
    ///
    /// # Errors
    /// [`Error::Engine`] for what is no safetensors file, [`Error::File`] for one of other tensors.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let mut tensors = Tensors::open_file(path)?;
        let ids = take(&mut tensors, path, "ids", Dtype::I32, 1)?;
        let ids = ids.map(|ids| words(&ids)).ok_or_else(|| absent(path, "ids"))?;
        let logits = take(&mut tensors, path, "logits", Dtype::F32, 2)?;
        let logits = logits.ok_or_else(|| absent(path, "logits"))?;
        if ids.is_empty() || logits.shape[0] != ids.len() {
            let problem = format!(
                "`ids` has {} rows and `logits` {}: expected the same number, at least one",
                ids.len(),
                logits.shape[0]
            );
            return Err(file_error(path, problem));
        }
        let starts = take(&mut tensors, path, "starts", Dtype::I32, 1)?;
        let starts = starts.map_or(vec![0], |starts| words(&starts));
        let starts: Vec<usize> = starts.into_iter().map(|start| start as usize).collect();
        let ascending = starts.is_sorted_by(|a, b| a < b);
        if starts.first() != Some(&0) || !ascending || starts.last() >= Some(&ids.len()) {
            let problem = "`starts` does not ascend from 0 to below the number of ids".into();
            return Err(file_error(path, problem));
        }
        Ok(Self { path: path.to_owned(), ids, starts, logits })
    }

    /// Whether this model can be asked for these logits.
    pub(super) fn check(&self, shape: &Shape) -> Result<(), Error> {
        let longest = self.sequences().map(<[u32]>::len).max().unwrap_or(0);
        let problem = if self.logits.shape[1] != shape.vocab {
            format!("`logits` has {} columns, the model {}", self.logits.shape[1], shape.vocab)
        } else if let Some(&id) = self.ids.iter().find(|&&id| id as usize >= shape.vocab) {
            format!("`ids` holds {}, outside the vocabulary of {}", id as i32, shape.vocab)
        } else if longest > shape.context_max {
            format!("a sequence has {longest} tokens, the context {}", shape.context_max)
        } else {
            return Ok(());
        };
        let problem = format!("{problem}: was it made from another checkpoint?");
        Err(file_error(&self.path, problem))
    }

    /// The ids of each sequence.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &[u32]> {
        let end = |index: usize| self.starts.get(index + 1).copied().unwrap_or(self.ids.len());
        let starts = self.starts.iter().enumerate();
        starts.map(move |(index, &start)| &self.ids[start..end(index)])
    }

    pub(super) fn reader(&self) -> GoldenReader<'_> {
        GoldenReader { golden: self, next: 0, rows: Vec::new() }
    }
}

/// The logits, from the first row on.
pub(super) struct GoldenReader<'a> {
    golden: &'a Golden,
    next: usize,
    rows: Vec<f32>, // [read last, vocab]
}

impl GoldenReader<'_> {
    /// Reads the next rows, of which there must be as many.
    ///
    /// # Errors
    /// [`Error::File`] when a value is no number.
    pub(super) fn read(&mut self, rows: usize) -> Result<(), Error> {
        let row_bytes = 4 * self.vocab();
        let bytes = &self.golden.logits.bytes[self.next * row_bytes..][..rows * row_bytes];
        self.rows.clear();
        self.rows.extend(bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)));
        if let Some(index) = self.rows.iter().position(|value| !value.is_finite()) {
            let row = self.next + index / self.vocab();
            let problem = format!("`logits`: row {row} holds a value that is no number");
            return Err(file_error(&self.golden.path, problem));
        }
        self.next += rows;
        Ok(())
    }

    /// The logits that follow the id of this number among those read last, each finite.
    pub(super) fn row(&self, index: usize) -> &[f32] {
        &self.rows[index * self.vocab()..][..self.vocab()]
    }

    fn vocab(&self) -> usize {
        self.golden.logits.shape[1]
    }
}

/// A tensor of this name; `None` when there is none, an error when it is of another form.
fn take(
    tensors: &mut Tensors,
    path: &Path,
    name: &str,
    dtype: Dtype,
    dims: usize,
) -> Result<Option<Tensor>, Error> {
    match tensors.take(name) {
        Some(tensor) if tensor.dtype != dtype || tensor.shape.len() != dims => {
            let found = format!("{:?} {:?}", tensor.dtype, tensor.shape);
            let expected = format!("expected {dtype:?} with {dims} dimension(s)");
            Err(file_error(path, format!("`{name}` is {found}: {expected}")))
        }
        tensor => Ok(tensor),
    }
}

/// A negative number becomes one that is larger than any id or length.
fn words(tensor: &Tensor) -> Vec<u32> {
    tensor.bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

fn absent(path: &Path, name: &str) -> Error {
    let expected = "`ids` int32 [n] and `logits` float32 [n, vocab]";
    file_error(path, format!("holds no `{name}`: expected {expected}"))
}

fn file_error(path: &Path, problem: String) -> Error {
    Error::File { path: path.to_owned(), problem }
}

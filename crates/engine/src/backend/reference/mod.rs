//! The reference backend: float32, plain loops, one thread. It defines what every other backend
//! must compute, and it is the code to read first to learn the model.
//!
//! Start with `forward.rs`: the whole model in the order in which it runs. The arithmetic stands
//! in [`ops`], what a sequence remembers in `sequence.rs`.
//!
//! Every sum runs in one order that depends on the model's dimensions only, so a token's logits are
//! the same bits in any chunk of any batch. Unlike the other backends this one allocates in every
//! step and shares no memory between forks: it is short instead.

mod forward;
pub mod ops;
mod sequence;

use std::collections::HashMap;

use sequence::Sequence;

use super::{
    Backend, Batch, Candidates, Footprint, Logits, NO_CANDIDATES, SequenceBytes, SequenceId,
    SnapshotId,
};
use crate::{
    Error,
    model::{Shape, Weights},
};

/// Most tokens in one forward pass: bounds the activations, which are kept for a whole row.
const BATCH_TOKENS_MAX: usize = 1024;

/// One model, computed plainly.
#[derive(Debug)]
pub struct Reference {
    shape: Shape,
    weights: Weights,
    sequences: HashMap<SequenceId, Sequence>,
    snapshots: HashMap<SnapshotId, Sequence>,
    handle_next: u64,
    kept: Vec<f32>, // [rows, vocab] logits of a pass that gave candidates of them
}

impl Reference {
    /// A backend for `weights`, whose dimensions are `shape`'s.
    pub fn new(shape: Shape, weights: Weights) -> Self {
        Self {
            shape,
            weights,
            sequences: HashMap::new(),
            snapshots: HashMap::new(),
            handle_next: 0,
            kept: Vec::new(),
        }
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, Error> {
        self.sequences.get(&id).ok_or(Error::UnknownSequence(id))
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.handle());
        self.sequences.insert(id, sequence);
        id
    }

    fn handle(&mut self) -> u64 {
        self.handle_next += 1;
        self.handle_next
    }

    /// Runs a checked batch.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        logits: &mut [f32], // [wanted, vocab]
    ) {
        let mut rest = logits;
        for row in batch.rows {
            let sequence =
                self.sequences.get_mut(&row.sequence).expect("the batch's check found it open");
            let wanted = row.wants.rows(row.tokens.len());
            let (out, after) = rest.split_at_mut(wanted * self.shape.vocab);
            forward::forward(&self.shape, &self.weights, sequence, row.tokens, out);
            rest = after;
        }
    }
}

/// Memory that a [`Reference`] will take for one sequence of `tokens` tokens; its intermediate
/// results come and go and are not counted.
pub(super) fn footprint(shape: &Shape, tokens: usize) -> Footprint {
    let sequence = Sequence::bytes_for(shape, tokens);
    Footprint { scratch: 0, sequence, kv_dtype: "float32" }
}

impl Backend for Reference {
    fn description(&self) -> String {
        "reference: plain float32 loops, 1 thread".into()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn batch_tokens_max(&self) -> usize {
        BATCH_TOKENS_MAX
    }

    fn open(&mut self, context_tokens: usize) -> Result<SequenceId, Error> {
        self.shape.check_context(context_tokens)?;
        let sequence = Sequence::new(&self.shape, context_tokens);
        Ok(self.insert(sequence))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<(), Error> {
        self.sequences.remove(&sequence).map(drop).ok_or(Error::UnknownSequence(sequence))
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error> {
        let copy = self.sequence(sequence)?.clone();
        Ok(self.insert(copy))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, Error> {
        let copy = self.sequence(sequence)?.clone();
        let id = SnapshotId(self.handle());
        self.snapshots.insert(id, copy);
        Ok(id)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, Error> {
        let copy = self.snapshots.get(&snapshot).ok_or(Error::UnknownSnapshot(snapshot))?.clone();
        Ok(self.insert(copy))
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), Error> {
        self.snapshots.remove(&snapshot).map(drop).ok_or(Error::UnknownSnapshot(snapshot))
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, Error> {
        Ok(self.sequence(sequence)?.tokens)
    }

    fn bytes_for(&self, tokens: usize) -> SequenceBytes {
        Sequence::bytes_for(&self.shape, tokens)
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut Logits) -> Result<(), Error> {
        batch.check(self.shape.vocab, BATCH_TOKENS_MAX, |id| {
            self.sequence(id).map(|sequence| (sequence.tokens, sequence.context_tokens))
        })?;
        let (rows, vocab) = (batch.logit_rows(), self.shape.vocab);
        self.kept.clear();
        if !batch.wants_candidates() {
            self.run(batch, logits.resize(rows, vocab));
            return Ok(());
        }
        let mut kept = std::mem::take(&mut self.kept);
        kept.resize(rows * vocab, 0.0);
        self.run(batch, &mut kept);
        let of_rows = kept.chunks_exact(vocab).zip(batch.temperatures());
        for (out, (logits, temperature)) in logits.resize_candidates(rows).iter_mut().zip(of_rows) {
            *out = Candidates::of(logits, temperature);
        }
        self.kept = kept;
        Ok(())
    }

    fn logits_row(&mut self, row: usize, logits: &mut [f32]) -> Result<(), Error> {
        let kept = self.kept.chunks_exact(self.shape.vocab).nth(row);
        let problem = NO_CANDIDATES.into();
        logits.copy_from_slice(kept.ok_or(Error::Batch { row, problem })?);
        Ok(())
    }
}

use std::{collections::HashMap, thread, time::Duration};

use calla_engine::{
    Error,
    backend::{Backend, Batch, Logits, SequenceBytes, SequenceId, SnapshotId},
    model::{AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape},
};
use calla_text::Tokenizer;

use super::{
    script::Script,
    tokenizer::{END_OF_TURN, VOCAB},
};

/// How long a forward pass takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// For each pass.
    pub(crate) step: Duration,
    /// For each token beyond the first of a row, which only prompts have.
    pub(crate) prompt_token: Duration,
}

/// What a client says to make the backend lose its device.
pub(crate) const LOSE_DEVICE: &str = "Lose the device.";

/// A backend whose next token is a function of the history alone, as a model's is, so that engines
/// may chunk, cut, fork and restore as they like: it looks for the last known question, sees how
/// much of its answer the history already ends with, and goes on from there.
pub(crate) struct ScriptedBackend {
    shape: Shape,
    pace: Pace,
    answers: Vec<(Vec<u32>, Vec<u32>)>,
    lose_device: Vec<u32>,
    sequences: HashMap<u64, Vec<u32>>,
    snapshots: HashMap<u64, Vec<u32>>,
    handles: u64,
}

impl ScriptedBackend {
    pub(crate) fn new(script: &Script, tokenizer: &Tokenizer, pace: Pace) -> Self {
        let ids = |text: &str| tokenizer.encode(text).expect("any text has tokens");
        let answers = script.iter().map(|(question, answer)| (ids(question), ids(answer)));
        Self {
            shape: shape(),
            pace,
            answers: answers.collect(),
            lose_device: ids(LOSE_DEVICE),
            sequences: HashMap::new(),
            snapshots: HashMap::new(),
            handles: 0,
        }
    }

    fn next_token(&self, history: &[u32]) -> u32 {
        let place = |question: &[u32]| history.windows(question.len()).rposition(|w| w == question);
        let known = self.answers.iter().filter_map(|(q, answer)| Some((place(q)?, answer)));
        let Some((_, answer)) = known.max_by_key(|(place, _)| *place) else { return END_OF_TURN };
        let given = (0..=answer.len()).rev().find(|&given| history.ends_with(&answer[..given]));
        given.and_then(|given| answer.get(given)).copied().unwrap_or(END_OF_TURN)
    }

    fn new_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }

    fn history(&self, sequence: SequenceId) -> Result<&Vec<u32>, Error> {
        self.sequences.get(&sequence.0).ok_or(Error::UnknownSequence(sequence))
    }
}

impl Backend for ScriptedBackend {
    fn description(&self) -> String {
        "scripted answers".to_owned()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn batch_tokens_max(&self) -> usize {
        512
    }

    fn open(&mut self, _context_tokens: usize) -> Result<SequenceId, Error> {
        let handle = self.new_handle();
        self.sequences.insert(handle, Vec::new());
        Ok(SequenceId(handle))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<(), Error> {
        let closed = self.sequences.remove(&sequence.0);
        closed.map(|_| ()).ok_or(Error::UnknownSequence(sequence))
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error> {
        let history = self.history(sequence)?.clone();
        let handle = self.new_handle();
        self.sequences.insert(handle, history);
        Ok(SequenceId(handle))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, Error> {
        let history = self.history(sequence)?.clone();
        let handle = self.new_handle();
        self.snapshots.insert(handle, history);
        Ok(SnapshotId(handle))
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, Error> {
        let history = self.snapshots.get(&snapshot.0).cloned();
        let history = history.ok_or(Error::UnknownSnapshot(snapshot))?;
        let handle = self.new_handle();
        self.sequences.insert(handle, history);
        Ok(SequenceId(handle))
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), Error> {
        let released = self.snapshots.remove(&snapshot.0);
        released.map(|_| ()).ok_or(Error::UnknownSnapshot(snapshot))
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, Error> {
        Ok(self.history(sequence)?.len())
    }

    fn bytes_for(&self, tokens: usize) -> SequenceBytes {
        SequenceBytes { state: 1024, kv: tokens * 4 }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut Logits) -> Result<(), Error> {
        thread::sleep(self.pace.step);
        let mut wanted = Vec::new();
        for row in batch.rows {
            let prompt_tokens = u32::try_from(row.tokens.len() - 1).expect("a batch is small");
            thread::sleep(self.pace.prompt_token * prompt_tokens);
            let history = self.sequences.get_mut(&row.sequence.0);
            let history = history.ok_or(Error::UnknownSequence(row.sequence))?;
            history.extend_from_slice(row.tokens);
            let history = &self.sequences[&row.sequence.0];
            if history.windows(self.lose_device.len()).any(|w| w == self.lose_device) {
                return Err(Error::Device {
                    backend: "scripted",
                    action: "computing".to_owned(),
                    problem: "it fell off the bus".to_owned(),
                });
            }
            let rows = row.wants.rows(row.tokens.len());
            let ends = history.len() + 1 - rows..=history.len();
            wanted.extend(ends.map(|end| self.next_token(&history[..end])));
        }
        let values = logits.resize(wanted.len(), VOCAB);
        values.fill(0.0);
        for (row, token) in values.chunks_exact_mut(VOCAB).zip(wanted) {
            row[token as usize] = 20.0;
        }
        Ok(())
    }
}

/// Dimensions that nothing computes with, except the vocabulary, the context and the end.
fn shape() -> Shape {
    Shape {
        hidden: 32,
        vocab: VOCAB,
        mixers: vec![MixerKind::DeltaNet, MixerKind::Attention],
        attention: AttentionShape {
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            rotary_dims: 4,
            rope_theta: 1e7,
        },
        delta_net: DeltaNetShape {
            key_heads: 1,
            value_heads: 2,
            key_dim: 16,
            value_dim: 16,
            conv_taps: 4,
        },
        mlp: MlpShape::Dense { width: 64 },
        norm_eps: 1e-6,
        context_max: 16384,
        tied_embeddings: false,
        eos: vec![END_OF_TURN],
    }
}

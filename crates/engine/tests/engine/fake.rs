//! A backend that is quick, deterministic and strict: its "model" hashes the token history into
//! logits, it honours the whole contract of [`Backend`], and it counts what is open, so that a
//! leak or a wrong call shows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

use calla_engine::{
    Error,
    backend::{Backend, Batch, Logits, SequenceBytes, SequenceId, SnapshotId},
    model::{AttentionShape, DeltaNetShape, MixerKind, MlpShape, Shape},
};

pub(crate) const VOCAB: usize = 64;
pub(crate) const CONTEXT_MAX: usize = 4096;
/// What the fake claims a state takes.
pub(crate) const STATE_BYTES: usize = 1000;
/// What the fake claims each page of sixteen tokens takes.
pub(crate) const PAGE_BYTES: usize = 160;
pub(crate) const PAGE_TOKENS: usize = 16;

/// A prompt token that makes `forward` lose the device.
pub(crate) const LOSES_DEVICE: u32 = 59;
/// A prompt token that makes `forward` fail.
pub(crate) const FAILS: u32 = 60;
/// A prompt token that makes `forward` panic.
pub(crate) const PANICS: u32 = 61;
/// A prompt token after which all logits are NaN.
pub(crate) const TURNS_NAN: u32 = 62;

/// The test's view of a fake backend, which itself moves to the engine's thread.
#[derive(Clone, Default)]
pub(crate) struct Probe(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) open: BTreeMap<SequenceId, History>,
    pub(crate) snapshots: BTreeMap<SnapshotId, History>,
    /// Tokens of each forward pass so far.
    pub(crate) forwards: Vec<usize>,
    pub(crate) snapshots_taken: usize,
    pub(crate) restores: usize,
    /// Snapshots that may exist; one more is an error.
    pub(crate) snapshots_max: Option<usize>,
    /// Taking one panics.
    pub(crate) snapshot_panics: bool,
    pub(crate) dropped: bool,
    next_handle: u64,
    steps_allowed: Option<usize>,
}

/// A sequence or a snapshot: its tokens, and the names of the pages that hold them.
#[derive(Clone, Default, Debug)]
pub(crate) struct History {
    tokens: Vec<u32>,
    pages: Vec<u64>,
}

impl Probe {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("no test panics while it holds the state")
    }

    /// From now on, `forward` waits for [`Probe::allow`].
    pub(crate) fn hold(&self) {
        self.state().steps_allowed = Some(0);
    }

    /// Lets `steps` more forward passes through.
    pub(crate) fn allow(&self, steps: usize) {
        let mut state = self.state();
        state.steps_allowed = state.steps_allowed.map(|allowed| allowed + steps);
        self.0.1.notify_all();
    }

    /// Lets everything through.
    pub(crate) fn release(&self) {
        self.state().steps_allowed = None;
        self.0.1.notify_all();
    }

    pub(crate) fn tokens_computed(&self) -> usize {
        self.state().forwards.iter().sum()
    }

    /// Bytes that all snapshots take, pages that several share counted once.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        let state = self.state();
        let pages: BTreeSet<u64> =
            state.snapshots.values().flat_map(|one| one.pages.iter().copied()).collect();
        state.snapshots.len() * STATE_BYTES + pages.len() * PAGE_BYTES
    }

    fn wait_for_permit(&self) {
        let held = |state: &mut State| state.steps_allowed == Some(0);
        let guard = self.state();
        // Long past any test's patience: a bug in a test must not hang the suite.
        let (mut state, waited) = self
            .0
            .1
            .wait_timeout_while(guard, Duration::from_secs(60), held)
            .expect("no test panics while it holds the state");
        assert!(!waited.timed_out(), "the test never allowed this step");
        state.steps_allowed = state.steps_allowed.map(|allowed| allowed - 1);
    }
}

pub(crate) struct Fake {
    probe: Probe,
    shape: Shape,
    batch_tokens_max: usize,
}

impl Fake {
    pub(crate) fn new(probe: &Probe) -> Self {
        Self { probe: probe.clone(), shape: shape(), batch_tokens_max: 512 }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.probe.state().dropped = true;
    }
}

impl State {
    fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    fn insert(&mut self, history: History) -> SequenceId {
        let id = SequenceId(self.handle());
        self.open.insert(id, history);
        id
    }

    /// Full pages are shared, one that still grows is copied.
    fn copy(&mut self, mut history: History) -> History {
        if !history.tokens.len().is_multiple_of(PAGE_TOKENS) {
            history.pages.pop();
            history.pages.push(self.handle());
        }
        history
    }

    fn history(&self, id: SequenceId) -> Result<&History, Error> {
        self.open.get(&id).ok_or(Error::UnknownSequence(id))
    }
}

impl Backend for Fake {
    fn description(&self) -> String {
        "fake".to_owned()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn batch_tokens_max(&self) -> usize {
        self.batch_tokens_max
    }

    fn open(&mut self, context_tokens: usize) -> Result<SequenceId, Error> {
        assert!(context_tokens <= CONTEXT_MAX);
        Ok(self.probe.state().insert(History::default()))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<(), Error> {
        let closed = self.probe.state().open.remove(&sequence);
        closed.map(|_| ()).ok_or(Error::UnknownSequence(sequence))
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error> {
        let mut state = self.probe.state();
        let history = state.history(sequence)?.clone();
        let copy = state.copy(history);
        Ok(state.insert(copy))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, Error> {
        let mut state = self.probe.state();
        if state.snapshot_panics {
            drop(state);
            panic!("asked to panic");
        }
        let history = state.history(sequence)?.clone();
        if state.snapshots_max.is_some_and(|max| state.snapshots.len() >= max) {
            return Err(Error::Engine { field: "fake", problem: "no memory".to_owned() });
        }
        let id = SnapshotId(state.handle());
        let copy = state.copy(history);
        state.snapshots.insert(id, copy);
        state.snapshots_taken += 1;
        Ok(id)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, Error> {
        let mut state = self.probe.state();
        let history = state.snapshots.get(&snapshot).ok_or(Error::UnknownSnapshot(snapshot))?;
        let history = history.clone();
        let copy = state.copy(history);
        state.restores += 1;
        Ok(state.insert(copy))
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), Error> {
        let released = self.probe.state().snapshots.remove(&snapshot);
        released.map(|_| ()).ok_or(Error::UnknownSnapshot(snapshot))
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, Error> {
        self.probe.state().history(sequence).map(|history| history.tokens.len())
    }

    fn bytes_for(&self, tokens: usize) -> SequenceBytes {
        SequenceBytes { state: STATE_BYTES, kv: tokens.div_ceil(PAGE_TOKENS) * PAGE_BYTES }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut Logits) -> Result<(), Error> {
        self.probe.wait_for_permit();
        assert!((1..=self.batch_tokens_max).contains(&batch.tokens()));
        let mut state = self.probe.state();
        state.forwards.push(batch.tokens());
        let values = logits.resize(batch.logit_rows(), VOCAB);
        let mut rows = values.chunks_exact_mut(VOCAB);
        for (index, row) in batch.rows.iter().enumerate() {
            let mut history =
                state.open.remove(&row.sequence).ok_or(Error::UnknownSequence(row.sequence))?;
            assert!(!row.tokens.is_empty());
            assert!(row.tokens.iter().all(|&token| (token as usize) < VOCAB));
            history.tokens.extend_from_slice(row.tokens);
            assert!(history.tokens.len() <= CONTEXT_MAX);
            while history.pages.len() < history.tokens.len().div_ceil(PAGE_TOKENS) {
                history.pages.push(state.handle());
            }
            let tokens = history.tokens.clone();
            state.open.insert(row.sequence, history);
            if row.tokens.contains(&LOSES_DEVICE) {
                return Err(Error::Device {
                    backend: "fake",
                    action: "computing".to_owned(),
                    problem: "asked to be lost".to_owned(),
                });
            }
            if row.tokens.contains(&FAILS) {
                return Err(Error::Batch { row: index, problem: "asked to fail".to_owned() });
            }
            if row.tokens.contains(&PANICS) {
                drop(state);
                panic!("asked to panic");
            }
            let wanted = row.wants.rows(row.tokens.len());
            for end in tokens.len() - wanted + 1..=tokens.len() {
                let out = rows.next().expect("the batch counted its rows");
                model(&tokens[..end], out);
            }
        }
        Ok(())
    }
}

/// Logits [VOCAB] after `history`: a pure function of it, in [-4, 4).
pub(crate) fn model(history: &[u32], logits: &mut [f32]) {
    let hash = history.iter().fold(17, |hash, &token| mix(hash ^ u64::from(token)));
    for (id, logit) in (0_u64..).zip(logits) {
        *logit = (mix(hash.wrapping_add(id)) >> 40) as f32 / (1 << 21) as f32 - 4.0;
        if history.contains(&TURNS_NAN) {
            *logit = f32::NAN;
        } else if id >= u64::from(LOSES_DEVICE) {
            // Tokens that steer the fake are never generated.
            *logit = -1e9;
        }
    }
}

/// What a greedy generation of `count` tokens after `prompt` must be.
pub(crate) fn greedy(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut history = prompt.to_vec();
    let mut logits = vec![0.0; VOCAB];
    for _ in 0..count {
        model(&history, &mut logits);
        let best = (0..VOCAB).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        history.push(best.expect("the vocabulary is not empty") as u32);
    }
    history.split_off(prompt.len())
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 29)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 32)
}

fn shape() -> Shape {
    Shape {
        hidden: 8,
        vocab: VOCAB,
        mixers: vec![MixerKind::DeltaNet, MixerKind::Attention],
        attention: AttentionShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            rotary_dims: 4,
            rope_theta: 1e4,
        },
        delta_net: DeltaNetShape {
            key_heads: 1,
            value_heads: 1,
            key_dim: 8,
            value_dim: 8,
            conv_taps: 4,
        },
        mlp: MlpShape::Dense { width: 8 },
        norm_eps: 1e-6,
        context_max: CONTEXT_MAX,
        tied_embeddings: true,
        eos: vec![0],
    }
}

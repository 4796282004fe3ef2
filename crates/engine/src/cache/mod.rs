//! What sequences leave behind, so that later prompts need not be computed again.
//!
//! The state of a DeltaNet layer cannot be rolled back: a prompt can only continue from a place at
//! which a snapshot was taken. An [entry](Entry) is such a place: a token history and the snapshot
//! of its state. A prompt continues from the longest entry whose history is a strict prefix of
//! it, compared token by token; strict, because the logits of the last token must be computed.
//!
//! Entries form chains: an entry's *parent* is the place that its sequence came by before. Full KV
//! pages are shared along a chain, so an entry is charged for what it adds to its parent. When the
//! byte budget is full, the chain that was used longest ago is thinned first (see
//! [`PrefixCache::victim`]).

mod tokens;

use std::collections::BTreeMap;

use tokens::common_prefix;

use crate::backend::{Backend, SequenceId, SnapshotId};

/// Handle of an entry; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryId(u64);

/// Where a prompt can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) entry: EntryId,
    pub(crate) snapshot: SnapshotId,
    /// Leading tokens of the prompt that are in the snapshot's state.
    pub(crate) tokens: usize,
}

/// All entries, under one byte budget.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    entries: BTreeMap<EntryId, Entry>,
    bytes: usize,
    bytes_max: usize,
    page_bytes: usize, // KV bytes of one page
    clock: u64,        // one tick a lookup
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    tokens: Box<[u32]>,
    snapshot: SnapshotId,
    parent: Option<EntryId>,
    last_used: u64,
    size: Size,
}

/// Bytes of an entry, as if it shared nothing.
#[derive(Debug, Clone, Copy)]
struct Size {
    fixed: usize, // state and token ids
    kv: usize,
}

impl PrefixCache {
    /// With `bytes_max` 0 nothing is ever kept.
    pub(crate) fn new(backend: &dyn Backend, bytes_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            bytes: 0,
            bytes_max,
            page_bytes: backend.bytes_for(1).kv,
            clock: 0,
            next_id: 0,
        }
    }

    /// Whether anything can be kept at all.
    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What all entries take; never more than the budget.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The longest entry that is a strict prefix of `prompt`. Says at debug level what was found
    /// and where the closest other history differs: a miss can be explained.
    pub(crate) fn lookup(&mut self, prompt: &[u32]) -> Option<Hit> {
        self.clock += 1;
        let mut hit: Option<Hit> = None;
        let (mut agreed, mut closest_len) = (0, 0); // of the history that agrees furthest
        for (&entry, kept) in &self.entries {
            let common = common_prefix(&kept.tokens, prompt);
            let whole = common == kept.tokens.len() && common < prompt.len();
            if whole && hit.is_none_or(|best| common > best.tokens) {
                hit = Some(Hit { entry, snapshot: kept.snapshot, tokens: common });
            }
            if common > agreed {
                (agreed, closest_len) = (common, kept.tokens.len());
            }
        }
        tracing::debug!(
            prompt_tokens = prompt.len(),
            reused_tokens = hit.map_or(0, |hit| hit.tokens),
            closest_agrees_tokens = agreed,
            closest_tokens = closest_len,
            entries = self.entries.len(),
            "prefix cache lookup"
        );
        self.touch(hit.map(|hit| hit.entry));
        hit
    }

    /// Keeps the state that `sequence` is in, whose history is `tokens`; `parent` is the entry
    /// that the sequence came by last. Gives the new entry; none when there is one for the same
    /// history already, or no room for it.
    pub(crate) fn keep(
        &mut self,
        backend: &mut dyn Backend,
        sequence: SequenceId,
        tokens: &[u32],
        parent: Option<EntryId>,
    ) -> Option<EntryId> {
        let known = self.entries.iter().find(|(_, entry)| *entry.tokens == *tokens);
        if let Some((&known, _)) = known {
            self.touch(Some(known));
            return None;
        }
        let bytes = backend.bytes_for(tokens.len());
        let size = Size { fixed: bytes.state + size_of_val(tokens), kv: bytes.kv };
        if size.fixed + size.kv > self.bytes_max {
            return None;
        }
        // The parent goes last: while it stays, the new entry shares its pages.
        self.touch(parent);
        while self.bytes + self.charge(size, parent) > self.bytes_max {
            let victim = self.victim(parent).or(parent)?;
            self.remove(backend, victim);
        }
        let snapshot = match backend.snapshot(sequence) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::warn!(%error, tokens = tokens.len(), "a state could not be kept");
                return None;
            }
        };
        let parent = parent.filter(|parent| self.entries.contains_key(parent));
        self.bytes += self.charge(size, parent);
        self.next_id += 1;
        let entry = Entry { tokens: tokens.into(), snapshot, parent, last_used: self.clock, size };
        self.entries.insert(EntryId(self.next_id), entry);
        Some(EntryId(self.next_id))
    }

    /// Drops the entry that is worth least. False: there is none.
    pub(crate) fn evict_one(&mut self, backend: &mut dyn Backend) -> bool {
        match self.victim(None) {
            Some(victim) => {
                self.remove(backend, victim);
                true
            }
            None => false,
        }
    }

    /// Drops an entry, if it is still there.
    pub(crate) fn remove(&mut self, backend: &mut dyn Backend, id: EntryId) {
        let Some(gone) = self.entries.get(&id) else { return };
        let (grandparent, size, snapshot) = (gone.parent, gone.size, gone.snapshot);
        let children: Vec<EntryId> = self.children(id).collect();
        // Its children still share what it shared, and bear alone what only they hold now.
        for child in &children {
            self.bytes -= self.charge(self.entries[child].size, Some(id));
        }
        self.bytes -= self.charge(size, grandparent);
        self.entries.remove(&id);
        for child in children {
            self.bytes += self.charge(self.entries[&child].size, grandparent);
            if let Some(child) = self.entries.get_mut(&child) {
                child.parent = grandparent;
            }
        }
        if let Err(error) = backend.release(snapshot) {
            tracing::error!(%error, "a snapshot could not be released");
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, backend: &mut dyn Backend) {
        while let Some((&id, _)) = self.entries.last_key_value() {
            self.remove(backend, id);
        }
    }

    /// Bytes of an entry beyond what it shares with `parent`: full pages, of which the parent's
    /// last may not be one.
    fn charge(&self, size: Size, parent: Option<EntryId>) -> usize {
        let parent = parent.and_then(|parent| self.entries.get(&parent));
        let shared = parent.map_or(0, |parent| parent.size.kv.saturating_sub(self.page_bytes));
        size.fixed + size.kv.saturating_sub(shared)
    }

    /// Marks the entry and the chain that leads to it as used now.
    fn touch(&mut self, entry: Option<EntryId>) {
        let mut next = entry;
        while let Some(entry) = next.and_then(|id| self.entries.get_mut(&id)) {
            entry.last_used = self.clock;
            next = entry.parent;
        }
    }

    /// The entry that is worth least, `spared` excepted: of those that were used longest ago, the
    /// one whose loss costs the fewest tokens in proportion to its distance from the chain's end.
    /// So a chain is thinned to distances that double towards its start. The start itself, as a
    /// rule a system prompt that other conversations share, goes last.
    fn victim(&self, spared: Option<EntryId>) -> Option<EntryId> {
        let candidates = || self.entries.iter().filter(|&(&id, _)| Some(id) != spared);
        let oldest = candidates().map(|(_, entry)| entry.last_used).min()?;
        let group = || candidates().filter(|(_, entry)| entry.last_used == oldest);
        let end = group().map(|(_, entry)| entry.tokens.len()).max()?;
        let worth = |entry: &Entry| {
            let parent = entry.parent.and_then(|parent| self.entries.get(&parent));
            let adds = entry.tokens.len() - parent.map_or(0, |parent| parent.tokens.len());
            let share = adds as f64 / (1 + end - entry.tokens.len()) as f64;
            if parent.is_none() { f64::INFINITY } else { share }
        };
        let least = group().min_by(|a, b| worth(a.1).total_cmp(&worth(b.1)))?;
        Some(*least.0)
    }

    fn children(&self, parent: EntryId) -> impl Iterator<Item = EntryId> {
        let is_child = move |entry: &Entry| entry.parent == Some(parent);
        self.entries.iter().filter(move |(_, entry)| is_child(entry)).map(|(&id, _)| id)
    }
}

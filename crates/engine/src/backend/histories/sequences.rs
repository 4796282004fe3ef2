//! What sequences and snapshots own: a page table and a block of recurrent states.

use super::{KvLayout, Memory, PAGE_TOKENS, PageId, PagePool, StateLayout, bytes_for, pages_for};
use crate::{
    Error,
    backend::{Batch, SequenceBytes, SequenceId, SnapshotId},
};

/// A token history, open (a sequence) or frozen (a snapshot).
pub(crate) struct History<S> {
    /// Tokens that it remembers.
    pub len: usize,
    /// Most tokens it may hold.
    pub context: usize,
    /// Pages of the tokens so far, in order; may be shared with other histories.
    pub pages: Vec<PageId>,
    /// DeltaNet and convolution states, see [`StateLayout`].
    pub state: S,
}

/// All histories of a backend. Ids grow, so both lists are sorted and found by bisection.
pub(crate) struct Sequences<M: Memory> {
    pages: PagePool<M>,
    state: StateLayout,
    open: Vec<(SequenceId, History<M::State>)>,
    frozen: Vec<(SnapshotId, History<M::State>)>,
    /// State blocks of closed histories.
    spare_states: Vec<M::State>,
    ids_given: u64,
}

impl<M: Memory> Sequences<M> {
    pub(crate) fn new(kv: KvLayout, state: StateLayout, memory: M) -> Self {
        Self {
            pages: PagePool::new(kv, memory),
            state,
            open: Vec::new(),
            frozen: Vec::new(),
            spare_states: Vec::new(),
            ids_given: 0,
        }
    }

    pub(crate) fn pages(&self) -> &PagePool<M> {
        &self.pages
    }

    pub(crate) fn state_layout(&self) -> &StateLayout {
        &self.state
    }

    pub(crate) fn open(&mut self, context: usize) -> Result<SequenceId, Error> {
        let pages = page_table(context)?;
        let mut state = self.take_state()?;
        if let Err(error) = self.pages.memory_mut().zero_state(&mut state) {
            self.spare_states.push(state);
            return Err(error);
        }
        Ok(self.add_open(History { len: 0, context, pages, state }))
    }

    pub(crate) fn close(&mut self, sequence: SequenceId) -> Result<(), Error> {
        let index = self.index(sequence)?;
        let (_, history) = self.open.remove(index);
        self.recycle(history);
        Ok(())
    }

    pub(crate) fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error> {
        let index = self.index(sequence)?;
        let copy = self.copy(Source::Open(index))?;
        Ok(self.add_open(copy))
    }

    pub(crate) fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, Error> {
        let index = self.index(sequence)?;
        let copy = self.copy(Source::Open(index))?;
        self.ids_given += 1;
        let id = SnapshotId(self.ids_given);
        self.frozen.push((id, copy));
        Ok(id)
    }

    pub(crate) fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, Error> {
        let index = self.frozen_index(snapshot)?;
        let copy = self.copy(Source::Frozen(index))?;
        Ok(self.add_open(copy))
    }

    pub(crate) fn release(&mut self, snapshot: SnapshotId) -> Result<(), Error> {
        let index = self.frozen_index(snapshot)?;
        let (_, history) = self.frozen.remove(index);
        self.recycle(history);
        Ok(())
    }

    /// Predicts the memory of a history of `tokens` tokens.
    pub(crate) fn bytes_for(&self, tokens: usize) -> SequenceBytes {
        bytes_for(self.pages.layout(), &self.state, tokens)
    }

    /// Where a sequence stands at present: good until one is opened or closed.
    pub(crate) fn index(&self, sequence: SequenceId) -> Result<usize, Error> {
        self.open
            .binary_search_by_key(&sequence, |(id, _)| *id)
            .map_err(|_| Error::UnknownSequence(sequence))
    }

    /// The sequence at [`Sequences::index`].
    pub(crate) fn history(&self, index: usize) -> &History<M::State> {
        &self.open[index].1
    }

    /// The same, to write its state and length.
    pub(crate) fn history_mut(&mut self, index: usize) -> &mut History<M::State> {
        &mut self.open[index].1
    }

    /// Refuses a batch that the sequences cannot take; see [`Batch::check`].
    ///
    /// # Errors
    /// With the row and what is wrong about it.
    pub(crate) fn check(
        &self,
        batch: &Batch<'_>,
        vocab: usize,
        tokens: usize,
    ) -> Result<(), Error> {
        batch.check(vocab, tokens, |id| {
            let history = self.history(self.index(id)?);
            Ok((history.len, history.context))
        })
    }

    /// Gives every sequence of a checked batch the pages for its new tokens, none of which is
    /// shared from its present end on. Lengths stay.
    ///
    /// # Errors
    /// When the memory cannot be had: no sequence has changed then.
    pub(crate) fn grow(&mut self, batch: &Batch<'_>) -> Result<(), Error> {
        let mut missing = 0;
        for row in batch.rows {
            let history = self.history(self.index(row.sequence)?);
            missing += pages_for(history.len + row.tokens.len()) - history.pages.len();
            missing += usize::from(self.shares_its_end(history));
        }
        self.pages.reserve(missing)?;
        for row in batch.rows {
            let index = self.index(row.sequence)?;
            if self.shares_its_end(&self.open[index].1) {
                let last = self.open[index].1.pages.last_mut().expect("it shares its last page");
                *last = self.pages.copy_on_write(*last)?;
            }
            let history = &mut self.open[index].1;
            while history.pages.len() < pages_for(history.len + row.tokens.len()) {
                history.pages.push(self.pages.take()?);
            }
        }
        Ok(())
    }

    /// Whether the next token goes to a page that another history holds too.
    fn shares_its_end(&self, history: &History<M::State>) -> bool {
        !history.len.is_multiple_of(PAGE_TOKENS)
            && history.pages.last().is_some_and(|&page| self.pages.is_shared(page))
    }

    fn frozen_index(&self, snapshot: SnapshotId) -> Result<usize, Error> {
        self.frozen
            .binary_search_by_key(&snapshot, |(id, _)| *id)
            .map_err(|_| Error::UnknownSnapshot(snapshot))
    }

    fn add_open(&mut self, history: History<M::State>) -> SequenceId {
        self.ids_given += 1;
        let id = SequenceId(self.ids_given);
        self.open.push((id, history));
        id
    }

    /// Shares the pages and copies the states of `source`.
    fn copy(&mut self, source: Source) -> Result<History<M::State>, Error> {
        let mut state = self.take_state()?;
        let from = match source {
            Source::Open(index) => &mut self.open[index].1,
            Source::Frozen(index) => &mut self.frozen[index].1,
        };
        let (len, context) = (from.len, from.context);
        let copied = page_table(context).and_then(|pages| {
            self.pages.memory_mut().copy_state(&mut from.state, &mut state)?;
            Ok(pages)
        });
        let mut pages = match copied {
            Ok(pages) => pages,
            Err(error) => {
                self.spare_states.push(state);
                return Err(error);
            }
        };
        // A failed forward may have left more pages than tokens.
        pages.extend_from_slice(&from.pages[..pages_for(len)]);
        for &page in &pages {
            self.pages.share(page);
        }
        Ok(History { len, context, pages, state })
    }

    fn recycle(&mut self, history: History<M::State>) {
        for page in history.pages {
            self.pages.give_back(page);
        }
        self.spare_states.push(history.state);
    }

    fn take_state(&mut self) -> Result<M::State, Error> {
        self.spare_states.pop().map_or_else(|| self.pages.memory_mut().new_state(), Ok)
    }
}

/// Index of a history among the open or the frozen ones.
#[derive(Clone, Copy)]
enum Source {
    Open(usize),
    Frozen(usize),
}

/// An empty page table with room for `context` tokens.
fn page_table(context: usize) -> Result<Vec<PageId>, Error> {
    let mut pages = Vec::new();
    let count = pages_for(context);
    pages.try_reserve_exact(count).map_err(|_| Error::OutOfMemory {
        bytes: count.saturating_mul(size_of::<PageId>()),
        purpose: "a page table",
    })?;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Row, Wants, histories::fake::FakeMemory};

    fn sequences() -> Sequences<FakeMemory> {
        let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 2, element_bytes: 2 };
        let state = StateLayout { layers: 1, state_len: 3, conv_len: 2 };
        Sequences::new(kv, state, FakeMemory::default())
    }

    /// What a forward pass does to page tables and lengths.
    fn append(all: &mut Sequences<FakeMemory>, sequence: SequenceId, len: usize) {
        let tokens = vec![0; len];
        let rows = [Row { sequence, tokens: &tokens, wants: Wants::Nothing }];
        all.grow(&Batch { rows: &rows }).expect("memory for a test");
        let index = all.index(sequence).expect("it is open");
        all.history_mut(index).len += len;
    }

    fn pages(all: &Sequences<FakeMemory>, sequence: SequenceId) -> Vec<PageId> {
        all.history(all.index(sequence).expect("it is open")).pages.clone()
    }

    #[test]
    fn full_pages_are_shared_and_the_last_one_is_copied_when_written() {
        let mut all = sequences();
        let trunk = all.open(1000).expect("memory");
        append(&mut all, trunk, 2 * PAGE_TOKENS + 5);
        let fork = all.fork(trunk).expect("memory");
        assert_eq!(pages(&all, fork), pages(&all, trunk));
        assert_eq!(all.pages().in_use(), 3);

        append(&mut all, fork, 1);
        assert_eq!(pages(&all, fork)[..2], pages(&all, trunk)[..2]);
        assert_ne!(pages(&all, fork)[2], pages(&all, trunk)[2]);
        let before = pages(&all, trunk);
        append(&mut all, trunk, 1);
        assert_eq!(pages(&all, trunk), before, "its last page is its own by now");
    }

    #[test]
    fn a_fork_at_a_page_boundary_copies_nothing() {
        let mut all = sequences();
        let trunk = all.open(1000).expect("memory");
        append(&mut all, trunk, PAGE_TOKENS);
        let fork = all.fork(trunk).expect("memory");
        append(&mut all, fork, 1);
        append(&mut all, trunk, 1);
        assert_eq!(all.pages().in_use(), 3);
    }

    #[test]
    fn closing_everything_frees_every_page() {
        let mut all = sequences();
        let trunk = all.open(1000).expect("memory");
        append(&mut all, trunk, 100);
        let snapshot = all.snapshot(trunk).expect("memory");
        let restored = all.restore(snapshot).expect("memory");
        append(&mut all, restored, 100);
        append(&mut all, trunk, 100);
        all.close(trunk).expect("it is open");
        all.close(restored).expect("it is open");
        assert_eq!(all.pages().in_use(), 2, "the snapshot's");
        all.release(snapshot).expect("it exists");
        assert_eq!(all.pages().in_use(), 0);
    }
}

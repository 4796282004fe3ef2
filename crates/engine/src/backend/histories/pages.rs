//! KV memory in pages of [`PAGE_TOKENS`] tokens, counted references, free ones kept for reuse.
//!
//! A page holds the keys and values of *all* attention layers for its tokens, so a sequence has
//! one page table and a fork touches one count a page. Inside a page:
//! [attention layer][kv head][keys, then values][token][head_dim], f16, or f32 in exact mode.
//!
//! Memory comes in slabs of [`SLAB_PAGES`] pages which are never given back while the backend
//! lives: a forward pass allocates only when more pages are in use than ever before.

use super::{KvLayout, Memory};
use crate::Error;

/// Tokens in a page.
pub(crate) const PAGE_TOKENS: usize = 64;

/// Pages that are allocated together.
pub(crate) const SLAB_PAGES: usize = 16;

/// Pages that `tokens` tokens take.
pub(crate) fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Name of a page inside its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageId(u32);

impl PageId {
    /// Its number.
    #[cfg(test)]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// Its slab, and its index there.
    pub(crate) fn place(self) -> (usize, usize) {
        (self.0 as usize / SLAB_PAGES, self.0 as usize % SLAB_PAGES)
    }
}

/// All pages of a backend.
pub(crate) struct PagePool<M> {
    memory: M,
    layout: KvLayout,
    /// Owners of each page [slabs * SLAB_PAGES].
    owners: Vec<u32>,
    free: Vec<PageId>,
}

impl<M: Memory> PagePool<M> {
    pub(crate) fn new(layout: KvLayout, memory: M) -> Self {
        Self { memory, layout, owners: Vec::new(), free: Vec::new() }
    }

    /// What the pages lie in.
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// The same, to change states.
    pub(crate) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Makes sure that the next `pages` calls of [`PagePool::take`] find one.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(crate) fn reserve(&mut self, pages: usize) -> Result<(), Error> {
        while self.free.len() < pages {
            self.add_slab()?;
        }
        Ok(())
    }

    /// A page with one owner; its contents are left over from earlier.
    ///
    /// # Errors
    /// When there is none free and the memory cannot be had.
    pub(crate) fn take(&mut self) -> Result<PageId, Error> {
        self.reserve(1)?;
        let page = self.free.pop().expect("reserve has made sure of one");
        self.owners[page.0 as usize] = 1;
        Ok(page)
    }

    /// One owner more.
    pub(crate) fn share(&mut self, page: PageId) {
        self.owners[page.0 as usize] += 1;
    }

    /// One owner less; the last one frees the page.
    pub(crate) fn give_back(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    /// Whether more than one history holds the page: it may not be written then.
    pub(crate) fn is_shared(&self, page: PageId) -> bool {
        self.owners[page.0 as usize] > 1
    }

    /// A page of its own with the same contents, in exchange for one share of `page`.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(crate) fn copy_on_write(&mut self, page: PageId) -> Result<PageId, Error> {
        let copy = self.take()?;
        match self.memory.copy_page(page, copy) {
            Ok(()) => {
                self.give_back(page);
                Ok(copy)
            }
            Err(error) => {
                self.give_back(copy);
                Err(error)
            }
        }
    }

    /// Pages that are not free.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.owners.len() - self.free.len()
    }

    fn add_slab(&mut self) -> Result<(), Error> {
        let first = self.owners.len();
        let last = u32::try_from(first + SLAB_PAGES).map_err(|_| Error::OutOfMemory {
            bytes: self.layout.page_bytes().saturating_mul(SLAB_PAGES),
            purpose: "KV pages",
        })?;
        self.memory.add_slab()?;
        self.owners.resize(last as usize, 0);
        // Room for all pages: giving one back never allocates.
        self.free.reserve(last as usize - self.free.len());
        self.free.extend((first as u32..last).rev().map(PageId));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::histories::fake::FakeMemory;

    fn pool() -> PagePool<FakeMemory> {
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 4, element_bytes: 4 };
        PagePool::new(layout, FakeMemory::default())
    }

    #[test]
    fn pages_are_distinct_and_reused() {
        let mut pool = pool();
        let pages: Vec<PageId> =
            (0..2 * SLAB_PAGES + 1).map(|_| pool.take().expect("memory")).collect();
        for (value, &page) in pages.iter().enumerate() {
            pool.memory_mut().pages[page.0 as usize] = value;
        }
        for (value, &page) in pages.iter().enumerate() {
            assert_eq!(pool.memory().pages[page.0 as usize], value);
        }
        assert_eq!(pool.in_use(), pages.len());
        pool.give_back(pages[3]);
        assert_eq!(pool.take().expect("memory"), pages[3]);
        assert_eq!(pool.memory().pages.len(), 3 * SLAB_PAGES);
    }

    #[test]
    fn a_shared_page_is_copied_and_freed_by_its_last_owner() {
        let mut pool = pool();
        let page = pool.take().expect("memory");
        pool.memory_mut().pages[page.0 as usize] = 7;
        pool.share(page);
        assert!(pool.is_shared(page));
        let copy = pool.copy_on_write(page).expect("memory");
        assert_ne!(copy, page);
        assert!(!pool.is_shared(page));
        assert_eq!(pool.memory().pages[copy.0 as usize], 7);
        pool.memory_mut().pages[copy.0 as usize] = 9;
        assert_eq!(pool.memory().pages[page.0 as usize], 7);
        pool.give_back(page);
        pool.give_back(copy);
        assert_eq!(pool.in_use(), 0);
    }
}

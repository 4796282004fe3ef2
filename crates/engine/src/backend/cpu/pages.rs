//! KV memory in pages of [`PAGE_TOKENS`] tokens, counted references, free ones kept for reuse.
//!
//! A page holds the keys and values of *all* attention layers for its tokens, so a sequence has
//! one page table and a fork touches one count a page. Inside a page:
//! [attention layer][kv head][keys, then values][token][head_dim], f16, or f32 in exact mode.
//!
//! Memory comes in slabs of [`SLAB_PAGES`] pages which are never given back while the backend
//! lives: a forward pass allocates only when more pages are in use than ever before.

use std::{alloc, ptr::NonNull};

use super::layout::KvLayout;
use crate::Error;

/// Tokens in a page.
pub(crate) const PAGE_TOKENS: usize = 64;

/// Pages that are allocated together.
const SLAB_PAGES: usize = 16;

/// Alignment of a page: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// Name of a page inside its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageId(u32);

/// All pages of a backend.
pub(crate) struct PagePool {
    layout: KvLayout,
    slabs: Vec<Slab>,
    /// Owners of each page [slabs * SLAB_PAGES].
    owners: Vec<u32>,
    free: Vec<PageId>,
}

impl PagePool {
    pub(crate) fn new(layout: KvLayout) -> Self {
        Self { layout, slabs: Vec::new(), owners: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Pages that `tokens` tokens take.
    pub(crate) fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
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
        // SAFETY: both pages are `page_bytes` long and differ; `&mut self` keeps writers away.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start(page).cast_const(),
                self.start(copy),
                self.layout.page_bytes(),
            );
        }
        self.give_back(page);
        Ok(copy)
    }

    /// First byte of a page, aligned to a cache line.
    pub(crate) fn start(&self, page: PageId) -> *mut u8 {
        let (slab, index) = (page.0 as usize / SLAB_PAGES, page.0 as usize % SLAB_PAGES);
        // SAFETY: a slab is SLAB_PAGES pages long.
        unsafe { self.slabs[slab].start.as_ptr().add(index * self.layout.page_bytes()) }
    }

    /// Pages that are not free.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.owners.len() - self.free.len()
    }

    fn add_slab(&mut self) -> Result<(), Error> {
        let first = self.owners.len();
        let bytes = self.layout.page_bytes().saturating_mul(SLAB_PAGES);
        let names = u32::try_from(first + SLAB_PAGES).ok();
        let (slab, last) = Slab::new(bytes).zip(names).ok_or_else(|| no_memory(bytes))?;
        self.slabs.push(slab);
        self.owners.resize(last as usize, 0);
        // Room for all pages: giving one back never allocates.
        self.free.reserve(last as usize - self.free.len());
        self.free.extend((first as u32..last).rev().map(PageId));
        Ok(())
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::OutOfMemory { bytes, purpose: "KV pages" }
}

/// One allocation of [`SLAB_PAGES`] pages. Untouched memory costs nothing, so it is not zeroed:
/// a forward pass reads only what it has written before.
struct Slab {
    start: NonNull<u8>,
    layout: alloc::Layout,
}

// SAFETY: it owns its memory; who may write which page is the backend's to keep.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(bytes: usize) -> Option<Self> {
        let layout = alloc::Layout::from_size_align(bytes.max(ALIGN), ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc::alloc(layout) };
        NonNull::new(start).map(|start| Self { start, layout })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PagePool {
        PagePool::new(KvLayout { layers: 1, kv_heads: 1, head_dim: 4, element_bytes: 4 })
    }

    fn write(pool: &PagePool, page: PageId, value: u8) {
        // SAFETY: the page is `page_bytes` long and no other access is going on.
        unsafe { pool.start(page).write_bytes(value, pool.layout().page_bytes()) };
    }

    fn read(pool: &PagePool, page: PageId) -> u8 {
        // SAFETY: as in `write`, which came first.
        unsafe { pool.start(page).add(pool.layout().page_bytes() - 1).read() }
    }

    #[test]
    fn pages_are_distinct_and_reused() {
        let mut pool = pool();
        let pages: Vec<PageId> =
            (0..2 * SLAB_PAGES + 1).map(|_| pool.take().expect("memory")).collect();
        for (value, &page) in pages.iter().enumerate() {
            write(&pool, page, value as u8);
        }
        for (value, &page) in pages.iter().enumerate() {
            assert_eq!(read(&pool, page), value as u8);
        }
        assert_eq!(pool.in_use(), pages.len());
        pool.give_back(pages[3]);
        assert_eq!(pool.take().expect("memory"), pages[3]);
        assert_eq!(pool.slabs.len(), 3);
    }

    #[test]
    fn a_shared_page_is_copied_and_freed_by_its_last_owner() {
        let mut pool = pool();
        let page = pool.take().expect("memory");
        write(&pool, page, 7);
        pool.share(page);
        assert!(pool.is_shared(page));
        let copy = pool.copy_on_write(page).expect("memory");
        assert_ne!(copy, page);
        assert!(!pool.is_shared(page));
        assert_eq!(read(&pool, copy), 7);
        write(&pool, copy, 9);
        assert_eq!(read(&pool, page), 7);
        pool.give_back(page);
        pool.give_back(copy);
        assert_eq!(pool.in_use(), 0);
    }
}

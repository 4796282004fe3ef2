//! Where this backend's histories lie: in the process's own memory.

use std::{alloc, ptr::NonNull};

use super::shared::Cells;
use crate::{
    Error,
    backend::histories::{KvLayout, Memory, PageId, SLAB_PAGES, StateLayout},
};

/// Alignment of a page: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// Slabs of pages, and the makings of states.
pub(crate) struct HostMemory {
    page_bytes: usize,
    state_len: usize,
    slabs: Vec<Slab>,
}

impl HostMemory {
    pub(crate) fn new(kv: &KvLayout, state: &StateLayout) -> Self {
        Self { page_bytes: kv.page_bytes(), state_len: state.len(), slabs: Vec::new() }
    }

    /// First byte of a page, aligned to a cache line.
    pub(crate) fn start(&self, page: PageId) -> *mut u8 {
        let (slab, index) = page.place();
        // SAFETY: a slab is SLAB_PAGES pages long.
        unsafe { self.slabs[slab].start.as_ptr().add(index * self.page_bytes) }
    }
}

impl Memory for HostMemory {
    type State = Cells;

    fn add_slab(&mut self) -> Result<(), Error> {
        let bytes = self.page_bytes.saturating_mul(SLAB_PAGES);
        let slab = Slab::new(bytes).ok_or(Error::OutOfMemory { bytes, purpose: "KV pages" })?;
        self.slabs.push(slab);
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), Error> {
        assert_ne!(from, to, "a page is copied to another one");
        // SAFETY: both pages are `page_bytes` long and differ; `&mut self` keeps writers away.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start(from).cast_const(),
                self.start(to),
                self.page_bytes,
            );
        }
        Ok(())
    }

    fn new_state(&mut self) -> Result<Cells, Error> {
        Cells::zeros(self.state_len).ok_or(Error::OutOfMemory {
            bytes: self.state_len * size_of::<f32>(),
            purpose: "DeltaNet states",
        })
    }

    fn zero_state(&mut self, state: &mut Cells) -> Result<(), Error> {
        state.as_mut_slice().fill(0.0);
        Ok(())
    }

    fn copy_state(&mut self, from: &mut Cells, to: &mut Cells) -> Result<(), Error> {
        to.copy_from(from);
        Ok(())
    }
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

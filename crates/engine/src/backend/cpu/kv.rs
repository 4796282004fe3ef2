//! One KV head of one attention layer, as its pages hold it.

use super::{
    kernels::{Cached, Kernels},
    memory::HostMemory,
};
use crate::backend::histories::{PAGE_TOKENS, PageId, PagePool};

/// Keys and values of one head of one layer of one sequence.
#[derive(Clone, Copy)]
pub(super) struct KvHead<'a> {
    pool: &'a PagePool<HostMemory>,
    pages: &'a [PageId],
    /// Offset of the head's keys in every page.
    keys_at: usize,
}

impl<'a> KvHead<'a> {
    pub(super) fn new(
        pool: &'a PagePool<HostMemory>,
        pages: &'a [PageId],
        layer: usize,
        kv_head: usize,
    ) -> Self {
        Self { pool, pages, keys_at: pool.layout().keys_at(layer, kv_head) }
    }

    /// Writes the key and the value of one position.
    ///
    /// # Safety
    /// The position's page belongs to this sequence alone, and nobody else touches the position.
    pub(super) unsafe fn write(
        &self,
        kernels: &Kernels,
        position: usize,
        key: &[f32],   // [head_dim]
        value: &[f32], // [head_dim]
    ) {
        let layout = self.pool.layout();
        assert!(key.len() == layout.head_dim && value.len() == layout.head_dim);
        let slot = position % PAGE_TOKENS * layout.head_dim * layout.element_bytes;
        for (x, run) in [key, value].into_iter().zip(self.runs(position / PAGE_TOKENS)) {
            // SAFETY: a run has PAGE_TOKENS slots of head_dim elements, aligned as the page is;
            // alone, as the caller promises.
            unsafe {
                let slot = run.add(slot);
                if layout.element_bytes == 2 {
                    let slot = std::slice::from_raw_parts_mut(slot.cast::<u16>(), x.len());
                    kernels.store_f16(x, slot);
                } else {
                    std::ptr::copy_nonoverlapping(x.as_ptr(), slot.cast::<f32>(), x.len());
                }
            }
        }
    }

    /// The first `tokens` keys and values of a page.
    ///
    /// # Safety
    /// They have been written, and nobody writes them while the result lives.
    pub(super) unsafe fn read(&self, page: usize, tokens: usize) -> [Cached<'a>; 2] {
        assert!(tokens <= PAGE_TOKENS, "{tokens} tokens of a page");
        let layout = self.pool.layout();
        let len = tokens * layout.head_dim;
        self.runs(page).map(|run| {
            // SAFETY: a run has PAGE_TOKENS slots of head_dim elements, aligned as the page is;
            // written, as the caller promises.
            unsafe {
                if layout.element_bytes == 2 {
                    Cached::F16(std::slice::from_raw_parts(run.cast::<u16>(), len))
                } else {
                    Cached::F32(std::slice::from_raw_parts(run.cast::<f32>(), len))
                }
            }
        })
    }

    /// Where a page's keys and values of this head begin.
    fn runs(&self, page: usize) -> [*mut u8; 2] {
        let start = self.pool.memory().start(self.pages[page]);
        let run_bytes = self.pool.layout().run_bytes();
        // SAFETY: the layout's offsets lie inside a page.
        unsafe { [start.add(self.keys_at), start.add(self.keys_at + run_bytes)] }
    }
}

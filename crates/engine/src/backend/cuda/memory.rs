//! Where this backend's histories lie: in the device's memory.

use std::sync::Arc;

use super::device::{Address, Device};
use crate::{
    Error,
    backend::histories::{KvLayout, Memory, PageId, SLAB_PAGES, StateLayout},
};

/// Slabs of pages, and blocks of states.
pub(super) struct HistoryMemory {
    device: Arc<dyn Device>,
    page_bytes: usize,
    state_bytes: usize,
    slabs: Vec<Address>,
    states: Vec<Address>,
}

impl HistoryMemory {
    pub(super) fn new(device: Arc<dyn Device>, kv: &KvLayout, state: &StateLayout) -> Self {
        Self {
            device,
            page_bytes: kv.page_bytes(),
            state_bytes: state.len() * size_of::<f32>(),
            slabs: Vec::new(),
            states: Vec::new(),
        }
    }

    /// First byte of a page.
    pub(super) fn start(&self, page: PageId) -> Address {
        let (slab, index) = page.place();
        self.slabs[slab].plus(index * self.page_bytes)
    }
}

impl Memory for HistoryMemory {
    type State = Address;

    fn add_slab(&mut self) -> Result<(), Error> {
        let bytes = self.page_bytes.saturating_mul(SLAB_PAGES);
        let slab = self.device.allocate(bytes, "KV pages")?;
        self.slabs.push(slab);
        // A page is copied whole, written or not: a checker of memory should find nothing there.
        self.device.zero(slab, bytes)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), Error> {
        self.device.copy(self.start(from), self.start(to), self.page_bytes)
    }

    fn new_state(&mut self) -> Result<Address, Error> {
        let state = self.device.allocate(self.state_bytes, "DeltaNet states")?;
        self.states.push(state);
        Ok(state)
    }

    fn zero_state(&mut self, state: &mut Address) -> Result<(), Error> {
        self.device.zero(*state, self.state_bytes)
    }

    fn copy_state(&mut self, from: &mut Address, to: &mut Address) -> Result<(), Error> {
        self.device.copy(*from, *to, self.state_bytes)
    }
}

impl Drop for HistoryMemory {
    fn drop(&mut self) {
        for &address in self.slabs.iter().chain(&self.states) {
            self.device.free(address);
        }
    }
}

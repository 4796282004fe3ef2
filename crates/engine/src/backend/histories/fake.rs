//! Memory for tests: one number stands for the contents of a page or a state.

use super::{Memory, PageId, SLAB_PAGES};
use crate::Error;

#[derive(Default)]
pub(crate) struct FakeMemory {
    pub(crate) pages: Vec<usize>,
}

impl Memory for FakeMemory {
    type State = usize;

    fn add_slab(&mut self) -> Result<(), Error> {
        self.pages.resize(self.pages.len() + SLAB_PAGES, 0);
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), Error> {
        self.pages[to.index()] = self.pages[from.index()];
        Ok(())
    }

    fn new_state(&mut self) -> Result<usize, Error> {
        Ok(usize::MAX)
    }

    fn zero_state(&mut self, state: &mut usize) -> Result<(), Error> {
        *state = 0;
        Ok(())
    }

    fn copy_state(&mut self, from: &mut usize, to: &mut usize) -> Result<(), Error> {
        *to = *from;
        Ok(())
    }
}

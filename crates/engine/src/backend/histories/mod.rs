//! Token histories on any device: page tables, counted pages, blocks of recurrent states. What
//! they are made of is the device's ([`Memory`]); who owns and shares what is decided here.

#[cfg(test)]
mod fake;
mod layout;
mod pages;
mod sequences;

pub(crate) use layout::{KvLayout, StateLayout, bytes_for};
pub(crate) use pages::{PAGE_TOKENS, PageId, PagePool, SLAB_PAGES, pages_for};
pub(crate) use sequences::Sequences;

use crate::Error;

/// The memory that pages and states lie in.
pub(crate) trait Memory {
    /// One history's recurrent states, see [`StateLayout`].
    type State;

    /// Makes [`SLAB_PAGES`] pages more; their numbers go on from the last slab's.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn add_slab(&mut self) -> Result<(), Error>;

    /// Copies a whole page to another one.
    ///
    /// # Errors
    /// When the device fails.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), Error>;

    /// A block of states with any contents.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn new_state(&mut self) -> Result<Self::State, Error>;

    /// Fills a block with zeros.
    ///
    /// # Errors
    /// When the device fails.
    fn zero_state(&mut self, state: &mut Self::State) -> Result<(), Error>;

    /// Copies a whole block.
    ///
    /// # Errors
    /// When the device fails.
    fn copy_state(&mut self, from: &mut Self::State, to: &mut Self::State) -> Result<(), Error>;
}

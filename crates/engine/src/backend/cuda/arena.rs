//! Device memory that is taken when the backend is made and given back with it.

use std::sync::Arc;

use super::device::{Activations, Address, Device};
use crate::Error;

/// Owns what it allocates.
pub(super) struct Arena {
    /// None to count only.
    device: Option<Arc<dyn Device>>,
    purpose: &'static str,
    allocations: Vec<Address>,
    bytes: usize,
}

impl Arena {
    pub(super) fn new(device: Arc<dyn Device>, purpose: &'static str) -> Self {
        Self { device: Some(device), purpose, allocations: Vec::new(), bytes: 0 }
    }

    /// Allocates nothing and counts what would be.
    pub(super) fn counting() -> Self {
        Self { device: None, purpose: "nothing", allocations: Vec::new(), bytes: 0 }
    }

    /// Bytes allocated so far.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory with any contents.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn bytes_of(&mut self, bytes: usize) -> Result<Address, Error> {
        self.bytes += bytes;
        let Some(device) = &self.device else { return Ok(Address::default()) };
        let address = device.allocate(bytes, self.purpose)?;
        self.allocations.push(address);
        Ok(address)
    }

    /// Room for `count` values of 4 bytes.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn words(&mut self, count: usize) -> Result<Address, Error> {
        self.bytes_of(4 * count)
    }

    /// A vector of the model.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device fails.
    pub(super) fn vector(&mut self, values: &[f32]) -> Result<Address, Error> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.copy_of(&bytes)
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device fails.
    pub(super) fn copy_of(&mut self, bytes: &[u8]) -> Result<Address, Error> {
        let address = self.bytes_of(bytes.len())?;
        if let Some(device) = &self.device {
            device.upload(address, bytes)?;
        }
        Ok(address)
    }

    /// Room for the activations of `rows` rows of `width` elements.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn activations(
        &mut self,
        rows: usize,
        width: usize,
        group: usize,
        pieces: usize,
    ) -> Result<Activations, Error> {
        Ok(Activations {
            halves: self.bytes_of(2 * pieces * rows * width)?,
            sums: self.words(rows * (width / group))?,
            rows: rows as u32,
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            self.allocations.iter().for_each(|&address| device.free(address));
        }
    }
}

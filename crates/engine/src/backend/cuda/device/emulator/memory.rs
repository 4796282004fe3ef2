//! The emulated device's memory: pieces of this process's, each between pages that nobody may touch.

use std::{collections::BTreeMap, ops::Range, ptr};

use super::device_error;
use crate::{Error, backend::cuda::device::Address};

/// Alignment of what an allocation gives, as the driver's.
const ALIGNMENT: usize = 256;

/// What fresh memory holds: a NaN in every float format, and as an integer no index or address.
/// emulator.h fills shared memory with the same.
const POISON: [u8; 2] = 0x7ff7_u16.to_le_bytes();

/// All allocations, by their first byte.
pub(super) struct Memory {
    pieces: BTreeMap<u64, Piece>,
    used: usize,
    total: usize,
}

/// One allocation. It ends where the page behind it begins, up to its alignment.
struct Piece {
    bytes: usize,
    purpose: &'static str,
    mapping: *mut u8,
    mapped: usize,
}

// SAFETY: a piece is the only owner of its mapping.
unsafe impl Send for Piece {}

impl Memory {
    pub(super) fn new(total: usize) -> Self {
        Self { pieces: BTreeMap::new(), used: 0, total }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn free(&self) -> usize {
        self.total - self.used
    }

    pub(super) fn allocate(
        &mut self,
        bytes: usize,
        purpose: &'static str,
    ) -> Result<Address, Error> {
        let none = Error::OutOfMemory { bytes, purpose };
        if bytes > self.free() {
            return Err(none);
        }
        let Some(piece) = Piece::map(bytes, purpose) else { return Err(none) };
        let start = piece.start();
        piece.poison();
        self.used += bytes;
        self.pieces.insert(start, piece);
        Ok(Address(start))
    }

    /// False for an address at which no allocation starts.
    pub(super) fn remove(&mut self, address: Address) -> bool {
        let Some(piece) = self.pieces.remove(&address.0) else { return false };
        self.used -= piece.bytes;
        true
    }

    /// The bytes of a range that lies in one allocation.
    pub(super) fn range(&self, at: Address, bytes: usize) -> Result<Range<*mut u8>, String> {
        let inside = self.pieces.range(..=at.0).next_back().filter(|(start, piece)| {
            let offset = at.0 - **start;
            offset.checked_add(bytes as u64).is_some_and(|end| end <= piece.bytes as u64)
        });
        if inside.is_none() {
            return Err(format!("{bytes} bytes at {:#x} lie in no allocation", at.0));
        }
        let start = at.0 as usize as *mut u8;
        // SAFETY: within one allocation, as just found.
        Ok(start..unsafe { start.add(bytes) })
    }

    /// An error when something has been written between an allocation's end and the next page.
    pub(super) fn check_ends(&self) -> Result<(), Error> {
        for piece in self.pieces.values() {
            if let Some(offset) = piece.overrun() {
                return Err(device_error(
                    "looking behind its allocations",
                    format!(
                        "something has written {offset} bytes behind the {} bytes of {}",
                        piece.bytes, piece.purpose
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Piece {
    fn map(bytes: usize, purpose: &'static str) -> Option<Self> {
        let page = page_size();
        let mapped = bytes.max(1).checked_next_multiple_of(page)?.checked_add(2 * page)?;
        // SAFETY: a new private mapping of zeros; the pages at its ends lose their permissions.
        unsafe {
            let at = libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if at == libc::MAP_FAILED {
                return None;
            }
            let piece = Self { bytes, purpose, mapping: at.cast(), mapped };
            let guarded = libc::mprotect(at, page, libc::PROT_NONE)
                | libc::mprotect(piece.mapping.add(mapped - page).cast(), page, libc::PROT_NONE);
            (guarded == 0).then_some(piece)
        }
    }

    fn end_page(&self) -> *mut u8 {
        self.mapping.wrapping_add(self.mapped - page_size())
    }

    fn start(&self) -> u64 {
        self.end_page() as u64 - self.bytes.max(1).next_multiple_of(ALIGNMENT) as u64
    }

    /// From the first byte to the page behind.
    fn whole(&self) -> Range<*mut u8> {
        self.start() as usize as *mut u8..self.end_page()
    }

    fn poison(&self) {
        let Range { start, end } = self.whole();
        let bytes = end as usize - start as usize;
        // SAFETY: mapped, aligned to 256 bytes, and nobody else's.
        let pairs = unsafe { std::slice::from_raw_parts_mut(start.cast::<[u8; 2]>(), bytes / 2) };
        pairs.fill(POISON);
    }

    fn overrun(&self) -> Option<usize> {
        let Range { start, end } = self.whole();
        let all = end as usize - start as usize;
        (self.bytes..all)
            // SAFETY: mapped; no launch runs while the memory is locked.
            .find(|&offset| unsafe { start.add(offset).read_volatile() } != POISON[offset % 2])
            .map(|offset| offset - self.bytes)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, which is used no more.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}

fn page_size() -> usize {
    // SAFETY: a plain question, which has an answer on every system that the emulator runs on.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

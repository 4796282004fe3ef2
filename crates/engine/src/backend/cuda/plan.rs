//! A batch as the kernels see it: one block of numbers that is copied to the device before a pass.

use super::{
    delta_net::CHUNK_MIN,
    device::{Address, Device},
    memory::HistoryMemory,
};
use crate::{
    Error,
    backend::{
        Batch, Wants,
        histories::{Sequences, pages_for},
    },
};

/// Fewest entries of a page table: shorter sequences share a recorded step.
const PAGES_MIN: usize = 16;

/// No sequence: the row is padding.
const NONE: u32 = u32::MAX;

/// Where the parts of the block lie on the device, and how long they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows, padding included.
    pub(super) rows: usize,
    /// Sequences, empty ones included.
    pub(super) sequences: usize,
    /// Entries of a page table.
    pub(super) pages_max: usize,
    /// Rows that want logits.
    pub(super) wanted: usize,
    /// Sequences whose recurrence goes in chunks, and their rows.
    pub(super) chunked_sequences: usize,
    pub(super) chunked_rows: usize,
    pub(super) states: Address,       // [sequences] u64
    pub(super) pages: Address,        // [sequences, pages_max] u64
    pub(super) tokens: Address,       // [rows] u32
    pub(super) row_sequence: Address, // [rows] u32
    pub(super) row_position: Address, // [rows] u32
    pub(super) first_row: Address,    // [sequences + 1] u32
    pub(super) pick: Address,         // [wanted] u32
    pub(super) temperatures: Address, // [wanted] f32, 0 where no candidates are wanted
    pub(super) routed: Address, // [rows] u32: 0, then the layer that has routed the row last, from 1
}

/// How large a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PlanSize {
    pub(super) rows: usize,
    pub(super) sequences: usize,
    pub(super) pages_max: usize,
    pub(super) wanted: usize,
}

impl PlanSize {
    /// Entries of a page table for sequences of up to `tokens` tokens: rounded up, so that few
    /// recorded steps serve all.
    pub(super) fn pages_max_for(tokens: usize) -> usize {
        pages_for(tokens).next_power_of_two().max(PAGES_MIN)
    }

    /// Bytes of the block.
    pub(super) fn bytes(&self) -> usize {
        8 * self.sequences * (1 + self.pages_max) + 4 * self.words()
    }

    /// Numbers of 4 bytes, behind those of 8.
    fn words(&self) -> usize {
        4 * self.rows + self.sequences + 1 + 2 * self.wanted
    }

    /// Where the parts lie in a block that starts at `block`; `lengths` are the sequences' rows.
    fn place(&self, block: Address, lengths: impl Iterator<Item = usize> + Clone) -> Plan {
        let chunked = lengths.filter(|&length| length >= CHUNK_MIN);
        let pages = block.plus(8 * self.sequences);
        let tokens = pages.plus(8 * self.sequences * self.pages_max);
        let row_sequence = tokens.plus(4 * self.rows);
        let row_position = row_sequence.plus(4 * self.rows);
        let first_row = row_position.plus(4 * self.rows);
        let pick = first_row.plus(4 * (self.sequences + 1));
        Plan {
            rows: self.rows,
            sequences: self.sequences,
            pages_max: self.pages_max,
            wanted: self.wanted,
            chunked_sequences: chunked.clone().count(),
            chunked_rows: chunked.sum(),
            states: block,
            pages,
            tokens,
            row_sequence,
            row_position,
            first_row,
            pick,
            temperatures: pick.plus(4 * self.wanted),
            routed: pick.plus(8 * self.wanted),
        }
    }
}

/// Writes plans; keeps its memory between passes.
#[derive(Default)]
pub(super) struct Planner {
    block: Vec<u8>,
    tokens: Vec<u32>,
    row_sequence: Vec<u32>,
    row_position: Vec<u32>,
    first_row: Vec<u32>,
    pick: Vec<u32>,
    temperatures: Vec<f32>,
}

impl Planner {
    /// Describes a checked batch whose sequences have their pages, and queues the copy to `at`,
    /// where `size.bytes()` bytes are free. What `size` has more than the batch is padding.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn write(
        &mut self,
        batch: &Batch<'_>,
        sequences: &Sequences<HistoryMemory>,
        size: PlanSize,
        device: &dyn Device,
        at: Address,
    ) -> Result<Plan, Error> {
        self.block.clear();
        let Self { block, tokens, row_sequence, row_position, first_row, pick, temperatures } =
            self;
        for numbers in
            [&mut *tokens, &mut *row_sequence, &mut *row_position, &mut *first_row, &mut *pick]
        {
            numbers.clear();
        }
        temperatures.clear();
        let history = |row: usize| {
            let index = sequences.index(batch.rows[row].sequence).expect("the batch was checked");
            sequences.history(index)
        };
        let count = batch.rows.len();
        for row in 0..count {
            block.extend_from_slice(&history(row).state.0.to_le_bytes());
        }
        block.resize(8 * size.sequences, 0);
        for row in 0..count {
            for &page in &history(row).pages {
                let start = sequences.pages().memory().start(page);
                block.extend_from_slice(&start.0.to_le_bytes());
            }
            block.resize(8 * (size.sequences + (row + 1) * size.pages_max), 0);
        }
        block.resize(8 * size.sequences * (1 + size.pages_max), 0);
        for (index, row) in batch.rows.iter().enumerate() {
            let (start, len) = (history(index).len, row.tokens.len());
            first_row.push(tokens.len() as u32);
            tokens.extend_from_slice(row.tokens);
            row_sequence.resize(tokens.len(), index as u32);
            row_position.extend((start..start + len).map(|position| position as u32));
            let end = tokens.len();
            pick.extend((end - row.wants.rows(len)..end).map(|row| row as u32));
            let temperature = match row.wants {
                Wants::Candidates { temperature } => temperature,
                _ => 0.0,
            };
            temperatures.resize(pick.len(), temperature);
        }
        first_row.resize(size.sequences + 1, tokens.len() as u32);
        tokens.resize(size.rows, 0);
        row_sequence.resize(size.rows, NONE);
        row_position.resize(size.rows, 0);
        pick.resize(size.wanted, 0);
        temperatures.resize(size.wanted, 0.0);
        for numbers in [tokens, row_sequence, row_position, first_row, pick] {
            block.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        block.extend(temperatures.iter().flat_map(|number| number.to_le_bytes()));
        block.resize(block.len() + 4 * size.rows, 0);
        debug_assert_eq!(block.len(), size.bytes());
        device.upload(at, block)?;
        Ok(size.place(at, batch.rows.iter().map(|row| row.tokens.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the scratch has room for must hold the plan of every step, of the shortest contexts too.
    #[test]
    fn a_page_table_of_the_longest_context_has_room_for_every_shorter_one() {
        for context in [1, 64, 65, 2048, 262_144] {
            let longest = PlanSize::pages_max_for(context);
            for tokens in [0, 1, context / 2, context] {
                let pages = PlanSize::pages_max_for(tokens);
                assert!(pages_for(tokens) <= pages && pages <= longest, "{tokens} of {context}");
            }
        }
    }
}

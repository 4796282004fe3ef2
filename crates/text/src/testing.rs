//! What this crate's tests share.

/// A linear congruential generator (Knuth's MMIX constants): small, seeded, the same everywhere.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

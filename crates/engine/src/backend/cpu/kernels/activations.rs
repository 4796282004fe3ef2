use std::cell::UnsafeCell;

use crate::backend::Precision;

/// Inputs that share one activation scale, and the step of every inner loop.
pub(super) const BLOCK: usize = 64;

/// Elements behind each row of integers. Rows a power of two apart would meet in few sets of the
/// first-level cache; with these, eight of them are spread over all sets.
const PAD: usize = 5 * BLOCK;

/// Bytes behind the last row's: a vector of the widest kind may read beyond a row's end, times zeros.
const BYTES_PAD: usize = 64;

/// Inputs of quantised matrices, one row a token, in the form that the inner loops read.
///
/// Default precision: 16-bit integers. Each block of 64 inputs has one scale `max|x| / 32512`;
/// the order inside each eight inputs is the one in which a word of weights comes apart
/// (`matmul/gemm.rs`), and their bytes stand apart besides. Exact precision: the values as they are.
/// Both keep sums of 32, 64 and 128 inputs, the factors of the affine biases.
///
/// Memory is taken once; [`Activations::reset`] sets the shape of the next product.
pub struct Activations {
    precision: Precision,
    inputs_max: usize,
    rows_max: usize,
    rows: usize,
    inputs: usize,
    quants: Table<i16>, // [rows, inputs + PAD], default precision
    bytes: Table<i8>,   // [rows, 4, inputs / 2], default precision
    scales: Table<f32>, // [rows, inputs / 64], default precision
    values: Table<f32>, // [rows, inputs], exact precision
    sums: Table<f32>,   // [rows, inputs / 32 + inputs / 64 + inputs / 128]
    pairs: Table<i32>,  // [rows, inputs / 32 + inputs / 64], default precision
}

impl Activations {
    /// Room for `rows` rows of up to `inputs_max` inputs.
    pub fn with_capacity(rows: usize, inputs_max: usize, precision: Precision) -> Self {
        let exact = precision == Precision::Exact;
        Self {
            precision,
            inputs_max,
            rows_max: rows,
            rows: 0,
            inputs: 0,
            quants: Table::new(if exact { 0 } else { rows * (inputs_max + PAD) }),
            bytes: Table::new(if exact { 0 } else { rows * 2 * inputs_max + BYTES_PAD }),
            scales: Table::new(if exact { 0 } else { rows * inputs_max.div_ceil(BLOCK) }),
            values: Table::new(if exact { rows * inputs_max } else { 0 }),
            sums: Table::new(rows * sums_len(inputs_max)),
            pairs: Table::new(if exact { 0 } else { rows * pairs_len(inputs_max) }),
        }
    }

    /// Memory of [`Activations::with_capacity`].
    pub(crate) fn bytes(rows: usize, inputs_max: usize, precision: Precision) -> usize {
        let row = match precision {
            Precision::Default => {
                2 * (inputs_max + PAD)
                    + 2 * inputs_max
                    + 4 * (inputs_max.div_ceil(BLOCK) + pairs_len(inputs_max))
            }
            Precision::Exact => 4 * inputs_max,
        };
        let pad = if precision == Precision::Default { BYTES_PAD } else { 0 };
        rows * (row + 4 * sums_len(inputs_max)) + pad
    }

    /// Sets the shape; rows hold nothing until they are prepared.
    ///
    /// # Panics
    /// When the shape exceeds the capacity, or `inputs` is not a multiple of 64.
    pub fn reset(&mut self, rows: usize, inputs: usize) {
        assert!(rows <= self.rows_max, "{rows} rows, room for {}", self.rows_max);
        assert!(inputs <= self.inputs_max, "{inputs} inputs, room for {}", self.inputs_max);
        assert!(inputs.is_multiple_of(BLOCK), "{inputs} inputs, not a multiple of {BLOCK}");
        self.rows = rows;
        self.inputs = inputs;
    }

    /// Rows of the current shape.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the current shape.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The form that rows are held in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Quantised inputs of a row [inputs].
    pub(super) fn quants(&self, row: usize) -> *mut i16 {
        self.quants.at(row * (self.inputs + PAD))
    }

    /// Bytes of a row's quantised inputs: low bytes of even inputs, of odd ones, then the high
    /// bytes, all of them signed [4, inputs / 2].
    pub(super) fn bytes_of(&self, row: usize) -> [*mut i8; 4] {
        let half = self.inputs / 2;
        std::array::from_fn(|plane| self.bytes.at((4 * row + plane) * half))
    }

    /// Block scales of a row [inputs / 64].
    pub(super) fn scales(&self, row: usize) -> *mut f32 {
        self.scales.at(row * (self.inputs / BLOCK))
    }

    /// Plain inputs of a row [inputs].
    pub(super) fn values(&self, row: usize) -> *mut f32 {
        self.values.at(row * self.inputs)
    }

    /// Sums of a row's inputs in runs of `group` [inputs / group].
    pub(super) fn sums(&self, row: usize, group: usize) -> *mut f32 {
        let start = match group {
            32 => 0,
            64 => self.inputs / 32,
            _ => self.inputs / 32 + self.inputs / 64,
        };
        self.sums.at(row * sums_len(self.inputs) + start)
    }

    /// Sums of a row's products of paired inputs (`matmul/gemm.rs`) in runs of `unit`, 32 or 64,
    /// negated, modulo 2^32 [inputs / unit].
    pub(super) fn pairs(&self, row: usize, unit: usize) -> *mut i32 {
        let start = if unit == 32 { 0 } else { self.inputs / 32 };
        self.pairs.at(row * pairs_len(self.inputs) + start)
    }

    /// Completes a row whose sums of 32 stand: those of 64 join two, those of 128 two of 64.
    ///
    /// # Safety
    /// The row exists and nobody else touches it meanwhile.
    pub(super) unsafe fn join_sums(&self, row: usize) {
        for (finer, group) in [(32, 64), (64, 128)] {
            let (from, to) = (self.sums(row, finer), self.sums(row, group));
            for index in 0..self.inputs / group {
                // SAFETY: `reset` made room for all three runs of sums, and twice as many finer
                // ones stand before these.
                unsafe { *to.add(index) = *from.add(2 * index) + *from.add(2 * index + 1) }
            }
        }
    }
}

fn sums_len(inputs: usize) -> usize {
    inputs / 32 + inputs / 64 + inputs / 128
}

fn pairs_len(inputs: usize) -> usize {
    inputs / 32 + inputs / 64
}

/// Fixed memory that threads fill at disjoint places through a shared reference.
struct Table<T> {
    cells: Box<[UnsafeCell<T>]>,
}

// SAFETY: a table hands out raw pointers only; whoever writes through one promises (see
// `Kernels::prepare`) that no other thread touches the same row meanwhile.
unsafe impl<T: Send> Sync for Table<T> {}

impl<T: Copy + Default> Table<T> {
    fn new(len: usize) -> Self {
        Self { cells: (0..len).map(|_| UnsafeCell::new(T::default())).collect() }
    }

    fn at(&self, index: usize) -> *mut T {
        debug_assert!(index <= self.cells.len());
        // A pointer derived from the whole slice may reach every cell behind it.
        let base = self.cells.as_ptr().cast::<T>().cast_mut();
        base.wrapping_add(index)
    }
}

use std::ffi::c_void;

use super::Address;

/// An argument of a kernel, laid out as the kernel's parameter is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// A pointer; [`Argument::NULL`] for none.
    Address(Address),
    /// A count, an index or a flag.
    U32(u32),
    /// An offset.
    U64(u64),
    /// `struct Matrix`.
    Matrix(Matrix),
    /// `struct Activations`.
    Activations(Activations),
}

/// A repacked matrix; see `matmul/matrix.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Matrix {
    /// Packed elements, tile by tile.
    pub words: Address,
    /// Scales and biases.
    pub affine: Address,
    /// Two u32: how large they are.
    pub range: Address,
}

/// The input of a quantised matrix; see `prelude.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Activations {
    /// [pieces, rows, width] f16
    pub halves: Address,
    /// [rows, width / group] f32
    pub sums: Address,
    /// Rows that the buffer has room for.
    pub rows: u32,
}

impl Activations {
    /// The same from row `row` on, of `width` elements each.
    #[must_use]
    pub fn from_row(self, row: usize, width: usize, group: usize) -> Self {
        Self {
            halves: self.halves.plus(2 * row * width),
            sums: self.sums.plus(4 * row * (width / group)),
            ..self
        }
    }
}

impl Argument {
    /// No pointer.
    pub const NULL: Self = Self::Address(Address(0));

    /// Where the parameter's bytes stand, as a launch wants them. Good while `self` does not move.
    pub fn as_ptr(&self) -> *const c_void {
        match self {
            Self::Address(value) => std::ptr::from_ref(value).cast(),
            Self::U32(value) => std::ptr::from_ref(value).cast(),
            Self::U64(value) => std::ptr::from_ref(value).cast(),
            Self::Matrix(value) => std::ptr::from_ref(value).cast(),
            Self::Activations(value) => std::ptr::from_ref(value).cast(),
        }
    }
}

impl From<Address> for Argument {
    fn from(value: Address) -> Self {
        Self::Address(value)
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<Matrix> for Argument {
    fn from(value: Matrix) -> Self {
        Self::Matrix(value)
    }
}

impl From<Activations> for Argument {
    fn from(value: Activations) -> Self {
        Self::Activations(value)
    }
}

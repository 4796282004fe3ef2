//! Memory that the tasks of one job write in parallel.

use std::{cell::UnsafeCell, marker::PhantomData};

/// A slice of which each task takes parts of its own. The borrow it was made from keeps
/// everyone else away; that two tasks never take the same element is the tasks' to prove.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: it hands out `&mut [T]` only through an unsafe method whose caller keeps parts apart.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// All of `slice`.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// While the result lives, nobody else takes or reads any of these elements.
    ///
    /// # Panics
    /// When they are not inside the slice.
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: inside the slice, which outlives 'a; alone, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(start, len), len) }
    }

    /// Where element `start` lies, for code that writes `len` elements' worth of scattered places.
    ///
    /// # Panics
    /// When the elements are not inside the slice.
    pub(crate) fn pointer(&self, start: usize, len: usize) -> *mut T {
        assert!(start <= self.len && len <= self.len - start, "a part outside its slice");
        // SAFETY: at most one past the end, by the assertion.
        unsafe { self.start.add(start) }
    }
}

/// Floats that outlive a job and are written through a shared reference, in parts as in
/// [`Shared`].
#[derive(Default)]
pub(crate) struct Cells {
    values: Box<[UnsafeCell<f32>]>,
}

// SAFETY: through a shared reference it hands out `&mut [f32]` only in an unsafe method whose
// caller keeps parts apart.
unsafe impl Sync for Cells {}

impl Cells {
    /// `len` zeros, or nothing when there is no memory for them.
    pub(crate) fn zeros(len: usize) -> Option<Self> {
        let mut values = Vec::new();
        values.try_reserve_exact(len).ok()?;
        values.resize_with(len, || UnsafeCell::new(0.0));
        Some(Self { values: values.into_boxed_slice() })
    }

    /// All of them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        let len = self.values.len();
        // SAFETY: `&mut self` is the only way to them now; an `UnsafeCell` has its value's layout.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_mut_ptr().cast(), len) }
    }

    /// Copies all of `source`, which has the same length; both are the caller's alone.
    pub(crate) fn copy_from(&mut self, source: &mut Self) {
        self.as_mut_slice().copy_from_slice(source.as_mut_slice());
    }

    /// `len` floats from `start` on.
    ///
    /// # Safety
    /// While the result lives, nobody else takes or reads any of these floats.
    ///
    /// # Panics
    /// When they are not inside.
    #[expect(clippy::mut_from_ref, reason = "the caller keeps the parts apart")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [f32] {
        let cells = &self.values[start..start + len];
        // SAFETY: an `UnsafeCell` may be written through a shared reference; alone, as the caller
        // promises.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), len) }
    }
}

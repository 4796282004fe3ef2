//! Memory of plain numbers for tests of kernels.

use super::{super::Device, Address, Emulator};

impl Emulator {
    /// A new piece of memory with these elements.
    pub(in crate::backend::cuda) fn memory_of<T: Copy>(&self, elements: &[T]) -> Address {
        // SAFETY: plain numbers, looked at as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements))
        };
        let address = self.allocate(bytes.len(), "a test").expect("memory");
        self.upload(address, bytes).expect("memory of that size");
        address
    }

    /// A new piece of memory that nobody has written.
    pub(in crate::backend::cuda) fn fresh<T>(&self, elements: usize) -> Address {
        self.allocate(elements * size_of::<T>(), "a test").expect("memory")
    }

    /// What stands there.
    pub(in crate::backend::cuda) fn read<T: Copy + Default>(
        &self,
        address: Address,
        elements: usize,
    ) -> Vec<T> {
        let mut result = vec![T::default(); elements];
        // SAFETY: plain numbers, of which every pattern of bits is one.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                result.as_mut_ptr().cast::<u8>(),
                elements * size_of::<T>(),
            )
        };
        self.download(address, bytes).expect("memory of that size");
        result
    }
}

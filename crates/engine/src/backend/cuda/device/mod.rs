//! The border between the backend and a CUDA device, or what stands in for one.
//!
//! Work is queued: launches, copies and fills run in the order in which they are given, and only
//! [`Device::download`] and [`Device::wait`] wait for them. The driver and, for tests, an emulator
//! that runs the same kernel files on the CPU are behind it.

mod arguments;
pub mod driver;
#[cfg(all(
    feature = "cuda-emulator",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod emulator;

pub use arguments::{Activations, Argument, Matrix};

use crate::Error;

/// No device that can run the model, and what is missing.
pub(super) fn unavailable(problem: String) -> Error {
    Error::BackendUnavailable { backend: "cuda".into(), problem }
}

/// Address in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// One piece of source code that is compiled by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// For messages and for the cache's file names.
    pub name: &'static str,
    /// Everything the compiler sees, dimensions included.
    pub source: String,
    /// The kernels that it defines, by name.
    pub kernels: Vec<String>,
    /// Where its kernels note when they run, if the source defines `STAMPS`; see `prelude.cu`.
    pub stamps: Option<Address>,
}

/// A kernel that has been compiled for the device and loaded. Good while the device lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel(pub u64);

/// A recorded run of launches. Good while the device lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Graph(pub u64);

/// One launch of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks in x, y and z; none of them 0.
    pub grid: [u32; 3],
    /// Threads of a block, in x.
    pub block: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// In the kernel's order.
    pub arguments: &'a [Argument],
}

/// Memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What an allocation may hope for.
    pub free: usize,
    /// All of it.
    pub total: usize,
}

/// A CUDA device with one queue of work.
pub trait Device: Send + Sync {
    /// For people: name and what it is capable of.
    fn description(&self) -> String;

    /// Multiprocessors: blocks beyond a few times their number wait.
    fn multiprocessors(&self) -> u32;

    /// Bytes of shared memory that a block may ask for.
    fn shared_per_block(&self) -> usize;

    /// Its memory at present.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn memory(&self) -> Result<DeviceMemory, Error>;

    /// Compiles a unit, or finds it compiled, and loads it: its kernels in the unit's order.
    ///
    /// # Errors
    /// [`Error::Device`] with what the compiler said.
    fn compile(&self, unit: &Unit) -> Result<Vec<Kernel>, Error>;

    /// Memory whose contents are left over, aligned to 256 bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with `purpose`, or [`Error::Device`].
    fn allocate(&self, bytes: usize, purpose: &'static str) -> Result<Address, Error>;

    /// Gives memory back once the work queued so far is done. An address that
    /// [`Device::allocate`] did not give is ignored.
    fn free(&self, address: Address);

    /// Queues a copy to the device. `bytes` may be reused at once.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), Error>;

    /// Copies from the device after waiting for the work queued so far.
    ///
    /// # Errors
    /// [`Error::Device`], also for a fault of that work.
    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), Error>;

    /// Queues a copy on the device between ranges that do not overlap.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), Error>;

    /// Queues filling with zeros.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn zero(&self, at: Address, bytes: usize) -> Result<(), Error>;

    /// Queues a launch.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn launch(&self, launch: &Launch<'_>) -> Result<(), Error>;

    /// Records what `work` launches instead of running it. Nothing but launches may be recorded.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Device`].
    fn record(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Graph, Error>;

    /// Queues a recorded run, with the arguments of its recording.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn replay(&self, graph: Graph) -> Result<(), Error>;

    /// Waits for the work queued so far.
    ///
    /// # Errors
    /// [`Error::Device`], also for a fault of that work.
    fn wait(&self) -> Result<(), Error>;
}

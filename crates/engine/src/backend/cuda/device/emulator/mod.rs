//! A CUDA device without a card, for tests: the same kernel files, compiled by a C++ compiler and run
//! on the CPU.
//!
//! `emulator.h` runs a kernel and finds what is wrong with it; this file and its neighbours are the
//! device around it. Work is not queued but done at once, so an error comes from the call that
//! caused it. Beyond what a driver checks, a launch is refused when its arguments do not fit the
//! kernel's parameters or hold addresses that are nobody's, fresh memory is poison, and whatever
//! touches memory outside of all allocations is an error that names the kernel.

mod fault;
mod library;
mod memory;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    ops::Range,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use self::{
    library::{Compiler, Function},
    memory::Memory,
};
use super::{Address, Argument, Device, DeviceMemory, Graph, Kernel, Launch, Unit};
use crate::Error;

/// Memory of an emulated device, unless a test wants less.
const MEMORY_BYTES: usize = 8 << 30;

/// So few that grids made for them have many blocks for each, and not a power of two.
const MULTIPROCESSORS: u32 = 3;

/// `DYNAMIC_MAX` of emulator.h.
const SHARED_PER_BLOCK: usize = 227 << 10;

/// An emulated CUDA device.
pub struct Emulator {
    compiler: Compiler,
    seed: u64,
    /// A kernel that does nothing.
    idle: Option<String>,
    state: Mutex<State>,
}

struct State {
    memory: Memory,
    functions: Vec<Function>,
    graphs: Vec<Vec<Recorded>>,
    /// Launches of the recording under way.
    recording: Option<Vec<Recorded>>,
    launches: HashMap<String, u64>,
    launched: u64,
}

/// A launch that a graph keeps.
struct Recorded {
    kernel: Kernel,
    grid: [u32; 3],
    block: u32,
    shared_bytes: u32,
    arguments: Vec<Argument>,
}

impl Emulator {
    /// A device that runs threads and blocks in order.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no C++ compiler.
    pub fn open() -> Result<Self, Error> {
        Self::with(MEMORY_BYTES, 0)
    }

    /// A device with `memory_bytes`, which shuffles the order of threads between barriers, and of
    /// blocks, by `seed`, unless that is 0. A kernel without races does the same for every seed.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no C++ compiler.
    pub fn with(memory_bytes: usize, seed: u64) -> Result<Self, Error> {
        let state = State {
            memory: Memory::new(memory_bytes),
            functions: Vec::new(),
            graphs: Vec::new(),
            recording: None,
            launches: HashMap::new(),
            launched: 0,
        };
        Ok(Self { compiler: Compiler::find()?, seed, idle: None, state: Mutex::new(state) })
    }

    /// The same with a kernel that does nothing, to see whether that is noticed.
    #[must_use]
    pub fn with_idle(self, kernel: &str) -> Self {
        Self { idle: Some(kernel.to_owned()), ..self }
    }

    /// How often each kernel has run, by its name.
    #[must_use]
    pub fn launches(&self) -> HashMap<String, u64> {
        self.state().launches.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock left nothing half done: all steps check before they change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless a recording is under way, in which only launches have a place.
    fn working(&self, action: &str) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state();
        if state.recording.is_some() {
            return Err(device_error(action, "nothing but launches may be recorded".into()));
        }
        Ok(state)
    }
}

impl State {
    fn range(&self, action: &str, at: Address, bytes: usize) -> Result<Range<*mut u8>, Error> {
        self.memory.range(at, bytes).map_err(|problem| device_error(action, problem))
    }

    fn run(&mut self, launch: &Launch<'_>, device: &Emulator) -> Result<(), Error> {
        let function = self.check(launch)?;
        self.launched += 1;
        *self.launches.entry(function.name().to_owned()).or_default() += 1;
        if device.idle.as_deref() == Some(function.name()) {
            return Ok(());
        }
        let seed = device.seed;
        let seed = if seed == 0 { 0 } else { seed.wrapping_add(self.launched) };
        // SAFETY: the arguments fit, and the addresses in them are this device's memory. Where a
        // kernel goes from there is what the emulator is to find out: the pages around an
        // allocation raise a signal that becomes an error.
        unsafe { function.run(launch, seed) }
            .map_err(|problem| device_error("running a kernel", problem))?;
        self.memory.check_ends()
    }

    /// The launch's kernel, if the arguments are what it takes.
    fn check(&self, launch: &Launch<'_>) -> Result<Function, Error> {
        let index = usize::try_from(launch.kernel.0).ok().and_then(|index| index.checked_sub(1));
        let Some(function) = index.and_then(|index| self.functions.get(index)) else {
            return Err(device_error("launching a kernel", format!("{:?} is none", launch.kernel)));
        };
        let action = || format!("launching kernel `{}`", function.name());
        function.check(launch.arguments).map_err(|problem| device_error(action(), problem))?;
        for (index, argument) in launch.arguments.iter().enumerate() {
            for address in addresses(argument) {
                if address != Address(0) && self.memory.range(address, 0).is_err() {
                    return Err(device_error(
                        action(),
                        format!(
                            "argument {index} holds {:#x}, which is in no allocation",
                            address.0
                        ),
                    ));
                }
            }
        }
        Ok(function.clone())
    }
}

impl Device for Emulator {
    fn description(&self) -> String {
        format!("emulator, {}", self.compiler.version())
    }

    fn multiprocessors(&self) -> u32 {
        MULTIPROCESSORS
    }

    fn shared_per_block(&self) -> usize {
        SHARED_PER_BLOCK
    }

    fn memory(&self) -> Result<DeviceMemory, Error> {
        let state = self.state();
        Ok(DeviceMemory { free: state.memory.free(), total: state.memory.total() })
    }

    fn compile(&self, unit: &Unit) -> Result<Vec<Kernel>, Error> {
        let functions = self.compiler.load(unit)?;
        let mut state = self.working("compiling a unit")?;
        let kernels = functions.into_iter().map(|function| {
            state.functions.push(function);
            Kernel(state.functions.len() as u64)
        });
        Ok(kernels.collect())
    }

    fn allocate(&self, bytes: usize, purpose: &'static str) -> Result<Address, Error> {
        self.working("allocating memory")?.memory.allocate(bytes, purpose)
    }

    fn free(&self, address: Address) {
        self.state().memory.remove(address);
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), Error> {
        let action = "copying to the device";
        let state = self.working(action)?;
        let range = state.range(action, to, bytes.len())?;
        // SAFETY: a range of the device's memory, which no slice shows.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), range.start, bytes.len()) };
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), Error> {
        let action = "copying from the device";
        let state = self.working(action)?;
        let range = state.range(action, from, bytes.len())?;
        // SAFETY: as in `upload`.
        unsafe { ptr::copy_nonoverlapping(range.start, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), Error> {
        let action = "copying on the device";
        let state = self.working(action)?;
        let (from, to) = (state.range(action, from, bytes)?, state.range(action, to, bytes)?);
        if from.start < to.end && to.start < from.end {
            return Err(device_error(action, "the two ranges overlap".into()));
        }
        // SAFETY: as in `upload`; the ranges do not overlap.
        unsafe { ptr::copy_nonoverlapping(from.start, to.start, bytes) };
        Ok(())
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<(), Error> {
        let action = "filling memory";
        let state = self.working(action)?;
        let range = state.range(action, at, bytes)?;
        // SAFETY: as in `upload`.
        unsafe { ptr::write_bytes(range.start, 0, bytes) };
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), Error> {
        let mut state = self.state();
        if state.recording.is_none() {
            return state.run(launch, self);
        }
        state.check(launch)?;
        let recorded = Recorded {
            kernel: launch.kernel,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            arguments: launch.arguments.to_vec(),
        };
        state.recording.get_or_insert_default().push(recorded);
        Ok(())
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Graph, Error> {
        self.working("recording launches")?.recording = Some(Vec::new());
        let result = work();
        let mut state = self.state();
        let launches = state.recording.take().unwrap_or_default();
        result?;
        state.graphs.push(launches);
        Ok(Graph(state.graphs.len() as u64))
    }

    fn replay(&self, graph: Graph) -> Result<(), Error> {
        let action = "replaying a graph";
        let mut state = self.working(action)?;
        let index = usize::try_from(graph.0).ok().and_then(|index| index.checked_sub(1));
        let Some(index) = index.filter(|&index| index < state.graphs.len()) else {
            return Err(device_error(action, format!("{graph:?} is none")));
        };
        let launches = std::mem::take(&mut state.graphs[index]);
        let result = launches.iter().try_for_each(|recorded| {
            let launch = Launch {
                kernel: recorded.kernel,
                grid: recorded.grid,
                block: recorded.block,
                shared_bytes: recorded.shared_bytes,
                arguments: &recorded.arguments,
            };
            state.run(&launch, self)
        });
        state.graphs[index] = launches;
        result
    }

    fn wait(&self) -> Result<(), Error> {
        self.working("waiting for the device").map(drop)
    }
}

fn addresses(argument: &Argument) -> Vec<Address> {
    match *argument {
        Argument::Address(address) => vec![address],
        Argument::U32(_) | Argument::U64(_) => Vec::new(),
        Argument::Matrix(matrix) => vec![matrix.words, matrix.affine, matrix.range],
        Argument::Activations(activations) => vec![activations.halves, activations.sums],
    }
}

fn device_error(action: impl Into<String>, problem: String) -> Error {
    Error::Device { backend: "cuda", action: action.into(), problem }
}

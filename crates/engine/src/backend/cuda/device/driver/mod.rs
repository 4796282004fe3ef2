//! A CUDA device through the driver API.
//!
//! All work goes to one stream. Host memory is copied through two pinned buffers, so that the next
//! piece is read from the page cache while the last one travels.

mod compiler;
mod library;

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString, c_int, c_void},
    ptr,
    sync::{Mutex, PoisonError},
};

use self::{
    compiler::Compiler,
    library::{
        CAPABILITY_MAJOR, CAPABILITY_MINOR, CAPTURE_THREAD_LOCAL, Cuda, EVENT_DISABLE_TIMING,
        FUNCTION_SHARED_MAX, FUNCTION_SHARED_SHARE, Handle, LaunchConfig, MULTIPROCESSORS,
        OUT_OF_MEMORY, PROGRAMMATIC_SERIALIZATION, SHARED_PER_BLOCK, STREAM_NON_BLOCKING, Status,
    },
};
use super::{Address, Device, DeviceMemory, Graph, Kernel, Launch, Unit, unavailable};
use crate::Error;

/// Bytes of each of the two pinned buffers.
const STAGING_BYTES: usize = 16 << 20;

/// Arguments of a kernel, at most.
const ARGUMENTS_MAX: usize = 24;

/// The first CUDA device that the driver shows (`CUDA_VISIBLE_DEVICES` chooses another).
pub struct Driver {
    cuda: Cuda,
    compiler: Compiler,
    ordinal: c_int,
    context: Handle,
    stream: Handle,
    name: String,
    capability: (c_int, c_int),
    multiprocessors: u32,
    /// Shared memory that a block may ask for.
    shared_max: u32,
    state: Mutex<State>,
}

/// What changes.
#[derive(Default)]
struct State {
    staging: [Staging; 2],
    /// The buffer that the next copy takes.
    turn: usize,
    modules: Vec<Handle>,
    graphs: Vec<Handle>,
    allocations: HashSet<u64>,
    /// Dynamic shared memory that a function has been allowed.
    shared_allowed: HashMap<u64, u32>,
}

/// A pinned buffer, and the end of the copy that last used it.
struct Staging {
    start: *mut u8,
    event: Handle,
}

impl Default for Staging {
    fn default() -> Self {
        Self { start: ptr::null_mut(), event: ptr::null_mut() }
    }
}

// SAFETY: the driver API may be called by any thread; every call sets the context first. The
// buffers are behind a lock.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    /// Opens the driver, its first device, and the compiler for it.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when there is no driver, no device, none new enough, or no
    /// compiler; it says what to install.
    pub fn open() -> Result<Self, Error> {
        let mut driver = Self::find()?;
        driver.start()?;
        Ok(driver)
    }

    /// Whether [`Driver::open`] would find what it needs, without setting the device up.
    ///
    /// # Errors
    /// Those of [`Driver::open`].
    pub fn probe() -> Result<(), Error> {
        Self::find().map(drop)
    }

    fn find() -> Result<Self, Error> {
        let cuda = ["libcuda.so.1", "libcuda.so"]
            .into_iter()
            .map(Cuda::open)
            .reduce(|first, second| first.or(second))
            .expect("two names")
            .map_err(|error| {
                unavailable(format!(
                    "no usable NVIDIA driver, which must be of version 525 or newer ({error})"
                ))
            })?;
        // SAFETY: plain calls with places for their results.
        let (ordinal, name, [major, minor, multiprocessors, shared_max]) = unsafe {
            cuda.check((cuda.init)(0))?;
            let mut count = 0;
            cuda.check((cuda.device_count)(&raw mut count))?;
            if count == 0 {
                return Err(unavailable("the driver shows no device".into()));
            }
            let mut ordinal = 0;
            cuda.check((cuda.device_get)(&raw mut ordinal, 0))?;
            let mut name = [0; 256];
            cuda.check((cuda.device_name)(name.as_mut_ptr(), 255, ordinal))?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let mut attributes =
                [CAPABILITY_MAJOR, CAPABILITY_MINOR, MULTIPROCESSORS, SHARED_PER_BLOCK];
            for attribute in &mut attributes {
                let mut value = 0;
                cuda.check((cuda.device_attribute)(&raw mut value, *attribute, ordinal))?;
                *attribute = value;
            }
            (ordinal, name, attributes)
        };
        if major < 8 {
            return Err(unavailable(format!(
                "{name} has compute capability {major}.{minor}, 8.0 is the least"
            )));
        }
        // Hopper's own instructions are only in the variant with an `a`.
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        let compiler = Compiler::open(format!("sm_{major}{minor}{suffix}"))?;
        Ok(Self {
            cuda,
            compiler,
            ordinal,
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
            name,
            capability: (major, minor),
            multiprocessors: multiprocessors as u32,
            shared_max: shared_max as u32,
            state: Mutex::default(),
        })
    }

    /// Makes the context, the stream and the pinned buffers.
    fn start(&mut self) -> Result<(), Error> {
        let cuda = &self.cuda;
        // SAFETY: plain calls with places for their results; the context is current for the rest.
        unsafe {
            cuda.check((cuda.context_retain)(&raw mut self.context, self.ordinal))?;
            cuda.check((cuda.context_set)(self.context))?;
            cuda.check((cuda.stream_create)(&raw mut self.stream, STREAM_NON_BLOCKING))?;
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            for staging in &mut state.staging {
                let mut start: *mut c_void = ptr::null_mut();
                cuda.check((cuda.allocate_host)(&raw mut start, STAGING_BYTES, 0))?;
                staging.start = start.cast();
                cuda.check((cuda.event_create)(&raw mut staging.event, EVENT_DISABLE_TIMING))?;
            }
        }
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic under the lock left at worst a copy that was not queued.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context current for this thread and runs `call`.
    fn call(
        &self,
        action: impl FnOnce() -> String,
        call: impl FnOnce(&Cuda) -> Status,
    ) -> Result<(), Error> {
        // SAFETY: the context lives as long as `self`.
        let mut status = unsafe { (self.cuda.context_set)(self.context) };
        if status == 0 {
            status = call(&self.cuda);
        }
        if status == 0 {
            return Ok(());
        }
        Err(Error::Device {
            backend: "cuda",
            action: action(),
            problem: self.cuda.describe(status),
        })
    }

    /// Dynamic shared memory must be asked for once a function where it and what the function has of its
    /// own are above the default.
    fn allow_shared(&self, launch: &Launch<'_>) -> Result<(), Error> {
        if launch.shared_bytes == 0 {
            return Ok(());
        }
        if launch.shared_bytes > self.shared_max {
            return Err(Error::Device {
                backend: "cuda",
                action: "launching a kernel".into(),
                problem: format!(
                    "it wants {} bytes of shared memory, {} has {}",
                    launch.shared_bytes, self.name, self.shared_max
                ),
            });
        }
        let mut state = self.state();
        let allowed = state.shared_allowed.entry(launch.kernel.0).or_default();
        if *allowed < launch.shared_bytes {
            self.call(
                || "asking for shared memory".into(),
                // SAFETY: a function of this context.
                |cuda| unsafe {
                    (cuda.function_set)(
                        launch.kernel.0 as Handle,
                        FUNCTION_SHARED_MAX,
                        launch.shared_bytes as c_int,
                    )
                },
            )?;
            *allowed = launch.shared_bytes;
        }
        Ok(())
    }
}

impl Device for Driver {
    fn description(&self) -> String {
        let (major, minor) = self.capability;
        format!("{}, compute {major}.{minor}, NVRTC {}", self.name, self.compiler.version())
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    fn shared_per_block(&self) -> usize {
        self.shared_max as usize
    }

    fn memory(&self) -> Result<DeviceMemory, Error> {
        let (mut free, mut total) = (0, 0);
        self.call(
            || "asking for its memory".into(),
            // SAFETY: two places for numbers.
            |cuda| unsafe { (cuda.memory_info)(&raw mut free, &raw mut total) },
        )?;
        Ok(DeviceMemory { free, total })
    }

    fn compile(&self, unit: &Unit) -> Result<Vec<Kernel>, Error> {
        let code = self.compiler.compile(unit)?;
        let mut module: Handle = ptr::null_mut();
        self.call(
            || format!("loading `{}`", unit.name),
            // SAFETY: machine code as NVRTC gave it; the driver copies it.
            |cuda| unsafe { (cuda.module_load)(&raw mut module, code.as_ptr().cast()) },
        )?;
        self.state().modules.push(module);
        if let Some(stamps) = unit.stamps {
            let (mut variable, mut bytes) = (0, 0);
            self.call(
                || format!("finding `stamps_at` in `{}`", unit.name),
                // SAFETY: a module of this context, places for the results and a constant string.
                |cuda| unsafe {
                    let name = c"stamps_at".as_ptr();
                    (cuda.module_global)(&raw mut variable, &raw mut bytes, module, name)
                },
            )?;
            self.upload(Address(variable), &stamps.0.to_le_bytes())?;
        }
        let kernel = |name: &String| {
            let c_name = CString::new(name.as_str()).expect("a kernel's name holds no zero byte");
            let mut function: Handle = ptr::null_mut();
            self.call(
                || format!("finding kernel `{name}` in `{}`", unit.name),
                // SAFETY: a module of this context and a string that lives through the call.
                |cuda| unsafe {
                    (cuda.module_function)(&raw mut function, module, c_name.as_ptr())
                },
            )?;
            // All kernels the same: a multiprocessor that has to change its division of the first-level
            // cache takes no block of the next kernel before the last one of this has ended.
            self.call(
                || "dividing the first-level cache".into(),
                // SAFETY: a function of this context.
                |cuda| unsafe { (cuda.function_set)(function, FUNCTION_SHARED_SHARE, 100) },
            )?;
            Ok(Kernel(function as u64))
        };
        unit.kernels.iter().map(kernel).collect()
    }

    fn allocate(&self, bytes: usize, purpose: &'static str) -> Result<Address, Error> {
        let mut address = 0;
        let mut status = 0;
        let result = self.call(
            || format!("allocating {bytes} bytes for {purpose}"),
            // SAFETY: a place for the address.
            |cuda| unsafe {
                status = (cuda.allocate)(&raw mut address, bytes.max(1));
                status
            },
        );
        if status == OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { bytes, purpose });
        }
        result?;
        self.state().allocations.insert(address);
        Ok(Address(address))
    }

    fn free(&self, address: Address) {
        if !self.state().allocations.remove(&address.0) {
            return;
        }
        // SAFETY: memory that the driver gave and nobody has freed; it waits for work that uses it.
        let freed = self.call(|| "freeing memory".into(), |cuda| unsafe { (cuda.free)(address.0) });
        if let Err(error) = freed {
            tracing::warn!("{error}");
        }
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.state();
        for (index, piece) in bytes.chunks(STAGING_BYTES).enumerate() {
            let turn = state.turn;
            state.turn = 1 - turn;
            let staging = &state.staging[turn];
            let to = to.plus(index * STAGING_BYTES);
            self.call(
                || format!("copying {} bytes to the device", piece.len()),
                // SAFETY: the buffer is STAGING_BYTES long and its last copy has ended once the event
                // has; the device checks the target.
                |cuda| unsafe {
                    let status = (cuda.event_wait)(staging.event);
                    if status != 0 {
                        return status;
                    }
                    ptr::copy_nonoverlapping(piece.as_ptr(), staging.start, piece.len());
                    let status =
                        (cuda.copy_to_device)(to.0, staging.start.cast(), piece.len(), self.stream);
                    if status != 0 {
                        return status;
                    }
                    (cuda.event_record)(staging.event, self.stream)
                },
            )?;
        }
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), Error> {
        let state = self.state();
        let staging = &state.staging[0];
        for (index, piece) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            let from = from.plus(index * STAGING_BYTES);
            let count = piece.len();
            self.call(
                || format!("copying {count} bytes from the device"),
                // SAFETY: the buffer is STAGING_BYTES long; the stream orders this copy behind the one
                // that last used it, and is waited for before the buffer is read.
                |cuda| unsafe {
                    let status =
                        (cuda.copy_to_host)(staging.start.cast(), from.0, count, self.stream);
                    if status != 0 {
                        return status;
                    }
                    let status = (cuda.stream_wait)(self.stream);
                    if status == 0 {
                        ptr::copy_nonoverlapping(staging.start, piece.as_mut_ptr(), count);
                    }
                    status
                },
            )?;
        }
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), Error> {
        self.call(
            || format!("copying {bytes} bytes on the device"),
            // SAFETY: the device checks both ranges.
            |cuda| unsafe { (cuda.copy_on_device)(to.0, from.0, bytes, self.stream) },
        )
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<(), Error> {
        self.call(
            || format!("filling {bytes} bytes on the device"),
            // SAFETY: the device checks the range.
            |cuda| unsafe { (cuda.fill)(at.0, 0, bytes, self.stream) },
        )
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), Error> {
        self.allow_shared(launch)?;
        let mut pointers = [ptr::null_mut(); ARGUMENTS_MAX];
        for (pointer, argument) in
            pointers[..launch.arguments.len()].iter_mut().zip(launch.arguments)
        {
            *pointer = argument.as_ptr().cast_mut();
        }
        let attribute = PROGRAMMATIC_SERIALIZATION;
        let config = LaunchConfig {
            grid: launch.grid,
            block: [launch.block, 1, 1],
            shared_bytes: launch.shared_bytes,
            stream: self.stream,
            attributes: &raw const attribute,
            attribute_count: u32::from(self.capability.0 >= 9),
        };
        self.call(
            || "launching a kernel".into(),
            // SAFETY: a function of this context, its arguments as its parameters are laid out; what
            // it reads and writes is the launcher's to prove.
            |cuda| unsafe {
                (cuda.launch)(
                    &raw const config,
                    launch.kernel.0 as Handle,
                    pointers.as_mut_ptr(),
                    ptr::null_mut(),
                )
            },
        )
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Graph, Error> {
        let action = || "recording a graph".into();
        // SAFETY: a stream of this context.
        self.call(action, |cuda| unsafe {
            (cuda.capture_begin)(self.stream, CAPTURE_THREAD_LOCAL)
        })?;
        let worked = work();
        let (mut graph, mut exec): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the capture that has just begun; its graph is destroyed once instantiated.
        let recorded = self.call(action, |cuda| unsafe {
            let mut status = (cuda.capture_end)(self.stream, &raw mut graph);
            if status == 0 {
                status = (cuda.graph_instantiate)(&raw mut exec, graph, 0);
            }
            if !graph.is_null() {
                (cuda.graph_destroy)(graph);
            }
            status
        });
        if !exec.is_null() {
            self.state().graphs.push(exec);
        }
        worked?;
        recorded.map(|()| Graph(exec as u64))
    }

    fn replay(&self, graph: Graph) -> Result<(), Error> {
        self.call(
            || "launching a graph".into(),
            // SAFETY: a graph of this context.
            |cuda| unsafe { (cuda.graph_launch)(graph.0 as Handle, self.stream) },
        )
    }

    fn wait(&self) -> Result<(), Error> {
        self.call(
            || "waiting for the device".into(),
            // SAFETY: a stream of this context.
            |cuda| unsafe { (cuda.stream_wait)(self.stream) },
        )
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let cuda = &self.cuda;
        // SAFETY: everything below was made by this driver and is used by nobody any more. A
        // context that has faulted refuses; there is nothing left to do about it.
        unsafe {
            if !self.context.is_null() && (cuda.context_set)(self.context) == 0 {
                (cuda.stream_wait)(self.stream);
                for &graph in &state.graphs {
                    (cuda.graph_exec_destroy)(graph);
                }
                for &address in &state.allocations {
                    (cuda.free)(address);
                }
                for &module in &state.modules {
                    (cuda.module_unload)(module);
                }
                for staging in &state.staging {
                    if !staging.event.is_null() {
                        (cuda.event_destroy)(staging.event);
                    }
                    if !staging.start.is_null() {
                        (cuda.free_host)(staging.start.cast());
                    }
                }
                if !self.stream.is_null() {
                    (cuda.stream_destroy)(self.stream);
                }
            }
            if !self.context.is_null() {
                (cuda.context_release)(self.ordinal);
            }
        }
    }
}

impl Cuda {
    /// An error of setting the device up.
    fn check(&self, status: Status) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        Err(unavailable(format!("the NVIDIA driver says {}", self.describe(status))))
    }

    /// The driver's name and words for a status.
    fn describe(&self, status: Status) -> String {
        let text =
            |function: unsafe extern "C" fn(Status, *mut *const std::ffi::c_char) -> Status| {
                let mut text = ptr::null();
                // SAFETY: a place for a pointer to a text that the driver keeps.
                unsafe {
                    if function(status, &raw mut text) != 0 || text.is_null() {
                        return format!("status {status}");
                    }
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            };
        format!("{}: {}", text(self.error_name), text(self.error_string))
    }
}

//! The functions of `libcuda` and `libnvrtc` that are used, looked up when the library is opened:
//! the program builds and runs where neither exists, and a library too old for one of them is an
//! error with its name.

use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};

/// A handle of the driver: context, stream, module, function, event or graph.
pub(super) type Handle = *mut c_void;
/// What a driver function returns; 0 is success.
pub(super) type Status = c_int;

macro_rules! library {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Keeps the functions loaded.
            _library: libloading::Library,
        }

        impl $name {
            /// Opens the library at `path` and looks every function up.
            pub(super) fn open(path: impl AsRef<OsStr>) -> Result<Self, libloading::Error> {
                let path = path.as_ref();
                // SAFETY: NVIDIA's libraries may be loaded at any time by any thread.
                let library = unsafe { libloading::Library::new(path)? };
                // SAFETY: the types are those of NVIDIA's headers; the functions outlive nothing,
                // since the library is kept beside them.
                unsafe {
                    $(let $field = *library.get(concat!($symbol, "\0").as_bytes())?;)*
                    Ok(Self { $($field,)* _library: library })
                }
            }
        }
    };
}

library! {
    /// The driver API, of version 12.0 or newer.
    Cuda {
        init: "cuInit"(c_uint) -> Status;
        error_name: "cuGetErrorName"(Status, *mut *const c_char) -> Status;
        error_string: "cuGetErrorString"(Status, *mut *const c_char) -> Status;
        device_count: "cuDeviceGetCount"(*mut c_int) -> Status;
        device_get: "cuDeviceGet"(*mut c_int, c_int) -> Status;
        device_name: "cuDeviceGetName"(*mut c_char, c_int, c_int) -> Status;
        device_attribute: "cuDeviceGetAttribute"(*mut c_int, c_int, c_int) -> Status;
        context_retain: "cuDevicePrimaryCtxRetain"(*mut Handle, c_int) -> Status;
        context_release: "cuDevicePrimaryCtxRelease_v2"(c_int) -> Status;
        context_set: "cuCtxSetCurrent"(Handle) -> Status;
        memory_info: "cuMemGetInfo_v2"(*mut usize, *mut usize) -> Status;
        allocate: "cuMemAlloc_v2"(*mut u64, usize) -> Status;
        free: "cuMemFree_v2"(u64) -> Status;
        allocate_host: "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint) -> Status;
        free_host: "cuMemFreeHost"(*mut c_void) -> Status;
        copy_to_device: "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle) -> Status;
        copy_to_host: "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle) -> Status;
        copy_on_device: "cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle) -> Status;
        fill: "cuMemsetD8Async"(u64, u8, usize, Handle) -> Status;
        stream_create: "cuStreamCreate"(*mut Handle, c_uint) -> Status;
        stream_destroy: "cuStreamDestroy_v2"(Handle) -> Status;
        stream_wait: "cuStreamSynchronize"(Handle) -> Status;
        capture_begin: "cuStreamBeginCapture_v2"(Handle, c_int) -> Status;
        capture_end: "cuStreamEndCapture"(Handle, *mut Handle) -> Status;
        graph_instantiate: "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64) -> Status;
        graph_destroy: "cuGraphDestroy"(Handle) -> Status;
        graph_exec_destroy: "cuGraphExecDestroy"(Handle) -> Status;
        graph_launch: "cuGraphLaunch"(Handle, Handle) -> Status;
        module_load: "cuModuleLoadData"(*mut Handle, *const c_void) -> Status;
        module_unload: "cuModuleUnload"(Handle) -> Status;
        module_function: "cuModuleGetFunction"(*mut Handle, Handle, *const c_char) -> Status;
        module_global: "cuModuleGetGlobal_v2"(*mut u64, *mut usize, Handle, *const c_char) -> Status;
        function_set: "cuFuncSetAttribute"(Handle, c_int, c_int) -> Status;
        launch: "cuLaunchKernelEx"(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
        event_create: "cuEventCreate"(*mut Handle, c_uint) -> Status;
        event_record: "cuEventRecord"(Handle, Handle) -> Status;
        event_wait: "cuEventSynchronize"(Handle) -> Status;
        event_destroy: "cuEventDestroy_v2"(Handle) -> Status;
    }
}

library! {
    /// The run-time compiler, of version 11.2 or newer.
    Nvrtc {
        version: "nvrtcVersion"(*mut c_int, *mut c_int) -> Status;
        error_string: "nvrtcGetErrorString"(Status) -> *const c_char;
        create: "nvrtcCreateProgram"(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Status;
        destroy: "nvrtcDestroyProgram"(*mut Handle) -> Status;
        compile: "nvrtcCompileProgram"(Handle, c_int, *const *const c_char) -> Status;
        log_size: "nvrtcGetProgramLogSize"(Handle, *mut usize) -> Status;
        log: "nvrtcGetProgramLog"(Handle, *mut c_char) -> Status;
        cubin_size: "nvrtcGetCUBINSize"(Handle, *mut usize) -> Status;
        cubin: "nvrtcGetCUBIN"(Handle, *mut c_char) -> Status;
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute` with a value that is an int.
#[repr(C)]
pub(super) struct LaunchAttribute {
    pub id: c_uint,
    pub padding: [u8; 4],
    pub value: c_int,
    pub unused: [u8; 60],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may start before the ones
/// in front of it have ended, and waits for them itself.
pub(super) const PROGRAMMATIC_SERIALIZATION: LaunchAttribute =
    LaunchAttribute { id: 6, padding: [0; 4], value: 1, unused: [0; 60] };

/// `CU_STREAM_NON_BLOCKING`.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub(super) const CAPTURE_THREAD_LOCAL: c_int = 1;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(super) const FUNCTION_SHARED_MAX: c_int = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`, in percent.
pub(super) const FUNCTION_SHARED_SHARE: c_int = 9;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(super) const MULTIPROCESSORS: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub(super) const CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub(super) const CAPABILITY_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
pub(super) const SHARED_PER_BLOCK: c_int = 97;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: Status = 2;

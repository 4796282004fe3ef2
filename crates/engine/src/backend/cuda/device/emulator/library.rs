//! Kernel files as shared libraries: compiled by the machine's C++ compiler, kept in a folder of the
//! temporary directory, and loaded.

use std::{
    env,
    ffi::{CStr, c_char, c_void},
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use libloading::Library;
use sha2::{Digest, Sha256};

use super::{device_error, fault};
use crate::{
    Error,
    backend::cuda::device::{Address, Argument, Launch, Unit},
};

/// What stands before a unit.
const HEADER: &str = include_str!("emulator.h");

/// What the compilers of GCC and Clang both take. The arithmetic is that of the source, and what a
/// kernel may do with memory it may do here.
const OPTIONS: [&str; 9] = [
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-pthread",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fsanitize=alignment,bounds,shift,integer-divide-by-zero",
    "-DEMULATOR_CHECKS",
];

/// A C++ compiler.
pub(super) struct Compiler {
    command: String,
    version: String,
    options: Vec<&'static str>,
    folder: PathBuf,
}

impl Compiler {
    /// `CXX`, or the first of the usual names that there is.
    pub(super) fn find() -> Result<Self, Error> {
        let commands = match env::var("CXX") {
            Ok(command) => vec![command],
            Err(_) => ["c++", "g++", "clang++"].map(String::from).to_vec(),
        };
        let folder = cache_folder().map_err(|error| {
            device_error("making a folder for compiled kernels", error.to_string())
        })?;
        for command in &commands {
            let Ok(output) = Command::new(command).arg("--version").output() else { continue };
            if output.status.success() {
                let version = String::from_utf8_lossy(&output.stdout).into_owned();
                let options = OPTIONS.into_iter().chain(frame_options(&version));
                return Ok(Self {
                    command: command.clone(),
                    options: options.chain(processor_options()).collect(),
                    version,
                    folder,
                });
            }
        }
        Err(device_error(
            "looking for a C++ compiler",
            format!(
                "the emulator of CUDA kernels needs one, and none of {} runs: install g++ or \
                 clang++, or set CXX",
                commands.join(", ")
            ),
        ))
    }

    /// First line of what the compiler says about itself.
    pub(super) fn version(&self) -> &str {
        self.version.lines().next().unwrap_or_default()
    }

    /// Compiles a unit, unless somebody has before, and loads it.
    pub(super) fn load(&self, unit: &Unit) -> Result<Vec<Function>, Error> {
        let source = source_of(unit);
        let stem = self.folder.join(self.file_name(unit.name, &source));
        let path = stem.with_extension("so");
        // One process and thread compiles; the lock is gone with the file handle.
        let lock = File::create(stem.with_extension("lock")).map_err(|e| files(unit, &e))?;
        lock.lock().map_err(|e| files(unit, &e))?;
        if !path.exists() {
            self.compile(unit, &source, &stem)?;
        }
        drop(lock);
        // SAFETY: what this compiler made of this source; its initialisers only make empty lists.
        let library = unsafe { Library::new(&path) };
        let library = library
            .map_err(|error| device_error(format!("loading `{}`", unit.name), error.to_string()))?;
        let library = Arc::new(library);
        let stamps = unit.stamps.unwrap_or_default();
        unit.kernels.iter().map(|kernel| Function::find(&library, kernel, stamps)).collect()
    }

    fn file_name(&self, name: &str, source: &str) -> String {
        let mut hash = Sha256::new();
        let parts = [self.command.as_str(), &self.version, source];
        for part in self.options.iter().copied().chain(parts) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest: String =
            hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name}-{digest}")
    }

    /// The source stays beside the library, for a debugger.
    fn compile(&self, unit: &Unit, source: &str, stem: &Path) -> Result<(), Error> {
        let [input, object, part] = ["cpp", "o", "part"].map(|end| stem.with_extension(end));
        fs::write(&input, source).map_err(|error| files(unit, &error))?;
        self.run(
            unit,
            Command::new(&self.command)
                .args(&self.options)
                .arg("-c")
                .arg(&input)
                .arg("-o")
                .arg(&object),
        )?;
        self.run(
            unit,
            Command::new(&self.command)
                .args(["-shared", "-pthread"])
                .arg(&object)
                .arg("-o")
                .arg(&part),
        )?;
        let _ = fs::remove_file(&object);
        fs::rename(&part, stem.with_extension("so")).map_err(|error| files(unit, &error))
    }

    fn run(&self, unit: &Unit, command: &mut Command) -> Result<(), Error> {
        let action = || format!("compiling `{}` with {}", unit.name, self.version());
        let output = command.output().map_err(|error| device_error(action(), error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().take(40).collect();
        Err(device_error(action(), format!("{}\n{}", output.status, said.join("\n"))))
    }
}

/// A unit as the C++ compiler sees it. Its lines count from 1, as NVRTC counts them.
fn source_of(unit: &Unit) -> String {
    let mut source = format!(
        "#define CALLA_EMULATOR\n#line 1 \"emulator.h\"\n{HEADER}\n#line 1 \"{}.cu\"\n{}\n",
        unit.name, unit.source
    );
    for kernel in &unit.kernels {
        source += &format!("CALLA_KERNEL({kernel})\n");
    }
    source
}

/// Make a function an error whose variables take half of a stack of emulator.h.
fn frame_options(version: &str) -> Vec<&'static str> {
    match version.contains("clang") {
        true => vec!["-Wframe-larger-than=65536", "-Werror=frame-larger-than"],
        false => vec!["-Werror=frame-larger-than=65536"],
    }
}

/// Instructions that halves are converted with, where this processor has them.
fn processor_options() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("f16c") && std::is_x86_feature_detected!("avx2") {
        return vec!["-mf16c", "-mavx2"];
    }
    Vec::new()
}

/// A folder of this user's alone: what lies in it is run.
fn cache_folder() -> io::Result<PathBuf> {
    // SAFETY: a call without arguments that cannot fail.
    let user = unsafe { libc::geteuid() };
    let folder = env::temp_dir().join(format!("calla-emulator-{user}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&folder)?;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "{} is no folder that only this user can write to",
            folder.display()
        )));
    }
    Ok(folder)
}

fn files(unit: &Unit, error: &io::Error) -> Error {
    device_error(format!("compiling `{}`", unit.name), error.to_string())
}

type Run =
    unsafe extern "C" fn(*mut *mut c_void, *const u32, u32, u32, u64, Address) -> *const c_char;
type Parameters = unsafe extern "C" fn(*mut u32) -> *const u32;

/// A kernel of a loaded library.
#[derive(Clone)]
pub(super) struct Function {
    name: String,
    run: Run,
    fault: fault::Entry,
    /// Bytes of each parameter.
    parameters: Vec<usize>,
    /// [`Unit::stamps`], or 0.
    stamps: Address,
    /// Keeps the functions loaded.
    _library: Arc<Library>,
}

impl Function {
    fn find(library: &Arc<Library>, name: &str, stamps: Address) -> Result<Self, Error> {
        let missing = |error: libloading::Error| {
            device_error(format!("finding kernel `{name}`"), error.to_string())
        };
        // SAFETY: the types are those of emulator.h, where CALLA_KERNEL defines the functions.
        unsafe {
            let parameters = *library
                .get::<Parameters>(format!("calla_parameters_{name}").as_bytes())
                .map_err(missing)?;
            let mut count = 0;
            let sizes = parameters(&raw mut count);
            let sizes = std::slice::from_raw_parts(sizes, count as usize);
            Ok(Self {
                name: name.to_owned(),
                run: *library
                    .get::<Run>(format!("calla_launch_{name}").as_bytes())
                    .map_err(missing)?,
                fault: *library.get::<fault::Entry>(b"calla_fault").map_err(missing)?,
                parameters: sizes.iter().map(|&size| size as usize).collect(),
                stamps,
                _library: library.clone(),
            })
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the arguments are as many and as large as the parameters.
    pub(super) fn check(&self, arguments: &[Argument]) -> Result<(), String> {
        let given: Vec<usize> = arguments.iter().map(size_of_argument).collect();
        if given == self.parameters {
            return Ok(());
        }
        Err(format!("its arguments take {given:?} bytes, its parameters {:?}", self.parameters))
    }

    /// Runs all blocks; an error is what emulator.h found wrong.
    ///
    /// # Safety
    /// The arguments have passed [`Function::check`]. What the kernel reads and writes through them
    /// is memory that it may read and write.
    pub(super) unsafe fn run(&self, launch: &Launch<'_>, seed: u64) -> Result<(), String> {
        let mut values: Vec<*mut c_void> =
            launch.arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
        // SAFETY: the caller's promise; the text lives until this thread's next launch.
        let error = fault::guarded(self.fault, || unsafe {
            let error = (self.run)(
                values.as_mut_ptr(),
                launch.grid.as_ptr(),
                launch.block,
                launch.shared_bytes,
                seed,
                self.stamps,
            );
            (!error.is_null()).then(|| CStr::from_ptr(error).to_string_lossy().into_owned())
        });
        error.map_or(Ok(()), Err)
    }
}

fn size_of_argument(argument: &Argument) -> usize {
    match argument {
        Argument::Address(value) => size_of_val(value),
        Argument::U32(value) => size_of_val(value),
        Argument::U64(value) => size_of_val(value),
        Argument::Matrix(value) => size_of_val(value),
        Argument::Activations(value) => size_of_val(value),
    }
}

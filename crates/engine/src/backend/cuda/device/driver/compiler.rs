//! Source code to machine code, by NVRTC, or from what this process or the cache on disk has of it.

use std::{
    collections::HashMap,
    env,
    ffi::{CStr, CString, OsString, c_char},
    fs,
    io::Write,
    path::{Path, PathBuf},
    ptr,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

use super::{
    super::{Unit, unavailable},
    library::{Handle, Nvrtc, Status},
};
use crate::Error;

/// First bytes of a file of the cache; the number changes with the file's layout.
const MAGIC: &[u8] = b"calla kernels 1\n";
/// Bytes of a SHA-256 digest.
const DIGEST: usize = 32;

/// Names under which the dynamic linker may know NVRTC, newest first.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];

/// What this process has compiled or read: a second backend in it, of the same model or of one that
/// shares units, compiles nothing again.
static COMPILED: LazyLock<Known> = LazyLock::new(Known::default);

/// Machine code by its file name in the cache on disk.
#[derive(Default)]
struct Known {
    units: Mutex<HashMap<String, Arc<Mutex<Option<Code>>>>>,
}

type Code = Arc<[u8]>;

/// NVRTC for one architecture.
pub(super) struct Compiler {
    nvrtc: Nvrtc,
    /// As in `13.0`.
    version: String,
    /// As in `sm_90a`.
    architecture: String,
    cache: Option<PathBuf>,
}

impl Compiler {
    /// Opens NVRTC, from `CALLA_NVRTC` when it is set, else from where it is usually installed.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with the package that has it.
    pub(super) fn open(architecture: String) -> Result<Self, Error> {
        let nvrtc = open_library()?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for numbers.
        let status = unsafe { (nvrtc.version)(&raw mut major, &raw mut minor) };
        if status != 0 {
            return Err(unavailable(format!("NVRTC does not tell its version (status {status})")));
        }
        Ok(Self { nvrtc, version: format!("{major}.{minor}"), architecture, cache: cache_folder() })
    }

    /// NVRTC's version.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Machine code of a unit.
    ///
    /// A file of the cache that is damaged or foreign is replaced; a cache that cannot be written
    /// is done without.
    ///
    /// # Errors
    /// [`Error::Device`] with NVRTC's messages.
    pub(super) fn compile(&self, unit: &Unit) -> Result<Code, Error> {
        let options = [
            format!("--gpu-architecture={}", self.architecture),
            "--std=c++17".into(),
            "--fmad=true".into(),
            "--extra-device-vectorization".into(),
            // The prelude has more than any file uses.
            "--diag-suppress=177".into(),
        ];
        let name = self.file_name(unit, &options);
        COMPILED.code(&name, || {
            let path = self.cache.as_ref().map(|folder| folder.join(&name));
            if let Some(code) = path.as_deref().and_then(read_cached) {
                return Ok(code);
            }
            let code = self.run(unit, &options)?;
            if let Some(path) = path
                && let Err(error) = write_cached(&path, &code)
            {
                tracing::warn!("{}: {error}: kernels are compiled at every start", path.display());
            }
            Ok(code)
        })
    }

    /// Everything that the machine code depends on goes into the name.
    fn file_name(&self, unit: &Unit, options: &[String]) -> String {
        let mut hash = Sha256::new();
        for part in options.iter().chain([&self.version, &unit.source]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest: String =
            hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{digest}.cubin", unit.name, self.architecture)
    }

    fn run(&self, unit: &Unit, options: &[String]) -> Result<Vec<u8>, Error> {
        let source = c_string(unit.source.clone());
        let name = c_string(format!("{}.cu", unit.name));
        let options: Vec<CString> = options.iter().map(|option| c_string(option.clone())).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Handle = ptr::null_mut();
        // SAFETY: strings that live through the call, no headers.
        let status = unsafe {
            (self.nvrtc.create)(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        self.check(status, unit, String::new)?;
        // SAFETY: a program of this library, and options that live through the call.
        let status =
            unsafe { (self.nvrtc.compile)(program, options.len() as i32, options.as_ptr()) };
        let compiled = self.check(status, unit, || self.log(program)).and_then(|()| {
            let mut code = Vec::new();
            let mut size = 0;
            // SAFETY: a compiled program, and a buffer of the size that it asks for.
            let status = unsafe {
                let status = (self.nvrtc.cubin_size)(program, &raw mut size);
                if status == 0 {
                    code.resize(size, 0);
                    (self.nvrtc.cubin)(program, code.as_mut_ptr().cast())
                } else {
                    status
                }
            };
            self.check(status, unit, String::new).map(|()| code)
        });
        // SAFETY: a program of this library that nobody uses any more.
        unsafe { (self.nvrtc.destroy)(&raw mut program) };
        compiled
    }

    fn log(&self, program: Handle) -> String {
        let mut size = 0;
        // SAFETY: a program of this library, and a buffer of the size that it asks for.
        unsafe {
            if (self.nvrtc.log_size)(program, &raw mut size) != 0 {
                return String::new();
            }
            let mut log = vec![0_u8; size];
            if (self.nvrtc.log)(program, log.as_mut_ptr().cast()) != 0 {
                return String::new();
            }
            String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
        }
    }

    fn check(
        &self,
        status: Status,
        unit: &Unit,
        log: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC gives a text that it keeps.
        let text = unsafe { CStr::from_ptr((self.nvrtc.error_string)(status)) };
        Err(Error::Device {
            backend: "cuda",
            action: format!(
                "compiling `{}` for {} with NVRTC {}",
                unit.name, self.architecture, self.version
            ),
            problem: format!("{} {}", text.to_string_lossy(), log()),
        })
    }
}

impl Known {
    /// The code of this name, which one thread makes while others that want it wait.
    fn code(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Code, Error> {
        // A panic under a lock left nothing half done: code is put in its place whole.
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        let unit = Arc::clone(units.entry(name.to_owned()).or_default());
        drop(units);
        let mut code = unit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = &*code {
            return Ok(Arc::clone(code));
        }
        Ok(Arc::clone(code.insert(make()?.into())))
    }
}

fn open_library() -> Result<Nvrtc, Error> {
    if let Some(path) = env::var_os("CALLA_NVRTC") {
        return Nvrtc::open(&path).map_err(|error| {
            unavailable(format!("CALLA_NVRTC, {}: {error}", path.to_string_lossy()))
        });
    }
    let names = NAMES.map(OsString::from);
    let installed = library_folders()
        .into_iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .filter(|path| path.exists())
        .map(PathBuf::into_os_string);
    let mut problem = None;
    for path in names.into_iter().chain(installed) {
        match Nvrtc::open(&path) {
            Ok(nvrtc) => return Ok(nvrtc),
            // The first failure with a file that exists says more than `not found`.
            Err(error) if problem.is_none() || Path::new(&path).exists() => problem = Some(error),
            Err(_) => {}
        }
    }
    let problem = problem.map(|error| error.to_string()).unwrap_or_default();
    Err(unavailable(format!(
        "no NVRTC, CUDA's run-time compiler ({problem}): install it with `pip install \
         nvidia-cuda-nvrtc`, or set CALLA_NVRTC to its libnvrtc.so"
    )))
}

/// Where a CUDA toolkit or Python packages put NVRTC.
fn library_folders() -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from("/usr/local/cuda/lib64"), "/opt/cuda/lib64".into()];
    let mut python = vec![PathBuf::from("/usr/local/lib"), "/usr/lib".into()];
    python.extend(env::var_os("VIRTUAL_ENV").map(|env| PathBuf::from(env).join("lib")));
    python.extend(env::home_dir().map(|home| home.join(".local/lib")));
    for root in python {
        for version in children(&root, "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = version.join(packages).join("nvidia");
                folders.extend(children(&nvidia, "cu").into_iter().map(|part| part.join("lib")));
            }
        }
    }
    folders
}

/// Entries of a folder whose names begin so, the highest name first.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.reverse();
    found
}

/// `CALLA_KERNEL_CACHE`, or `calla/kernels` in the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os("CALLA_KERNEL_CACHE") {
        return (!folder.is_empty()).then(|| folder.into());
    }
    let caches = env::var_os("XDG_CACHE_HOME")
        .filter(|folder| Path::new(folder).is_absolute())
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
    Some(caches.join("calla/kernels"))
}

/// The machine code in a file of the cache, if it is whole.
fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let code = bytes.strip_prefix(MAGIC)?;
    let (digest, code) = code.split_at_checked(DIGEST)?;
    if Sha256::digest(code).as_slice() != digest {
        return None;
    }
    let start = bytes.len() - code.len();
    Some(bytes.split_off(start))
}

/// Written beside its place and renamed: nobody ever reads a part.
fn write_cached(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().expect("a file in the cache's folder");
    fs::create_dir_all(folder)?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = (|| {
        let mut file = fs::File::create(&part)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        fs::rename(&part, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// Text of this program's own, which holds no zero bytes.
fn c_string(text: String) -> CString {
    CString::new(text).expect("source code and options hold no zero bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_made_once_and_a_failure_is_not_kept() {
        let known = Known::default();
        let fails = || Err(unavailable("no compiler".into()));
        assert!(known.code("a", fails).is_err());
        let made = known.code("a", || Ok(vec![1])).expect("made");
        assert_eq!(*made, [1]);
        assert_eq!(*known.code("a", fails).expect("it is known"), [1]);
        assert_eq!(*known.code("b", || Ok(vec![2])).expect("made"), [2]);
    }

    #[test]
    fn a_cached_file_is_read_back_and_a_damaged_one_is_not() {
        let folder = env::temp_dir().join(format!("calla-kernels-{}", std::process::id()));
        let path = folder.join("unit.cubin");
        write_cached(&path, b"machine code").expect("a temporary folder");
        assert_eq!(read_cached(&path).as_deref(), Some(&b"machine code"[..]));

        let whole = fs::read(&path).expect("just written");
        for damage in [&whole[..whole.len() - 1], &whole[1..], &whole[..10], b"", b"foreign"] {
            fs::write(&path, damage).expect("a temporary folder");
            assert_eq!(read_cached(&path), None);
        }
        fs::remove_dir_all(&folder).expect("a folder of this test");
    }
}

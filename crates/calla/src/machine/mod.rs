//! The machine that the program runs on.

mod bandwidth;
mod cgroup;
mod gpu;
mod memory;

use std::{fmt, fs, path::Path, process::Command, thread};

use serde::Serialize;

pub(crate) use bandwidth::{READ_BUFFER_BYTES, read_bytes_s};
pub(crate) use gpu::{Gpu, gpus};
pub(crate) use memory::Memory;

/// The machine, and how much of it was used.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Worker threads of the runs.
    pub(crate) threads: usize,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) system: String,
}

/// The machine's processors.
#[derive(Debug, Serialize)]
pub(crate) struct Processors {
    pub(crate) name: String,
    /// Cores of the machine, where it tells.
    pub(crate) cores_total: Option<usize>,
    /// Cores that the affinity mask and the control group leave to this process.
    pub(crate) cores: usize,
    /// Cores that the control group's quota is worth; `None` where there is no quota.
    pub(crate) quota: Option<f64>,
}

/// Memory pages larger than the usual ones.
#[derive(Debug, Serialize)]
pub(crate) struct HugePages {
    /// When the kernel gives them by itself: `always`, `madvise` or `never`.
    pub(crate) transparent: Option<String>,
    /// Pages set aside for programs that ask for them.
    pub(crate) reserved: Option<u64>,
}

impl Machine {
    pub(crate) fn here(threads: Option<usize>) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Machine {
            cpu: cpu_name(),
            threads: threads.unwrap_or(cores),
            cores,
            memory_bytes: Memory::here().total_bytes,
            system: system(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} of {} cores", self.cpu, self.threads, self.cores)?;
        if let Some(bytes) = self.memory_bytes {
            write!(f, ", {:.0} GB", bytes as f64 / 1e9)?;
        }
        write!(f, ", {}", self.system)
    }
}

impl Processors {
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let listed = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        Processors {
            name: cpu_name(),
            cores_total: Some(listed).filter(|&cores| cores > 0).or(sysctl("hw.ncpu")),
            cores: thread::available_parallelism().map_or(1, usize::from),
            quota: cgroup::cpu_quota(Path::new("/")),
        }
    }
}

impl HugePages {
    pub(crate) fn here() -> Self {
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
        let reserved = fs::read_to_string("/proc/sys/vm/nr_hugepages").ok();
        HugePages {
            transparent: enabled.as_deref().and_then(chosen).map(str::to_owned),
            reserved: reserved.and_then(|count| count.trim().parse().ok()),
        }
    }
}

/// Memory of this process that is not a mapped file; `None` where the system does not tell.
pub(crate) fn resident_anonymous_bytes() -> Option<u64> {
    kilobytes(Path::new("/proc/self/status"), "RssAnon:")
}

/// Operating system and architecture.
pub(crate) fn system() -> String {
    format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// The processor's name, or its architecture where the system does not tell.
fn cpu_name() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()));
    name.or_else(|| sysctl("machdep.cpu.brand_string"))
        .unwrap_or_else(|| std::env::consts::ARCH.into())
}

/// The word in brackets of a line like `always [madvise] never`.
fn chosen(line: &str) -> Option<&str> {
    Some(line.split_once('[')?.1.split_once(']')?.0)
}

/// The value of a `NAME: 123 kB` line, in bytes.
fn kilobytes(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// A value that macOS tells; `None` elsewhere.
fn sysctl<T: std::str::FromStr>(name: &str) -> Option<T> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    /// A folder that stands for `/`, removed at the end.
    pub(super) struct Tree(PathBuf);

    impl Tree {
        pub(super) fn new(test: &str) -> Self {
            let root = std::env::temp_dir().join(format!("calla-{}-{test}", std::process::id()));
            fs::create_dir_all(&root).expect("the folder for temporary files is writable");
            Self(root)
        }

        pub(super) fn file(self, path: &str, text: &str) -> Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("inside the tree")).expect("writable");
            fs::write(path, text).expect("writable");
            self
        }

        pub(super) fn root(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_word_in_brackets_is_the_chosen_one() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("never\n"), None);
    }

    #[test]
    fn this_machine_has_a_core() {
        let processors = Processors::here();
        assert!(processors.cores >= 1 && !processors.name.is_empty());
        assert!(processors.cores_total.is_none_or(|cores| cores >= processors.cores));
    }
}

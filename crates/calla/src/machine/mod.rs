//! The machine that the program runs on.

mod bandwidth;

use std::{fmt, fs, thread};

use serde::Serialize;

pub(crate) use bandwidth::read_bytes_s;

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

impl Machine {
    pub(crate) fn here(threads: Option<usize>) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Machine {
            cpu: cpu_name().unwrap_or_else(|| std::env::consts::ARCH.into()),
            threads: threads.unwrap_or(cores),
            cores,
            memory_bytes: kilobytes("/proc/meminfo", "MemTotal:"),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
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

/// Memory of this process that is not a mapped file; `None` where the system does not tell.
pub(crate) fn resident_anonymous_bytes() -> Option<u64> {
    kilobytes("/proc/self/status", "RssAnon:")
}

fn cpu_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The value of a `NAME: 123 kB` line, in bytes.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

//! GPUs that the machine has, and what is missing to use them. Nothing is loaded: files tell.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gpu {
    pub(crate) maker: &'static str,
    /// Its model, where the driver tells.
    pub(crate) name: Option<String>,
    /// Version of its kernel driver.
    pub(crate) driver: Option<String>,
    /// What a program would need and does not find.
    pub(crate) missing: Vec<Missing>,
}

/// A part that is not installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Missing {
    pub(crate) what: &'static str,
    /// Where it comes from.
    pub(crate) package: &'static str,
}

const DRIVER: Missing = Missing {
    what: "kernel driver",
    package: "Debian: nvidia-driver; Ubuntu: nvidia-driver-NNN, as `ubuntu-drivers list` says",
};
const LIBCUDA: Missing = Missing {
    what: "libcuda.so.1",
    package: "Debian: libcuda1; Ubuntu: libnvidia-compute-NNN of the driver's version; in a \
              container: nvidia-container-toolkit on the host",
};
const LIBNVRTC: Missing = Missing { what: "libnvrtc.so", package: "PyPI: nvidia-cuda-nvrtc" };

/// Folders where the dynamic linker, WSL and NixOS have the driver's libraries, and CUDA's own.
const LIBRARY_FOLDERS: [&str; 8] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
    "usr/local/cuda/lib64",
    "usr/local/nvidia/lib64",
];

/// PCI vendors that make GPUs.
const MAKERS: [(&str, &str); 3] = [("0x10de", "NVIDIA"), ("0x1002", "AMD"), ("0x8086", "Intel")];

/// The machine's GPUs.
pub(crate) fn gpus() -> Vec<Gpu> {
    if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
        return vec![Gpu { maker: "Apple", name: None, driver: None, missing: Vec::new() }];
    }
    let paths = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    read(Path::new("/"), &std::env::split_paths(&paths).collect::<Vec<_>>())
}

/// Linux tells in files; `root` is `/`, `libraries` are folders besides the usual ones.
fn read(root: &Path, libraries: &[PathBuf]) -> Vec<Gpu> {
    let driver = nvidia_driver(root);
    let mut missing = Vec::new();
    if driver.is_none() {
        missing.push(DRIVER);
    }
    for part in [LIBCUDA, LIBNVRTC] {
        if !has_library(root, libraries, part.what) {
            missing.push(part);
        }
    }
    let nvidia =
        |name| Gpu { maker: "NVIDIA", name, driver: driver.clone(), missing: missing.clone() };
    let mut gpus: Vec<Gpu> = nvidia_names(root).into_iter().map(nvidia).collect();
    for maker in pci_makers(root) {
        // The driver has told of those that it drives, and knows them by name.
        match maker {
            "NVIDIA" if driver.is_some() => {}
            "NVIDIA" => gpus.push(nvidia(None)),
            maker => gpus.push(Gpu { maker, name: None, driver: None, missing: Vec::new() }),
        }
    }
    gpus
}

/// Models of the GPUs that the driver has found.
fn nvidia_names(root: &Path) -> Vec<Option<String>> {
    let name = |folder: PathBuf| {
        let text = fs::read_to_string(folder.join("information")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    };
    folders(&root.join("proc/driver/nvidia/gpus")).into_iter().map(name).collect()
}

/// Version of NVIDIA's kernel driver: the first number with a point that it gives.
fn nvidia_driver(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok()?;
    let version = |word: &&str| {
        word.contains('.') && word.chars().all(|char| char.is_ascii_digit() || char == '.')
    };
    Some(text.split_whitespace().find(version).unwrap_or("unknown").to_owned())
}

/// Makers of the display controllers on the PCI bus.
fn pci_makers(root: &Path) -> Vec<&'static str> {
    let maker = |folder: PathBuf| {
        let text = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let (class, vendor) = (text("class"), text("vendor"));
        let known = MAKERS.iter().find(|(id, _)| *id == vendor.trim())?;
        class.starts_with("0x03").then_some(known.1)
    };
    folders(&root.join("sys/bus/pci/devices")).into_iter().filter_map(maker).collect()
}

fn has_library(root: &Path, others: &[PathBuf], name: &str) -> bool {
    let usual = LIBRARY_FOLDERS.map(|folder| root.join(folder));
    usual.iter().chain(others).any(|folder| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with(name))
    })
}

/// What a folder holds, in order; nothing when it is not there.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Tree, *};

    const VERSION: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  \
                           Release Build\nGCC version:  gcc version 12.2.0\n";

    #[test]
    fn a_gpu_with_all_its_parts_misses_nothing() {
        let tree = Tree::new("gpu")
            .file("proc/driver/nvidia/version", VERSION)
            .file("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA H200\n")
            .file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
            .file("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
            .file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "")
            .file("opt/cuda/libnvrtc.so.12", "");
        let expected = Gpu {
            maker: "NVIDIA",
            name: Some("NVIDIA H200".into()),
            driver: Some("570.86.15".into()),
            missing: Vec::new(),
        };
        let without = read(tree.root(), &[]);
        assert_eq!(without, [Gpu { missing: vec![LIBNVRTC], ..expected.clone() }]);
        assert_eq!(read(tree.root(), &[tree.root().join("opt/cuda")]), [expected]);
    }

    #[test]
    fn a_gpu_without_a_driver_is_seen_on_the_bus() {
        let tree = Tree::new("gpu-bus")
            .file("sys/bus/pci/devices/0/vendor", "0x10de\n")
            .file("sys/bus/pci/devices/0/class", "0x030000\n")
            .file("sys/bus/pci/devices/1/vendor", "0x1002\n")
            .file("sys/bus/pci/devices/1/class", "0x038000\n")
            // A network card of Intel's.
            .file("sys/bus/pci/devices/2/vendor", "0x8086\n")
            .file("sys/bus/pci/devices/2/class", "0x020000\n");
        let gpus = read(tree.root(), &[]);
        let makers: Vec<_> = gpus.iter().map(|gpu| gpu.maker).collect();
        assert_eq!(makers, ["NVIDIA", "AMD"]);
        assert_eq!(gpus[0].missing, [DRIVER, LIBCUDA, LIBNVRTC]);
        assert_eq!(gpus[1].missing, []);
    }

    #[test]
    fn a_machine_without_gpus_has_none() {
        assert_eq!(read(Tree::new("no-gpu").root(), &[]), []);
    }
}

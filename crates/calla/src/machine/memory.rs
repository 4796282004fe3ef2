//! How much memory there is for a model.

use std::path::Path;

use serde::Serialize;

use super::{cgroup, kilobytes};

/// Memory in bytes; `None` where the system does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Memory {
    /// What is installed.
    pub(crate) total_bytes: Option<u64>,
    /// What programs can have: what is free, and cached parts of files.
    pub(crate) available_bytes: Option<u64>,
    /// Limit of the control group, if it is below the total.
    pub(crate) limit_bytes: Option<u64>,
    /// What the limit leaves.
    pub(crate) limit_left_bytes: Option<u64>,
}

impl Memory {
    pub(crate) fn here() -> Self {
        match cfg!(target_os = "macos") {
            true => Self { total_bytes: super::sysctl("hw.memsize"), ..Self::default() },
            false => Self::read(Path::new("/")),
        }
    }

    /// Linux tells in files; `root` is `/`.
    fn read(root: &Path) -> Self {
        let meminfo = root.join("proc/meminfo");
        let total_bytes = kilobytes(&meminfo, "MemTotal:");
        let limit = cgroup::memory_limit(root)
            // Without a limit, version 1 gives a number beyond any machine's memory.
            .filter(|limit| total_bytes.is_none_or(|total| limit.limit < total));
        Self {
            total_bytes,
            available_bytes: kilobytes(&meminfo, "MemAvailable:"),
            limit_bytes: limit.map(|limit| limit.limit),
            limit_left_bytes: limit.map(|limit| limit.left),
        }
    }

    /// What is free for this process, a model's mapped files included.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let known = [self.available_bytes.or(self.total_bytes), self.limit_left_bytes];
        known.into_iter().flatten().min()
    }

    /// What of it a model may fill: a twentieth is left for the tokenizer, requests and whatever
    /// else the machine starts.
    pub(crate) fn room_bytes(&self) -> Option<u64> {
        self.free_bytes().map(|bytes| bytes - bytes / 20)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Tree, *};

    const MEMINFO: &str = "MemTotal:       10000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n";

    #[test]
    fn the_tightest_of_machine_and_group_counts() {
        let tree = Tree::new("memory")
            .file("proc/meminfo", MEMINFO)
            .file("proc/self/cgroup", "0::/\n")
            .file("sys/fs/cgroup/memory.max", "2048000\n")
            .file("sys/fs/cgroup/memory.current", "1024000\n");
        let memory = Memory::read(tree.root());
        let expected = Memory {
            total_bytes: Some(10_240_000),
            available_bytes: Some(8_192_000),
            limit_bytes: Some(2_048_000),
            limit_left_bytes: Some(1_024_000),
        };
        assert_eq!(memory, expected);
        assert_eq!(memory.free_bytes(), Some(1_024_000));
        assert_eq!(memory.room_bytes(), Some(972_800));
    }

    #[test]
    fn a_limit_beyond_the_machine_is_none() {
        let tree = Tree::new("memory-v1")
            .file("proc/meminfo", MEMINFO)
            .file("proc/self/cgroup", "1:memory:/\n")
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
            .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1024000\n");
        let memory = Memory::read(tree.root());
        assert_eq!((memory.limit_bytes, memory.free_bytes()), (None, Some(8_192_000)));
    }

    #[test]
    fn a_system_that_does_not_tell_has_no_room_to_check() {
        assert_eq!(Memory::read(Tree::new("no-memory").root()).room_bytes(), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory() {
        let memory = Memory::here();
        assert!(memory.free_bytes() <= memory.total_bytes && memory.room_bytes() > Some(0));
    }
}

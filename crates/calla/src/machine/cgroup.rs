//! Limits of the control groups that this process is in: those of a container or a service.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// A limit on memory and what is left of it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    pub(super) limit: u64,
    pub(super) left: u64,
}

/// Names of a controller's files, which the two versions of control groups call differently.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Entries of memory.stat: cached parts of files, which make room when it is wanted.
    cached: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: Files =
    Files { limit: "memory.max", used: "memory.current", cached: ["inactive_file", "active_file"] };

/// The limit that leaves the least, of this process's group and those around it. `root` is `/`.
pub(super) fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let version_1 = groups(root, "memory").into_iter().map(|group| (group, &VERSION_1));
    let version_2 = groups(root, "").into_iter().map(|group| (group, &VERSION_2));
    let limits = version_1.chain(version_2).filter_map(|(group, files)| read_limit(&group, files));
    limits.min_by_key(|limit| limit.left)
}

/// Cores that the groups' quota of processor time is worth.
pub(super) fn cpu_quota(root: &Path) -> Option<f64> {
    let version_1 = groups(root, "cpu").into_iter().filter_map(|group| {
        let number = |name: &str| read_number(&group.join(name));
        Some((number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?))
    });
    let version_2 = groups(root, "").into_iter().filter_map(|group| {
        let text = fs::read_to_string(group.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some((quota.parse().ok()?, period.parse().ok()?))
    });
    version_1
        .chain(version_2)
        .filter(|&(_, period)| period > 0)
        .map(|(quota, period): (u64, u64)| quota as f64 / period as f64)
        .min_by(f64::total_cmp)
}

fn read_limit(group: &Path, files: &Files) -> Option<MemoryLimit> {
    let limit = read_number(&group.join(files.limit))?;
    let used = read_number(&group.join(files.used))?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        files.cached.contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    let taken = used.saturating_sub(cached.sum());
    Some(MemoryLimit { limit, left: limit.saturating_sub(taken) })
}

/// A file's number; `None` where it says that there is no limit, too.
fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Folders of this process's group under a controller, the innermost first; version 2 has no name
/// for its controllers.
fn groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mount = root.join("sys/fs/cgroup").join(controller);
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let path = memberships.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    // A container may see its own group as the mount's root, under a path that means nothing here.
    let inside = Path::new(path.unwrap_or("/"))
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect::<PathBuf>();
    let folders = inside.ancestors().map(|part| mount.join(part));
    folders.filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Tree, *};

    #[test]
    fn version_2_counts_what_files_have_cached_as_free() {
        let tree = Tree::new("cgroup2")
            .file("proc/self/cgroup", "0::/service/calla\n")
            .file("sys/fs/cgroup/service/calla/memory.max", "4000\n")
            .file("sys/fs/cgroup/service/calla/memory.current", "3000\n")
            .file(
                "sys/fs/cgroup/service/calla/memory.stat",
                "anon 1200\ninactive_file 500\nactive_file 1000\nfile 1800\n",
            )
            .file("sys/fs/cgroup/service/memory.max", "max\n")
            .file("sys/fs/cgroup/service/memory.current", "9000\n");
        let limit = memory_limit(tree.root());
        assert_eq!(limit, Some(MemoryLimit { limit: 4000, left: 2500 }));
    }

    #[test]
    fn a_group_around_this_one_may_leave_less() {
        let tree = Tree::new("cgroup2-outer")
            .file("proc/self/cgroup", "0::/a/b\n")
            .file("sys/fs/cgroup/a/b/memory.max", "4000\n")
            .file("sys/fs/cgroup/a/b/memory.current", "100\n")
            .file("sys/fs/cgroup/a/memory.max", "5000\n")
            .file("sys/fs/cgroup/a/memory.current", "4500\n");
        let limit = memory_limit(tree.root());
        assert_eq!(limit, Some(MemoryLimit { limit: 5000, left: 500 }));
    }

    #[test]
    fn a_container_that_does_not_see_its_path_reads_the_root() {
        let tree = Tree::new("cgroup1")
            .file("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n")
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n")
            .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n")
            .file("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1000\n")
            .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
            .file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        let limit = memory_limit(tree.root());
        assert_eq!(limit, Some(MemoryLimit { limit: 8000, left: 3000 }));
        assert_eq!(cpu_quota(tree.root()), Some(1.5));
    }

    #[test]
    fn no_quota_is_none() {
        let tree = Tree::new("no-quota")
            .file("proc/self/cgroup", "3:cpu:/\n0::/\n")
            .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
            .file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
            .file("sys/fs/cgroup/cpu.max", "max 100000\n");
        assert_eq!(cpu_quota(tree.root()), None);
        assert_eq!(memory_limit(tree.root()), None);
        let tree = tree.file("sys/fs/cgroup/cpu.max", "50000 100000\n");
        assert_eq!(cpu_quota(tree.root()), Some(0.5));
    }

    #[test]
    fn a_machine_without_control_groups_has_no_limit() {
        let tree = Tree::new("no-cgroup");
        assert_eq!((memory_limit(tree.root()), cpu_quota(tree.root())), (None, None));
    }
}

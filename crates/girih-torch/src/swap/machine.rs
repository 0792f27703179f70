//! What the machine can give this process: its available memory, and what the limits of its groups of control leave.
//!
//! ```text
//!  /proc/meminfo            MemAvailable
//!  /proc/self/cgroup  ──►   /sys/fs/cgroup/a/b    memory.max - (memory.current - inactive_file)
//!                           /sys/fs/cgroup/a      the same, and so on up to the root: the least of all
//! ```
//!
//! In a container the limits are what counts: who goes beyond is killed, however much the machine has.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The files of a group that say how much it may have and has, and what of its statistics can be taken from it at once:
/// pages of files that nobody has read lately.
struct Names {
    limits: &'static [&'static str],
    usage: &'static str,
    reclaimable: &'static str,
}

const SECOND: Names = Names {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: "inactive_file",
};

/// Those of the older version; there `total_` is with all groups below.
const FIRST: Names = Names {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

/// Bytes that can be had now, on the machine whose files are below `root`.
pub(super) fn available(root: &Path) -> u64 {
    let machine = of_the_machine(root).unwrap_or(0);
    of_groups(root).map_or(machine, |left| left.min(machine))
}

fn of_the_machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    kib.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the groups of this process leave; none if none is limited.
fn of_groups(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let lefts = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        if controllers.is_empty() {
            return least(&root.join("sys/fs/cgroup"), path, &SECOND);
        }
        let has_memory = controllers.split(',').any(|controller| controller == "memory");
        has_memory.then(|| least(&root.join("sys/fs/cgroup/memory"), path, &FIRST))?
    });
    lefts.min()
}

/// The least that a group and those above it leave. A container may see its own group as the root, under a path that
/// is another's: what is not there says nothing.
fn least(mounted: &Path, path: &str, names: &Names) -> Option<u64> {
    let within: PathBuf = Path::new(path)
        .components()
        .filter(|component| matches!(component, Component::Normal(_)))
        .collect();
    within.ancestors().filter_map(|group| left(&mounted.join(group), names)).min()
}

fn left(group: &Path, names: &Names) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
    };
    // "max" is no number, and no limit.
    let limit = names.limits.iter().filter_map(|name| number(name)).min()?;
    let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = statistics.lines().find_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        (name == names.reclaimable).then(|| bytes.trim().parse::<u64>().ok())?
    });
    let used = number(names.usage)?.saturating_sub(reclaimable.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine with 64 GiB available, and these files besides.
    fn machine(files: &[(&str, String)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let available =
            ("proc/meminfo", format!("MemFree: 1 kB\nMemAvailable:  {} kB\n", 64 << 20));
        for (name, text) in files.iter().chain([&available]) {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().expect("it has one")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        root
    }

    fn of(files: &[(&str, String)]) -> u64 {
        available(machine(files).path()) / GIB
    }

    fn gib(bytes: u64) -> String {
        format!("{}\n", bytes * GIB)
    }

    #[test]
    fn without_limits_it_is_what_the_machine_has() {
        assert_eq!(of(&[]), 64);
        assert_eq!(of(&[("proc/self/cgroup", "0::/\n".into())]), 64);
        let unlimited = [
            ("proc/self/cgroup", "0::/job\n".into()),
            ("sys/fs/cgroup/job/memory.max", "max\n".into()),
            ("sys/fs/cgroup/job/memory.current", gib(60)),
        ];
        assert_eq!(of(&unlimited), 64);
        assert_eq!(available(Path::new("/nowhere")), 0, "nothing is known");
    }

    #[test]
    fn a_group_leaves_its_limit_less_what_it_uses_and_cannot_give_back() {
        let files = [
            ("proc/self/cgroup", "0::/job/rank\n".into()),
            ("sys/fs/cgroup/job/rank/memory.max", gib(40)),
            ("sys/fs/cgroup/job/rank/memory.current", gib(20)),
            (
                "sys/fs/cgroup/job/rank/memory.stat",
                format!("file {}\ninactive_file {}\nactive_file 5\n", 9 * GIB, 8 * GIB),
            ),
        ];
        assert_eq!(of(&files), 28);
        let soft = [&files[..], &[("sys/fs/cgroup/job/rank/memory.high", gib(30))]].concat();
        assert_eq!(of(&soft), 18);
        let above = [
            &files[..],
            &[
                ("sys/fs/cgroup/job/memory.max", gib(50)),
                ("sys/fs/cgroup/job/memory.current", gib(45)),
            ],
        ];
        assert_eq!(
            of(&above.concat()),
            5,
            "the whole job has less left than this process may take"
        );
        let full =
            [&files[..1], &files[1..2], &[("sys/fs/cgroup/job/rank/memory.current", gib(41))]];
        assert_eq!(of(&full.concat()), 0);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_under_whatever_path() {
        for path in ["/", "/docker/0123", "/../../other"] {
            let files = [
                ("proc/self/cgroup", format!("0::{path}\n")),
                ("sys/fs/cgroup/memory.max", gib(16)),
                ("sys/fs/cgroup/memory.current", gib(6)),
            ];
            assert_eq!(of(&files), 10, "{path}");
        }
    }

    #[test]
    fn the_older_version_has_the_same_under_other_names() {
        let files = [
            ("proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/slurm/job\n0::/\n".into()),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n".into()),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", gib(100)),
            ("sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", gib(32)),
            ("sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", gib(20)),
            (
                "sys/fs/cgroup/memory/slurm/job/memory.stat",
                format!("inactive_file 7\ntotal_inactive_file {}\n", 4 * GIB),
            ),
        ];
        assert_eq!(of(&files), 16);
    }
}

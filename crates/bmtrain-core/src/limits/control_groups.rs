//! Limits of the control groups that this process belongs to, in both versions of their files.
//!
//! A group is bound by its own limits and the limits of all its ancestors, so all of them are read. In a container the
//! path that the process sees is often not below the mount it sees; what is absent is skipped.

use super::{Limit, Resource};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The files of one controller in one version.
struct Files {
    controller: &'static str,
    what: &'static str,
    resource: Resource,
    most: &'static str,
    used: &'static str,
    /// The lines of `memory.stat` with bytes that the kernel reclaims by itself: the page cache, whether it was read
    /// once or several times.
    reclaimable: &'static [&'static str],
}

const VERSION_1: [Files; 2] = [
    Files {
        controller: "memory",
        what: MEMORY,
        resource: Resource::Memory,
        most: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        reclaimable: &["total_inactive_file", "total_active_file"],
    },
    PIDS,
];
const VERSION_2: [Files; 2] = [
    Files {
        controller: "memory",
        what: MEMORY,
        resource: Resource::Memory,
        most: "memory.max",
        used: "memory.current",
        reclaimable: &["inactive_file", "active_file"],
    },
    PIDS,
];
const PIDS: Files = Files {
    controller: "pids",
    what: "processes and threads of the control group",
    resource: Resource::Threads,
    most: "pids.max",
    used: "pids.current",
    reclaimable: &[],
};
pub(super) const MEMORY: &str = "memory of the control group";
/// Smallest value with which version 1 reports that no limit is set.
const UNLIMITED: u64 = 1 << 60;

/// File that lists the groups of this process, followed by the root of their files.
pub(super) const OWN: &str = "/proc/self/cgroup";
pub(super) const MOUNT: &str = "/sys/fs/cgroup";

/// A control group that bounds this process: one of its own, or an ancestor of one.
pub(super) struct Group<'a> {
    /// The controllers of its hierarchy; the one hierarchy of version 2 has no list of them.
    controllers: &'a str,
    pub(super) directory: PathBuf,
}

impl Group<'_> {
    pub(super) fn is_version_2(&self) -> bool {
        self.controllers.is_empty()
    }

    /// Whether the files of a controller can be in it.
    pub(super) fn has(&self, controller: &str) -> bool {
        self.is_version_2() || self.controllers.split(',').any(|listed| listed == controller)
    }
}

/// All groups that bound the process whose groups `own` lists, below `mount`.
pub(super) fn groups<'a>(own: &'a str, mount: &Path) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        // Beside version 1, the hierarchy of version 2 is a directory of its own.
        let mounts = match controllers {
            "" => vec![mount.to_path_buf(), mount.join("unified")],
            listed => vec![mount.join(listed)],
        };
        let directories = mounts.iter().flat_map(|mount| directories(mount, group));
        groups.extend(directories.map(|directory| Group { controllers, directory }));
    }
    groups
}

fn directories(mount: &Path, group: &str) -> Vec<PathBuf> {
    let below: PathBuf = Path::new(group).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    below.ancestors().map(|part| mount.join(part)).collect()
}

/// The tightest limit of each controller. `own` lists the groups of the process, `mount` is where their files are.
pub(super) fn read(own: &Path, mount: &Path) -> Vec<Limit> {
    let own = text(own).unwrap_or_default();
    let of_group = |group: &Group<'_>| {
        let files = if group.is_version_2() { &VERSION_2 } else { &VERSION_1 };
        let listed = files.iter().filter(|files| group.has(files.controller));
        listed.filter_map(|files| limit(&group.directory, files)).collect::<Vec<_>>()
    };
    let found: Vec<Limit> = groups(&own, mount).iter().flat_map(of_group).collect();
    let tightest = |resource| found.iter().filter(|limit| limit.resource == resource).min_by_key(|limit| limit.left());
    [Resource::Memory, Resource::Threads].into_iter().filter_map(|resource| tightest(resource).cloned()).collect()
}

fn limit(directory: &Path, files: &Files) -> Option<Limit> {
    let number = |name: &str| text(&directory.join(name))?.trim().parse::<u64>().ok();
    let most = number(files.most).filter(|most| *most < UNLIMITED)?;
    let stat = if files.reclaimable.is_empty() { None } else { text(&directory.join("memory.stat")) };
    let stat = stat.unwrap_or_default();
    let entries = stat.lines().filter_map(|line| line.split_once(' '));
    let reclaimable = entries.filter(|(name, _)| files.reclaimable.contains(name));
    let reclaimable =
        reclaimable.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).fold(0, u64::saturating_add);
    let used = number(files.used)?.saturating_sub(reclaimable);
    let place = directory.join(files.most).display().to_string();
    Some(Limit { what: files.what, resource: files.resource, most, used: Some(used), place })
}

/// A small file of the system.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files below a directory of the test's own, and what is read of them.
    fn limits(own: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mount = tempfile::tempdir().unwrap();
        let own = [("own", own)];
        for (name, text) in files.iter().chain(&own) {
            let path = mount.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = read(&mount.path().join("own"), mount.path());
        let root = format!("{}/", mount.path().display());
        found.iter().map(|limit| limit.to_string().replace(&root, "")).collect()
    }

    #[test]
    fn the_tightest_group_above_the_process_counts_and_pages_of_files_do_not() {
        let found = limits(
            "0::/job/step\n",
            &[
                ("job/memory.max", "2147483648\n"),
                ("job/memory.current", "1610612736\n"),
                ("job/memory.stat", "anon 5\ninactive_file 805306368\nactive_file 268435456\nactive_files 7\n"),
                ("job/step/memory.max", "max\n"),
                ("job/step/memory.current", "5\n"),
                ("job/step/pids.max", "50\n"),
                ("job/step/pids.current", "7\n"),
                ("job/pids.max", "1000\n"),
                ("job/pids.current", "7\n"),
            ],
        );
        let memory = "memory of the control group 2048 MiB, 512 MiB in use (job/memory.max)";
        assert_eq!(found, [memory, "processes and threads of the control group 50, 7 in use (job/step/pids.max)"]);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_in_version_1() {
        let found = limits(
            "4:memory:/docker/0123\n8:pids:/\n0::/\n",
            &[
                ("memory/memory.limit_in_bytes", "1073741824\n"),
                ("memory/memory.usage_in_bytes", "1048576\n"),
                ("pids/pids.max", "max\n"),
                ("pids/pids.current", "3\n"),
            ],
        );
        let place = "memory/memory.limit_in_bytes";
        assert_eq!(found, [format!("memory of the control group 1024 MiB, 1 MiB in use ({place})")]);
        let unlimited =
            [("memory/memory.limit_in_bytes", "9223372036854771712\n"), ("memory/memory.usage_in_bytes", "1\n")];
        assert_eq!(limits("4:memory:/\n", &unlimited), [""; 0]);
        assert_eq!(limits("nonsense\n0::/../..\n", &[("memory.max", "-1"), ("memory.current", "x")]), [""; 0]);
    }
}

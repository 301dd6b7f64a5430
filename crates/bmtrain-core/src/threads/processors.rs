//! The processors of this process: their physical cores, NUMA nodes, and the quota of processor time.
//!
//! The affinity mask is the one that the process was started with, so what a launcher, `taskset` or `numactl` allows is
//! all there is. Cores and nodes are read below `/sys/devices/system`; what is absent or malformed there counts as one
//! processor to a core and one node. Called for the default number of threads, for pinning (`placement`), and by
//! programs that print what was found.

use crate::limits::{CpuQuota, cpu_quota, text};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::OnceLock;

/// A physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its processors that this process may use, ascending. Several are SMT siblings.
    pub processors: Vec<usize>,
    /// Its NUMA node; 0 where the system reports none.
    pub node: usize,
}

/// The processors of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processors {
    /// Physical cores, by node and then by their first processor; at least one.
    pub cores: Vec<Core>,
    /// The quota of processor time, if a control group sets one.
    pub quota: Option<CpuQuota>,
    /// Whether the system reported the affinity mask. Otherwise only the number of processors is known, and threads
    /// cannot be pinned.
    pub has_mask: bool,
}

impl Processors {
    /// The processors that this process was started with, read at the first call: a thread that is pinned later does
    /// not change them.
    pub fn of_this_process() -> &'static Self {
        static FOUND: OnceLock<Processors> = OnceLock::new();
        FOUND.get_or_init(|| Processors::read(mask(), Path::new("/sys/devices/system"), cpu_quota()))
    }

    fn read(mask: Option<Vec<usize>>, system: &Path, quota: Option<CpuQuota>) -> Self {
        let Some(mask) = mask else {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            let cores = (0..count).map(|processor| Core { processors: vec![processor], node: 0 }).collect();
            return Processors { cores, quota, has_mask: false };
        };
        let siblings = |processor: usize| {
            text(&system.join(format!("cpu/cpu{processor}/topology/thread_siblings_list"))).unwrap_or_default()
        };
        Processors { cores: cores(&mask, siblings, &nodes(&system.join("node"))), quota, has_mask: true }
    }

    /// Number of processors, SMT siblings counted one by one.
    pub fn count(&self) -> usize {
        self.cores.iter().map(|core| core.processors.len()).sum()
    }

    /// NUMA nodes of the cores, ascending.
    pub fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.cores.iter().map(|core| core.node).collect();
        nodes.dedup();
        nodes
    }

    /// The number of threads where none is given: one for each physical core, because SMT siblings share the units that
    /// multiply and a second thread only divides their caches; at most the quota rounded up, because threads beyond it
    /// use it up sooner and then all stop.
    pub fn default_threads(&self) -> usize {
        self.at_most_the_quota(self.cores.len())
    }

    /// Number of threads that can run at the same time.
    pub fn parallelism(&self) -> usize {
        self.at_most_the_quota(self.count())
    }

    fn at_most_the_quota(&self, count: usize) -> usize {
        count.min(self.quota.as_ref().map_or(usize::MAX, CpuQuota::threads)).max(1)
    }

    /// All processors as the kernel writes them, `0-3,8`.
    pub fn list(&self) -> String {
        list(self.cores.iter().flat_map(|core| core.processors.iter().copied()).collect())
    }
}

/// The affinity mask of the calling thread; `None` where the system has none, or one of more processors than it can
/// report.
pub(super) fn mask() -> Option<Vec<usize>> {
    let set = sched_getaffinity(None).ok()?;
    let mask: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect();
    (!mask.is_empty()).then_some(mask)
}

/// The cores of the processors of a mask, from the lists of siblings of each processor and of processors of each node.
/// A processor is in one core, also if the lists contradict each other.
fn cores(mask: &[usize], siblings: impl Fn(usize) -> String, nodes: &[(usize, String)]) -> Vec<Core> {
    let nodes: Vec<_> = nodes.iter().map(|(node, list)| (*node, ranges(list))).collect();
    let mut cores = Vec::new();
    let mut rest = mask.to_vec();
    while let Some(first) = rest.first().copied() {
        let listed = ranges(&siblings(first));
        let is_sibling = |processor: &usize| *processor == first || contains(&listed, *processor);
        let (processors, others) = rest.into_iter().partition(is_sibling);
        let node = nodes.iter().find(|(_, listed)| contains(listed, first)).map_or(0, |(node, _)| *node);
        cores.push(Core { processors, node });
        rest = others;
    }
    cores.sort_by_key(|core| core.node);
    cores
}

/// The nodes of a directory with their lists of processors, by number.
fn nodes(directory: &Path) -> Vec<(usize, String)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("node")?.parse::<usize>().ok();
    let node = |entry: std::fs::DirEntry| {
        let node = number(entry.file_name().to_str()?)?;
        Some((node, text(&entry.path().join("cpulist"))?))
    };
    let mut nodes: Vec<(usize, String)> = entries.filter_map(node).collect();
    nodes.sort();
    nodes
}

/// The ranges of a list as the kernel writes it, `0-3,8`. Anything else is left out.
fn ranges(list: &str) -> Vec<RangeInclusive<usize>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).collect()
}

fn contains(ranges: &[RangeInclusive<usize>], processor: usize) -> bool {
    ranges.iter().any(|range| range.contains(&processor))
}

/// The reverse of [`ranges`].
pub(super) fn list(mut processors: Vec<usize>) -> String {
    processors.sort_unstable();
    let runs = processors.chunk_by(|left, right| left + 1 == *right);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(usize::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of two nodes with 4 cores each and two processors to a core, numbered as Linux does on x86-64: the
    /// second processors of all cores follow the first ones.
    fn two_nodes(mask: &[usize]) -> Processors {
        let siblings = |processor: usize| format!("{},{}\n", processor % 8, processor % 8 + 8);
        let nodes = [(0, "0-3,8-11\n".to_owned()), (1, "4-7,12-15\n".to_owned())];
        Processors { cores: cores(mask, siblings, &nodes), quota: None, has_mask: true }
    }

    fn quota(quota_us: u64) -> Option<CpuQuota> {
        Some(CpuQuota { quota_us, period_us: 100_000, place: "cpu.max".into() })
    }

    #[test]
    fn siblings_are_one_core_and_cores_are_ordered_by_node() {
        let all = two_nodes(&(0..16).collect::<Vec<_>>());
        assert_eq!((all.count(), all.cores.len(), all.nodes()), (16, 8, vec![0, 1]));
        assert_eq!(all.cores[5], Core { processors: vec![5, 13], node: 1 });
        assert_eq!(all.list(), "0-15");
        // Of an affinity mask only what is in it counts: here one sibling of core 1 and both of core 6.
        let some = two_nodes(&[6, 9, 14]);
        let expected = [(vec![9], 0), (vec![6, 14], 1)].map(|(processors, node)| Core { processors, node });
        assert_eq!((some.cores.as_slice(), some.list()), (&expected[..], "6,9,14".into()));
    }

    #[test]
    fn the_default_is_a_thread_per_core_and_no_more_than_the_quota() {
        let all = two_nodes(&(0..16).collect::<Vec<_>>());
        assert_eq!((all.default_threads(), all.parallelism()), (8, 16));
        for (quota_us, threads, parallelism) in [(250_000, 3, 3), (1_000_000, 8, 10), (1, 1, 1), (u64::MAX, 8, 16)] {
            let bounded = Processors { quota: quota(quota_us), ..all.clone() };
            assert_eq!((bounded.default_threads(), bounded.parallelism()), (threads, parallelism), "{quota_us}");
        }
    }

    #[test]
    fn malformed_and_contradictory_lists_leave_every_processor_in_one_core() {
        let mask = [0, 1, 2, 3];
        for text in ["", "\n", "a-b,,-,5-", "3-0", "0-18446744073709551616", "4-99", "\u{0}"] {
            let found = cores(&mask, |_| text.to_owned(), &[(7, text.to_owned())]);
            assert_eq!(found.iter().map(|core| core.processors.clone()).collect::<Vec<_>>(), [[0], [1], [2], [3]]);
            assert!(found.iter().all(|core| core.node == 0), "{text}");
        }
        // Processor 0 lists 2, but 2 lists 3.
        let found = cores(&mask, |processor| format!("{processor}-{}", processor + 1 + (processor + 1) % 2), &[]);
        let mut all: Vec<usize> = found.iter().flat_map(|core| core.processors.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, mask);
        let whole = cores(&mask, |_| "0-18446744073709551615".to_owned(), &[(usize::MAX, "0-3".into())]);
        assert_eq!(whole, [Core { processors: mask.to_vec(), node: usize::MAX }]);
    }

    #[test]
    fn files_of_the_system_are_read_and_missing_ones_are_no_error() {
        let system = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
            ("cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
            ("node/node10/cpulist", "2-3\n"),
            ("node/node2/cpulist", "0-1\n"),
            ("node/node3/meminfo", "a node without processors\n"),
            ("node/possible", "0-10\n"),
            ("node/nodes/cpulist", "0-3\n"),
        ] {
            let path = system.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = Processors::read(Some(vec![0, 1, 2, 3]), system.path(), None);
        assert_eq!((found.count(), found.cores.len(), found.nodes()), (4, 3, vec![2, 10]));
        let bare = Processors::read(Some(vec![4, 5]), &system.path().join("absent"), None);
        assert_eq!((bare.cores.len(), bare.nodes(), bare.list()), (2, vec![0], "4-5".into()));
        let blind = Processors::read(None, system.path(), quota(100_000));
        assert!(!blind.has_mask && blind.count() >= 1 && blind.default_threads() == 1);
    }

    #[test]
    fn this_process_has_processors() {
        let found = Processors::of_this_process();
        assert!((1..=found.count()).contains(&found.cores.len()));
        assert!(!found.nodes().is_empty() && !found.list().is_empty());
        assert!((1..=found.parallelism()).contains(&found.default_threads()));
    }
}

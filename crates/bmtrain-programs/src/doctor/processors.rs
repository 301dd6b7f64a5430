//! The processors that were found, the threads that programs use on them, and whether these are pinned.

use bmtrain_core::cpu::{Pinning, Placement, Processors};
use serde_json::{Value, json};

/// Named lines of the text; `memory` ends the first.
pub(super) fn as_text(found: &Processors, memory: &str) -> [(&'static str, String); 4] {
    [
        ("processors", format!("{}, {memory}", processors(found))),
        ("CPU quota", found.quota.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
        ("threads", threads(found)),
        ("pinning", pinning(found)),
    ]
}

pub(super) fn as_json(found: &Processors) -> Value {
    let node = |number: usize| {
        let cores = found.cores.iter().filter(|core| core.node == number);
        let processors: Vec<usize> = cores.clone().flat_map(|core| core.processors.iter().copied()).collect();
        json!({ "node": number, "cores": cores.count(), "processors": processors })
    };
    let quota = found.quota.as_ref();
    json!({
        "cores": found.cores.len(),
        "smt": siblings(found),
        "affinity": found.has_mask.then(|| found.list()),
        "numa_nodes": found.nodes().into_iter().map(node).collect::<Vec<Value>>(),
        "cpu_quota": quota.map(|quota| json!({ "processors": quota.processors(), "place": quota.place })),
        "threads": found.default_threads(),
        "pinned": { "one_rank": is_pinned(found, 1), "several_ranks": is_pinned(found, found.nodes().len()) },
    })
}

fn processors(found: &Processors) -> String {
    let numbers = if found.has_mask { format!(" ({})", found.list()) } else { String::new() };
    let siblings = match siblings(found) {
        1 => String::new(),
        siblings => format!(", up to {siblings} SMT siblings each"),
    };
    let (cores, nodes) = (counted(found.cores.len(), "physical core"), counted(found.nodes().len(), "NUMA node"));
    format!("{} for this process{numbers} on {cores}{siblings}, {nodes}", found.count())
}

fn threads(found: &Processors) -> String {
    let threads = found.default_threads();
    let reason = if threads < found.cores.len() { "the quota rounded up" } else { "one for each physical core" };
    format!("{threads} by default, {reason}; device.threads and --threads set another number")
}

fn pinning(found: &Processors) -> String {
    let text = match (found.has_mask, is_pinned(found, found.nodes().len())) {
        (false, _) => "threads are not pinned: the system reports no affinity mask",
        (_, true) => {
            "threads of one rank are not pinned; of several ranks, each stays on the NUMA nodes of its cores \
             (device.pin_threads, --pin-threads)"
        }
        (_, false) => {
            "threads are not pinned, there is one NUMA node; device.pin_threads = \"cores\" pins each to a core"
        }
    };
    text.to_owned()
}

/// Whether one of this number of ranks that share the processors is pinned by default.
fn is_pinned(found: &Processors, ranks: usize) -> bool {
    (0..ranks).any(|index| Placement { pinning: Pinning::Nodes, index, ranks }.is_pinned(found))
}

/// Most processors of a core.
fn siblings(found: &Processors) -> usize {
    found.cores.iter().map(|core| core.processors.len()).max().unwrap_or(1)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_core::cpu::Core;
    use bmtrain_core::limits::CpuQuota;

    fn server() -> Processors {
        let core = |core: usize| Core { processors: vec![core, core + 4], node: core / 2 };
        let quota = CpuQuota { quota_us: 250_000, period_us: 100_000, place: "/sys/fs/cgroup/cpu.max".into() };
        Processors { cores: (0..4).map(core).collect(), quota: Some(quota), has_mask: true }
    }

    fn text(found: &Processors) -> String {
        as_text(found, "2.0 GiB of memory available").map(|(name, value)| format!("{name}: {value}\n")).concat()
    }

    #[test]
    fn cores_siblings_nodes_and_the_quota_are_printed_with_what_follows_from_them() {
        let expected = "processors: 8 for this process (0-7) on 4 physical cores, up to 2 SMT siblings each, \
                        2 NUMA nodes, 2.0 GiB of memory available\n\
                        CPU quota: time of 2.5 processors (/sys/fs/cgroup/cpu.max)\n\
                        threads: 3 by default, the quota rounded up; device.threads and --threads set another number\n\
                        pinning: threads of one rank are not pinned; of several ranks, each stays on the NUMA nodes of \
                        its cores (device.pin_threads, --pin-threads)\n";
        assert_eq!(text(&server()), expected);
        let laptop = Processors { cores: vec![Core { processors: vec![3], node: 0 }], quota: None, has_mask: true };
        let expected = "processors: 1 for this process (3) on 1 physical core, 1 NUMA node, 2.0 GiB of memory \
                        available\n\
                        CPU quota: none\n\
                        threads: 1 by default, one for each physical core; device.threads and --threads set another \
                        number\n\
                        pinning: threads are not pinned, there is one NUMA node; device.pin_threads = \"cores\" pins \
                        each to a core\n";
        assert_eq!(text(&laptop), expected);
        let blind = text(&Processors { has_mask: false, ..laptop });
        assert!(blind.contains("1 for this process on") && blind.contains("no affinity mask"), "{blind}");
    }

    #[test]
    fn the_object_has_the_same_figures() {
        let expected = json!({
            "cores": 4,
            "smt": 2,
            "affinity": "0-7",
            "numa_nodes": [
                { "node": 0, "cores": 2, "processors": [0, 4, 1, 5] },
                { "node": 1, "cores": 2, "processors": [2, 6, 3, 7] },
            ],
            "cpu_quota": { "processors": 2.5, "place": "/sys/fs/cgroup/cpu.max" },
            "threads": 3,
            "pinned": { "one_rank": false, "several_ranks": true },
        });
        assert_eq!(as_json(&server()), expected);
    }
}

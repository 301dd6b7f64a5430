//! Placement of the threads of a rank: anywhere, on the NUMA nodes of its cores, or each on a core of its own.
//!
//! Ranks that share processors divide the cores in order, so their cores are disjoint and adjacent. A page of memory
//! belongs to the node of the thread that first writes it; the rank's own thread, the threads of its lanes and its pool
//! stay on the same nodes, so whichever of them it is, the page is on a node of the rank. Nothing of this changes a
//! result. The pool of a backend and `DeviceChoice::open` apply it.

use super::processors::{Core, Processors, list};
use crate::error::{Error, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fmt;
use std::str::FromStr;
use std::sync::Once;

/// Target to which the threads of a rank are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pinning {
    /// Nothing: the system moves them among all processors of the process.
    None,
    /// The NUMA nodes of the rank's cores. The system moves threads within them, so a core that another program uses is
    /// avoided. No change where there is one node or one rank.
    Nodes,
    /// Each thread of the pool to a core of its own. For machines without other programs: a thread that shares its core
    /// with one delays all others.
    Cores,
}

impl Pinning {
    /// Every value.
    pub const ALL: [Self; 3] = [Pinning::None, Pinning::Nodes, Pinning::Cores];

    /// The name that [`Pinning::from_str`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Pinning::None => "none",
            Pinning::Nodes => "nodes",
            Pinning::Cores => "cores",
        }
    }
}

impl fmt::Display for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pinning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Pinning::ALL.into_iter().find(|pinning| pinning.name() == text).ok_or_else(|| {
            let reason = format!("unknown value {text:?}: there are none, nodes and cores");
            Error::argument("pinning of threads", reason)
        })
    }
}

/// Placement of the threads of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Target to which they are pinned.
    pub pinning: Pinning,
    /// The rank's number among the ranks that share its processors, from 0.
    pub index: usize,
    /// Ranks that share its processors.
    pub ranks: usize,
}

impl Placement {
    /// A rank alone whose threads are not pinned.
    pub const ANYWHERE: Self = Placement { pinning: Pinning::None, index: 0, ranks: 1 };

    /// Pin the calling thread, which is the rank's own, and with it the threads that it starts from now on. If the
    /// system refuses, that is logged once in a process and otherwise ignored.
    pub fn pin_rank(self) {
        if let Some(processors) = self.processors_of_rank(Processors::of_this_process()) {
            pin_or_log(&processors);
        }
    }

    /// Pin the calling thread, which is this one of the pool; as [`Placement::pin_rank`].
    pub(super) fn pin_thread(self, thread: usize) {
        if let Some(processors) = self.processors_of_thread(Processors::of_this_process(), thread) {
            pin_or_log(&processors);
        }
    }

    /// Whether the threads of this placement are restricted to a part of the process's processors.
    pub fn is_pinned(self, processors: &Processors) -> bool {
        self.processors_of_thread(processors, 0).is_some()
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.index < self.ranks {
            return Ok(());
        }
        Err(Error::argument("placement", format!("there is no rank {} among {}", self.index, self.ranks)))
    }

    /// The processors of the rank's own thread; `None` for all of the process.
    fn processors_of_rank(self, found: &Processors) -> Option<Vec<usize>> {
        let own = self.cores(found);
        match self.pinning {
            Pinning::None => None,
            Pinning::Nodes => {
                let is_near = |core: &&Core| own.iter().any(|mine| mine.node == core.node);
                restriction(found, found.cores.iter().filter(is_near))
            }
            Pinning::Cores => restriction(found, own.iter()),
        }
    }

    /// The processors of a thread of the pool; `None` for all of the process. Threads beyond the cores start again at
    /// the first one.
    fn processors_of_thread(self, found: &Processors, thread: usize) -> Option<Vec<usize>> {
        if self.pinning != Pinning::Cores {
            return self.processors_of_rank(found);
        }
        let own = self.cores(found);
        restriction(found, own.get(thread.checked_rem(own.len())?))
    }

    /// The rank's cores: none where the ranks outnumber the cores, or where threads cannot be pinned.
    fn cores(self, found: &Processors) -> &[Core] {
        let cores = found.cores.len();
        if !found.has_mask || self.ranks > cores || self.index >= self.ranks {
            return &[];
        }
        // Below 2^20, since both are at most the number of cores.
        &found.cores[cores * self.index / self.ranks..cores * (self.index + 1) / self.ranks]
    }
}

/// The processors of some cores, if they are a part of all and not empty.
fn restriction<'a>(found: &Processors, cores: impl IntoIterator<Item = &'a Core>) -> Option<Vec<usize>> {
    let processors: Vec<usize> = cores.into_iter().flat_map(|core| core.processors.iter().copied()).collect();
    (!processors.is_empty() && processors.len() < found.count()).then_some(processors)
}

fn pin_or_log(processors: &[usize]) {
    static LOGGED: Once = Once::new();
    if let Err(error) = pin(processors) {
        LOGGED.call_once(|| {
            let list = list(processors.to_vec());
            tracing::warn!("threads run unpinned: pinning one to processors {list} failed: {error}");
        });
    }
}

/// Restrict the calling thread to these processors.
fn pin(processors: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().filter(|processor| **processor < CpuSet::MAX_CPU).for_each(|processor| set.set(*processor));
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    /// Two nodes with 3 cores each, two processors to a core.
    fn machine() -> Processors {
        let core = |core: usize| Core { processors: vec![core, core + 6], node: core / 3 };
        Processors { cores: (0..6).map(core).collect(), quota: None, has_mask: true }
    }

    fn place(pinning: Pinning, index: usize, ranks: usize) -> Placement {
        Placement { pinning, index, ranks }
    }

    #[test]
    fn threads_are_pinned_to_distinct_cores_and_ranks_have_disjoint_ones() {
        for ranks in 1..=6 {
            let mut all = Vec::new();
            for index in 0..ranks {
                let own = place(Pinning::Cores, index, ranks);
                let threads = own.cores(&machine()).len();
                assert!(threads >= 6 / ranks, "{threads} of rank {index} of {ranks}");
                let of_threads = (0..threads).map(|thread| own.processors_of_thread(&machine(), thread).unwrap());
                let mine: Vec<usize> = of_threads.flatten().collect();
                assert_eq!(own.processors_of_rank(&machine()), (ranks > 1).then_some(mine.clone()));
                assert_eq!(own.processors_of_thread(&machine(), threads), own.processors_of_thread(&machine(), 0));
                all.extend(mine);
            }
            all.sort_unstable();
            assert_eq!(all, (0..12).collect::<Vec<_>>(), "{ranks} ranks");
        }
    }

    #[test]
    fn a_rank_stays_on_the_nodes_of_its_cores() {
        let of = |index, ranks| {
            let own = place(Pinning::Nodes, index, ranks);
            let processors = own.processors_of_rank(&machine());
            assert_eq!(processors, own.processors_of_thread(&machine(), 5));
            processors.map(list)
        };
        assert_eq!([of(0, 2), of(1, 2)], [Some("0-2,6-8".into()), Some("3-5,9-11".into())]);
        assert_eq!([of(1, 4), of(2, 4)], [Some("0-2,6-8".into()), Some("3-5,9-11".into())]);
        // The cores of the second of three ranks are on both nodes, as are the cores of a rank alone.
        assert_eq!([of(0, 3), of(1, 3), of(0, 1)], [Some("0-2,6-8".into()), None, None]);
        let mut one_node = machine();
        one_node.cores.iter_mut().for_each(|core| core.node = 4);
        assert!((0..2).all(|index| !place(Pinning::Nodes, index, 2).is_pinned(&one_node)));
    }

    #[test]
    fn nothing_is_pinned_without_a_mask_or_a_core_for_each_rank() {
        let blind = Processors { has_mask: false, ..machine() };
        for pinning in Pinning::ALL {
            assert!(!place(pinning, 0, 2).is_pinned(&blind));
            for (index, ranks) in [(0, 7), (2, 2), (0, usize::MAX), (usize::MAX, 2), (0, 0)] {
                assert!(!place(pinning, index, ranks).is_pinned(&machine()), "{index} of {ranks}");
            }
            assert_eq!(pinning.to_string().parse::<Pinning>().unwrap(), pinning);
        }
        let single = Processors { cores: machine().cores[..1].to_vec(), ..machine() };
        assert!(!place(Pinning::Cores, 0, 1).is_pinned(&single) && !Placement::ANYWHERE.is_pinned(&machine()));
        assert!("socket".parse::<Pinning>().unwrap_err().to_string().contains("none, nodes and cores"));
        assert!(place(Pinning::None, 1, 1).check().is_err() && Placement::ANYWHERE.check().is_ok());
    }

    #[test]
    fn the_mask_of_a_thread_is_what_it_was_pinned_to_and_a_refusal_is_no_panic() {
        let Some(last) = Processors::of_this_process().cores.last().filter(|_| Processors::of_this_process().has_mask)
        else {
            return;
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(&last.processors).unwrap();
                let now = sched_getaffinity(None).unwrap();
                let now: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| now.is_set(*processor)).collect();
                assert_eq!(now, last.processors);
                assert!(pin(&[]).is_err() && pin(&[usize::MAX]).is_err());
                pin_or_log(&[]);
            });
        });
    }
}

//! Threads of a rank: their number (processor cores are shared by the ranks that may use the same ones), where they
//! run, and which instruction set they use.

use super::{Launch, threads_per_rank};
use crate::control::ControlGroup;
use crate::error::Result;
use bmtrain_core::cpu::{CpuOptions, Pinning, Placement, Processors};

/// Settings of this rank's CPU backend. Its threads are its part of `threads`, which the ranks of a host have together;
/// with `None` of the cores that its process may use, [`Processors::default_threads`]. Ranks of one host that have the
/// same processors divide them; those that a launcher bound to processors of their own do not. Waits for the other
/// ranks.
///
/// # Errors
/// As for [`cpu_options`], and a rank that is lost.
pub fn cpu_options_of_rank(
    control: &ControlGroup,
    launch: &Launch,
    threads: Option<usize>,
    pinning: Pinning,
) -> Result<CpuOptions> {
    let processors = Processors::of_this_process();
    let (index, ranks) = sharers(&control.gather_texts(&place(processors))?, control.rank());
    let threads = match threads {
        Some(threads) => threads_per_rank(threads, launch.local_size),
        None => threads_per_rank(processors.default_threads(), ranks),
    };
    Ok(CpuOptions { placement: Placement { pinning, index, ranks }, ..cpu_options(threads)? })
}

/// Settings of a CPU backend with this many threads: the fastest instruction set of the processor, or the one that
/// `BMTRAIN_CPU` names in this process's environment (`portable`, `neon`, `neon_bf16`, `avx2`, `avx512`, `avx512_bf16`,
/// `amx`).
///
/// # Errors
/// [`bmtrain_core::Error::NoDevice`] for an unknown set and for one that the processor does not have.
pub fn cpu_options(threads: usize) -> bmtrain_core::Result<CpuOptions> {
    CpuOptions::of_environment(threads, &|name| std::env::var_os(name))
}

/// The number of a rank among those at its place, and how many they are; `all` are the places of the ranks.
fn sharers(all: &[String], rank: usize) -> (usize, usize) {
    let own = all.get(rank);
    let shares = |place: &&String| Some(*place) == own;
    let before = all.iter().take(rank).filter(shares).count();
    (before, all.iter().filter(shares).count().max(1))
}

/// The host and the processors of this process; the same text means the same processors.
fn place(processors: &Processors) -> String {
    format!("{} {}", host(), processors.list())
}

/// The name of this host, for messages to users; empty where the system gives none.
pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// This host, and this life of it; the same for all its processes, whatever name a container gives it.
pub(super) fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).ok().filter(|text| !text.trim().is_empty());
    let text = read("/proc/sys/kernel/random/boot_id").or_else(|| read("/proc/sys/kernel/hostname"));
    text.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_core::Device;
    use bmtrain_core::comm::Solo;
    use std::sync::Arc;

    #[test]
    fn ranks_with_the_same_processors_of_the_same_host_share_them() {
        let places = ["a 0-7", "b 0-7", "a 0-7", "a 8-15"].map(str::to_owned);
        assert_eq!([0, 1, 2, 3].map(|rank| sharers(&places, rank)), [(0, 2), (0, 1), (1, 2), (0, 1)]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_knows_its_host_and_its_processors() {
        let place = place(Processors::of_this_process());
        let (host, processors) = place.split_once(' ').unwrap();
        assert!(host.len() == 36 && processors.starts_with(|c: char| c.is_ascii_digit()), "{place}");
    }

    #[test]
    fn a_rank_alone_has_a_thread_per_core_and_a_given_number_is_divided() {
        let control = ControlGroup::new(Arc::new(Solo), &Device::cpu(1).unwrap());
        let of = |local_size: usize, threads: Option<usize>| {
            let launch = Launch { local_size, ..Launch::alone() };
            cpu_options_of_rank(&control, &launch, threads, Pinning::Cores).unwrap()
        };
        assert_eq!(of(1, None).threads, Processors::of_this_process().default_threads());
        assert_eq!(of(1, None).placement, Placement { pinning: Pinning::Cores, index: 0, ranks: 1 });
        assert_eq!((of(2, Some(7)).threads, of(8, Some(7)).threads), (3, 1));
    }
}

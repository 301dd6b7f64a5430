//! How many threads a rank has (processor cores are shared by the ranks that may use the same ones), and which
//! instruction set they use.

use super::threads_per_rank;
use crate::control::ControlGroup;
use crate::error::Result;
use crate::inspect::process::available_cpus;
use bmtrain_core::cpu::CpuOptions;

/// Threads for this rank when every rank may use all cores that were left to its process. Ranks of one host that have
/// the same cores divide them; those that a launcher bound to cores of their own do not. Waits for the other ranks.
pub fn threads_of_rank(team: &ControlGroup) -> Result<usize> {
    let own = place();
    let all = team.gather_texts(&own)?;
    Ok(threads_per_rank(available_cpus(), sharers(&all, &own)))
}

/// Settings of a CPU backend with this many threads: the widest instruction set of the processor, or the one that
/// `BMTRAIN_CPU` names in this process's environment (`portable`, `neon`, `avx2`, `avx512`).
///
/// # Errors
/// [`bmtrain_core::Error::NoDevice`] for an unknown set and for one that the processor does not have.
pub fn cpu_options(threads: usize) -> bmtrain_core::Result<CpuOptions> {
    CpuOptions::of_environment(threads, &|name| std::env::var_os(name))
}

fn sharers(all: &[String], own: &str) -> usize {
    all.iter().filter(|place| *place == own).count()
}

/// The host and the cores of this process; the same text means the same cores.
fn place() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    format!("{} {}", host(), cores.trim())
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

    #[test]
    fn ranks_with_the_same_cores_of_the_same_host_share_them() {
        let places = ["a 0-7", "a 0-7", "a 8-15", "b 0-7"].map(str::to_owned);
        let shared = places.each_ref().map(|own| sharers(&places, own));
        assert_eq!(shared, [2, 2, 1, 1]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_knows_its_host_and_its_cores() {
        let place = place();
        let (host, cores) = place.split_once(' ').unwrap();
        assert!(host.len() == 36 && cores.starts_with(|c: char| c.is_ascii_digit()), "{place}");
    }
}

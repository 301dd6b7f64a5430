//! Memory and processors of this process, as the operating system counts them.
//!
//! Linux only; elsewhere the figures are absent. Called for the memory report, and by the programs for the status line
//! and the metrics file.

use bmtrain_core::limits::{Limit, Resource, limits};
use std::io::Read;

/// Resident memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Now, bytes.
    pub rss_bytes: u64,
    /// The most since the process began, bytes.
    pub peak_rss_bytes: u64,
}

/// Resident memory of this process; `None` where `/proc` does not report it.
pub fn now() -> Option<Memory> {
    parse_status(&read_proc("/proc/self/status")?)
}

/// [`Memory::rss_bytes`] of [`now`].
pub fn resident_bytes() -> Option<u64> {
    now().map(|memory| memory.rss_bytes)
}

/// [`Memory::peak_rss_bytes`] of [`now`].
pub fn peak_resident_bytes() -> Option<u64> {
    now().map(|memory| memory.peak_rss_bytes)
}

/// Memory that a program can still have without anything being swapped out, bytes: what the system calls available, or
/// what is left of the tightest limit of a control group or of this process's addresses, if that is less. `None` where
/// none of them is known.
pub fn available_bytes() -> Option<u64> {
    let system = read_proc("/proc/meminfo").and_then(|text| kibibytes(&text, "MemAvailable"));
    system.into_iter().chain(limits(Some(Resource::Memory)).iter().filter_map(Limit::left)).min()
}

pub(super) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn parse_status(status: &str) -> Option<Memory> {
    let rss_bytes = kibibytes(status, "VmRSS")?;
    // The kernel brings the high-water mark up to date late, so it can be below the current figure.
    Some(Memory { rss_bytes, peak_rss_bytes: kibibytes(status, "VmHWM")?.max(rss_bytes) })
}

/// Processors this process may run on, its affinity mask and quota considered; at least 1.
pub fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(super) fn read_proc(path: &str) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_parsed_and_nonsense_is_absent() {
        let found = parse_status("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n");
        assert_eq!(found, Some(Memory { rss_bytes: 1 << 20, peak_rss_bytes: 2 << 20 }));
        assert_eq!(parse_status("VmRSS:\t-1 kB\nVmHWM: 1 kB"), None);
        assert_eq!(parse_status(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_available_is_not_everything_and_not_nothing() {
        let total = kibibytes(&read_proc("/proc/meminfo").unwrap(), "MemTotal").unwrap();
        let available = available_bytes().unwrap();
        assert!(available > 0 && available < total, "{available} of {total}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_touched_allocation_shows_up() {
        let before = now().unwrap();
        let block = vec![1u8; 256 << 20];
        let after = now().unwrap();
        assert_eq!(block.iter().map(|b| u64::from(*b)).sum::<u64>(), 256 << 20);
        // Other tests run in threads beside this one and free some tens of megabytes.
        assert!(after.rss_bytes > before.rss_bytes + (128 << 20), "{before:?} {after:?}");
        assert!(after.peak_rss_bytes >= after.rss_bytes);
        assert!(available_cpus() >= 1);
    }
}

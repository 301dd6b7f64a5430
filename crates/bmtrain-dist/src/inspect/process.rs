//! Memory of this process, as the operating system counts them.
//!
//! Linux only; elsewhere the figures are absent. Called for the memory report, and by the programs for the status line,
//! the metrics file and the plan of a run.

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

/// Resident memory of this process by kind, bytes. Anonymous memory is what the process itself needs; pages of mapped
/// files, such as the program, are the page cache's and can be read again; shared memory belongs to all ranks of the
/// machine together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// `RssAnon`: heap, stacks, private mappings.
    pub anonymous_bytes: u64,
    /// `RssFile`: pages of mapped files.
    pub file_bytes: u64,
    /// `RssShmem`: shared memory.
    pub shared_bytes: u64,
    /// Upper bound of the peak of anonymous memory since the process began: the peak of all kinds together without the
    /// files and the shared memory that are resident now. It is exact while those two do not shrink before they are
    /// read.
    pub peak_anonymous_bytes: u64,
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

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn parse_status(status: &str) -> Option<Memory> {
    let rss_bytes = kibibytes(status, "VmRSS")?;
    // The kernel brings the high-water mark up to date late, so it can be below the current figure.
    Some(Memory { rss_bytes, peak_rss_bytes: kibibytes(status, "VmHWM")?.max(rss_bytes) })
}

/// Resident memory of this process by kind; `None` where `/proc` does not report it.
pub fn resident() -> Option<Resident> {
    parse_kinds(&read_proc("/proc/self/status")?)
}

fn parse_kinds(status: &str) -> Option<Resident> {
    let [anonymous_bytes, file_bytes, shared_bytes, peak] = [
        kibibytes(status, "RssAnon")?,
        kibibytes(status, "RssFile")?,
        kibibytes(status, "RssShmem")?,
        kibibytes(status, "VmHWM")?,
    ];
    let peak_anonymous_bytes = peak.saturating_sub(file_bytes + shared_bytes).max(anonymous_bytes);
    Some(Resident { anonymous_bytes, file_bytes, shared_bytes, peak_anonymous_bytes })
}

fn read_proc(path: &str) -> Option<String> {
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
    }

    #[test]
    fn the_peak_of_anonymous_memory_leaves_files_and_shared_memory_out() {
        let status = "VmHWM:\t 100 kB\nRssAnon:\t 40 kB\nRssFile:\t 20 kB\nRssShmem:\t 10 kB\n";
        let found = parse_kinds(status).unwrap();
        assert_eq!((found.anonymous_bytes, found.file_bytes, found.shared_bytes), (40 << 10, 20 << 10, 10 << 10));
        assert_eq!(found.peak_anonymous_bytes, 70 << 10);
        // The kernel updates the high-water mark late, so it can be below the sum of the current figures.
        let late = status.replace("VmHWM:\t 100", "VmHWM:\t 60");
        assert_eq!(parse_kinds(&late).unwrap().peak_anonymous_bytes, 40 << 10);
        assert_eq!(parse_kinds("RssAnon: 1 kB\nVmHWM: 1 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn released_memory_stays_in_the_peak() {
        let block = vec![1u8; 64 << 20];
        assert_eq!(block.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        drop(block);
        // Less the files and shared memory that other tests of this process have mapped since.
        assert!(resident().unwrap().peak_anonymous_bytes >= 32 << 20);
    }
}

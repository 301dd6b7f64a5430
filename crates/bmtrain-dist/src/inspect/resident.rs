//! Resident memory of this process by kind: anonymous, of files, shared.
//!
//! Anonymous memory is what the process itself needs: heap, stacks and the pools of CPU ranks. Pages of mapped files,
//! such as the program, are the page cache's and can be read again; shared memory belongs to all ranks of the machine
//! together. Linux only; elsewhere the figures are absent. Called by the programs for the metrics file and the plan of
//! a run.

use super::process::{kibibytes, read_proc};

/// Resident memory of this process, bytes.
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

/// Resident memory of this process; `None` where `/proc` does not provide it.
pub fn resident() -> Option<Resident> {
    parse(&read_proc("/proc/self/status")?)
}

fn parse(status: &str) -> Option<Resident> {
    let [anonymous_bytes, file_bytes, shared_bytes, peak] = [
        kibibytes(status, "RssAnon")?,
        kibibytes(status, "RssFile")?,
        kibibytes(status, "RssShmem")?,
        kibibytes(status, "VmHWM")?,
    ];
    let peak_anonymous_bytes = peak.saturating_sub(file_bytes + shared_bytes).max(anonymous_bytes);
    Some(Resident { anonymous_bytes, file_bytes, shared_bytes, peak_anonymous_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_anonymous_memory_leaves_files_and_shared_memory_out() {
        let status = "VmHWM:\t 100 kB\nRssAnon:\t 40 kB\nRssFile:\t 20 kB\nRssShmem:\t 10 kB\n";
        let found = parse(status).unwrap();
        assert_eq!((found.anonymous_bytes, found.file_bytes, found.shared_bytes), (40 << 10, 20 << 10, 10 << 10));
        assert_eq!(found.peak_anonymous_bytes, 70 << 10);
        // The kernel updates the high-water mark late, so it can be below the sum of the current figures.
        let late = status.replace("VmHWM:\t 100", "VmHWM:\t 60");
        assert_eq!(parse(&late).unwrap().peak_anonymous_bytes, 40 << 10);
        assert_eq!(parse("RssAnon: 1 kB\nVmHWM: 1 kB\n"), None);
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

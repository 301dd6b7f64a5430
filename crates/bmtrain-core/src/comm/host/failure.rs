//! The first failure of a group, where all its ranks can read it.
//!
//! The rank that notices first that something is wrong writes it down, once; the others find it while they wait or at
//! their next call, and so all of them report the same failure.

use super::layout::{FAILURE, FAILURE_BYTES};
use super::mapping::Region;
use crate::comm::engine::Failure;
use std::sync::atomic::Ordering;

const EMPTY: u64 = 0;
const BEING_WRITTEN: u64 = 1;
const WRITTEN: u64 = 2;

/// Integers of a failure, after the one of its state.
const WORDS: usize = FAILURE_BYTES / 8 - 1;

fn offset(word: usize) -> usize {
    FAILURE + 8 + 8 * word
}

/// Write a failure down, unless there is one already. A rank that dies while it writes leaves none; the others notice
/// that its process has ended.
pub(super) fn write(failure: &Failure, region: &Region) {
    let state = region.slot(FAILURE);
    if state.compare_exchange(EMPTY, BEING_WRITTEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    for (index, word) in failure.words(WORDS).into_iter().enumerate() {
        region.slot(offset(index)).store(word, Ordering::Relaxed);
    }
    state.store(WRITTEN, Ordering::Release);
}

pub(super) fn read(region: &Region) -> Option<Failure> {
    if region.slot(FAILURE).load(Ordering::Acquire) != WRITTEN {
        return None;
    }
    let words: Vec<u64> = (0..WORDS).map(|index| region.slot(offset(index)).load(Ordering::Relaxed)).collect();
    Some(Failure::read(&words))
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Layout, PAGE};
    use super::super::mapping::SharedFile;
    use super::*;

    fn region() -> Region {
        let (file, layout) = (SharedFile::without_name().unwrap(), Layout::new(1, 4096));
        file.reserve(0, layout.control_bytes().max(PAGE)).unwrap();
        Region::map(&file, 0, layout.bytes()).unwrap()
    }

    fn failure(reason: String) -> Failure {
        let (operation, ranks) = ("all_reduce of 3 x f32".into(), vec![1, 2]);
        Failure { group: 0, operation, sequence: 5, code: 75, reason, ranks }
    }

    #[test]
    fn the_first_failure_is_read_as_it_was_written() {
        for length in [0, 1, 7, 8, 9, 1000] {
            let region = region();
            assert_eq!(read(&region), None);
            let first = failure("é".repeat(length));
            write(&first, &region);
            write(&failure("second".into()), &region);
            let found = read(&region).unwrap();
            assert!(first.reason.starts_with(&found.reason) && (length > 500 || found == first), "{length}");
        }
    }

    #[test]
    fn malformed_words_in_shared_memory_are_shown_and_nothing_else() {
        let region = region();
        write(&failure("short".into()), &region);
        // Its counts, the lengths of its texts and its text.
        for (index, word) in [(2, 0), (3, u64::MAX), (4, u64::MAX)] {
            region.slot(offset(index)).store(word, Ordering::Relaxed);
        }
        let found = read(&region).unwrap();
        assert!(found.operation.len() >= 8 * (WORDS - 4) && found.reason.is_empty());
    }
}

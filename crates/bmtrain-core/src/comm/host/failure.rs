//! The first failure of a group, where all its ranks can read it.
//!
//! Defines [`Failure`]. Whoever notices first that something is wrong writes it down, once; the others find it while
//! they wait or at their next call, and so all of them tell the same story.

use super::group::members;
use super::layout::{FAILURE, FAILURE_BYTES};
use super::mapping::Region;
use crate::error::Error;
use std::sync::atomic::Ordering;

const EMPTY: u64 = 0;
const BEING_WRITTEN: u64 = 1;
const WRITTEN: u64 = 2;
/// The exit code has the bits above the state.
const CODE_SHIFT: u32 = 8;
/// The exit code after which another start can succeed by itself: that of a lost rank.
const PEER: u8 = 6;

const RANKS: usize = FAILURE + 8;
const SEQUENCE: usize = FAILURE + 16;
/// Lengths of the two texts, one in each half.
const LENGTHS: usize = FAILURE + 24;
const TEXT: usize = FAILURE + 32;
const TEXT_BYTES: usize = FAILURE_BYTES - 32;

/// What went wrong.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    /// In which call; empty if in none.
    pub(super) operation: String,
    /// Which one.
    pub(super) sequence: u64,
    /// The exit code of the rank that gave up, for all ranks; zero if it has none.
    pub(super) code: u8,
    /// What happened.
    pub(super) reason: String,
    /// Whom it happened to, in the numbering of the group whose failure it is.
    pub(super) ranks: u64,
}

impl Failure {
    /// Write it down, unless another one is there already.
    pub(super) fn write(&self, region: &Region) {
        let state = region.word(FAILURE);
        if state.compare_exchange(EMPTY, BEING_WRITTEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let operation = cut(&self.operation, TEXT_BYTES / 4);
        let reason = cut(&self.reason, TEXT_BYTES - operation.len());
        region.word(RANKS).store(self.ranks, Ordering::Relaxed);
        region.word(SEQUENCE).store(self.sequence, Ordering::Relaxed);
        region.word(LENGTHS).store((operation.len() as u64) << 32 | reason.len() as u64, Ordering::Relaxed);
        let mut text = [operation.as_bytes(), reason.as_bytes()].concat();
        text.resize(text.len().next_multiple_of(8), 0);
        for (place, eight) in (TEXT..).step_by(8).zip(text.chunks_exact(8)) {
            let word = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            region.word(place).store(word, Ordering::Relaxed);
        }
        state.store(WRITTEN | u64::from(self.code) << CODE_SHIFT, Ordering::Release);
    }

    /// Whether there is one. A rank that died while it wrote leaves none; its death is noticed by itself.
    pub(super) fn is_there(region: &Region) -> bool {
        region.word(FAILURE).load(Ordering::Acquire) & WRITTEN != 0
    }

    /// The failure that is written down.
    pub(super) fn read(region: &Region) -> Option<Self> {
        if !Failure::is_there(region) {
            return None;
        }
        let lengths = region.word(LENGTHS).load(Ordering::Relaxed);
        let operation = ((lengths >> 32) as usize).min(TEXT_BYTES);
        let reason = (lengths as u32 as usize).min(TEXT_BYTES - operation);
        let words = (0..(operation + reason).div_ceil(8)).map(|i| region.word(TEXT + 8 * i).load(Ordering::Relaxed));
        let text: Vec<u8> = words.flat_map(u64::to_le_bytes).take(operation + reason).collect();
        // What others wrote may be anything; it is shown and nothing else.
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(char::is_control, " ");
        Some(Failure {
            operation: shown(&text[..operation]),
            sequence: region.word(SEQUENCE).load(Ordering::Relaxed),
            code: (region.word(FAILURE).load(Ordering::Relaxed) >> CODE_SHIFT) as u8,
            reason: shown(&text[operation..]),
            ranks: region.word(RANKS).load(Ordering::Relaxed),
        })
    }
}

impl Failure {
    /// Whether it has an exit code that holds for all ranks: not that of a rank which lost another one.
    pub(super) fn has_exit_code(&self) -> bool {
        !matches!(self.code, 0 | PEER)
    }

    /// The error of all ranks with that code. `of_all` is a rank's number among all.
    pub(super) fn rank_ended(&self, of_all: impl Fn(usize) -> Option<usize>) -> Error {
        let rank = members(self.ranks).find_map(of_all).unwrap_or(0);
        Error::RankEnded { rank, code: self.code, reason: self.reason.clone() }
    }
}

/// The beginning of a text.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
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
        Failure { operation: "all_reduce of 3 x f32".into(), sequence: 5, code: 75, reason, ranks: 6 }
    }

    #[test]
    fn the_first_failure_is_read_as_it_was_written() {
        for length in [0, 1, 7, 8, 9, 1000] {
            let region = region();
            assert_eq!(Failure::read(&region), None);
            let first = failure("é".repeat(length));
            first.write(&region);
            failure("second".into()).write(&region);
            let read = Failure::read(&region).unwrap();
            assert!(first.reason.starts_with(&read.reason) && (length > 500 || read == first), "{length}");
        }
    }

    #[test]
    fn nonsense_in_shared_memory_is_shown_and_nothing_else() {
        let region = region();
        failure("short".into()).write(&region);
        region.word(LENGTHS).store(u64::MAX, Ordering::Relaxed);
        region.word(TEXT).store(u64::MAX, Ordering::Relaxed);
        let read = Failure::read(&region).unwrap();
        assert!(read.operation.len() >= TEXT_BYTES && read.reason.is_empty());
    }
}

//! Names of directories and files in a directory of checkpoints, and which names are accepted at all.
//!
//! Defines [`CheckpointName`] and the names of directories that are being written (`step-N.tmp-ID`) or removed
//! (`.gone-step-N-HASH`). Called by the writer, the store and pruning.

use super::hash::ContentHash;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The file that makes a directory a checkpoint.
pub const MANIFEST_FILE: &str = "manifest.json";

const GONE: &str = ".gone-";

/// The name of a committed checkpoint, `step-N-HHHHHHHH`: its step and the beginning of its manifest's hash.
///
/// Sorted by step; of one step, by hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CheckpointName {
    step: u64,
    short: String,
}

impl CheckpointName {
    /// The name of the checkpoint whose manifest has this hash.
    pub fn new(step: u64, manifest: &ContentHash) -> Self {
        CheckpointName { step, short: manifest.short() }
    }

    /// Optimizer steps done when it was saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether this is the name for a manifest with this hash.
    pub fn fits(&self, manifest: &ContentHash) -> bool {
        self.short == manifest.short()
    }

    /// The name under which the directory waits for its removal.
    pub(super) fn gone(&self) -> String {
        format!("{GONE}{self}")
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{}-{}", self.step, self.short)
    }
}

/// The text is not the name of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint is named step-N-HHHHHHHH, with eight lower-case hexadecimal digits")]
pub struct NotAName;

impl FromStr for CheckpointName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let (step, short) = text.strip_prefix("step-").and_then(|rest| rest.split_once('-')).ok_or(NotAName)?;
        let name = CheckpointName { step: step.parse().map_err(|_| NotAName)?, short: short.into() };
        let digits = short.len() == 8 && short.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        // Written back, so that `+7` and `007` are not second spellings of 7.
        if digits && name.to_string() == text { Ok(name) } else { Err(NotAName) }
    }
}

impl PartialOrd for CheckpointName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CheckpointName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.step.cmp(&other.step).then_with(|| self.short.cmp(&other.short))
    }
}

pub(super) fn temporary(step: u64, id: &str) -> String {
    format!("step-{step}.tmp-{id}")
}

/// Whether a directory of this name was left by an interrupted save or an interrupted removal.
pub(super) fn is_leftover(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix(GONE) {
        return rest.parse::<CheckpointName>().is_ok();
    }
    let parts = name.strip_prefix("step-").and_then(|rest| rest.split_once(".tmp-"));
    parts.is_some_and(|(step, id)| step.parse::<u64>().is_ok_and(|n| n.to_string() == step) && is_id(id))
}

/// The id of the save that left a directory of this name.
pub(super) fn id_of(name: &str) -> Option<&str> {
    name.strip_prefix("step-").and_then(|rest| rest.split_once(".tmp-")).map(|(_, id)| id)
}

pub(super) fn shard_file(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

/// Whether `id` may tell one save from another.
pub(super) fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Whether a manifest may name this file: one plain component that cannot leave the directory, and not the manifest.
pub(super) fn is_file_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=128).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.') && name != MANIFEST_FILE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_were_written_and_in_no_other_spelling() {
        let name = CheckpointName::new(120, &ContentHash::of(b"x"));
        assert_eq!(name.to_string().parse(), Ok(name.clone()));
        let digits = &name.to_string()[9..];
        for wrong in ["step-007-", "step-+7-", "step--7-", "step-7", "Step-7-", "step-18446744073709551616-"] {
            assert_eq!(format!("{wrong}{digits}").parse::<CheckpointName>(), Err(NotAName), "{wrong}");
        }
        for wrong in
            ["step-7-0123456", "step-7-0123456g", "step-7-ABCDEF01", "step-7-0123-4567", "", "step-7-012345678"]
        {
            assert_eq!(wrong.parse::<CheckpointName>(), Err(NotAName), "{wrong}");
        }
    }

    #[test]
    fn steps_sort_as_numbers() {
        let mut names = ["step-9-aaaaaaaa", "step-10-00000000", "step-9-00000000"].map(|n| n.parse().unwrap());
        names.sort();
        assert_eq!(
            names.map(|n: CheckpointName| n.to_string()),
            ["step-9-00000000", "step-9-aaaaaaaa", "step-10-00000000"]
        );
    }

    #[test]
    fn only_our_own_leftovers_count_as_such() {
        for ours in ["step-3.tmp-a1", ".gone-step-3-01234567"] {
            assert!(is_leftover(ours), "{ours}");
        }
        for other in
            ["step-3-01234567", "step-3.tmp-", "step-x.tmp-a", "step-3.tmp-a/b", ".gone-x", "notes.tmp-a", ".."]
        {
            assert!(!is_leftover(other), "{other}");
        }
    }

    #[test]
    fn file_names_are_plain() {
        assert!(is_file_name("rank-0.safetensors"));
        for bad in ["", ".", "..", "../a", "/a", "a/b", "a\\b", "a\0", ".hidden", MANIFEST_FILE, "a b", "é"] {
            assert!(!is_file_name(bad), "{bad:?}");
        }
        assert!(!is_file_name(&"a".repeat(129)));
    }
}

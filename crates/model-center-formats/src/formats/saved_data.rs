//! Whether a directory was written by `save_to_disk` of the library `datasets`, by the names of its files.

use std::path::Path;

/// The list of the files of a set.
pub(crate) const STATE_FILE: &str = "state.json";
/// The list of the splits of a dictionary.
pub(crate) const SPLITS_FILE: &str = "dataset_dict.json";

/// Kind of a directory for the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedKind {
    /// One data set.
    Set,
    /// A set for each split.
    Dictionary,
}

/// Whether a directory is of `save_to_disk`.
pub fn saved_kind(directory: &Path) -> Option<SavedKind> {
    let has = |name: &str| directory.join(name).is_file();
    if has(SPLITS_FILE) {
        return Some(SavedKind::Dictionary);
    }
    (has(STATE_FILE) && has("dataset_info.json")).then_some(SavedKind::Set)
}

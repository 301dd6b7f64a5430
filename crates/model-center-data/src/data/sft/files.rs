//! Where the files of a split are.

use std::path::{Path, PathBuf};

use super::DataSet;
use crate::data::{Format, Split};
use crate::{Error, Result};
use model_center_formats::io::arrow::{NOTES, not_one};
use model_center_formats::{
    KnownDirectory,
    saved_data::{SavedKind, saved_kind},
};

/// Path of a split: the file, or the dataset's directory; `None` where the set has no such split.
pub(super) fn path_of(set: &DataSet, split: Split) -> Option<PathBuf> {
    match split {
        Split::Train => Some(set.path.clone()),
        Split::Validation => match &set.eval {
            Some(eval) => Some(eval.clone()),
            None => {
                let has_split = set.class.map_or(has_directory as fn(&Path, Split) -> bool, |class| class.has_split);
                has_split(&set.path, split).then(|| set.path.clone())
            }
        },
    }
}

/// Whether a data set is a directory with one for the split.
pub(super) fn has_directory(path: &Path, split: Split) -> bool {
    path.join(split.file_stem()).is_dir()
}

/// The files of records that a path stands for: itself, also where it is a directory that `datasets` saved; or those in
/// the directory of the split, or in the directory itself if it has none, in the order of their names.
pub(super) fn record_files(path: &Path, split: Split) -> Result<Vec<PathBuf>> {
    if !path.is_dir() || saved_kind(path) == Some(SavedKind::Set) {
        return Ok(vec![path.to_owned()]);
    }
    let inner = path.join(split.file_stem());
    let directory = if inner.is_dir() { inner } else { path.to_owned() };
    match saved_kind(&directory) {
        Some(SavedKind::Set) => return Ok(vec![directory]),
        Some(SavedKind::Dictionary) => return Err(not_one(&directory)),
        None => {}
    }
    let failed = |error| Error::file("read", &directory, error, "check the directory");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let is_note = NOTES.iter().any(|name| file.file_name() == Some(name.as_ref()));
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let has_records = Format::of(&file).is_ok_and(|format| format != Format::Text);
        if file.is_file() && has_records && !is_hidden && !is_note {
            files.push(file);
        }
    }
    if files.is_empty() {
        if let Some(known) = KnownDirectory::of(&directory) {
            return Err(known.no_data());
        }
        let reason = "the directory has no file of records";
        let fix = format!("put .jsonl files into {}", path.join(split.file_stem()).display());
        return Err(Error::data(directory.display().to_string(), reason, fix));
    }
    files.sort();
    Ok(files)
}

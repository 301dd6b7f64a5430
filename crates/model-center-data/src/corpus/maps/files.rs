//! Where the maps of a corpus are kept, and the record beside them of what they were computed from.
//!
//! Defines [`MapPlace`], shared by the index maps and the sentence maps. The record `.json` has hashes of the maps and
//! is written last, so that maps of an interrupted process are never used.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::fingerprint::hash_file;
use super::super::token_file::TokenFile;
use crate::{Error, Result};
use model_center_base::file::{read_text, write_atomic};

const MAX_RECORD_BYTES: u64 = 1 << 16;

/// The files of one set of maps.
pub(super) struct MapPlace {
    record: PathBuf,
    /// The maps, in the order of their hashes in the record.
    pub(super) maps: Vec<PathBuf>,
}

impl MapPlace {
    /// `BASE.json` and maps of these names in `directory`, by default beside the corpus.
    pub(super) fn new(file: &TokenFile, directory: Option<&Path>, base: &str, names: &[String]) -> MapPlace {
        let directory = directory.unwrap_or_else(|| file.prefix().parent().unwrap_or(Path::new("")));
        MapPlace {
            record: directory.join(format!("{base}.json")),
            maps: names.iter().map(|name| directory.join(name)).collect(),
        }
    }

    /// The record, if there is one of this form.
    pub(super) fn record<R: DeserializeOwned>(&self) -> Option<R> {
        serde_json::from_str(&read_text(&self.record, MAX_RECORD_BYTES).ok()?).ok()
    }

    /// Whether the maps have these hashes.
    pub(super) fn have(&self, hashes: &[String]) -> bool {
        let found = self.maps.iter().map(|map| hash_file(map)).collect::<Result<Vec<_>>>();
        found.is_ok_and(|found| found == hashes)
    }

    /// Writes the record, after the maps.
    ///
    /// # Errors
    /// [`Error::File`] if writing fails.
    pub(super) fn finish(&self, record: &impl Serialize) -> Result<()> {
        let text =
            serde_json::to_string_pretty(record).map_err(|e| Error::argument("maps", e.to_string(), "report this"))?;
        write_atomic(&self.record, (text + "\n").as_bytes())
    }

    /// The error for maps that do not fit the record.
    pub(super) fn mismatch(&self) -> Error {
        let fix = "remove the index maps: they are computed again";
        Error::data(self.record.display().to_string(), "the maps do not fit the record", fix)
    }
}

/// The last part of a corpus's prefix, which names of maps begin with.
pub(super) fn stem(file: &TokenFile) -> String {
    file.prefix().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Checks a part's name, which names of maps contain.
///
/// # Errors
/// [`Error::Argument`] for other characters than letters, digits and `-`.
pub(super) fn check_part(name: &str) -> Result<()> {
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        let reason = format!("{name:?} is not a name of a part");
        return Err(Error::argument("part", reason, "use letters and digits, such as train"));
    }
    Ok(())
}

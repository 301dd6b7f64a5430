//! `run.json`: whose an output directory is, and what in it the run wrote.
//!
//! Defines [`Marker`], its form, and [`read_marker`], which trusts nothing in it: the file may have been edited. Called
//! by [`OutputDirectory`](super::OutputDirectory).

use super::lr_range::LR_RANGE_FILE;
use super::model_files::{FileHashes, kind_name};
use super::output::{CHECKPOINT_DIRECTORY, LAST_MODEL_DIRECTORY, MARKER, MODEL_DIRECTORY, RECIPE_FILE, REFERENCE_FILE};
use super::tensorboard::TENSORBOARD_DIRECTORY;
use super::text_log::TEXT_LOG_FILE;
use crate::{Error, Result};
use bmtrain_dist::checkpoint::ContentHash;
use model_center_base::error::OutputFault;
use model_center_base::file::is_plain_name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A marker is about 2 KB, and has about 130 bytes more for every file of a model; a larger file of that name is not
/// ours.
const MAX_MARKER_BYTES: u64 = 1 << 20;
/// The metrics file of a run whose marker names no other.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// Beginning of every metrics file.
const METRICS_BEGIN: &[u8] = b"{\"kind\":\"";
const FIX: &str = "set output.dir to another directory, or remove this one yourself";

/// The outputs of every run whose names no setting changes.
pub const FIXED_NAMES: [&str; 8] = [
    RECIPE_FILE,
    MODEL_DIRECTORY,
    LAST_MODEL_DIRECTORY,
    CHECKPOINT_DIRECTORY,
    TENSORBOARD_DIRECTORY,
    TEXT_LOG_FILE,
    LR_RANGE_FILE,
    REFERENCE_FILE,
];

/// The contents of `run.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marker {
    pub(super) format: u32,
    pub(super) recipe_hash: String,
    /// Whether the run came to its end.
    #[serde(default)]
    pub(super) finished: bool,
    /// End of the run; earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<Ended>,
    /// The step whose weights are in [`MODEL_DIRECTORY`] as the best so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) best_step: Option<u64>,
    /// Failures of the run after it had begun at the same step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<Failed>,
    /// Names in the directory that belong to the run, besides the marker.
    pub names: Vec<String>,
    /// Hashes of the files in each model directory; earlier versions did not record them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) models: BTreeMap<String, FileHashes>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failed {
    pub(super) from_step: u64,
    pub(super) weight: u64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// Steps done.
    pub step: u64,
    /// The name of a [`StopReason`](super::StopReason).
    pub(crate) reason: String,
}

/// The marker in this file.
pub fn read_marker(path: &Path) -> Result<Marker> {
    let wrong = |why: String| unreadable(path, &why, FIX);
    let kind = fs::symlink_metadata(path).map_err(|e| wrong(e.to_string()))?;
    if !kind.is_file() || kind.len() > MAX_MARKER_BYTES {
        return Err(wrong("it is not a small plain file".into()));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    file.take(MAX_MARKER_BYTES).read_to_string(&mut text).map_err(|e| wrong(e.to_string()))?;
    let marker: Marker = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if marker.format != 1 {
        return Err(wrong(format!("it is of format {}, and this program knows 1", marker.format)));
    }
    // These names get removed by --overwrite, so they must not lead out of the directory.
    if let Some(name) = marker.names.iter().find(|name| !is_plain_name(name) || *name == MARKER) {
        return Err(wrong(format!("{name:?} is not a name of an output")));
    }
    if let Some(name) =
        marker.models.keys().find(|name| ![MODEL_DIRECTORY, LAST_MODEL_DIRECTORY].contains(&name.as_str()))
    {
        return Err(wrong(format!("{name:?} is not the directory of a model")));
    }
    match marker.models.values().find_map(FileHashes::fault) {
        Some(fault) => Err(wrong(fault)),
        None => Ok(marker),
    }
}

impl Marker {
    /// Whether the files in `dir` that the marker names can be the run's outputs. The metrics file may have any name;
    /// before outputs are removed, it must begin as a metrics file. On an error the marker or the directory was edited,
    /// and nothing may be removed.
    pub(super) fn check_outputs(&self, dir: &Path, are_removed: bool) -> Result<()> {
        let of_fixed_name = |name: &&String| FIXED_NAMES.contains(&name.as_str());
        for name in self.names.iter().filter(|name| !of_fixed_name(name)) {
            let path = dir.join(name);
            // Absent, or a link that leads nowhere.
            let Ok(found) = fs::metadata(&path) else { continue };
            if !found.is_file() {
                return Err(not_a_file(&path, found.file_type()));
            }
            if are_removed && !begins_as_metrics(&path)? {
                let why = format!("it lists {name:?}, which is not an output of a run: nothing was removed");
                let fix = "move that file elsewhere, or set output.dir to another directory";
                return Err(unreadable(&dir.join(MARKER), &why, fix));
            }
        }
        Ok(())
    }

    /// Why this is not the run of the recipe with `hash`.
    pub(super) fn difference(&self, hash: &str) -> String {
        let (there, here) = (short(&self.recipe_hash), short(hash));
        if ContentHash::parse(&self.recipe_hash).is_none() {
            return format!("{MARKER} is damaged: its recipe hash is not 64 lower-case hexadecimal digits");
        }
        if there == here {
            return format!(
                "{MARKER} is damaged: its recipe hash begins like this recipe's, {here}, and differs after that"
            );
        }
        format!("the output directory holds the run of another recipe: {there} there, {here} here")
    }
}

/// The metrics file of the run in a directory, by the run's mark or its usual name.
///
/// # Errors
/// [`Error::Output`] if there is neither.
pub fn metrics_file(directory: &Path) -> Result<PathBuf> {
    let has = |name: &str| directory.join(name).symlink_metadata().is_ok_and(|found| found.is_file());
    let by_marker = || {
        let marker = read_marker(&directory.join(MARKER)).ok()?;
        let name = marker.names.into_iter().find(|name| !FIXED_NAMES.contains(&name.as_str()))?;
        Some(directory.join(name))
    };
    if has(MARKER) {
        return Ok(by_marker().unwrap_or_else(|| directory.join(METRICS_FILE)));
    }
    if has(METRICS_FILE) {
        return Ok(directory.join(METRICS_FILE));
    }
    let reason = format!("there is neither {MARKER} nor {METRICS_FILE} in it");
    Err(unusable(directory, reason, "give the output directory of a run"))
}

/// The error for something else in the place of the metrics file.
pub(super) fn not_a_file(path: &Path, kind: fs::FileType) -> Error {
    let reason = format!("the metrics file is {}, not a regular file", kind_name(kind));
    let fix = "remove it, or set log.metrics to another name";
    unusable(path, reason, fix)
}

/// The error for a directory that cannot be used because of what is at `path`.
pub(super) fn unusable(path: &Path, reason: impl Into<String>, fix: &str) -> Error {
    Error::output(OutputFault::Unusable, path.display().to_string(), reason, fix)
}

fn unreadable(path: &Path, why: &str, fix: &str) -> Error {
    unusable(path, format!("the mark of an earlier run cannot be read: {why}"), fix)
}

fn begins_as_metrics(path: &Path) -> Result<bool> {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(METRICS_BEGIN.len() as u64).read_to_end(&mut begin));
    read.map_err(|e| Error::file("read", path, e, "let the run read this file, or remove it"))?;
    // A run may have been cut off before the first line was whole.
    Ok(METRICS_BEGIN.starts_with(&begin))
}

/// The first digits of a hash, as shown in messages; the marker may hold anything.
pub(super) fn short(hash: &str) -> String {
    hash.chars().take(12).filter(|c| c.is_ascii_alphanumeric()).collect()
}

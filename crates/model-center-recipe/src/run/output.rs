//! The output directory: one directory holds one run.
//!
//! The file [`MARKER`] records which recipe the directory belongs to and which names in it are the run's own; only
//! those are ever removed. A directory with anything else in it is refused; one with a run is replaced or resumed on
//! request. A run holds a lock, so that two processes cannot share a directory.

use super::lock::{LOCK, take_lock};
use super::marker::{Ended, Failed, Marker, not_a_file, read_marker, short, unusable};
use super::metrics_log::MetricsLog;
use super::model_files::{Damage, FileHashes, unrecorded_damage};
use super::text_log::{TEXT_LOG_FILE, TextLog};
use crate::run::StopReason;
use crate::{Error, Result};
use model_center_base::error::OutputFault;
use model_center_base::file::is_output_name;
use model_center_base::file::{StagedDirectory, prepared_name, remove, write_atomic};
use model_center_formats::known_directory::{RUN_FILE, RUN_MODEL};
use rustix::fs::Access;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The file that records the recipe and the outputs of the run.
pub const MARKER: &str = RUN_FILE;
/// The recipe with all its values.
pub const RECIPE_FILE: &str = "recipe.toml";
/// The directory of the best weights, or of the last ones where there are no best.
pub const MODEL_DIRECTORY: &str = RUN_MODEL;
/// The directory of the checkpoints.
pub const CHECKPOINT_DIRECTORY: &str = "checkpoints";
/// The log-probabilities of pairs under the model that training begins with.
pub const REFERENCE_FILE: &str = "reference.txt";
/// A file of this name asks the run to save and stop.
pub const STOP_FILE: &str = "stop";
/// The directory of the last weights beside the best ones.
pub const LAST_MODEL_DIRECTORY: &str = "model-last";

/// Treatment of a run that is in the directory already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfThere {
    /// Refuse it.
    Refuse,
    /// Remove the run and begin anew; only a run of the same recipe.
    Replace,
    /// Resume it.
    Continue {
        /// Also if its recipe is another one.
        accept_change: bool,
    },
}

/// The run that a directory held before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// No run.
    Nothing,
    /// An unfinished run.
    Unfinished,
    /// A finished run.
    Finished,
}

/// The directory of a run in progress. Dropping it releases the lock.
#[derive(Debug)]
pub struct OutputDirectory {
    dir: PathBuf,
    marker: Marker,
    earlier: Earlier,
    /// Hash of this run's recipe; the marker keeps the earlier run's hash until [`OutputDirectory::take_over`].
    recipe_hash: String,
    /// Locked as long as it is open.
    _lock: File,
}

impl OutputDirectory {
    /// Result of a future [`OutputDirectory::create`]; changes nothing.
    pub fn check(dir: &Path, recipe_hash: &str, if_there: IfThere) -> Result<Earlier> {
        existing_run(dir, recipe_hash, if_there).map(|marker| earlier(marker.as_ref()))
    }

    /// The first file of a model that the run in `dir` wrote and that is missing or changed since; reads every byte of
    /// its models. Of a run that recorded no hashes only what [`unrecorded_damage`] sees.
    pub fn check_models(dir: &Path) -> Result<Option<Damage>> {
        let marker = read_marker(&dir.join(MARKER))?;
        for (name, hashes) in &marker.models {
            if let Some(damage) = hashes.damage(&dir.join(name))? {
                return Ok(Some(damage));
            }
        }
        if marker.models.is_empty() { unrecorded_damage(&dir.join(MODEL_DIRECTORY)) } else { Ok(None) }
    }

    /// End of the run in `dir`, by its own record; `None` for one of an earlier version.
    ///
    /// # Errors
    /// A marker that cannot be read.
    pub fn ended(dir: &Path) -> Result<Option<Ended>> {
        Ok(read_marker(&dir.join(MARKER))?.ended)
    }

    /// Creates the directory, or treats an earlier run as `if_there` specifies, and claims it for this run.
    ///
    /// # Errors
    /// The directory is read-only, is not a directory, holds files of no run or the run of another recipe, holds a run
    /// with [`IfThere::Refuse`], or is in use by another process.
    pub fn create(dir: &Path, recipe_hash: &str, if_there: IfThere) -> Result<Self> {
        existing_run(dir, recipe_hash, if_there)?;
        fs::create_dir_all(dir).map_err(|e| Error::file("create the output directory", dir, e, WRITABLE))?;
        let lock = take_lock(dir)?;
        // Looked at again under the lock: another process may have been faster.
        let marker = existing_run(dir, recipe_hash, if_there)?;
        let earlier = earlier(marker.as_ref());
        let best_step = marker.as_ref().and_then(|marker| marker.best_step);
        let ended = marker.as_ref().and_then(|marker| marker.ended.clone());
        let failed = marker.as_ref().and_then(|marker| marker.failed).filter(|_| if_there != IfThere::Replace);
        let hash = marker.as_ref().map(|marker| marker.recipe_hash.clone());
        let (names, models) =
            marker.map_or_else(|| (Vec::new(), BTreeMap::new()), |marker| (marker.names, marker.models));
        // What a killed process was preparing: a name is in the marker before anything of that name is begun, and the
        // marker itself is the first of all.
        for name in names_in(dir)? {
            let what = prepared_name(&name);
            if what.is_some_and(|what| what == MARKER || names.iter().any(|own| own == what)) {
                remove(&dir.join(&name))?;
            }
        }
        let (was, is_finished) = (hash.unwrap_or_else(|| recipe_hash.to_owned()), earlier == Earlier::Finished);
        let marker =
            Marker { format: 1, recipe_hash: was, finished: is_finished, ended, best_step, failed, names, models };
        let hash = recipe_hash.to_owned();
        let mut directory = OutputDirectory { dir: dir.to_owned(), marker, earlier, recipe_hash: hash, _lock: lock };
        match if_there {
            // Until it is known that there is something to go on with, the earlier run stays what it was.
            IfThere::Continue { .. } if earlier != Earlier::Nothing => {}
            IfThere::Refuse | IfThere::Replace | IfThere::Continue { .. } => directory.begin_anew()?,
        }
        Ok(directory)
    }

    /// Resumes the run in the directory: the marker now names this recipe, unfinished.
    pub fn take_over(&mut self) -> Result<()> {
        self.marker.recipe_hash.clone_from(&self.recipe_hash);
        self.mark_unfinished();
        self.write_marker()
    }

    fn mark_unfinished(&mut self) {
        (self.marker.finished, self.marker.ended) = (false, None);
    }

    /// Contents of the directory before this run took it.
    pub fn earlier(&self) -> Earlier {
        self.earlier
    }

    /// Removes the outputs of the earlier run.
    pub fn begin_anew(&mut self) -> Result<()> {
        self.marker.check_outputs(&self.dir, true)?;
        for name in &self.marker.names {
            remove(&self.dir.join(name))?;
        }
        // The request was meant for the earlier run.
        remove(&self.dir.join(STOP_FILE))?;
        self.marker.names.clear();
        self.marker.models.clear();
        self.marker.best_step = None;
        self.earlier = Earlier::Nothing;
        self.take_over()
    }

    /// The step whose weights are in [`MODEL_DIRECTORY`] as the best so far.
    pub fn best_step(&self) -> Option<u64> {
        self.marker.best_step
    }

    /// The hashes of what the run wrote into a model directory, if they are recorded.
    pub fn model(&self, name: &str) -> Option<&FileHashes> {
        self.marker.models.get(name)
    }

    /// The first recorded file of the model directory `name` that is missing or changed; see
    /// [`OutputDirectory::check_models`].
    pub fn model_damage(&self, name: &str) -> Result<Option<Damage>> {
        let dir = self.dir.join(name);
        self.model(name).map_or_else(|| unrecorded_damage(&dir), |hashes| hashes.damage(&dir))
    }

    /// Forgets the hashes of the model directory `name`, before it is replaced or removed.
    pub fn forget_model(&mut self, name: &str) -> Result<()> {
        self.marker.models.remove(name);
        if name == MODEL_DIRECTORY {
            self.marker.best_step = None;
        }
        self.mark_unfinished();
        self.write_marker()
    }

    /// Records the hashes of the model directory `name` and, for [`MODEL_DIRECTORY`], the step of the best weights.
    pub fn record_model(&mut self, name: &str, hashes: FileHashes, best_step: Option<u64>) -> Result<()> {
        self.marker.models.insert(name.to_owned(), hashes);
        if name == MODEL_DIRECTORY {
            self.marker.best_step = best_step;
        }
        self.write_marker()
    }

    /// The total weight of consecutive failures of runs resumed from `step`.
    pub fn failures_from(&self, step: u64) -> u64 {
        self.marker.failed.filter(|failed| failed.from_step == step).map_or(0, |failed| failed.weight)
    }

    /// Records a failure, with its weight, of the run resumed from `from_step`.
    pub fn note_failure(&mut self, from_step: u64, weight: u64) -> Result<()> {
        self.marker.failed = Some(Failed { from_step, weight: self.failures_from(from_step) + weight });
        self.write_marker()
    }

    /// Records that the run is finished, after this number of steps.
    pub fn finish(&mut self, step: u64, reason: StopReason) -> Result<()> {
        self.marker.finished = true;
        self.marker.ended = Some(Ended { step, reason: reason.name().to_owned() });
        self.write_marker()
    }

    /// The path of a directory that belongs to the run and is written by others, such as [`CHECKPOINT_DIRECTORY`].
    pub fn subdirectory(&mut self, name: &str) -> Result<PathBuf> {
        self.own(name)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Writes a file of the run, whole or not at all.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.own(name)?;
        write_atomic(&path, bytes)?;
        Ok(path)
    }

    /// Opens the metrics file of the run, new or to append.
    pub fn metrics(&mut self, name: &str) -> Result<MetricsLog> {
        let path = self.own(name)?;
        if let Ok(found) = fs::metadata(&path)
            && !found.is_file()
        {
            return Err(not_a_file(&path, found.file_type()));
        }
        match self.earlier {
            Earlier::Nothing => MetricsLog::create(&path),
            Earlier::Unfinished | Earlier::Finished => MetricsLog::continued(&path),
        }
    }

    /// Opens the text log of the run, new or to append.
    pub fn text_log(&mut self) -> Result<TextLog> {
        TextLog::open(&self.own(TEXT_LOG_FILE)?)
    }

    /// Begins a directory, such as a saved model, that appears under `name` only once it is complete.
    pub fn stage(&mut self, name: &str) -> Result<StagedDirectory> {
        let target = self.own(name)?;
        if target.symlink_metadata().is_ok_and(|there| there.is_file()) {
            return Err(unusable(&target, "a file of the run has this name", "give the file another name"));
        }
        StagedDirectory::create(target)
    }

    /// Notes a name as the run's own before anything of that name exists.
    fn own(&mut self, name: &str) -> Result<PathBuf> {
        if !is_output_name(name) || name == MARKER {
            return Err(unusable(&self.dir, format!("{name:?} is not a name for an output"), "use a plain file name"));
        }
        let path = self.dir.join(name);
        if !self.marker.names.iter().any(|own| own == name) {
            if fs::symlink_metadata(&path).is_ok() {
                let reason = format!("this is there already, and {MARKER} does not list it as an output of the run");
                let fix = "move it elsewhere, or set output.dir to another directory";
                return Err(unusable(&path, reason, fix));
            }
            self.marker.names.push(name.to_owned());
            self.write_marker()?;
        }
        Ok(path)
    }

    fn write_marker(&self) -> Result<()> {
        let path = self.dir.join(MARKER);
        let text =
            serde_json::to_string_pretty(&self.marker).map_err(|e| Error::file("write", &path, e.into(), WRITABLE))?;
        write_atomic(&path, format!("{text}\n").as_bytes())
    }
}

impl Drop for OutputDirectory {
    fn drop(&mut self) {
        // The lock itself ends with the open file; a leftover file would only look untidy.
        let _ = fs::remove_file(self.dir.join(LOCK));
    }
}

pub(super) const WRITABLE: &str = "set output.dir to a directory you may write to, on a disk with room";
/// Fix where the directory holds a run of other settings that is not to go on.
pub const OTHER_OR_REMOVE: &str = "set output.dir to another directory, or remove this one yourself";
const OTHER_REPLACED: &str = "set output.dir to another directory, or remove this one yourself: a run is replaced by \
                              one with the same settings alone";
const NEW_OR_EMPTY: &str = "set output.dir to a directory that is new or empty";

fn earlier(marker: Option<&Marker>) -> Earlier {
    match marker {
        None => Earlier::Nothing,
        Some(marker) if marker.finished => Earlier::Finished,
        Some(_) => Earlier::Unfinished,
    }
}

/// The earlier run that would be replaced or continued, if any; an error if the directory cannot be taken.
fn existing_run(dir: &Path, recipe_hash: &str, if_there: IfThere) -> Result<Option<Marker>> {
    let place = dir.display().to_string();
    let kind = match fs::metadata(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return check_writable(nearest_existing(dir), dir).map(|()| None);
        }
        Err(e) => return Err(Error::file("open the output directory", dir, e, WRITABLE)),
        Ok(kind) => kind,
    };
    if !kind.is_dir() {
        return Err(unusable(dir, "the output directory is a file", NEW_OR_EMPTY));
    }
    check_writable(dir, dir)?;
    let is_begun = |name: &String| name == LOCK || prepared_name(name) == Some(MARKER);
    let names: Vec<String> = names_in(dir)?.into_iter().filter(|name| !is_begun(name)).collect();
    let Some(first) = names.first() else { return Ok(None) };
    if !names.iter().any(|name| name == MARKER) {
        let reason = format!("the output directory is not empty and holds no run: {first:?} is in it");
        return Err(unusable(dir, reason, NEW_OR_EMPTY));
    }
    let marker = read_marker(&dir.join(MARKER))?;
    marker.check_outputs(dir, if_there == IfThere::Replace)?;
    if marker.recipe_hash != recipe_hash && if_there != (IfThere::Continue { accept_change: true }) {
        let reason = marker.difference(recipe_hash);
        let fix = match if_there {
            IfThere::Continue { .. } => "set output.dir to another directory, or add --accept-change to go on with it",
            // What took days is not removed for a setting that may be a slip.
            IfThere::Replace => OTHER_REPLACED,
            IfThere::Refuse => OTHER_OR_REMOVE,
        };
        return Err(Error::output(OutputFault::OtherRecipe, place, reason, fix));
    }
    if if_there == IfThere::Refuse {
        let reason = format!("the output directory already holds a run of this recipe, {}", short(recipe_hash));
        let fix = "add --overwrite to replace it, or set output.dir to another directory";
        return Err(Error::output(OutputFault::InUse, place, reason, fix));
    }
    Ok(Some(marker))
}

fn nearest_existing(dir: &Path) -> &Path {
    let ancestors = dir.ancestors().map(|a| if a.as_os_str().is_empty() { Path::new(".") } else { a });
    ancestors.into_iter().find(|a| a.symlink_metadata().is_ok()).unwrap_or(Path::new("/"))
}

/// Whether files can be made in `directory`. A directory without any write permission counts as read-only even for
/// root, who could write and would be surprised.
fn check_writable(directory: &Path, asked: &Path) -> Result<()> {
    let refused = |e: std::io::Error| Error::file("write to the output directory", asked, e, WRITABLE);
    let kind = fs::metadata(directory).map_err(refused)?;
    if !kind.is_dir() {
        return Err(refused(std::io::ErrorKind::NotADirectory.into()));
    }
    if kind.permissions().readonly() {
        return Err(refused(std::io::ErrorKind::PermissionDenied.into()));
    }
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| refused(e.into()))
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| Error::file("list the output directory", dir, e, WRITABLE);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

//! A run's directory, seen from outside: where runs are, what they are called, how they are doing.
//!
//! Defines [`RunDirectory`], [`RunRecipe`] and [`RunState`].

use super::index::INDEX_FILE;
use super::summary::Summary;
use crate::{Error, Result};
use model_center_base::error::{ExitStatus, OutputFault};
use model_center_base::file::{prepared_name, read_text};
use model_center_recipe::flat;
use model_center_recipe::run::{
    MARKER, RECIPE_FILE, STOP_FILE, StopReason,
    lock::{LOCK, is_locked},
    marker::{METRICS_FILE, read_marker},
    metrics_file,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum depth below a directory at which runs are looked for.
const MAX_DEPTH: usize = 6;
/// The longest recipe.
const MAX_RECIPE_BYTES: u64 = 1 << 20;

/// The directory of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirectory {
    /// Its path below the directory that was searched, with `/` between names; unique there.
    pub id: String,
    /// Its path.
    pub path: PathBuf,
    /// Its metrics file; there may be none yet.
    pub metrics: PathBuf,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// A process holds its lock.
    Running,
    /// It ended by itself.
    Finished,
    /// It was asked to stop, and goes on when it is started again.
    Stopped,
    /// It ended in an error, or no process recorded its end.
    Crashed,
}

impl RunState {
    /// The name in lists.
    pub fn name(self) -> &'static str {
        match self {
            RunState::Running => "running",
            RunState::Finished => "finished",
            RunState::Stopped => "stopped",
            RunState::Crashed => "crashed",
        }
    }
}

/// A run's recipe for those who look at it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RunRecipe {
    /// `run.name`, else the name of the directory.
    pub name: String,
    /// `run.tags`.
    pub tags: Vec<String>,
    /// Every key with its value as TOML.
    pub values: BTreeMap<String, String>,
}

impl RunDirectory {
    /// The run at a path, which must hold a marker or a metrics file.
    ///
    /// # Errors
    /// [`Error::Output`] if it holds neither.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.file_name().map_or_else(|| ".".into(), |name| name.to_string_lossy().into_owned());
        Ok(RunDirectory { id: name, path: path.to_owned(), metrics: metrics_file(path)? })
    }

    fn at(path: &Path, id: String) -> Option<Self> {
        Some(RunDirectory { id, path: path.to_owned(), metrics: metrics_file(path).ok()? })
    }

    /// All runs below a directory, or the one that it is, in the order of their paths. Links are not followed, and
    /// directories that cannot be read are passed over.
    ///
    /// # Errors
    /// [`Error::File`] if the directory itself cannot be read.
    pub fn find(root: &Path) -> Result<Vec<Self>> {
        fs::read_dir(root).map_err(|e| Error::file("list", root, e, "give a directory of runs"))?;
        let mut found = Vec::new();
        find_below(root, "", MAX_DEPTH, &mut found);
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Name, tags and values of the recipe; of a run without a readable recipe only the name of its directory.
    pub fn recipe(&self) -> RunRecipe {
        let text = read_text(&self.path.join(RECIPE_FILE), MAX_RECIPE_BYTES).unwrap_or_default();
        let table: toml::Table = toml::from_str(&text).unwrap_or_default();
        let values = flat(&table);
        let name = values.get("run.name").and_then(toml::Value::as_str).map(str::to_owned);
        let tags = values.get("run.tags").and_then(toml::Value::as_array).into_iter().flatten();
        let tags = tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect();
        let own = || self.id.rsplit('/').next().unwrap_or(&self.id).to_owned();
        let shown = values.iter().filter(|(key, _)| !key.starts_with("run.")).map(|(key, value)| {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            (key.clone(), text)
        });
        RunRecipe { name: name.unwrap_or_else(own), tags, values: shown.collect() }
    }

    /// State of the run and the reason of its end, by its lock and its last record.
    pub fn state(&self, summary: &Summary) -> (RunState, String) {
        if is_locked(&self.path) {
            return (RunState::Running, String::new());
        }
        let Some(reason) = &summary.end_reason else {
            return (RunState::Crashed, "its end is not recorded".to_owned());
        };
        let is_failure = ExitStatus::ALL.iter().any(|status| status.name() == reason);
        let state = match reason {
            reason if reason == StopReason::Request.name() => RunState::Stopped,
            _ if is_failure => RunState::Crashed,
            _ => RunState::Finished,
        };
        (state, reason.clone())
    }

    /// Removes what the run wrote, and its directory if nothing else is in it. Other files stay.
    ///
    /// # Errors
    /// [`Error::Output`] of a run in progress and of a directory whose marker cannot be read; [`Error::File`] if
    /// something cannot be removed.
    pub fn delete(&self) -> Result<()> {
        let place = || self.path.display().to_string();
        if is_locked(&self.path) {
            let (reason, fix) = ("a process is writing this run", "stop it first");
            return Err(Error::output(OutputFault::InUse, place(), reason, fix));
        }
        let marker = self.path.join(MARKER);
        let mut names = vec![INDEX_FILE.to_owned(), LOCK.to_owned(), STOP_FILE.to_owned()];
        match marker.symlink_metadata() {
            Ok(_) => names.extend(read_marker(&marker)?.names),
            Err(_) => names.push(METRICS_FILE.to_owned()),
        }
        let entries =
            fs::read_dir(&self.path).map_err(|e| Error::file("list", &self.path, e, "check its permissions"))?;
        // What a killed process left half-written.
        let own = names.clone();
        names.extend(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| {
            prepared_name(name).is_some_and(|what| what == MARKER || own.iter().any(|own| own == what))
        }));
        // The marker is the last: until then the rest is known to be a run's.
        names.push(MARKER.to_owned());
        for name in names {
            model_center_base::file::remove(&self.path.join(name))?;
        }
        // Something else may be in it.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }
}

fn find_below(directory: &Path, id: &str, depth: usize, found: &mut Vec<RunDirectory>) {
    let own = if id.is_empty() { "." } else { id };
    if let Some(run) = RunDirectory::at(directory, own.to_owned()) {
        // What is below a run is the run's.
        found.push(run);
        return;
    }
    let Some(below) = depth.checked_sub(1) else { return };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // A name that is not UTF-8 has no id by which it could be asked for.
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let id = if id.is_empty() { name.to_owned() } else { format!("{id}/{name}") };
            find_below(&entry.path(), &id, below, found);
        }
    }
}

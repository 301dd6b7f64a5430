//! The runs below a directory, looked at again and again.
//!
//! Defines [`Repository`] and [`Run`]. Runs whose files are unchanged since the last look are not read.

use super::directory::{RunDirectory, RunRecipe, RunState};
use super::index::Index;
use super::summary::Summary;
use crate::Result;
use model_center_recipe::run::RECIPE_FILE;
use rayon::prelude::*;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A run as a list shows it.
#[derive(Debug, Clone)]
pub struct Run {
    /// Directory of the run.
    pub directory: RunDirectory,
    /// Its recipe.
    pub recipe: Arc<RunRecipe>,
    /// Its records in short.
    pub summary: Arc<Summary>,
    /// State of the run.
    pub state: RunState,
    /// Why it ended.
    pub reason: String,
    /// When its metrics were last written, seconds since 1970.
    pub updated: f64,
    /// Stamp of the files it was read from.
    stamp: Stamp,
}

/// Length and time of recipe and metrics.
type Stamp = [Option<(u64, SystemTime)>; 2];

/// The runs below a directory.
#[derive(Debug)]
pub struct Repository {
    root: PathBuf,
    runs: Vec<Run>,
}

impl Run {
    /// Reads a run.
    ///
    /// # Errors
    /// As [`Index::summary`].
    pub fn read(directory: RunDirectory) -> Result<Run> {
        Self::read_again(directory, None).map(|(run, _)| run)
    }

    /// Reads what is new since `before`; the second value is whether metrics were read.
    fn read_again(directory: RunDirectory, before: Option<&Run>) -> Result<(Run, bool)> {
        let stamp = [directory.path.join(RECIPE_FILE), directory.metrics.clone()].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.len(), found.modified().ok()?))
        });
        let known = |at: usize| before.filter(|before| before.stamp.get(at) == stamp.get(at));
        let recipe = known(0).map_or_else(|| Arc::new(directory.recipe()), |before| Arc::clone(&before.recipe));
        let (summary, was_read) = match known(1) {
            Some(before) => (Arc::clone(&before.summary), false),
            None => {
                let (summary, was_read) = Index::summary(&directory)?;
                (Arc::new(summary), was_read)
            }
        };
        let (state, reason) = directory.state(&summary);
        let since =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let [of_recipe, of_metrics] = stamp;
        let updated = of_metrics.or(of_recipe).map_or(0.0, |(_, time)| since(time));
        Ok((Run { directory, recipe, summary, state, reason, updated, stamp }, was_read))
    }
}

impl Repository {
    /// The runs below `root`; none is read yet.
    pub fn new(root: &Path) -> Self {
        Repository { root: root.to_owned(), runs: Vec::new() }
    }

    /// Looks for runs and reads what is new; returns the number of runs whose metrics were read. Runs that cannot be
    /// read are left out.
    ///
    /// # Errors
    /// [`crate::Error::File`] if the directory cannot be read.
    pub fn refresh(&mut self) -> Result<usize> {
        let found = RunDirectory::find(&self.root)?;
        let before: HashMap<&str, &Run> = self.runs.iter().map(|run| (run.directory.id.as_str(), run)).collect();
        let read: Vec<(Run, bool)> = found
            .into_par_iter()
            .filter_map(|directory| {
                let before = before.get(directory.id.as_str()).copied();
                Run::read_again(directory, before).ok()
            })
            .collect();
        let count = read.iter().filter(|(_, was_read)| *was_read).count();
        self.runs = read.into_iter().map(|(run, _)| run).collect();
        Ok(count)
    }

    /// The runs, in the order of their paths.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The run with an id. Ids are compared with those that were found, so that no path leads out of the directory.
    pub fn get(&self, id: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.directory.id == id)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

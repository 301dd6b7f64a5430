//! Source of a run's data: a task, and its files as `[data]` names them.
//!
//! Defines [`DataSource`], a part of the [`Settings`](super::Settings). Made by `sources.rs`; read by the programs.

use super::pretraining::PretrainingSettings;
use crate::Result;
use model_center_data::{Dataset, ReadOptions, Split, SplitSource, Task, TaskModel};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of a task, as a recipe names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataFiles {
    /// The directory of a task that knows its files below it.
    Directory(PathBuf),
    /// A file of each split.
    Files {
        /// Training records.
        train: PathBuf,
        /// Evaluation records; `None` trains without evaluation.
        eval: Option<PathBuf>,
    },
    /// The task itself names its files.
    OfTask,
}

/// A task and its files.
#[derive(Debug, Clone)]
pub struct DataSource {
    task: Arc<dyn Task>,
    files: DataFiles,
}

impl PartialEq for DataSource {
    fn eq(&self, other: &Self) -> bool {
        self.task() == other.task() && self.files == other.files
    }
}

impl DataSource {
    /// A task on these files.
    pub fn new(task: Arc<dyn Task>, files: DataFiles) -> Self {
        DataSource { task, files }
    }

    /// The task.
    pub fn task(&self) -> &dyn Task {
        &*self.task
    }

    /// The task, if it is of this type.
    pub fn task_as<T: Task>(&self) -> Option<&T> {
        (self.task() as &dyn Any).downcast_ref()
    }

    /// The same, to change it.
    pub(super) fn task_as_mut<T: Task>(&mut self) -> Option<&mut T> {
        (Arc::get_mut(&mut self.task)? as &mut dyn Any).downcast_mut()
    }

    /// Its files.
    pub fn files(&self) -> &DataFiles {
        &self.files
    }

    /// The directory of a task that knows its files.
    pub fn directory(&self) -> Option<&Path> {
        if let DataFiles::Directory(directory) = &self.files { Some(directory) } else { None }
    }

    /// The files of such a task, below its directory.
    pub fn files_of_task(&self) -> Vec<String> {
        [Split::Train, Split::Validation].into_iter().filter_map(|split| self.task.file(split)).collect()
    }

    /// Files and directories that are read before training begins.
    pub fn paths(&self) -> Vec<&Path> {
        match &self.files {
            DataFiles::Directory(directory) => vec![directory],
            DataFiles::Files { train, eval } => [Some(&**train), eval.as_deref()].into_iter().flatten().collect(),
            DataFiles::OfTask => self.task.paths(),
        }
    }

    /// Reads a split, as far as the recipe names one; `train` are the training data, for other splits.
    ///
    /// # Errors
    /// As [`Task::read_split`].
    pub fn read(
        &self,
        split: Split,
        options: &ReadOptions<'_>,
        model: TaskModel<'_>,
        train: Option<&Dataset>,
    ) -> Result<Option<Dataset>> {
        let path = match (&self.files, split) {
            (DataFiles::Directory(directory), _) => {
                match self.task.file(split).filter(|_| self.task.has_split(split)) {
                    Some(file) => directory.join(file),
                    None => return Ok(None),
                }
            }
            (DataFiles::Files { train, .. }, Split::Train) => train.clone(),
            (DataFiles::Files { eval: Some(eval), .. }, Split::Validation) => eval.clone(),
            (DataFiles::OfTask, _) if self.task.has_split(split) => PathBuf::new(),
            _ => return Ok(None),
        };
        let source = SplitSource { train, model, ..SplitSource::new(&path, split, options) };
        self.task.read_split(&source).map(Some)
    }

    /// Whether there is anything to evaluate on.
    pub fn has_eval(&self) -> bool {
        !matches!(self.files, DataFiles::Files { eval: None, .. }) && self.task.has_split(Split::Validation)
    }

    /// The key of what is evaluated on.
    pub(super) fn eval_key(&self) -> &'static str {
        if self.pretraining().is_some() { "data.valid" } else { "data.eval" }
    }

    /// Pretraining settings; `None` of any other task.
    pub fn pretraining(&self) -> Option<&PretrainingSettings> {
        self.task_as()
    }

    /// The same, to change it.
    pub(super) fn pretraining_mut(&mut self) -> Option<&mut PretrainingSettings> {
        self.task_as_mut()
    }
}

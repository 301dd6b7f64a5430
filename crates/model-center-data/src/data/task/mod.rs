//! Tasks: which records there are, what a model learns of them, and how it is judged.
//!
//! Defines [`Task`], which every file beside this one implements, and [`SplitSource`], which a task reads from. Recipes
//! name tasks with `data.task`; a program adds tasks of its own with `Registry::with_tasks`.

pub(crate) mod columns;
pub(crate) mod embedding;
pub(crate) mod language_modeling;
pub(crate) mod multi_label;
mod packed;
mod passages;
pub(crate) mod prompts;
pub(crate) mod published;
mod source;
pub(crate) mod spans;
pub(crate) mod squad;
pub(crate) mod superglue;
pub(crate) mod tags;
pub(crate) mod template;

pub use source::{Split, SplitSource, TaskModel};

use super::dataset::Dataset;
use super::read::ReadOptions;
use super::sft::TextFormats;
use crate::metrics::{LabelKind, Metric};
use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;
use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// What is learned: how records become samples, what their labels are, and how predictions are judged.
///
/// Only the name, the kind of labels and the reading have no default. A value of a task holds what its keys in a recipe
/// set, such as names of columns.
pub trait Task: TaskObject + Any + Debug + Send + Sync {
    /// The name in recipes and model cards.
    fn name(&self) -> &'static str;

    /// What the task asks, in one sentence; empty if the name is enough.
    fn doc(&self) -> &'static str {
        ""
    }

    /// The kind of labels, which is known before any file is read.
    fn label_kind(&self) -> LabelKind;

    /// Metrics of an evaluation, the first being the one that picks the best weights; `None` for the labels' default
    /// ones.
    fn metrics(&self) -> Option<&'static [Metric]> {
        None
    }

    /// Reads a split.
    ///
    /// # Errors
    /// A file or a record that is not as the task requires it, with its place.
    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset>;

    /// Reads a split of a task that knows its files below `directory`.
    ///
    /// # Errors
    /// As [`Task::read_split`]; a split that the task has no file for.
    fn read_below(
        &self,
        directory: &Path,
        split: Split,
        model: TaskModel<'_>,
        options: &ReadOptions<'_>,
    ) -> Result<Dataset> {
        let file = self.file(split).ok_or_else(|| {
            let reason = format!("task {} has no file for this split", self.name());
            Error::argument("data.path", reason, "read a split that it has, or a file of your own with read_split")
        })?;
        let path = directory.join(file);
        self.read_split(&SplitSource { model, ..SplitSource::new(&path, split, options) })
    }

    /// The file of a split below `data.path`; `None` for a task whose files are `data.train` and `data.eval`.
    fn file(&self, _split: Split) -> Option<String> {
        None
    }

    /// Whether [`Task::file`] names a directory of files.
    fn has_directories(&self) -> bool {
        false
    }

    /// Paths that the task itself names, beside `data.path`, `data.train` and `data.eval`.
    fn paths(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// Whether a split exists, as far as the task itself names its files: of a task that names a training file, those
    /// that it names.
    fn has_split(&self, split: Split) -> bool {
        self.file(Split::Train).is_none() || self.file(split).is_some()
    }

    /// Whether classes are label words: tokens of the vocabulary, predicted by a language-modelling head after a
    /// prompt.
    fn uses_label_words(&self) -> bool {
        false
    }

    /// Whether labels that are numbers are probabilities, whose loss is a binary cross-entropy.
    fn has_probabilities(&self) -> bool {
        false
    }

    /// Whether a decoder may write a second sequence of each sample.
    fn has_targets(&self) -> bool {
        false
    }

    /// Whether samples have one class or next tokens as labels, which a teacher's logits can be compared with.
    fn has_teachable_labels(&self) -> bool {
        match self.label_kind() {
            LabelKind::Classes => !self.uses_label_words(),
            LabelKind::Tokens => !self.has_targets(),
            _ => false,
        }
    }

    /// Whether several samples can be packed into one sequence (`data.packing`), as of next tokens.
    fn can_be_packed(&self) -> bool {
        self.label_kind() == LabelKind::Tokens && !self.has_targets()
    }

    /// Whether texts may be rendered already, with control tokens that are parsed (`data.parse_special`).
    fn has_rendered_texts(&self) -> bool {
        self.has_conversations() || (self.label_kind() == LabelKind::Tokens && !self.has_targets())
    }

    /// Whether records may be conversations, which the model's chat template renders.
    fn has_conversations(&self) -> bool {
        false
    }

    /// The texts that inputs and outputs are parts of; `None` for a task without such.
    fn text_formats(&self) -> Option<Vec<TextFormats>> {
        None
    }

    /// Tokens before and after an answer, if evaluation generates answers and compares them with
    /// [`Dataset::references`].
    ///
    /// # Errors
    /// A tokenizer without such tokens.
    fn answer_marks(&self, _tokenizer: &dyn Tokenizer) -> Result<Option<[u32; 2]>> {
        Ok(None)
    }

    /// The hub's name for what a trained model does. For tokens as labels it is the name of a language model, which
    /// depends on whether an encoder reads and a decoder writes.
    fn pipeline_tag(&self, generates_targets: bool) -> &'static str {
        match self.label_kind() {
            LabelKind::Questions => "question-answering",
            LabelKind::Tags => "token-classification",
            LabelKind::Embeddings => "sentence-similarity",
            LabelKind::Values if self.has_probabilities() => "text-ranking",
            kind if self.uses_label_words() || matches!(kind, LabelKind::Tokens | LabelKind::Pairs) => {
                if generates_targets {
                    "text2text-generation"
                } else {
                    "text-generation"
                }
            }
            _ => "text-classification",
        }
    }
}

/// Copies and comparisons of a task as `dyn Task`, of any [`Task`] that is `Clone + PartialEq`.
pub trait TaskObject {
    /// A copy.
    fn shared(&self) -> Arc<dyn Task>;
    /// Whether the other one is of the same type and equal.
    fn equals(&self, other: &dyn Task) -> bool;
}

impl<T: Task + Clone + PartialEq> TaskObject for T {
    fn shared(&self) -> Arc<dyn Task> {
        Arc::new(self.clone())
    }

    fn equals(&self, other: &dyn Task) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }
}

impl PartialEq for dyn Task {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other)
    }
}

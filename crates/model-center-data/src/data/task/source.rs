//! Where a task reads a split from, and for which model.

use super::columns::LabelSpec;
use crate::data::{
    Example,
    dataset::Dataset,
    read::{ReadOptions, read},
};
use crate::metrics::LabelKind;
use crate::{Error, Result};
use model_center_base::batch::{LabelSpace, VerbalizerPosition};
use model_center_formats::io::record::{Format, Record};
use model_center_formats::tokenizer::ChatTemplate;
use std::path::Path;

/// Which part of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Labelled records to learn from, `train.jsonl`.
    Train,
    /// Labelled records to judge by, `val.jsonl`.
    Validation,
}

impl Split {
    /// The name of the split's file without its ending.
    pub fn file_stem(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "val",
        }
    }
}

/// Properties of the model that samples are read for.
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskModel<'a> {
    /// Where the model answers prompts, if the task has any.
    pub place: Option<VerbalizerPosition>,
    /// The model's chat template, if it has one.
    pub chat: Option<&'a ChatTemplate>,
    /// Whether an encoder reads the input and a decoder writes the output.
    pub generates_targets: bool,
}

/// A split on the disk, and how it is read.
#[derive(Clone, Copy)]
pub struct SplitSource<'a> {
    /// The file; empty for a task that names its files itself.
    pub path: &'a Path,
    /// Which split it is.
    pub split: Split,
    /// Tokenizer, limits, and what happens to bad records.
    pub options: ReadOptions<'a>,
    /// The training data, if they are read already: other splits have the same labels.
    pub train: Option<&'a Dataset>,
    /// The model that learns.
    pub model: TaskModel<'a>,
}

impl<'a> SplitSource<'a> {
    /// A split for a model with a classification head, apart from any training data.
    pub fn new(path: &'a Path, split: Split, options: &ReadOptions<'a>) -> Self {
        SplitSource { path, split, options: *options, train: None, model: TaskModel::default() }
    }

    /// Reads a file of records; `parse` adds the inputs of one record. The name of the file determines its format.
    /// Labels are classes, choices, numbers, next tokens or targets.
    ///
    /// # Errors
    /// A file or a record that is not as it must be, with its place; labels of another kind, or that are not of
    /// `labels`.
    pub fn read_records(
        &self,
        labels: LabelSpace,
        parse: &mut dyn FnMut(&Record<'_>, &mut Vec<Example>) -> Result<()>,
    ) -> Result<Dataset> {
        check_examples(&labels)?;
        let mut dataset = read(self.path, Format::of(self.path)?, &self.options, labels, parse)?;
        dataset.seal();
        Ok(dataset)
    }

    /// How labels are read: labels of training data that were discovered there are the only ones of other splits. A
    /// label that occurs in another split alone is a mistake, not a class.
    pub(crate) fn labels(&self, spec: &LabelSpec) -> LabelSpec {
        match (spec, self.train) {
            (LabelSpec::Discover, Some(train)) => LabelSpec::of(train),
            _ => spec.clone(),
        }
    }

    /// Where the model answers.
    ///
    /// # Errors
    /// A model that answers nowhere.
    pub(crate) fn place(&self) -> Result<VerbalizerPosition> {
        self.model.place.ok_or_else(|| {
            let reason = "the task is answered by tokens, but no position for them is given";
            Error::argument("data.objective", reason, "take a language model")
        })
    }
}

/// Refuses labels that examples do not carry, and fewer than two of them.
fn check_examples(labels: &LabelSpace) -> Result<()> {
    let wrong = |reason: String, fix: &str| Err(Error::argument("SplitSource::read_records", reason, fix));
    match labels {
        LabelSpace::Classes(names) if names.len() < 2 => {
            wrong(format!("a classification has two classes at least, and {} are named", names.len()), "name all")
        }
        LabelSpace::Choices(choices) if *choices < 2 => {
            wrong(format!("{choices} choices leave nothing to choose"), "give two at least")
        }
        LabelSpace::Classes(_)
        | LabelSpace::Choices(_)
        | LabelSpace::Value
        | LabelSpace::NextTokens
        | LabelSpace::Target => Ok(()),
        other => {
            let reason = format!("examples have no labels of the kind \"{}\"", LabelKind::of(other).name());
            wrong(reason, "use Classes, Choices, Value, NextTokens or Target, or a task of the library")
        }
    }
}

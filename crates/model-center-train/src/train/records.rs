//! The records of a task, read and tokenized.
//!
//! Defines [`read`], which the [`Setup`](super::Setup) of a run calls.

use super::run_data::{EvalSet, RunData, Samples};
use crate::{Error, Result};
use model_center_base::batch::VerbalizerPosition;
use model_center_data::metrics::LabelKind;
use model_center_data::{Dataset, ReadOptions, Split, Task, TaskModel};
use model_center_formats::tokenizer::{ChatTemplate, Tokenizer};
use model_center_recipe::Resolved;
use std::sync::Arc;

/// Properties of the model that decide what records become.
#[derive(Debug, Default)]
pub(super) struct ModelSide {
    /// Where the model answers prompts, if the task has any.
    pub(super) place: Option<VerbalizerPosition>,
    /// Its chat template, if the task is for conversations and it has one.
    pub(super) chat: Option<ChatTemplate>,
    /// Whether an encoder reads and a decoder writes.
    pub(super) generates_targets: bool,
}

impl ModelSide {
    fn task(&self) -> TaskModel<'_> {
        TaskModel { place: self.place, chat: self.chat.as_ref(), generates_targets: self.generates_targets }
    }

    /// A note about a chat template with which a model does not learn to end its answers.
    pub(super) fn note_of_ends(&self, tokenizer: &dyn Tokenizer) -> Option<String> {
        // A template that refuses a plain conversation does so where it is used.
        let ends = self.chat.as_ref()?.learned_ends(tokenizer).ok()?;
        let what = match (ends.within, ends.last) {
            (_, true) => return None,
            (true, false) => "the last answer of a conversation",
            (false, false) => "an answer",
        };
        Some(format!(
            "the chat template writes no control token at the end of {what}, so no end of it is learned; put {{% \
             generation %}} and {{% endgeneration %}} in the template around the answer and the token that ends it"
        ))
    }
}

/// Reads the records of a recipe.
///
/// # Errors
/// What the task reports.
pub(super) fn read(resolved: &Resolved, tokenizer: &dyn Tokenizer, model: &ModelSide) -> Result<Samples> {
    let (source, options) = (&resolved.data.source, read_options(resolved, tokenizer));
    let train = source.read(Split::Train, &options, model.task(), None).map_err(of_recipe)?;
    let train = train.ok_or_else(|| {
        let fix = "name a file of records, or a directory with the directory train";
        Error::recipe(resolved.place("data.train"), "there is no training data", fix)
    })?;
    check_kind(source.task(), &train)?;
    let options = ReadOptions { limit: resolved.data.eval_limit, ..options };
    let eval = source.read(Split::Validation, &options, model.task(), Some(&train)).map_err(of_recipe)?;
    eval.as_ref().map_or(Ok(()), |eval| check_kind(source.task(), eval))?;
    let of_eval = |data| EvalSet { name: "eval".to_owned(), data: RunData::Records(Arc::new(data)) };
    Ok(Samples {
        train: RunData::Records(Arc::new(train)),
        eval: eval.into_iter().map(of_eval).collect(),
        test: Vec::new(),
    })
}

/// Refuses labels of another kind than the task has stated, by which recipes are checked.
fn check_kind(task: &dyn Task, data: &Dataset) -> Result<()> {
    let (stated, read) = (task.label_kind(), LabelKind::of(data.labels()));
    if stated == read {
        return Ok(());
    }
    let reason = format!("label_kind is {stated:?}, and read_split gave labels of the kind {read:?}");
    Err(Error::argument(
        format!("task {}", task.name()),
        reason,
        "correct one of the two in the implementation of Task",
    ))
}

fn read_options<'t>(resolved: &Resolved, tokenizer: &'t dyn Tokenizer) -> ReadOptions<'t> {
    ReadOptions {
        too_long: resolved.data.too_long,
        on_bad_record: resolved.data.on_bad_record,
        target_length: resolved.data.target_length,
        parse_special: resolved.data.parse_special,
        ..ReadOptions::new(tokenizer, resolved.data.max_length)
    }
}

/// An argument of a data set, which is a setting of the recipe here.
fn of_recipe(error: Error) -> Error {
    match error {
        Error::Argument { place, reason, fix } => Error::Recipe { place, reason, fix },
        other => other,
    }
}

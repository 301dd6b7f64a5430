//! The records of a task, read and tokenized.
//!
//! Defines [`read`], which the [`Setup`](super::Setup) of a run calls.

use super::run_data::{EvalSet, RunData, Samples};
use crate::{Error, Result};
use model_center_base::batch::VerbalizerPosition;
use model_center_data::{Dataset, LabelSpec, MultiLabelTask, ReadOptions, SftModel, Split, Squad, TagTask};
use model_center_formats::tokenizer::{ChatTemplate, Tokenizer};
use model_center_recipe::{DataSource, Resolved};
use std::sync::Arc;

/// What records become depends on the model.
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
/// What the readers of the task report.
pub(super) fn read(resolved: &Resolved, tokenizer: &dyn Tokenizer, model: &ModelSide) -> Result<Samples> {
    let train = read_train(resolved, tokenizer, model).map_err(of_recipe)?;
    let eval = read_eval(resolved, tokenizer, model, &train).map_err(of_recipe)?;
    let of_eval = |data| EvalSet { name: "eval".to_owned(), data: RunData::Records(Arc::new(data)) };
    Ok(Samples {
        train: RunData::Records(Arc::new(train)),
        eval: eval.into_iter().map(of_eval).collect(),
        test: Vec::new(),
    })
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

fn read_train(resolved: &Resolved, tokenizer: &dyn Tokenizer, model: &ModelSide) -> Result<Dataset> {
    let (options, place) = (read_options(resolved, tokenizer), model.place);
    match &resolved.data.source {
        DataSource::Files { train, columns, .. } => columns.read(train, &options),
        DataSource::LanguageModeling { train, task, .. } => task.read(train, &options),
        DataSource::QuestionAnswering { train, task, .. } => task.read(train, &options),
        DataSource::TokenClassification { train, task, .. } => task.read(train, &options),
        DataSource::Embedding { train, task, .. } => task.read(train, &options),
        DataSource::MultiLabel { train, task, .. } => task.read(train, &options),
        DataSource::Template { train, task, .. } => task.read(train, answering(resolved, place)?, &options),
        DataSource::Sft(task) => {
            task.read(Split::Train, &options, model.sft())?.ok_or_else(|| no_split(resolved, "training"))
        }
        _ => read_split(resolved, Split::Train, place, &options),
    }
}

fn read_eval(
    resolved: &Resolved,
    tokenizer: &dyn Tokenizer,
    model: &ModelSide,
    train: &Dataset,
) -> Result<Option<Dataset>> {
    let place = model.place;
    let options = ReadOptions { limit: resolved.data.eval_limit, ..read_options(resolved, tokenizer) };
    match &resolved.data.source {
        DataSource::Files { eval: Some(eval), columns, .. } => {
            let mut columns = columns.clone();
            if columns.labels == LabelSpec::Discover {
                // A label that occurs here alone is a mistake, not a class.
                columns.labels = LabelSpec::of(train);
            }
            columns.read(eval, &options).map(Some)
        }
        DataSource::LanguageModeling { eval: Some(eval), task, .. } => task.read(eval, &options).map(Some),
        DataSource::QuestionAnswering { eval: Some(eval), task, .. } => task.read(eval, &options).map(Some),
        DataSource::Embedding { eval: Some(eval), task, .. } => task.read(eval, &options).map(Some),
        DataSource::TokenClassification { eval: Some(eval), task, .. } => {
            // A tag that occurs here alone is a mistake, not a class.
            TagTask { labels: LabelSpec::of(train), ..task.clone() }.read(eval, &options).map(Some)
        }
        DataSource::MultiLabel { eval: Some(eval), task, .. } => {
            let labels = if task.labels == LabelSpec::Discover { LabelSpec::of(train) } else { task.labels.clone() };
            MultiLabelTask { labels, ..task.clone() }.read(eval, &options).map(Some)
        }
        DataSource::Template { eval: Some(eval), task, .. } => {
            task.read(eval, answering(resolved, place)?, &options).map(Some)
        }
        DataSource::Sft(task) => task.read(Split::Validation, &options, model.sft()),
        DataSource::Files { eval: None, .. }
        | DataSource::LanguageModeling { eval: None, .. }
        | DataSource::QuestionAnswering { eval: None, .. }
        | DataSource::TokenClassification { eval: None, .. }
        | DataSource::Embedding { eval: None, .. }
        | DataSource::MultiLabel { eval: None, .. }
        | DataSource::Template { eval: None, .. } => Ok(None),
        _ => read_split(resolved, Split::Validation, place, &options).map(Some),
    }
}

/// A split of a task that knows its files.
fn read_split(
    resolved: &Resolved,
    split: Split,
    place: Option<VerbalizerPosition>,
    options: &ReadOptions<'_>,
) -> Result<Dataset> {
    let source = &resolved.data.source;
    let unknown = || {
        let place = resolved.place("data.task");
        Error::recipe(place, "the task is not in the registry", "choose one that is listed in docs/tasks.md")
    };
    let directory = source.directory().ok_or_else(unknown)?;
    match (source, source.prompt_entry()) {
        (DataSource::Squad { .. }, _) => Squad::read(directory, split, options),
        (DataSource::Published { task, .. }, _) => task.read(directory, split, options),
        (DataSource::Task { entry, .. }, _) => entry.read(directory, split, options),
        (_, Some(entry)) => entry.read(directory, split, answering(resolved, place)?, options),
        _ => Err(unknown()),
    }
}

impl ModelSide {
    fn sft(&self) -> SftModel<'_> {
        SftModel { chat: self.chat.as_ref(), generates_targets: self.generates_targets }
    }
}

fn no_split(resolved: &Resolved, what: &str) -> Error {
    let fix = "name a file of records, or a directory with the directory train";
    Error::recipe(resolved.place("data.train"), format!("there is no {what} data"), fix)
}

fn answering(resolved: &Resolved, place: Option<VerbalizerPosition>) -> Result<VerbalizerPosition> {
    place.ok_or_else(|| {
        let reason = "the task is answered by tokens, but no position for them is given";
        Error::recipe(resolved.place("data.objective"), reason, "take a language model")
    })
}

//! Everything that can be known before weights are read: data, labels, sizes, the model's parameters.

use super::class_weights;
use super::generated_answers::GeneratedAnswers;
use super::model_options::{save_options, whole_options};
use crate::data::{Dataset, LabelSpace, LabelSpec, ReadOptions, Split, Squad, TagTask, VerbalizerPosition};
use crate::formats::{ModelCaches, shortened};
use crate::model::division::Division;
use crate::model::{OpenOptions, OpenedModel, Registry, TextModel};
use crate::recipe::{DataSettings, DataSource, Resolved, model_directory};
use crate::run::{StopConditions, StopFlag};
use crate::tokenizer::{AutoTokenizer, Tokenizer};
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::optim::{Schedule, Warmup};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Data, model and schedule of a run, checked before any weights are read.
#[derive(Debug)]
pub struct Setup {
    /// The training data.
    pub train: Arc<Dataset>,
    /// The evaluation data.
    pub eval: Option<Arc<Dataset>>,
    /// Optimizer steps of one pass over the data.
    pub steps_per_epoch: u64,
    /// The learning rate of every step.
    pub schedule: Schedule,
    /// The directory of the model the run begins with.
    pub directory: PathBuf,
    /// The model's family.
    pub family: &'static str,
    /// Parameter values of the model.
    pub parameters: usize,
    /// Blocks of all stacks of the model.
    pub blocks: usize,
    /// Parameters that the directory lacks, which are initialized.
    pub initialized: Vec<String>,
    /// Tensors of the directory that belong to other heads than the model's.
    pub unused: Vec<String>,
    /// Further ones that the recipe leaves out.
    pub left: Vec<String>,
    /// What was taken from the weights because `config.json` does not specify it.
    pub notes: Vec<String>,
    /// How answers are generated, where metrics of the task compare texts.
    pub answers: Option<GeneratedAnswers>,
    /// What each class weighs in the training loss; `None`: all samples weigh the same.
    pub class_weights: Option<Vec<f32>>,
}

impl Setup {
    /// A few lines about data and model.
    pub fn summary(&self, resolved: &Resolved) -> String {
        let mut lines = Vec::new();
        let describe = |name: &str, data: &Dataset| {
            let report = data.report();
            let mut text =
                format!("{name}: {} samples, {} tokens, longest {}", data.len(), report.tokens, report.longest);
            if report.truncated > 0 {
                let DataSettings { max_length, target_length, .. } = &resolved.data;
                let limit = match data.labels() {
                    LabelSpace::Target => format!("{max_length} and {target_length}"),
                    _ => max_length.to_string(),
                };
                text += &format!(", {:.1} % cut to {limit}", 100.0 * report.truncated_share());
            }
            if report.skipped > 0 {
                text += &format!(", {} bad records left out ({})", report.skipped, report.first_skipped.join("; "));
            }
            text
        };
        lines.push(describe("train", &self.train));
        let of_train = class_weights::describe(&self.train, self.class_weights.as_deref());
        lines.extend(of_train.map(|text| format!("classes of train: {text}")));
        lines.extend(self.eval.iter().map(|eval| describe("eval", eval)));
        let of_eval = self.eval.iter().filter_map(|eval| class_weights::describe(eval, None));
        lines.extend(of_eval.map(|text| format!("classes of eval: {text}")));
        lines.push(format!("model: {} parameters from {}", self.parameters, self.directory.display()));
        if !self.initialized.is_empty() {
            lines.push(format!("new, not in the directory: {}", self.initialized.join(", ")));
        }
        if !self.unused.is_empty() {
            lines.push(format!("in the directory, not used: {}", shortened(&self.unused)));
        }
        if !self.left.is_empty() {
            lines.push(format!("left out (model.leave): {}", shortened(&self.left)));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n")
    }
}

/// Read the data and check that data, tokenizer, model and recipe fit together, up to the saving at the end.
pub fn prepare(resolved: &Resolved, registry: Registry<'_>, places: &ModelCaches) -> Result<Setup> {
    let directory = model_directory(resolved, places)?;
    let entry = registry.find_as(&directory, resolved.model.family.as_deref())?;
    let tokenizer = AutoTokenizer::open(&directory)?;
    let place = verbalizer_position(resolved, registry, &directory)?;
    let mut train = read_train(resolved, &*tokenizer, place).map_err(of_recipe)?;
    let mut eval = read_eval(resolved, &*tokenizer, place, &train).map_err(of_recipe)?;
    let opened = sketch(resolved, registry, &directory, train.labels())?;
    check_stacks(resolved, train.labels(), &*opened.model)?;
    opened.model.check_save(&save_options(resolved, &directory))?;
    // A classifier that the directory brings has an order of its own, which the data follow.
    let names = &opened.model.info().label_names;
    for data in std::iter::once(&mut train).chain(&mut eval) {
        if matches!(data.labels(), LabelSpace::Classes(_) | LabelSpace::TokenClasses(_)) && !names.is_empty() {
            data.order_labels(names)?;
        }
    }
    tokenizer.require_rows(opened.model.info().vocab_size)?;
    let positions = opened.model.info().max_length;
    for (key, asked) in
        [("data.max_length", resolved.data.max_length), ("data.target_length", resolved.data.target_length)]
    {
        if asked > positions && (key == "data.max_length" || *train.labels() == LabelSpace::Target) {
            let reason = format!("{key} is {asked}, the model has {positions} positions");
            return Err(Error::recipe(resolved.place(key), reason, format!("set {key} to at most {positions}")));
        }
    }
    if train.len() < resolved.train.batch_size {
        let reason = format!("{} samples do not fill one batch of {}", train.len(), resolved.train.batch_size);
        return Err(Error::recipe(resolved.place("train.batch_size"), reason, "use a smaller batch or more data"));
    }
    let class_weights = class_weights::weights(resolved, &train)?;
    let steps_per_epoch = (train.len() / resolved.train.batch_size) as u64;
    let schedule = schedule(resolved, steps_per_epoch)?;
    let answers = match resolved.data.source {
        DataSource::Squad { .. } => Some(GeneratedAnswers::of_squad(tokenizer, resolved.data.target_length)?),
        _ => None,
    };
    Ok(Setup {
        train: Arc::new(train),
        eval: eval.map(Arc::new),
        steps_per_epoch,
        schedule,
        directory,
        family: entry.model_type,
        parameters: opened.parameters,
        blocks: Division::of(opened.model.parameters()).blocks,
        initialized: opened.initialized,
        unused: opened.unused,
        left: opened.plan.left().to_vec(),
        notes: opened.notes,
        answers,
        class_weights,
    })
}

/// The model without its values.
fn sketch(resolved: &Resolved, registry: Registry<'_>, directory: &Path, labels: &LabelSpace) -> Result<OpenedModel> {
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let options = OpenOptions { only_check: true, ..whole_options(resolved, labels, &nowhere) };
    registry.open(directory, &options).map_err(|error| unfit(resolved, error))
}

/// The family knows that it has no such head, but not who asked for it.
fn unfit(resolved: &Resolved, error: Error) -> Error {
    let Error::Argument { reason, .. } = error else { return error };
    let source = &resolved.data.source;
    let name = source.task_name();
    let (key, fix) = match (source.has_token_labels(), source.has_prompt_form()) {
        (true, _) if source.has_classifier_form() => {
            ("data.objective", "take a language model, or data.objective = \"classifier\"".to_owned())
        }
        (true, _) => ("data.objective", "take a language model".to_owned()),
        (false, true) => ("data.objective", "set data.objective = \"verbalizer\", or take another model".to_owned()),
        (false, false) => ("data.task", format!("choose a task for such a model, not {name}, or take another model")),
    };
    Error::recipe(resolved.place(key), reason, fix)
}

/// Where the model answers prompts; `None` where the task has none.
fn verbalizer_position(
    resolved: &Resolved,
    registry: Registry<'_>,
    directory: &Path,
) -> Result<Option<VerbalizerPosition>> {
    if !resolved.data.source.has_token_labels() {
        return Ok(None);
    }
    // As it is opened for tokens of any kind.
    let opened = sketch(resolved, registry, directory, &LabelSpace::NextTokens)?;
    let place = opened.model.verbalizer_position().map_err(|error| unfit(resolved, error))?;
    if resolved.train.prompt_loss > 0.0 && place != VerbalizerPosition::Next {
        let reason = "this model sees all of a prompt at once, so it has no next token to predict";
        return Err(Error::recipe(resolved.place("train.prompt_loss"), reason, "remove it"));
    }
    Ok(Some(place))
}

/// Targets need an encoder-decoder, choices a model with one stack.
fn check_stacks(resolved: &Resolved, labels: &LabelSpace, model: &dyn TextModel) -> Result<()> {
    if let (LabelSpace::Choices(choices), false) = (labels, model.info().compares_choices) {
        let reason = format!("a sample has {choices} choices, and the classifier of this model reads one row of each");
        let fix = "choose a task of classes, or take another model";
        return Err(Error::recipe(resolved.place("data.task"), reason, fix));
    }
    let (reason, fix) = match (labels == &LabelSpace::Target, model.info().generates_targets) {
        (true, false) => ("this model has one stack, which reads and writes one text", "language"),
        _ if matches!(labels, LabelSpace::Verbalizer(_)) => return Ok(()),
        (false, true) => ("this encoder-decoder needs a target for each source text", "seq2seq"),
        (true, true) => return model.check_targets(),
        (false, false) => return Ok(()),
    };
    let fix = format!("set data.task = \"{fix}\", or take another model");
    Err(Error::recipe(resolved.place("data.task"), reason, fix))
}

/// A run limited by time alone has no known end; what its schedule needs of one is a pass of the data.
fn schedule(resolved: &Resolved, steps_per_epoch: u64) -> Result<Schedule> {
    let train = &resolved.train;
    let total = StopConditions::new(train, steps_per_epoch, StopFlag::default()).total_steps();
    let end = total.unwrap_or(match train.warmup {
        Warmup::Steps(steps) => steps.max(steps_per_epoch),
        Warmup::Fraction(_) => steps_per_epoch,
    });
    Schedule::new(train.schedule, train.lr, train.warmup, end, train.final_lr_ratio).map_err(|error| {
        let place = resolved.place("train.warmup");
        Error::recipe(place, error.to_string(), "shorten train.warmup or lengthen the run: its epochs are few steps")
    })
}

fn read_options<'t>(resolved: &Resolved, tokenizer: &'t dyn Tokenizer) -> ReadOptions<'t> {
    ReadOptions {
        too_long: resolved.data.too_long,
        on_bad_record: resolved.data.on_bad_record,
        target_length: resolved.data.target_length,
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

fn read_train(resolved: &Resolved, tokenizer: &dyn Tokenizer, place: Option<VerbalizerPosition>) -> Result<Dataset> {
    let options = read_options(resolved, tokenizer);
    match &resolved.data.source {
        DataSource::Files { train, columns, .. } => columns.read(train, &options),
        DataSource::LanguageModeling { train, task, .. } => task.read(train, &options),
        DataSource::QuestionAnswering { train, task, .. } => task.read(train, &options),
        DataSource::TokenClassification { train, task, .. } => task.read(train, &options),
        DataSource::Template { train, task, .. } => task.read(train, answering(resolved, place)?, &options),
        _ => read_split(resolved, Split::Train, place, &options),
    }
}

fn read_eval(
    resolved: &Resolved,
    tokenizer: &dyn Tokenizer,
    place: Option<VerbalizerPosition>,
    train: &Dataset,
) -> Result<Option<Dataset>> {
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
        DataSource::TokenClassification { eval: Some(eval), task, .. } => {
            // A tag that occurs here alone is a mistake, not a class.
            TagTask { labels: LabelSpec::of(train), ..task.clone() }.read(eval, &options).map(Some)
        }
        DataSource::Template { eval: Some(eval), task, .. } => {
            task.read(eval, answering(resolved, place)?, &options).map(Some)
        }
        DataSource::Files { eval: None, .. }
        | DataSource::LanguageModeling { eval: None, .. }
        | DataSource::QuestionAnswering { eval: None, .. }
        | DataSource::TokenClassification { eval: None, .. }
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

fn answering(resolved: &Resolved, place: Option<VerbalizerPosition>) -> Result<VerbalizerPosition> {
    place.ok_or_else(|| {
        let reason = "the task is answered by tokens, but no position for them is given";
        Error::recipe(resolved.place("data.objective"), reason, "take a language model")
    })
}

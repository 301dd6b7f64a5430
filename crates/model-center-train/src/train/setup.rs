//! Everything that can be known before weights are read: data, labels, sizes, the model's parameters.

use super::generated_answers::GeneratedAnswers;
use super::model_options::{save_options, whole_options};
use super::records::ModelSide;
use super::run_data::{EvalSet, RunData, Samples, weights_of_classes};
use super::samples::TextSamples;
use super::teacher::TeacherSetup;
use super::{parameter_count, pretraining_data, records};
use crate::train::stop::StopConditions;
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::Parameters;
use bmtrain_dist::optim::{Schedule, Warmup};
use model_center_base::batch::{LabelSpace, VerbalizerPosition};
use model_center_base::stop_flag::StopFlag;
use model_center_data::metrics::LabelKind;
use model_center_data::{PROMPTS, SUPERGLUE, TemplateTask};
use model_center_formats::config::TextHead;
use model_center_formats::tokenizer::Tokenizer;
use model_center_formats::{ModelCaches, shortened};
use model_center_models::adapter::AdapterPlan;
use model_center_models::{Division, OpenMode, OpenOptions, OpenedModel, Pooling, Registry, TENSOR_RANKS, TextModel};
use model_center_recipe::{EvalMetric, LastBatch, ModelStart, Resolved, TrainSettings, param_groups};
use std::sync::Arc;

/// Data, model and schedule of a run, checked before any weights are read.
#[derive(Debug)]
pub struct Setup {
    /// The training data.
    pub train: RunData,
    /// The evaluation data.
    pub eval: Vec<EvalSet>,
    /// What is evaluated once, at the end.
    pub test: Vec<EvalSet>,
    /// Optimizer steps of one pass over the data; of pretraining, of the run.
    pub steps_per_epoch: u64,
    /// The learning rate of every step.
    pub schedule: Schedule,
    /// The model the run begins with.
    pub start: ModelStart,
    /// The model's family.
    pub family: &'static str,
    /// Parameter values of the model.
    pub parameters: usize,
    /// What is trained of the model, if not all of it.
    pub adapter: Option<AdapterPlan>,
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
    /// Prompts that are completed on the way; `None`: none.
    pub texts: Option<TextSamples>,
    /// What each class weighs in the training loss; `None`: all samples weigh the same.
    pub class_weights: Option<Vec<f32>>,
    /// How hidden states become embeddings, where these are trained.
    pub pooling: Option<Pooling>,
    /// The teacher, where there is one.
    pub teacher: Option<TeacherSetup>,
}

impl Setup {
    /// Values of the parameters that checkpoints have: all, or those that are trained beside a frozen model.
    pub fn saved_values(&self) -> usize {
        self.adapter.as_ref().map_or(self.parameters, AdapterPlan::values)
    }

    /// The samples of training and of every evaluation.
    pub fn parts(&self) -> impl Iterator<Item = &RunData> {
        self.eval.iter().chain(&self.test).map(|set| &set.data).chain([&self.train])
    }

    /// A few lines about data and model.
    pub fn summary(&self, resolved: &Resolved) -> String {
        let mut lines = Vec::new();
        let settings = &resolved.data;
        lines.push(self.train.describe("train", settings));
        let of_train = self.train.describe_classes(self.class_weights.as_deref());
        lines.extend(of_train.map(|text| format!("classes of train: {text}")));
        for (part, sets) in [("eval", &self.eval), ("test", &self.test)] {
            for set in sets {
                let name = if sets.len() > 1 { format!("{part} {}", set.name) } else { part.to_owned() };
                lines.push(set.data.describe(&name, settings));
                lines.extend(set.data.describe_classes(None).map(|text| format!("classes of {name}: {text}")));
            }
        }
        let from = self.start.config.as_ref().map_or_else(
            || self.start.directory.display().to_string(),
            |config| format!("{}, initialized randomly", config.place()),
        );
        lines.push(format!("model: {} parameters from {from}", self.parameters));
        if let Some(plan) = &self.adapter {
            lines.push(format!("trained: {} of them, {}", plan.values(), plan.describe()));
        }
        lines.extend(self.teacher.iter().flat_map(TeacherSetup::lines));
        if !self.initialized.is_empty() {
            lines.push(format!("new, not in the directory: {}", self.initialized.join(", ")));
        }
        if !self.unused.is_empty() {
            lines.push(format!("in the directory, not used: {}", shortened(&self.unused)));
        }
        if !self.left.is_empty() {
            lines.push(format!("left out (model.leave): {}", shortened(&self.left)));
        }
        if self.start.config.is_some() {
            lines.extend(parameter_count::lines(self, resolved.parallel.tensor));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n")
    }
}

/// Read the data and check that data, tokenizer, model and recipe fit together, up to the saving at the end.
///
/// # Errors
/// The first mistake in the data, the model directory or the recipe.
pub fn prepare(resolved: &Resolved, registry: Registry<'_>, places: &ModelCaches) -> Result<Setup> {
    let mut found = Vec::new();
    let prepared = prepare_into(resolved, (registry, places), &mut found);
    found.into_iter().next().map_or(prepared, Err)
}

/// [`prepare`] with all that is wrong where one check does not depend on another.
pub(super) fn prepare_all(
    resolved: &Resolved,
    registry: Registry<'_>,
    places: &ModelCaches,
) -> Result<Setup, Vec<Error>> {
    let mut found = Vec::new();
    match prepare_into(resolved, (registry, places), &mut found) {
        Ok(setup) if found.is_empty() => Ok(setup),
        Ok(_) => Err(found),
        Err(error) => {
            found.push(error);
            Err(found)
        }
    }
}

/// Checks whose failure leaves the others possible put it into `found`.
fn prepare_into(
    resolved: &Resolved,
    (registry, places): (Registry<'_>, &ModelCaches),
    found: &mut Vec<Error>,
) -> Result<Setup> {
    let start = ModelStart::of(resolved, places)?;
    let family = start.family(registry, resolved.model.family.as_deref())?;
    let tokenizer = start.open_tokenizer()?;
    let mut notes = Vec::new();
    let samples = match resolved.data.source.pretraining() {
        Some(settings) => pretraining_data::open(resolved, settings, &*tokenizer),
        None => {
            let model = model_side(resolved, registry, &start)?;
            let are_rated = resolved.data.source.task().label_kind() == LabelKind::Classes;
            notes.extend(model.note_of_ends(&*tokenizer).filter(|_| !are_rated));
            let of_texts = start.open_text_tokenizer(resolved.data.parse_special)?;
            records::read(resolved, &*of_texts, &model)
        }
    };
    let mut samples = match samples {
        Ok(samples) => samples,
        Err(error) => match check_positions(resolved, registry, &start) {
            Ok(()) => return Err(error),
            Err(further) => {
                found.push(error);
                return Err(further);
            }
        },
    };
    let opened = sketch(resolved, registry, &start, samples.train.labels())?;
    found.extend(check_fit(resolved, &mut samples, (&opened, &*tokenizer), &start));
    let (registries, student) = ((registry, places), (opened.model.info(), &*tokenizer));
    let teacher = TeacherSetup::prepare(resolved, registries, student, samples.train.labels());
    let (teacher, class_weights) = (keep(teacher, found), keep(weights_of_classes(resolved, &samples.train), found));
    if let Some(last) = found.pop() {
        // What follows needs all of it to be right.
        return Err(last);
    }
    let pooling = resolved.contrastive.map(|_| Pooling::to_train(&start.directory)).transpose()?;
    if let (Some(most), RunData::Records(records)) =
        (pooling.as_ref().and_then(|pooling| pooling.max_length), &samples.train)
        && let Some(long) = (0..records.len()).map(|sample| records.length(sample)).find(|length| *length > most)
    {
        let place = resolved.place("data.max_length");
        let reason = format!("there is a text of {long} tokens, and the model's embeddings are of {most} at most");
        let fix = format!("set data.max_length = {most}: max_seq_length in its directory truncates texts there");
        return Err(Error::recipe(place, reason, fix));
    }
    let (count, batch) = (samples.train.len(), resolved.train.batch_size as u64);
    let steps_per_epoch = match resolved.data.source.pretraining() {
        Some(_) => resolved.train.steps.unwrap_or(1),
        None if keeps_last(resolved) => count.div_ceil(batch),
        None => count / batch,
    };
    let schedule = schedule(&resolved.train, steps_per_epoch, &resolved.place("train.warmup"))?;
    let answers = GeneratedAnswers::of(resolved, tokenizer)?;
    let texts = TextSamples::of(resolved, &start, &opened, samples.train.labels())?;
    let Samples { train, eval, test } = samples;
    Ok(Setup {
        train,
        eval,
        test,
        steps_per_epoch,
        schedule,
        start,
        family,
        parameters: opened.parameters,
        adapter: opened.adapter,
        blocks: Division::of(opened.model.parameters()).blocks,
        initialized: opened.initialized,
        unused: opened.unused,
        left: opened.plan.left().to_vec(),
        notes: opened.notes.into_iter().chain(notes).collect(),
        answers,
        texts,
        class_weights: class_weights.flatten(),
        pooling,
        teacher: teacher.flatten(),
    })
}

/// What does not fit together of samples, model, tokenizer and recipe.
fn check_fit(
    resolved: &Resolved,
    samples: &mut Samples,
    (opened, tokenizer): (&OpenedModel, &dyn Tokenizer),
    start: &ModelStart,
) -> Vec<Error> {
    let mut found = Vec::new();
    let mut check = |result: Result<()>| found.extend(result.err());
    check(check_stacks(resolved, &samples.train, &*opened.model));
    check(opened.check_tensor_ranks(resolved.parallel.tensor).map_err(|error| unfit(resolved, error)));
    check(opened.model.check_save(&save_options(resolved, &start.directory)));
    check(opened.adapter.as_ref().map_or(Ok(()), AdapterPlan::check_training));
    check(opened.adapter.as_ref().map_or(Ok(()), |plan| check_method(resolved, plan)));
    check(check_patterns(resolved, opened.model.parameters()));
    if let Some(plan) = opened.adapter.as_ref().filter(|_| resolved.save.merged) {
        check(plan.check_merge().map_err(|error| unfit(resolved, error)));
    }
    check(order_labels(samples, &opened.model.info().label_names));
    check(tokenizer.require_rows(opened.model.info().vocab_size));
    check(check_lengths(resolved, samples.train.labels(), opened.model.info().max_length));
    check(check_metrics(resolved, samples.train.labels()));
    let (count, batch) = (samples.train.len(), resolved.train.batch_size as u64);
    if count < batch && !keeps_last(resolved) {
        let reason = format!("{count} samples do not fill one batch of {batch}");
        let place = resolved.place("train.batch_size");
        check(Err(Error::recipe(place, reason, "use a smaller batch or more data")));
    }
    found
}

/// Refuses an adapter of another method than the recipe has.
fn check_method(resolved: &Resolved, plan: &AdapterPlan) -> Result<()> {
    let (key, method) = ("adapter.method", plan.config().method());
    match resolved.value(key) {
        Some(asked) if asked.trim_matches('"') != method => {
            let reason = format!("the directory of adapter.path has an adapter of method \"{method}\"");
            Err(Error::recipe(resolved.place(key), reason, format!("set adapter.method = \"{method}\"")))
        }
        _ => Ok(()),
    }
}

/// Refuses patterns of names that no parameter of the model has, or that leave none to train.
fn check_patterns(resolved: &Resolved, parameters: &Parameters) -> Result<()> {
    let train = &resolved.train;
    if train.frozen.is_empty() && train.only.is_empty() && train.groups.is_empty() {
        return Ok(());
    }
    param_groups(train, parameters).map(drop).map_err(|error| match error {
        Error::Recipe { place: key, reason, fix } => Error::recipe(resolved.place(&key), reason, fix),
        other => other,
    })
}

/// Whether the last samples of a pass are a batch although they do not fill one.
fn keeps_last(resolved: &Resolved) -> bool {
    resolved.data.last_batch == LastBatch::Keep && resolved.data.source.pretraining().is_none()
}

/// The value, or its error among the others.
fn keep<T>(result: Result<T>, found: &mut Vec<Error>) -> Option<T> {
    result.map_err(|error| found.push(error)).ok()
}

/// A classifier that the directory brings has an order of its own, which the data follow.
fn order_labels(samples: &mut Samples, names: &[String]) -> Result<()> {
    for data in std::iter::once(&mut samples.train).chain(samples.eval.iter_mut().map(|set| &mut set.data)) {
        if let (RunData::Records(records), false) = (data, names.is_empty())
            && matches!(
                records.labels(),
                LabelSpace::Classes(_) | LabelSpace::TokenClasses(_) | LabelSpace::LabelSets(_)
            )
            && let Some(records) = Arc::get_mut(records)
        {
            records.order_labels(names)?;
        }
    }
    Ok(())
}

/// Refuses metrics that are not defined for the number of classes.
fn check_metrics(resolved: &Resolved, labels: &LabelSpace) -> Result<()> {
    let early_stop = resolved.train.early_stop.map(|early| early.metric);
    for (key, metric) in [("eval.metric", Some(resolved.eval.metric)), ("train.early_stop.metric", early_stop)] {
        let Some(EvalMetric::Metric(metric)) = metric else { continue };
        metric.check_classes(labels.classes()).map_err(|error| match error {
            Error::Argument { reason, fix, .. } => Error::recipe(resolved.place(key), reason, fix),
            other => other,
        })?;
    }
    Ok(())
}

/// Refuses sequences that are longer than the model's positions.
fn check_lengths(resolved: &Resolved, labels: &LabelSpace, positions: usize) -> Result<()> {
    let of_input = match resolved.data.source.pretraining() {
        Some(_) => "data.sequence_length",
        None => "data.max_length",
    };
    for (key, asked) in [(of_input, resolved.data.max_length), ("data.target_length", resolved.data.target_length)] {
        if asked > positions && (key == of_input || *labels == LabelSpace::Target) {
            let reason = format!("{key} is {asked}, the model has {positions} positions");
            return Err(Error::recipe(resolved.place(key), reason, format!("set {key} to at most {positions}")));
        }
    }
    Ok(())
}

/// [`check_lengths`] of the input where the samples, and with them the model's head, are unknown.
fn check_positions(resolved: &Resolved, registry: Registry<'_>, start: &ModelStart) -> Result<()> {
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let options = OpenOptions {
        family: resolved.model.family.clone(),
        ignored: resolved.model.leave.clone(),
        head: Some(TextHead::None),
        mode: OpenMode::Check,
        ..OpenOptions::new(&nowhere)
    };
    let opened = registry.open(&start.directory, &start.with_config(options))?;
    check_lengths(resolved, &LabelSpace::NextTokens, opened.model.info().max_length)
}

/// The model without its values.
fn sketch(resolved: &Resolved, registry: Registry<'_>, start: &ModelStart, labels: &LabelSpace) -> Result<OpenedModel> {
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let options = OpenOptions { mode: OpenMode::Check, ..start.with_config(whole_options(resolved, labels, &nowhere)) };
    registry.open(&start.directory, &options).map_err(|error| unfit(resolved, error))
}

/// The family knows that it has no such head, but not who asked for it.
fn unfit(resolved: &Resolved, error: Error) -> Error {
    let Error::Argument { place, reason, fix } = error else { return error };
    if place.starts_with("adapter.") || place == TENSOR_RANKS {
        return Error::recipe(resolved.place(&place), reason, fix);
    }
    let task = resolved.data.source.task();
    let name = task.name();
    let has_prompts = PROMPTS.iter().any(|entry| entry.name == name);
    let has_classes =
        SUPERGLUE.iter().any(|entry| entry.name == name) || resolved.data.source.task_as::<TemplateTask>().is_some();
    let (key, fix) = match (task.uses_label_words(), has_prompts) {
        (true, _) if has_classes => {
            ("data.objective", "take a language model, or data.objective = \"classifier\"".to_owned())
        }
        (true, _) => ("data.objective", "take a language model".to_owned()),
        (false, true) => ("data.objective", "set data.objective = \"verbalizer\", or take another model".to_owned()),
        (false, false) => ("data.task", format!("choose a task for such a model, not {name}, or take another model")),
    };
    Error::recipe(resolved.place(key), reason, fix)
}

/// A mistake in what a key of the recipe names.
pub(super) fn of_key(resolved: &Resolved, key: &str, error: Error) -> Error {
    match error {
        Error::Model { place, reason, fix } | Error::Argument { place, reason, fix } => {
            Error::recipe(resolved.place(key), format!("`{key}`: {place}: {reason}"), fix)
        }
        other => other,
    }
}

/// What the records of the task depend on.
fn model_side(resolved: &Resolved, registry: Registry<'_>, start: &ModelStart) -> Result<ModelSide> {
    let place = verbalizer_position(resolved, registry, start)?;
    let task = resolved.data.source.task();
    if !task.has_conversations() {
        return Ok(ModelSide { place, ..ModelSide::default() });
    }
    let chat = start.chat_template(resolved.data.chat_template.as_deref())?;
    if task.label_kind() == LabelKind::Classes {
        return Ok(ModelSide { place, chat, generates_targets: false });
    }
    // As it is opened for tokens of any kind.
    let opened = sketch(resolved, registry, start, &LabelSpace::NextTokens)?;
    let generates_targets = opened.model.info().generates_targets;
    Ok(ModelSide { place, chat, generates_targets })
}

/// Where the model answers prompts; `None` where the task has none.
fn verbalizer_position(
    resolved: &Resolved,
    registry: Registry<'_>,
    start: &ModelStart,
) -> Result<Option<VerbalizerPosition>> {
    if !resolved.data.source.task().uses_label_words() {
        return Ok(None);
    }
    // As it is opened for tokens of any kind.
    let opened = sketch(resolved, registry, start, &LabelSpace::NextTokens)?;
    let place = opened.model.verbalizer_position().map_err(|error| unfit(resolved, error))?;
    if resolved.train.prompt_loss > 0.0 && place != VerbalizerPosition::Next {
        let reason = "this model sees all of a prompt at once, so it has no next token to predict";
        return Err(Error::recipe(resolved.place("train.prompt_loss"), reason, "remove it"));
    }
    Ok(Some(place))
}

/// Targets need an encoder-decoder, choices a model with one stack.
fn check_stacks(resolved: &Resolved, data: &RunData, model: &dyn TextModel) -> Result<()> {
    let labels = data.labels();
    if let (LabelSpace::Choices(choices), false) = (labels, model.info().compares_choices) {
        let reason = format!("a sample has {choices} choices, and the classifier of this model reads one row of each");
        let fix = "choose a task of classes, or take another model";
        return Err(Error::recipe(resolved.place("data.task"), reason, fix));
    }
    let (reason, fix) = match (labels == &LabelSpace::Target, model.info().generates_targets) {
        (true, false) => ("this model has one stack, which reads and writes one text", "language"),
        _ if matches!(labels, LabelSpace::Verbalizer(_)) => return Ok(()),
        (false, true) => ("this encoder-decoder needs a target for each source text", "seq2seq"),
        (true, true) if !data.gives_decoder_inputs() => return model.check_targets(),
        (true, true) | (false, false) => return Ok(()),
    };
    let fix = format!("set data.task = \"{fix}\", or take another model");
    Err(Error::recipe(resolved.place("data.task"), reason, fix))
}

/// A run limited by time alone has no known end; what its schedule needs of one is a pass of the data.
pub(super) fn schedule(train: &TrainSettings, steps_per_epoch: u64, place: &str) -> Result<Schedule> {
    let total = StopConditions::new(train, steps_per_epoch, StopFlag::default()).total_steps();
    let end = train.decay_steps.or(total).unwrap_or(match train.warmup {
        Warmup::Steps(steps) => steps.max(steps_per_epoch),
        Warmup::Fraction(_) => steps_per_epoch,
    });
    let schedule = Schedule::new(train.schedule, train.lr, train.warmup, end, train.final_lr_ratio);
    schedule.map(|schedule| schedule.over(train.decay_endpoint)).map_err(|error| {
        Error::recipe(place, error.to_string(), "shorten train.warmup or lengthen the run: its epochs are few steps")
    })
}

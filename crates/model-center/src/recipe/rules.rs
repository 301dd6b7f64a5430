//! What settings must agree on, and what must exist on disk before a run starts.
//!
//! Defines `check`, run at every load, [`preflight`], which looks at files without reading weights or records, and
//! [`model_directory`].
//! Whether a single value is of the right type and range is decided where its key is declared, in `keys.rs`.

use super::data_source::DataSource;
use super::memory;
use super::mistake::{Group, Mistake};
use super::parallel;
use super::reader::Reader;
use super::resolved::Resolved;
use super::settings::{EvalMetric, Interval, Settings};
use crate::Error;
use crate::data::{Format, LabelSpec, LanguageModelingColumns, TemplateTask};
use crate::formats::pretrained::{ModelCaches, Pretrained};
use crate::metrics::MetricKind;
use crate::run::{
    CHECKPOINT_DIRECTORY, LAST_MODEL_DIRECTORY, MARKER, MAX_NAME_BYTES, MODEL_DIRECTORY, RECIPE_FILE, STOP_FILE,
    is_output_name,
};
use bmtrain_dist::optim::{ScheduleKind, Warmup};
use std::path::{Component, Path, PathBuf};

/// Adds the contradictions and the settings without effect that concern more than one table or value.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    check_length(r, s);
    check_schedule(r, s);
    check_optimizer(r, s);
    memory::check(r, s);
    check_task(r, s);
    check_columns(r, s);
    check_eval(r, s);
    check_output(r, s);
    parallel::check(r, &s.parallel);
    check_pipeline(r, s);
}

/// Statistics of a whole model, where a pipeline stage has a part of it.
fn check_pipeline(r: &mut Reader, s: &Settings) {
    if s.parallel.pipeline > 1 && s.train.inspect_every.is_some() {
        let reason = "`train.inspect_every` looks at a whole model, and a pipeline stage has a part of it";
        let fix = "remove train.inspect_every, or set parallel.pipeline = 1";
        r.contradiction(&["train.inspect_every", "parallel.pipeline"], reason, fix);
    }
}

fn check_length(r: &mut Reader, s: &Settings) {
    let t = &s.train;
    if t.epochs.is_none() && t.steps.is_none() && t.minutes.is_none() {
        let keys = ["train.epochs", "train.steps", "train.minutes"];
        r.absent(
            &keys,
            "there is no limit to the length of training",
            "set train.epochs, train.steps or train.minutes",
        );
    }
    // With an accumulation that is set, a default gives way to the numbers of the recipe once the ranks are known.
    let is_solved =
        t.accumulation.is_some() && !(r.is_explicit("train.batch_size") && r.is_explicit("train.micro_batch_size"));
    if !is_solved && !t.batch_size.is_multiple_of(t.micro_batch_size) {
        let (batch, micro) = (t.batch_size, t.micro_batch_size);
        let fix = match (1..=micro.min(batch)).rev().find(|m| batch.is_multiple_of(*m)) {
            Some(fits) => format!("set train.micro_batch_size = {fits}"),
            None => "choose a divisor".into(),
        };
        let reason = format!("`train.micro_batch_size` = {micro} does not divide `train.batch_size` = {batch}");
        r.contradiction(&["train.micro_batch_size", "train.batch_size"], reason, fix);
    }
}

fn check_schedule(r: &mut Reader, s: &Settings) {
    let t = &s.train;
    let needs_end = matches!(t.schedule, ScheduleKind::Linear | ScheduleKind::Cosine);
    let end_is_known = t.epochs.is_some() || t.steps.is_some();
    if !end_is_known && t.minutes.is_some() {
        let fix = "set train.epochs or train.steps as well, or train.schedule = \"constant\" and train.warmup in steps";
        if needs_end {
            let reason = "this schedule needs the number of steps, which train.minutes does not determine";
            r.contradiction(&["train.schedule", "train.minutes", "train.epochs", "train.steps"], reason, fix);
        } else if matches!(t.warmup, Warmup::Fraction(_)) {
            let reason = "a fraction of an unknown number of steps: train.minutes does not determine the number";
            r.contradiction(&["train.warmup", "train.minutes", "train.epochs", "train.steps"], reason, fix);
        }
    }
    if let (Warmup::Steps(warmup), Some(steps)) = (t.warmup, t.steps)
        && warmup >= steps
    {
        let reason = format!("`train.warmup` = {warmup} lasts as long as the run of `train.steps` = {steps} or longer");
        r.contradiction(&["train.warmup", "train.steps"], reason, "shorten the warm-up");
    }
    if t.schedule == ScheduleKind::Noam && matches!(t.warmup, Warmup::Steps(0) | Warmup::Fraction(0.0)) {
        let reason = "the \"noam\" schedule is defined by its warm-up, which is 0";
        r.contradiction(&["train.schedule", "train.warmup"], reason, "set train.warmup, e.g. 100");
    }
    if t.schedule == ScheduleKind::NoDecay {
        r.without_effect(
            "train.final_lr_ratio",
            "train.schedule",
            "train.schedule = \"constant\" does not fall",
            "remove it",
        );
    }
}

fn check_optimizer(r: &mut Reader, s: &Settings) {
    if s.train.weight_decay == 0.0 {
        for key in ["train.decay_norms_and_biases", "train.decoupled"] {
            r.without_effect(
                key,
                "train.weight_decay",
                "train.weight_decay is 0",
                "remove it, or set train.weight_decay",
            );
        }
    }
}

fn check_task(r: &mut Reader, s: &Settings) {
    let predicts = s.data.source.predicts();
    if predicts == MetricKind::Values {
        r.without_effect("train.label_smoothing", "data.task", "a regression has no classes", "remove it");
    }
    if !s.data.source.has_token_labels() {
        let fix = "remove it, or set data.objective = \"verbalizer\"";
        r.without_effect("train.prompt_loss", "data.objective", "there is no prompt before an answer", fix);
    }
    for (key, metric) in
        [("eval.metric", Some(s.eval.metric)), ("train.early_stop.metric", s.train.early_stop.map(|e| e.metric))]
    {
        let Some(EvalMetric::Metric(metric)) = metric else { continue };
        let is_of_task = s.data.source.task_metrics().is_some_and(|metrics| metrics.contains(&metric));
        if metric.kind() != predicts && !is_of_task && r.is_explicit(key) {
            let (name, judges, has) = (metric.name(), metric.kind().name(), predicts.name());
            let task = s.data.source.task_name();
            let reason = format!("`{key}` = \"{name}\" judges {judges}, and task \"{task}\" has {has} for labels");
            let fix = match predicts {
                MetricKind::Classes | MetricKind::Questions => "use \"accuracy\" or \"loss\"",
                MetricKind::Values => "use \"pearson\" or \"loss\"",
                MetricKind::Tokens => "use \"perplexity\" or \"loss\"",
            };
            r.contradiction(&[key, "data.task"], reason, fix);
        }
    }
}

fn check_columns(r: &mut Reader, s: &Settings) {
    let Some((train, eval)) = s.data.source.files() else { return };
    let (text, named, format) = match &s.data.source {
        DataSource::Task { .. } | DataSource::Prompts { .. } | DataSource::Squad { .. } => return,
        DataSource::Template { task, .. } => return check_template(r, s, task, (train, eval)),
        DataSource::Files { columns, .. } => {
            let pair = ("data.columns.text_pair", columns.text_pair.as_ref());
            (&columns.text, vec![pair, ("data.columns.label", Some(&columns.label))], columns.format)
        }
        DataSource::LanguageModeling { task, .. } => match &task.columns {
            LanguageModelingColumns::Language { text, prompt } => {
                (text, vec![("data.columns.prompt", prompt.as_ref())], task.format)
            }
            LanguageModelingColumns::Target { text, target } => {
                (text, vec![("data.columns.target", Some(target))], task.format)
            }
        },
    };
    let named: Vec<_> = std::iter::once(("data.columns.text", Some(text))).chain(named).collect();
    for (i, (key, name)) in named.iter().enumerate() {
        let twin = named[..i].iter().find(|(_, other)| name.is_some() && other == name);
        if let (Some((other, _)), Some(name)) = (twin, name) {
            let reason = format!("`{other}` and `{key}` both name the column \"{name}\"");
            r.contradiction(&[other, key], reason, "name two columns");
        }
    }
    if let DataSource::Files { columns, .. } = &s.data.source
        && let LabelSpec::Names(names) = &columns.labels
    {
        check_labels(r, names);
    }
    check_format(r, s, format, (train, eval));
}

/// A prompt, its label words and its labels.
fn check_template(r: &mut Reader, s: &Settings, task: &TemplateTask, files: (&PathBuf, Option<&PathBuf>)) {
    // Missing ones were already reported.
    if task.labels.is_empty() || task.words.is_empty() {
        return;
    }
    check_labels(r, &task.labels);
    if task.words.len() != task.labels.len() {
        let reason = format!("`data.words` has {} label words for {} labels", task.words.len(), task.labels.len());
        r.contradiction(&["data.words", "data.labels"], reason, "give one label word for each label, in their order");
    }
    if task.template.columns().any(|column| column == task.label) {
        let reason = format!("`data.template` shows the column \"{}\", which is the label", task.label);
        r.contradiction(&["data.template", "data.columns.label"], reason, "leave the label out of the prompt");
    }
    check_format(r, s, task.format, files);
}

fn check_labels(r: &mut Reader, names: &[String]) {
    if names.len() < 2 {
        let reason = format!("`data.labels` names {} label, and a classification needs two", names.len());
        r.contradiction(&["data.labels"], reason, "name all labels, or leave data.labels out");
    }
    let mut seen = std::collections::BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        r.contradiction(&["data.labels"], format!("`data.labels` names \"{twice}\" twice"), "name each label once");
    }
}

/// Files whose names do not determine their format, and plain text where it is not supported.
fn check_format(r: &mut Reader, s: &Settings, format: Option<Format>, (train, eval): (&PathBuf, Option<&PathBuf>)) {
    let files = [("data.train", Some(train)), ("data.eval", eval)];
    let files = files.into_iter().filter_map(|(key, path)| Some((key, path?)));
    let files: Vec<_> = files.filter(|(_, path)| !path.as_os_str().is_empty()).collect();
    for (key, path) in &files {
        if format.is_none() && Format::of(path).is_err() {
            let reason = format!("the name of `{key}` does not determine the file's format");
            let fix =
                "set data.format to \"jsonl\", \"csv\", \"tsv\" or, for plain text or a directory of it, \"text\"";
            r.contradiction(&[key, "data.format"], reason, fix);
        }
    }
    let formats = files.iter().map(|(key, path)| (*key, format.or_else(|| Format::of(path).ok()))).collect::<Vec<_>>();
    check_plain_text(r, s, &formats);
}

/// Rules for plain text.
fn check_plain_text(r: &mut Reader, s: &Settings, files: &[(&'static str, Option<Format>)]) {
    let Some((key, _)) = files.iter().find(|(_, format)| *format == Some(Format::Text)) else { return };
    match &s.data.source {
        DataSource::LanguageModeling { task, .. } => match &task.columns {
            LanguageModelingColumns::Language { prompt: None, .. } => {}
            LanguageModelingColumns::Language { prompt: Some(_), .. } => {
                let fix = "remove data.columns.prompt, or write records";
                r.contradiction(&["data.columns.prompt", "data.format", key], "plain text has no columns", fix);
            }
            LanguageModelingColumns::Target { .. } => refuse_plain_text(r, key),
        },
        _ => refuse_plain_text(r, key),
    }
    if files.iter().all(|(_, format)| *format == Some(Format::Text)) {
        r.without_effect("data.columns.text", "data.format", "plain text has no columns", "remove it");
        r.without_effect(
            "data.too_long",
            "data.format",
            "plain text is cut into rows and none is too long",
            "remove it",
        );
        for key in ["data.length_grouped", "data.packing"] {
            r.without_effect(key, "data.format", "rows of plain text are of one length", "remove it");
        }
    }
}

fn refuse_plain_text(r: &mut Reader, key: &'static str) {
    let reason = "plain text has no columns, and this task needs them";
    let fix = "write JSON lines, CSV or TSV, or set data.task = \"language\"";
    r.contradiction(&["data.task", "data.format", key], reason, fix);
}

fn check_eval(r: &mut Reader, s: &Settings) {
    if !s.data.source.has_eval() {
        let fix = "set data.eval";
        if s.save.which.keeps_best() {
            r.contradiction(&["save.which", "data.eval"], "without data.eval no weights are known to be best", fix);
        }
        if s.train.early_stop.is_some() {
            let reason = "stopping early needs evaluations, and there is no data.eval";
            r.contradiction(&["train.early_stop.patience", "data.eval"], reason, fix);
        }
    } else if s.train.early_stop.is_some() && s.eval.every == Interval::End {
        let reason = "stopping early needs evaluations on the way, and eval.every = \"end\"";
        r.contradiction(&["train.early_stop.patience", "eval.every"], reason, "set eval.every, e.g. \"1 epoch\"");
    }
}

fn check_output(r: &mut Reader, s: &Settings) {
    let (metrics, fix) = (&s.log.metrics, "write e.g. metrics = \"metrics.jsonl\"");
    if [MARKER, RECIPE_FILE, MODEL_DIRECTORY, LAST_MODEL_DIRECTORY, CHECKPOINT_DIRECTORY, STOP_FILE]
        .contains(&metrics.as_str())
    {
        let reason = format!("`log.metrics` = \"{metrics}\" is a name that the run writes to besides");
        r.contradiction(&["log.metrics"], reason, fix);
    } else if !is_output_name(metrics) {
        let reason = format!(
            "`log.metrics` must be a plain file name of at most {MAX_NAME_BYTES} bytes in the output directory, \
             without \
             a leading dot"
        );
        r.contradiction(&["log.metrics"], reason, fix);
    }
    let dir = lexical(&s.output.dir);
    if !s.model.path.is_empty() && dir == lexical(Path::new(&s.model.path)) {
        let reason = "`output.dir` is the directory of `model.path`, which would be overwritten";
        r.contradiction(&["output.dir", "model.path"], reason, "write to another directory");
    }
    if let Some(directory) = s.data.source.directory()
        && !directory.as_os_str().is_empty()
        && dir == lexical(directory)
    {
        let reason = "`output.dir` is the directory of `data.path`";
        r.contradiction(&["output.dir", "data.path"], reason, "write to another directory");
    }
}

/// A path without `.` and with `..` taken back, as far as that can be done without looking at the disk.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// Looks whether the files a recipe names are there: the model's directory, in `places` if need be, with its
/// `config.json`; the data files.
///
/// Returns every mistake found. Weights and records are not read.
pub fn preflight(resolved: &Resolved, places: &ModelCaches) -> Vec<Mistake> {
    let model = model_directory(resolved, places);
    let mut out: Vec<Mistake> = model.as_ref().err().cloned().into_iter().collect();
    let takes_directories =
        matches!(&resolved.data.source, DataSource::LanguageModeling { task, .. } if task.format == Some(Format::Text));
    let mut look = |group, key: &str, path: PathBuf, is_directory: bool, fix: &str| {
        let found = std::fs::metadata(&path);
        let shown = path.display();
        let reason = match found {
            Err(e) => format!("`{key}`: cannot open {shown}: {e}"),
            Ok(kind) if group == Group::Data && takes_directories && kind.is_dir() => return true,
            Ok(kind) if is_directory && !kind.is_dir() => format!("`{key}`: {shown} is not a directory"),
            Ok(kind) if !is_directory && !kind.is_file() => format!("`{key}`: {shown} is not a plain file"),
            Ok(kind) if !is_directory && kind.len() == 0 => format!("`{key}`: {shown} is empty"),
            Ok(_) => return true,
        };
        out.push(Mistake { group, place: resolved.place(key), reason, fix: fix.into() });
        false
    };
    if let Ok(directory) = &model {
        look(
            Group::Model,
            "model.path",
            directory.join("config.json"),
            false,
            "name a complete Hugging Face model directory",
        );
    }
    match &resolved.data.source {
        DataSource::Task { directory, .. }
        | DataSource::Prompts { directory, .. }
        | DataSource::Squad { directory } => {
            let files = resolved.data.source.files_of_task();
            let fix = format!("name the directory that holds {}", files.join(" and "));
            if look(Group::Data, "data.path", directory.clone(), true, &fix) {
                for file in files {
                    look(Group::Data, "data.path", directory.join(file), false, &fix);
                }
            }
        }
        DataSource::Files { train, eval, .. }
        | DataSource::LanguageModeling { train, eval, .. }
        | DataSource::Template { train, eval, .. } => {
            look(Group::Data, "data.train", train.clone(), false, "name a file of training records");
            if let Some(eval) = eval {
                look(Group::Data, "data.eval", eval.clone(), false, "name a file of evaluation records");
            }
        }
    }
    out
}

/// The directory of a recipe's model, see [`Pretrained::resolve`].
///
/// # Errors
/// No such model, or an invalid `model.revision`; the place is the key's.
pub fn model_directory(resolved: &Resolved, places: &ModelCaches) -> Result<PathBuf, Mistake> {
    let (name, revision) = (resolved.model.path.as_str(), resolved.model.revision.as_deref());
    let key = if revision.is_some() && Path::new(name).is_dir() { "model.revision" } else { "model.path" };
    Pretrained::resolve(name, revision, places).map_err(|error| {
        let (reason, fix) = match error {
            Error::Model { place, reason, fix } => (format!("{place}: {reason}"), fix),
            Error::File { path, source, fix, .. } => (format!("cannot open {}: {source}", path.display()), fix),
            other => (other.to_string(), "name a Hugging Face model directory".into()),
        };
        Mistake { group: Group::Model, place: resolved.place(key), reason: format!("`{key}`: {reason}"), fix }
    })
}

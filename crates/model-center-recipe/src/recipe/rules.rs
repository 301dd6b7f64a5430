//! What settings must agree on, and what must exist on disk before a run starts.
//!
//! Defines `check`, run at every load, and [`preflight`], which looks at files without reading weights or records.
//! Whether a single value is of the right type and range is decided where its key is declared, in `keys.rs`.

use super::data_source::DataSource;
use super::layers::Origin;
use super::mistake::{Group, Mistake};
use super::model_start::{config_file, model_directory, teacher_directory};
use super::reader::Reader;
use super::resolved::Resolved;
use super::settings::{EvalMetric, Interval, Settings};
use super::{
    adapter, average, batch_ramp, distill, embedding, loss_scale, memory, model, parallel, preference, schedule,
};
use crate::Error;
use crate::run::{FIXED_NAMES, MARKER, MAX_NAME_BYTES, STOP_FILE, is_output_name};
use model_center_data::corpus::{index_path, token_path};
use model_center_data::metrics::{LabelSetCounts, MetricKind};
use model_center_data::{Format, LabelColumns, LabelSpec, LanguageModelingColumns, TagTask, TemplateTask};
use model_center_formats::{
    KnownDirectory,
    pretrained::{ModelCaches, near_path},
};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Adds the contradictions and the settings without effect that concern more than one table or value.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    model::check(r, s);
    adapter::check(r, s);
    preference::check(r, s);
    embedding::check(r, s);
    distill::check(r, s);
    check_length(r, s);
    check_budget(r, s);
    batch_ramp::check(r, s);
    schedule::check(r, s);
    loss_scale::check(r, s);
    check_optimizer(r, s);
    memory::check(r, s);
    average::check(r, s);
    check_task(r, s);
    check_columns(r, s);
    check_eval(r, s);
    check_output(r, s);
    parallel::check(r, &s.parallel);
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

/// Samples of token files are numbered over the whole run, whose length has to be known.
fn check_budget(r: &mut Reader, s: &Settings) {
    if s.data.source.pretraining().is_none() {
        return;
    }
    if s.train.steps.is_none() {
        let reason = "`train.steps` is missing: task pretrain has samples for a number of steps";
        r.absent(&["train.steps", "data.task"], reason, "set train.steps = 300000");
    }
    r.without_effect("train.epochs", "data.task", "task pretrain is limited by train.steps", "remove it");
    if matches!(s.eval.every, Interval::Epochs(_)) && r.is_explicit("eval.every") {
        let reason = "`eval.every` counts epochs, and task pretrain has one";
        r.contradiction(&["eval.every", "data.task"], reason, "give a number of steps, such as \"1000 steps\"");
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
    if predicts == MetricKind::LabelSets {
        let why = "each of any number of labels has a loss of its own";
        r.without_effect("train.label_smoothing", "data.task", why, "remove it");
    }
    if !s.data.source.has_token_labels() {
        let fix = "remove it, or set data.objective = \"verbalizer\"";
        r.without_effect("train.prompt_loss", "data.objective", "there is no prompt before an answer", fix);
    }
    for (key, metric) in
        [("eval.metric", Some(s.eval.metric)), ("train.early_stop.metric", s.train.early_stop.map(|e| e.metric))]
    {
        let Some(EvalMetric::Metric(metric)) = metric else { continue };
        let is_of_task = s.data.source.task_metrics().is_some_and(|metrics| metrics.contains(&metric))
            || (predicts == MetricKind::LabelSets && LabelSetCounts::METRICS.contains(&metric));
        if metric.kind() != predicts && !is_of_task && r.is_explicit(key) {
            let (name, judges, has) = (metric.name(), metric.kind().name(), predicts.name());
            let task = s.data.source.task_name();
            let reason = format!("`{key}` = \"{name}\" judges {judges}, and task \"{task}\" has {has} for labels");
            let fix = match predicts {
                MetricKind::Classes => "use \"accuracy\" or \"loss\"",
                MetricKind::Questions => "use \"token_f1\" or \"loss\"",
                MetricKind::Values => "use \"pearson\" or \"loss\"",
                MetricKind::Tokens => "use \"perplexity\" or \"loss\"",
                MetricKind::Tags => "use \"entity_f1\" or \"loss\"",
                MetricKind::Pairs => "use \"reward_accuracy\" or \"loss\"",
                MetricKind::LabelSets => "use \"f1_micro\" or \"loss\"",
                MetricKind::Embeddings => "use \"mean_reciprocal_rank\" or \"loss\"",
            };
            r.contradiction(&[key, "data.task"], reason, fix);
        }
    }
}

const TEXT: &str = "data.columns.text";

fn check_columns(r: &mut Reader, s: &Settings) {
    let Some((train, eval)) = s.data.source.files() else { return };
    let (key, text, named, format) = match &s.data.source {
        DataSource::Task { .. }
        | DataSource::Prompts { .. }
        | DataSource::Published { .. }
        | DataSource::Squad { .. }
        | DataSource::QuestionAnswering { .. }
        | DataSource::Sft(_)
        | DataSource::Pretraining(_) => return,
        DataSource::TokenClassification { task, .. } => return check_tags(r, task),
        DataSource::Template { task, .. } => return check_template(r, s, task, (train, eval)),
        DataSource::MultiLabel { task, .. } => {
            let mut more = vec![("data.columns.text_pair", task.text_pair.as_ref())];
            match &task.columns {
                LabelColumns::List(column) => more.push(("data.columns.label", Some(column))),
                LabelColumns::Flags(columns) => {
                    check_labels(r, columns);
                    more.extend(columns.iter().map(|column| ("data.columns.labels", Some(column))));
                }
            }
            (TEXT, &task.text, more, task.format)
        }
        DataSource::Embedding { task, .. } => {
            let more =
                [("data.columns.positive", Some(&task.positive)), ("data.columns.negative", task.negative.as_ref())];
            ("data.columns.anchor", &task.anchor, more.to_vec(), task.format)
        }
        DataSource::Files { columns, .. } => {
            let pair = ("data.columns.text_pair", columns.text_pair.as_ref());
            (TEXT, &columns.text, vec![pair, ("data.columns.label", Some(&columns.label))], columns.format)
        }
        DataSource::LanguageModeling { task, .. } => match &task.columns {
            LanguageModelingColumns::Language { text, prompt } => {
                (TEXT, text, vec![("data.columns.prompt", prompt.as_ref())], task.format)
            }
            LanguageModelingColumns::Target { text, target } => {
                (TEXT, text, vec![("data.columns.target", Some(target))], task.format)
            }
        },
    };
    let named: Vec<_> = std::iter::once((key, Some(text))).chain(named).collect();
    for (i, (key, name)) in named.iter().enumerate() {
        let twin = named[..i].iter().find(|(_, other)| name.is_some() && other == name);
        if let (Some((other, _)), Some(name)) = (twin, name) {
            let reason = format!("`{other}` and `{key}` both name the column \"{name}\"");
            r.contradiction(&[other, key], reason, "name two columns");
        }
    }
    let labels = match &s.data.source {
        DataSource::Files { columns, .. } => Some(&columns.labels),
        DataSource::MultiLabel { task, .. } => Some(&task.labels),
        _ => None,
    };
    if let Some(LabelSpec::Names(names)) = labels {
        check_labels(r, names);
    }
    check_format(r, s, format, (train, eval));
}

/// Words and tags, and the names of the tags.
fn check_tags(r: &mut Reader, task: &TagTask) {
    if task.tokens == task.tags {
        let reason = format!("`data.columns.tokens` and `data.columns.tags` both name the column \"{}\"", task.tags);
        r.contradiction(&["data.columns.tokens", "data.columns.tags"], reason, "name two columns");
    }
    if let LabelSpec::Names(names) = &task.labels {
        check_labels(r, names);
    }
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
        let own = Format::of(path).ok().filter(|_| matches!(format, Some(Format::Separated(_))));
        if own.is_some_and(|own| own != Format::Csv) {
            let reason = format!("a delimiter is between the columns of CSV, and `{key}` is named as another format");
            r.contradiction(&[key, "data.delimiter"], reason, "remove data.delimiter, or name the file .csv");
            continue;
        }
        let Err(error) = format.map_or_else(|| Format::of(path), Ok) else { continue };
        match error {
            // A directory that is known, and is not one file's worth of records.
            Error::Data { reason, fix, .. } if KnownDirectory::of(path).is_some() => {
                r.contradiction(&[key], reason, fix)
            }
            _ => {
                let reason = format!("the name of `{key}` does not determine the file's format");
                let fix = "set data.format to \"jsonl\", \"csv\", \"tsv\", \"arrow\", \"parquet\" or, for plain text \
                           or a directory of it, \"text\"";
                r.contradiction(&[key, "data.format"], reason, fix);
            }
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
        let key = s.data.source.eval_key();
        let fix = format!("set {key}");
        if s.save.which.keeps_best() {
            let reason = format!("without {key} no weights are known to be best");
            r.contradiction(&["save.which", key], reason, fix.clone());
        }
        if s.train.early_stop.is_some() {
            let reason = format!("stopping early needs evaluations, and there is no {key}");
            r.contradiction(&["train.early_stop.patience", key], reason, fix);
        }
    } else if s.train.early_stop.is_some() && s.eval.every == Interval::End {
        let reason = "stopping early needs evaluations on the way, and eval.every = \"end\"";
        r.contradiction(&["train.early_stop.patience", "eval.every"], reason, "set eval.every, e.g. \"1 epoch\"");
    }
}

fn check_output(r: &mut Reader, s: &Settings) {
    if s.log.samples.is_some() && s.parallel.pipeline > 1 {
        let reason = "sample texts are generated by models that are not divided into pipeline stages";
        r.contradiction(&["log.samples", "parallel.pipeline"], reason, "remove log.samples");
    }
    let (metrics, fix) = (&s.log.metrics, "write e.g. metrics = \"metrics.jsonl\"");
    if FIXED_NAMES.contains(&metrics.as_str()) || [MARKER, STOP_FILE].contains(&metrics.as_str()) {
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
    let teacher = resolved.distill.as_ref().and_then(|_| teacher_directory(resolved, places).err());
    let mut out: Vec<Mistake> = model.as_ref().err().cloned().into_iter().chain(teacher).collect();
    let takes_directories =
        matches!(&resolved.data.source, DataSource::LanguageModeling { task, .. } if task.format == Some(Format::Text));
    let mut look = |group, key: &str, path: PathBuf, is_directory: bool, fix: &str| {
        let found = std::fs::metadata(&path);
        let shown = path.display();
        let reason = match &found {
            Err(e) => format!("`{key}`: cannot open {shown}: {e}"),
            Ok(kind) if group == Group::Data && takes_directories && kind.is_dir() => return true,
            Ok(kind) if is_directory && !kind.is_dir() => format!("`{key}`: {shown} is not a directory"),
            Ok(kind) if !is_directory && !kind.is_file() => format!("`{key}`: {shown} is not a plain file"),
            Ok(kind) if !is_directory && kind.len() == 0 => format!("`{key}`: {shown} is empty"),
            Ok(_) => return true,
        };
        let is_missing = found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let near = match is_missing && group == Group::Data {
            true => near_path(&path, if is_directory { Path::is_dir } else { Path::is_file }),
            false => String::new(),
        };
        out.push(Mistake { group, place: resolved.place(key), reason, fix: format!("{near}{fix}") });
        false
    };
    if let Ok(directory) = &model
        && let Some(file) = config_file(resolved, directory)
    {
        look(Group::Model, "model.path", file, false, "name a complete Hugging Face model directory");
    }
    match &resolved.data.source {
        DataSource::Task { directory, .. }
        | DataSource::Prompts { directory, .. }
        | DataSource::Published { directory, .. }
        | DataSource::Squad { directory } => {
            let are_directories =
                matches!(&resolved.data.source, DataSource::Published { task, .. } if task.has_directories());
            let files = resolved.data.source.files_of_task();
            let fix = format!("name the directory that holds {}", files.join(" and "));
            if look(Group::Data, "data.path", directory.clone(), true, &fix) {
                for file in files {
                    look(Group::Data, "data.path", directory.join(file), are_directories, &fix);
                }
            }
        }
        DataSource::Files { train, eval, .. }
        | DataSource::LanguageModeling { train, eval, .. }
        | DataSource::QuestionAnswering { train, eval, .. }
        | DataSource::TokenClassification { train, eval, .. }
        | DataSource::Embedding { train, eval, .. }
        | DataSource::MultiLabel { train, eval, .. }
        | DataSource::Template { train, eval, .. } => {
            look(Group::Data, "data.train", train.clone(), false, "name a file of training records");
            if let Some(eval) = eval {
                look(Group::Data, "data.eval", eval.clone(), false, "name a file of evaluation records");
            }
        }
        DataSource::Sft(task) => {
            let fix = "name a file of records, or a directory with the directory train";
            let key =
                if resolved.origin("data.sets").is_some_and(Origin::is_explicit) { "data.sets" } else { "data.train" };
            for set in task.sets.iter().filter(|set| !set.path.as_os_str().is_empty()) {
                look(Group::Data, key, set.path.clone(), set.path.is_dir(), fix);
                if let Some(eval) = &set.eval {
                    let key = if key == "data.sets" { key } else { "data.eval" };
                    look(Group::Data, key, eval.clone(), eval.is_dir(), "name a file of evaluation records");
                }
            }
        }
        DataSource::Pretraining(settings) => {
            let fix = "name the token files of `bmtrain corpus build` without .bin and .idx";
            let sets =
                [("data.corpora", &settings.corpora), ("data.valid", &settings.valid), ("data.test", &settings.test)];
            for (key, corpora) in sets {
                for corpus in corpora {
                    for path in [token_path(&corpus.path), index_path(&corpus.path)] {
                        look(Group::Data, key, path, false, fix);
                    }
                }
            }
        }
    }
    out
}

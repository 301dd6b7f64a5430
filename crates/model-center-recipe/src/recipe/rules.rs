//! Rules that settings must agree with, and files that must exist on disk before a run starts.
//!
//! Defines `check`, run at every load, and [`preflight`], which looks at files without reading weights or records.
//! Whether a single value is of the right type and range is decided by its row, in `keys/`.

use super::data_source::DataFiles;
use super::engine::layers::Origin;
use super::engine::mistake::{Group, Mistake};
use super::engine::reader::Reader;
use super::file_tasks;
use super::keys::eval::{EvalMetric, Interval};
use super::keys::save::SaveWhich;
use super::keys::{
    Settings, adapter, average, batch_ramp, distill, embedding, loss_scale, model, optimizer, parallel, preference,
    recompute, schedule,
};
use super::model_start::{config_file, model_directory, teacher_directory};
use super::resolved::Resolved;
use crate::run::{FIXED_NAMES, MARKER, MAX_NAME_BYTES, STOP_FILE, is_output_name};
use bmtrain_dist::optim::ScheduleKind;
use model_center_data::corpus::{index_path, token_path};
use model_center_data::metrics::{LabelKind, LabelSetCounts};
use model_center_data::{Format, LanguageModelingTask, SftTask};
use model_center_formats::pretrained::{ModelCaches, near_path};
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
    schedule::check(r, &s.train);
    check_range_test(r, s);
    loss_scale::check(r, &s.train, s.model.dtype);
    optimizer::check(r, &s.train);
    recompute::check(r, s);
    average::check(r, s);
    check_task(r, s);
    file_tasks::check(r, s);
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

fn check_range_test(r: &mut Reader, s: &Settings) {
    if matches!(s.train.schedule, ScheduleKind::RangeTest { .. }) && s.save.which != SaveWhich::None {
        let reason = "the weights of a range test are of no use: it ends at a rate that is too high";
        r.contradiction(&["train.schedule", "save.which"], reason, "set save.which = \"none\"");
    }
}

fn check_task(r: &mut Reader, s: &Settings) {
    let predicts = s.data.source.task().label_kind();
    if predicts == LabelKind::Values {
        r.without_effect("train.label_smoothing", "data.task", "a regression has no classes", "remove it");
    }
    if predicts == LabelKind::LabelSets {
        let why = "each of any number of labels has a loss of its own";
        r.without_effect("train.label_smoothing", "data.task", why, "remove it");
    }
    if !s.data.source.task().uses_label_words() {
        let fix = "remove it, or set data.objective = \"verbalizer\"";
        r.without_effect("train.prompt_loss", "data.objective", "there is no prompt before an answer", fix);
    }
    for (key, metric) in
        [("eval.metric", Some(s.eval.metric)), ("train.early_stop.metric", s.train.early_stop.map(|e| e.metric))]
    {
        let Some(EvalMetric::Metric(metric)) = metric else { continue };
        let is_of_task = s.data.source.task().metrics().is_some_and(|metrics| metrics.contains(&metric))
            || (predicts == LabelKind::LabelSets && LabelSetCounts::METRICS.contains(&metric));
        if metric.kind() != predicts && !is_of_task && r.is_explicit(key) {
            let (name, judges, has) = (metric.name(), metric.kind().name(), predicts.name());
            let task = s.data.source.task().name();
            let reason = format!("`{key}` = \"{name}\" judges {judges}, and task \"{task}\" has {has} for labels");
            let fix = format!("use \"{}\" or \"loss\"", predicts.usual_metric().name());
            r.contradiction(&[key, "data.task"], reason, fix);
        }
    }
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
    let source = &resolved.data.source;
    let takes_directories =
        source.task_as().is_some_and(|task: &LanguageModelingTask| task.format == Some(Format::Text));
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
    match source.files() {
        DataFiles::Directory(directory) => {
            let (files, are_directories) = (source.files_of_task(), source.task().has_directories());
            let fix = format!("name the directory that holds {}", files.join(" and "));
            if look(Group::Data, "data.path", directory.clone(), true, &fix) {
                for file in files {
                    look(Group::Data, "data.path", directory.join(file), are_directories, &fix);
                }
            }
        }
        DataFiles::Files { train, eval } => {
            look(Group::Data, "data.train", train.clone(), false, "name a file of training records");
            if let Some(eval) = eval {
                look(Group::Data, "data.eval", eval.clone(), false, "name a file of evaluation records");
            }
        }
        DataFiles::OfTask => {
            let fix = "name a file of records, or a directory with the directory train";
            let key =
                if resolved.origin("data.sets").is_some_and(Origin::is_explicit) { "data.sets" } else { "data.train" };
            let sets = source.task_as().into_iter().flat_map(|task: &SftTask| &task.sets);
            for set in sets.filter(|set| !set.path.as_os_str().is_empty()) {
                look(Group::Data, key, set.path.clone(), set.path.is_dir(), fix);
                if let Some(eval) = &set.eval {
                    let key = if key == "data.sets" { key } else { "data.eval" };
                    look(Group::Data, key, eval.clone(), eval.is_dir(), "name a file of evaluation records");
                }
            }
            let fix = "name the token files of `bmtrain corpus build` without .bin and .idx";
            for (key, corpora) in source.pretraining().into_iter().flat_map(|settings| settings.corpora_by_key()) {
                for path in corpora.iter().flat_map(|corpus| [token_path(&corpus.path), index_path(&corpus.path)]) {
                    look(Group::Data, key, path, false, fix);
                }
            }
        }
    }
    out
}

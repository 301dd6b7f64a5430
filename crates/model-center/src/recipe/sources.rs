//! The keys of `[data]`: which task, which files, which of their columns, how long its texts may be.
//!
//! Defines [`read_data`], called by `keys.rs`.

use super::keys::{MOST, MOST_SAMPLES};
use super::kinds::{Range, Wanted};
use super::reader::Reader;
use super::settings::{DataSettings, DataSource};
use crate::data::{ColumnTask, Format, LabelSpec, OnBadRecord, SUPERGLUE, TooLong, WordColumns, WordTask};
use std::path::PathBuf;

const TASK_FOLDER: Wanted = Wanted { what: "the path of a SuperGLUE folder", example: "data/superglue" };
const DATA_FILE: Wanted = Wanted { what: "the path of a data file", example: "data/train.jsonl" };
const COLUMN: Wanted = Wanted { what: "the name of a column", example: "text" };

/// Which task, before its files are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    SuperGlue(&'static str),
    Classification,
    Regression,
    Language,
    Seq2Seq,
}

/// What the keys of all sources say.
struct Keys {
    folder: Option<PathBuf>,
    train: Option<PathBuf>,
    eval: Option<PathBuf>,
    format: Option<Format>,
    labels: Option<Vec<String>>,
    text: String,
    text_pair: Option<String>,
    label: String,
    prompt: Option<String>,
    target: String,
}

pub(super) fn read_data(r: &mut Reader) -> DataSettings {
    let mut tasks: Vec<(&str, Task)> =
        SUPERGLUE.iter().map(|entry| (entry.name, Task::SuperGlue(entry.name))).collect();
    tasks.extend([
        ("classification", Task::Classification),
        ("regression", Task::Regression),
        ("language", Task::Language),
        ("seq2seq", Task::Seq2Seq),
    ]);
    let task = r.required_choice("data.task", &tasks);
    let source = read_source(r, task);
    let max_length = r.integer("data.max_length", 512, 3..=MOST_SAMPLES);
    let target_length = r.integer("data.target_length", max_length, 3..=MOST_SAMPLES) as usize;
    r.follow("data.target_length", "data.max_length");
    if task.is_some_and(|task| task != Task::Seq2Seq) {
        r.without_effect("data.target_length", "data.task", "it is for task seq2seq", "remove it");
    }
    let too_long = [("truncate", TooLong::Truncate), ("error", TooLong::Error)];
    let too_long = r.choice("data.too_long", &too_long, TooLong::Truncate);
    let skips = r.choice("data.on_bad_record", &[("error", false), ("skip", true)], false);
    let max_share = r.float("data.bad_record_limit", OnBadRecord::SKIP_SHARE, Range::Within(0.0, 1.0));
    if !skips {
        r.without_effect(
            "data.bad_record_limit",
            "data.on_bad_record",
            "data.on_bad_record = \"error\" accepts none",
            "remove it, or skip",
        );
    }
    DataSettings {
        source,
        max_length: max_length as usize,
        target_length,
        too_long,
        on_bad_record: if skips { OnBadRecord::Skip { max_share } } else { OnBadRecord::Error },
        length_grouped: r.flag("data.length_grouped", false),
        eval_limit: r.optional_integer("data.eval_limit", "not set: all of them", 1..=MOST, 1000),
    }
}

/// The keys of all kinds of sources; those of other kinds have no effect.
fn read_source(r: &mut Reader, task: Option<Task>) -> DataSource {
    let formats = [
        ("auto", None),
        ("jsonl", Some(Format::Jsonl)),
        ("csv", Some(Format::Csv)),
        ("tsv", Some(Format::Tsv)),
        ("text", Some(Format::Text)),
    ];
    let keys = Keys {
        folder: r.optional_path("data.path", "not set", TASK_FOLDER),
        train: r.optional_path("data.train", "not set", DATA_FILE),
        eval: r.optional_path("data.eval", "not set: trains without evaluation", DATA_FILE),
        format: r.choice("data.format", &formats, None),
        labels: r.optional_texts("data.labels", "not set: those in the training file, sorted", "[\"no\", \"yes\"]"),
        text: r.text("data.columns.text", "text", COLUMN),
        text_pair: r.optional_text("data.columns.text_pair", "not set: single texts", COLUMN),
        label: r.text("data.columns.label", "label", COLUMN),
        prompt: r.optional_text("data.columns.prompt", "not set: nothing in front of texts", COLUMN),
        target: r.text("data.columns.target", "target", COLUMN),
    };
    match task {
        Some(Task::SuperGlue(task)) => of_superglue(r, task, keys),
        _ => of_files(r, task, keys),
    }
}

fn of_superglue(r: &mut Reader, task: &'static str, keys: Keys) -> DataSource {
    for key in ["data.train", "data.eval", "data.format", "data.labels"] {
        r.without_effect(
            key,
            "data.task",
            &format!("task {task} knows its files and labels"),
            "remove it, and set data.path",
        );
    }
    for key in [
        "data.columns.text",
        "data.columns.text_pair",
        "data.columns.label",
        "data.columns.prompt",
        "data.columns.target",
    ] {
        r.without_effect(key, "data.task", &format!("task {task} knows its columns"), "remove it");
    }
    if keys.folder.is_none() {
        let reason = format!("`data.path` is missing: the folder that holds {task}/train.jsonl and {task}/val.jsonl");
        r.contradiction(&["data.task", "data.path"], reason, "set data.path = \"data/superglue\"");
    }
    DataSource::SuperGlue { task, folder: keys.folder.unwrap_or_default() }
}

fn of_files(r: &mut Reader, task: Option<Task>, keys: Keys) -> DataSource {
    // Without a task nothing can be said about what the other keys are good for.
    if let Some(task) = task {
        r.without_effect(
            "data.path",
            "data.task",
            "it is for SuperGLUE tasks",
            "name the files with data.train and data.eval",
        );
        if keys.train.is_none() {
            let fix = "set data.train = \"data/train.jsonl\"";
            r.contradiction(&["data.task", "data.train"], "`data.train` is missing: the file to learn from", fix);
        }
        refuse_foreign(r, task);
    }
    let Keys { format, text, .. } = keys;
    let (train, eval) = (keys.train.unwrap_or_default(), keys.eval);
    let columns = match task {
        Some(Task::Language) => WordColumns::Language { text, prompt: keys.prompt },
        Some(Task::Seq2Seq) => WordColumns::Target { text, target: keys.target },
        _ => {
            let labels = match keys.labels {
                _ if task == Some(Task::Regression) => LabelSpec::Value,
                Some(names) => LabelSpec::Names(names),
                None => LabelSpec::Discover,
            };
            let columns = ColumnTask { text, text_pair: keys.text_pair, label: keys.label, labels, format };
            return DataSource::Files { train, eval, columns };
        }
    };
    DataSource::Words { train, eval, task: WordTask { columns, format } }
}

/// Keys that belong to other tasks on files.
fn refuse_foreign(r: &mut Reader, task: Task) {
    if task != Task::Language {
        r.without_effect("data.columns.prompt", "data.task", "it is for task language", "remove it");
    }
    if task != Task::Seq2Seq {
        r.without_effect("data.columns.target", "data.task", "it is for task seq2seq", "remove it");
    }
    if task == Task::Regression {
        r.without_effect("data.labels", "data.task", "the labels of a regression are numbers", "remove it");
    }
    if let Task::Language | Task::Seq2Seq = task {
        for key in ["data.labels", "data.columns.text_pair", "data.columns.label"] {
            r.without_effect(key, "data.task", "texts are learnt by their words", "remove it");
        }
        r.without_effect("model.head", "data.task", "a model keeps its head for words", "remove it");
    }
}

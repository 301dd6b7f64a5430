//! The tasks whose files a recipe names with `data.train` and `data.eval`: of each its value from the keys of `[data]`,
//! the keys that have no effect with it, and what its columns, labels and files must agree on.
//!
//! Defines [`FILE_TASKS`], a row for each. Called by `sources.rs`, and [`check`] by `rules.rs`.

use super::data_source::{DataFiles, DataSource};
use super::engine::reader::Reader;
use super::keys::Settings;
use super::sources::Keys;
use crate::Error;
use model_center_data::{
    ColumnTask, EmbeddingTask, LabelColumns, LabelSpec, LanguageModelingColumns, LanguageModelingTask, MultiLabelTask,
    SpanTask, TagTask, Task, TemplateTask,
};
use model_center_formats::{KnownDirectory, io::record::Format};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Keys that have no effect with a task, and why.
pub(super) type Refused = (&'static [&'static str], &'static str);

/// A task on files.
pub(super) struct FileTask {
    /// Its name in recipes.
    pub(super) name: &'static str,
    /// Whether samples have one class, for which there are objectives and weights.
    pub(super) has_classes: bool,
    refused: &'static [Refused],
    build: fn(&mut Reader, Keys) -> Arc<dyn Task>,
    check: fn(&mut Reader, &DataSource),
}

const TEXT: &str = "data.columns.text";
const PAIR: &str = "data.columns.text_pair";
const LABEL: &str = "data.columns.label";
const LABEL_COLUMNS: &str = "data.columns.labels";
const PROMPT: Refused = (&["data.columns.prompt"], "it is for task language");
const TARGET: Refused = (&["data.columns.target"], "it is for task seq2seq");
const TAGS: Refused = (&["data.columns.tokens", "data.columns.tags"], "it is for task token-classification");
const SPANS: Refused = (&["data.stride", "data.answer_length"], "it is for task question-answering");
const LM_HEAD: Refused = (&["model.head"], "a model keeps its language-modelling head");
const OTHER_COLUMNS: Refused = (&[TEXT, PAIR, LABEL], "the task has other columns, or knows them");
const OWN_TOKENS: Refused = (&["data.labels", PAIR, LABEL], "the labels are the texts' own tokens");

/// Every such task.
pub(super) static FILE_TASKS: [FileTask; 9] = [
    FileTask {
        name: "classification",
        has_classes: true,
        refused: &[PROMPT, TARGET, TAGS, SPANS],
        build: |_, keys| columns(keys, None),
        check: check_classes,
    },
    FileTask {
        name: "regression",
        has_classes: false,
        refused: &[PROMPT, TARGET, (&["data.labels"], "the labels of a regression are numbers"), TAGS, SPANS],
        build: |_, keys| columns(keys, Some(LabelSpec::Value)),
        check: check_classes,
    },
    FileTask {
        name: "rerank",
        has_classes: false,
        refused: &[PROMPT, TARGET, (&["data.labels"], "the labels of a reranker are numbers"), TAGS, SPANS],
        build: |_, keys| columns(keys, Some(LabelSpec::Probability)),
        check: check_rerank,
    },
    FileTask {
        name: "language",
        has_classes: false,
        refused: &[TARGET, TAGS, SPANS, OWN_TOKENS, LM_HEAD],
        build: |_, Keys { text, prompt, format, .. }| {
            Arc::new(LanguageModelingTask { columns: LanguageModelingColumns::Language { text, prompt }, format })
        },
        check: check_language_modeling,
    },
    FileTask {
        name: "seq2seq",
        has_classes: false,
        refused: &[PROMPT, TAGS, SPANS, OWN_TOKENS, LM_HEAD],
        build: |_, Keys { text, target, format, .. }| {
            Arc::new(LanguageModelingTask { columns: LanguageModelingColumns::Target { text, target }, format })
        },
        check: check_language_modeling,
    },
    FileTask {
        name: "question-answering",
        has_classes: false,
        refused: &[
            PROMPT,
            TARGET,
            TAGS,
            OTHER_COLUMNS,
            (&["data.labels", "data.format", "data.delimiter"], "the files are SQuAD's, and answers are spans"),
        ],
        build: |_, Keys { stride, answer_length, .. }| Arc::new(SpanTask { stride, answer_length }),
        check: |_, _| {},
    },
    FileTask {
        name: "token-classification",
        has_classes: false,
        refused: &[
            PROMPT,
            TARGET,
            SPANS,
            OTHER_COLUMNS,
            (&["data.delimiter"], "lists of words are in JSON lines, and columns of CoNLL between white space"),
        ],
        build: |_, Keys { tokens, tags, labels, format, .. }| {
            Arc::new(TagTask { tokens, tags, labels: listed(labels), format })
        },
        check: check_tags,
    },
    FileTask {
        name: "embedding",
        has_classes: false,
        refused: &[
            PROMPT,
            TARGET,
            TAGS,
            SPANS,
            OTHER_COLUMNS,
            (&["data.labels"], "texts have no labels"),
            (&["model.head"], "embeddings are made of hidden states"),
        ],
        build: |_, Keys { embedding, format, .. }| Arc::new(EmbeddingTask { format, ..embedding }),
        check: check_embedding,
    },
    FileTask {
        name: "multi-label-classification",
        has_classes: false,
        refused: &[PROMPT, TARGET, TAGS, SPANS],
        build: multi_label,
        check: check_multi_label,
    },
];

impl FileTask {
    /// The task of its keys; with a prompt of the user's own for `verbalizer`.
    pub(super) fn source(&self, r: &mut Reader, keys: Keys, verbalizer: bool) -> DataSource {
        r.without_effect("data.path", "data.task", NO_DIRECTORY, "name the files with data.train and data.eval");
        let files = named_files(r, &keys);
        if verbalizer {
            return DataSource::new(Arc::new(template(r, keys)), files);
        }
        for key in ["data.template", "data.words"] {
            let fix = "remove it, or set data.objective = \"verbalizer\"";
            r.without_effect(key, "data.objective", "it is for data.objective = \"verbalizer\"", fix);
        }
        refuse(r, self.refused);
        DataSource::new((self.build)(r, keys), files)
    }
}

/// Why a task on files has no use for a directory.
pub(super) const NO_DIRECTORY: &str = "it is for tasks that know their files";

/// The files that keys name; a training file is required.
pub(super) fn named_files(r: &mut Reader, keys: &Keys) -> DataFiles {
    if keys.train.is_none() {
        let fix = "set data.train = \"data/train.jsonl\"";
        r.absent(&["data.task", "data.train"], "`data.train` is missing: the file to learn from", fix);
    }
    DataFiles::Files { train: keys.train.clone().unwrap_or_default(), eval: keys.eval.clone() }
}

fn refuse(r: &mut Reader, refused: &[Refused]) {
    for (keys, why) in refused {
        keys.iter().for_each(|key| r.without_effect(key, "data.task", why, "remove it"));
    }
}

/// Keys of passages with answers.
pub(super) fn refuse_spans(r: &mut Reader) {
    refuse(r, &[SPANS]);
}

/// The same, and keys of words with tags.
pub(super) fn refuse_tags_and_spans(r: &mut Reader) {
    refuse(r, &[TAGS, SPANS]);
}

fn listed(labels: Option<Vec<String>>) -> LabelSpec {
    labels.map_or(LabelSpec::Discover, LabelSpec::Names)
}

/// A text or a pair with a label.
/// A task of columns; `numbers` are its labels, where these are not classes.
pub(super) fn columns(keys: Keys, numbers: Option<LabelSpec>) -> Arc<dyn Task> {
    let Keys { text, text_pair, label, labels, format, .. } = keys;
    let labels = numbers.unwrap_or_else(|| listed(labels));
    Arc::new(ColumnTask { text, text_pair, label, labels, format })
}

fn check_classes(r: &mut Reader, source: &DataSource) {
    if let Some(task) = source.task_as::<TemplateTask>() {
        return check_template(r, source, task);
    }
    let Some(ColumnTask { text, text_pair, label, labels, format }) = source.task_as() else { return };
    check_columns(r, &[(TEXT, Some(text)), (PAIR, text_pair.as_ref()), (LABEL, Some(label))]);
    check_listed(r, labels);
    check_format(r, source, *format);
}

fn check_rerank(r: &mut Reader, source: &DataSource) {
    if source.task_as().is_some_and(|task: &ColumnTask| task.text_pair.is_none()) {
        let reason = format!("`{PAIR}` is missing: a reranker reads a query and a document");
        r.absent(&["data.task", PAIR], reason, "set data.columns.text_pair = \"document\", the column of documents");
    }
    check_classes(r, source);
}

/// A prompt of the user's own.
fn template(r: &mut Reader, keys: Keys) -> TemplateTask {
    for key in [TEXT, PAIR, "data.columns.prompt", "data.columns.target"] {
        r.without_effect(key, "data.objective", "data.template names the columns of the prompt", "remove it");
    }
    refuse_tags_and_spans(r);
    refuse_head(r);
    for (key, is_set, example) in [
        ("data.template", keys.template.is_some(), "data.template = \"{text} Was it good?\""),
        ("data.words", keys.words.is_some(), "data.words = [\" No\", \" Yes\"]"),
        ("data.labels", keys.labels.is_some(), "data.labels = [\"no\", \"yes\"]"),
    ] {
        if !is_set {
            let reason = format!("`{key}` is missing: a prompt needs label words and their labels");
            r.absent(&["data.objective", key], reason, format!("set {example}"));
        }
    }
    let Keys { format, label, labels, words, template, .. } = keys;
    let (labels, words) = (labels.unwrap_or_default(), words.unwrap_or_default());
    TemplateTask { template: template.unwrap_or_default(), label, labels, words, format }
}

/// The head of a model that answers prompts is not chosen.
pub(super) fn refuse_head(r: &mut Reader) {
    let why = "answers are read from the model's language-modelling head";
    r.without_effect("model.head", "data.objective", why, "remove it");
}

fn check_template(r: &mut Reader, source: &DataSource, task: &TemplateTask) {
    // Missing ones were already reported.
    if task.labels.is_empty() || task.words.is_empty() {
        return;
    }
    check_labels(r, "data.labels", &task.labels);
    if task.words.len() != task.labels.len() {
        let reason = format!("`data.words` has {} label words for {} labels", task.words.len(), task.labels.len());
        r.contradiction(&["data.words", "data.labels"], reason, "give one label word for each label, in their order");
    }
    if task.template.columns().any(|column| column == task.label) {
        let reason = format!("`data.template` shows the column \"{}\", which is the label", task.label);
        r.contradiction(&["data.template", LABEL], reason, "leave the label out of the prompt");
    }
    check_format(r, source, task.format);
}

fn check_language_modeling(r: &mut Reader, source: &DataSource) {
    let Some(LanguageModelingTask { columns, format }) = source.task_as() else { return };
    let (text, other) = match columns {
        LanguageModelingColumns::Language { text, prompt } => (text, ("data.columns.prompt", prompt.as_ref())),
        LanguageModelingColumns::Target { text, target } => (text, ("data.columns.target", Some(target))),
    };
    check_columns(r, &[(TEXT, Some(text)), other]);
    check_format(r, source, *format);
}

/// Words and tags, and the names of the tags.
fn check_tags(r: &mut Reader, source: &DataSource) {
    let Some(TagTask { tokens, tags, labels, .. }) = source.task_as() else { return };
    check_columns(r, &[("data.columns.tokens", Some(tokens)), ("data.columns.tags", Some(tags))]);
    check_listed(r, labels);
}

fn check_embedding(r: &mut Reader, source: &DataSource) {
    let Some(EmbeddingTask { anchor, positive, negative, format }) = source.task_as() else { return };
    let columns = [
        ("data.columns.anchor", Some(anchor)),
        ("data.columns.positive", Some(positive)),
        ("data.columns.negative", negative.as_ref()),
    ];
    check_columns(r, &columns);
    check_format(r, source, *format);
}

/// The columns of texts with any number of labels.
fn multi_label(r: &mut Reader, keys: Keys) -> Arc<dyn Task> {
    let Keys { text, text_pair, label, label_columns, labels, format, .. } = keys;
    let columns = match label_columns {
        Some(columns) => {
            for key in [LABEL, "data.labels"] {
                let why = "its columns have and name the labels";
                r.without_effect(key, LABEL_COLUMNS, why, "remove one of the two");
            }
            LabelColumns::Flags(columns)
        }
        None => LabelColumns::List(label),
    };
    Arc::new(MultiLabelTask { text, text_pair, columns, labels: listed(labels), format })
}

fn check_multi_label(r: &mut Reader, source: &DataSource) {
    let Some(MultiLabelTask { text, text_pair, columns, labels, format }) = source.task_as() else { return };
    let mut named = vec![(TEXT, Some(text)), (PAIR, text_pair.as_ref())];
    match columns {
        LabelColumns::List(column) => named.push((LABEL, Some(column))),
        LabelColumns::Flags(columns) => {
            check_labels(r, LABEL_COLUMNS, columns);
            let distinct: BTreeSet<&String> = columns.iter().collect();
            named.extend(distinct.into_iter().map(|column| (LABEL_COLUMNS, Some(column))));
        }
    }
    check_columns(r, &named);
    check_listed(r, labels);
    check_format(r, source, *format);
}

/// Checks that columns, labels and files of the task agree.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    let source = &s.data.source;
    if let Some(row) = FILE_TASKS.iter().find(|row| row.name == source.task().name()) {
        (row.check)(r, source);
    }
}

/// Two keys that name one column.
fn check_columns(r: &mut Reader, named: &[(&'static str, Option<&String>)]) {
    for (i, (key, name)) in named.iter().enumerate() {
        let twin = named[..i].iter().find(|(_, other)| name.is_some() && other == name);
        if let (Some((other, _)), Some(name)) = (twin, name) {
            let reason = format!("`{other}` and `{key}` both name the column \"{name}\"");
            r.contradiction(&[other, key], reason, "name two columns");
        }
    }
}

fn check_listed(r: &mut Reader, labels: &LabelSpec) {
    if let LabelSpec::Names(names) = labels {
        check_labels(r, "data.labels", names);
    }
}

/// Labels that a key names.
fn check_labels(r: &mut Reader, key: &'static str, names: &[String]) {
    if names.len() < 2 {
        let reason = format!("`{key}` names {} label, and a classification needs two", names.len());
        r.contradiction(&[key], reason, format!("name all labels, or leave {key} out"));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        r.contradiction(&[key], format!("`{key}` names \"{twice}\" twice"), "name each label once");
    }
}

/// Files whose names do not determine their format, and plain text where it is not supported.
fn check_format(r: &mut Reader, source: &DataSource, format: Option<Format>) {
    let DataFiles::Files { train, eval } = source.files() else { return };
    let files = [("data.train", Some(train)), ("data.eval", eval.as_ref())];
    let files = files.into_iter().filter_map(|(key, path)| Some((key, path?.as_path())));
    let files: Vec<(&'static str, &Path)> = files.filter(|(_, path)| !path.as_os_str().is_empty()).collect();
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
    let formats: Vec<_> = files.iter().map(|(key, path)| (*key, format.or_else(|| Format::of(path).ok()))).collect();
    check_plain_text(r, source, &formats);
}

/// Rules for plain text.
fn check_plain_text(r: &mut Reader, source: &DataSource, files: &[(&'static str, Option<Format>)]) {
    let Some((key, _)) = files.iter().find(|(_, format)| *format == Some(Format::Text)) else { return };
    match source.task_as().map(|LanguageModelingTask { columns, .. }| columns) {
        Some(LanguageModelingColumns::Language { prompt: None, .. }) => {}
        Some(LanguageModelingColumns::Language { prompt: Some(_), .. }) => {
            let fix = "remove data.columns.prompt, or write records";
            r.contradiction(&["data.columns.prompt", "data.format", key], "plain text has no columns", fix);
        }
        _ => {
            let reason = "plain text has no columns, and this task needs them";
            let fix = "write JSON lines, CSV or TSV, or set data.task = \"language\"";
            r.contradiction(&["data.task", "data.format", key], reason, fix);
        }
    }
    if files.iter().all(|(_, format)| *format == Some(Format::Text)) {
        r.without_effect(TEXT, "data.format", "plain text has no columns", "remove it");
        let why = "plain text is cut into rows and none is too long";
        r.without_effect("data.too_long", "data.format", why, "remove it");
        for key in ["data.length_grouped", "data.packing"] {
            r.without_effect(key, "data.format", "rows of plain text are of one length", "remove it");
        }
    }
}

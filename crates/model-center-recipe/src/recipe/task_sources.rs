//! The source of a task from the keys of `[data]`, and which of them belong to other tasks. Called by `sources`.

use super::data_source::DataSource;
use super::reader::Reader;
use super::sources::{Keys, Task};
use model_center_data::{
    ColumnTask, EmbeddingTask, LabelColumns, LabelSpec, LanguageModelingColumns, LanguageModelingTask, MultiLabelTask,
    TagTask, TemplateTask,
};
use std::path::PathBuf;

/// The directory of a task that knows its files; empty where it is not set.
pub(super) fn known_directory(r: &mut Reader, task: &str, keys: Keys) -> PathBuf {
    for key in
        ["data.train", "data.eval", "data.format", "data.delimiter", "data.labels", "data.template", "data.words"]
    {
        let why = match key {
            "data.template" | "data.words" => format!("task {task} has its own prompt and label words"),
            _ => format!("task {task} knows its files and labels"),
        };
        r.without_effect(key, "data.task", &why, "remove it, and set data.path");
    }
    for key in [
        "data.columns.text",
        "data.columns.text_pair",
        "data.columns.label",
        "data.columns.prompt",
        "data.columns.target",
        "data.columns.tokens",
        "data.columns.tags",
    ] {
        r.without_effect(key, "data.task", &format!("task {task} knows its columns"), "remove it");
    }
    refuse_span_keys(r);
    keys.directory.unwrap_or_default()
}

pub(super) fn require_directory(r: &mut Reader, source: DataSource) -> DataSource {
    if source.has_token_labels() {
        r.without_effect(
            "model.head",
            "data.objective",
            "answers are read from the model's language-modelling head",
            "remove it",
        );
    }
    if source.directory().is_some_and(|directory| directory.as_os_str().is_empty()) {
        let reason =
            format!("`data.path` is missing: the directory that holds {}", source.files_of_task().join(" and "));
        r.absent(&["data.task", "data.path"], reason, "set data.path = \"data/superglue\"");
    }
    source
}

/// Files with a prompt of one's own.
pub(super) fn of_template(r: &mut Reader, keys: Keys) -> DataSource {
    r.without_effect("data.path", "data.task", NO_DIRECTORY, "name the files with data.train and data.eval");
    require_train(r, &keys);
    for key in ["data.columns.text", "data.columns.text_pair", "data.columns.prompt", "data.columns.target"] {
        r.without_effect(key, "data.objective", "data.template names the columns of the prompt", "remove it");
    }
    refuse_tag_keys(r);
    refuse_span_keys(r);
    r.without_effect(
        "model.head",
        "data.objective",
        "answers are read from the model's language-modelling head",
        "remove it",
    );
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
    let Keys { train, eval, format, label, labels, words, template, .. } = keys;
    let (labels, words) = (labels.unwrap_or_default(), words.unwrap_or_default());
    let task = TemplateTask { template: template.unwrap_or_default(), label, labels, words, format };
    DataSource::Template { train: train.unwrap_or_default(), eval, task }
}

/// Why a task on files has no use for a directory.
const NO_DIRECTORY: &str = "it is for tasks that know their files";

fn require_train(r: &mut Reader, keys: &Keys) {
    if keys.train.is_none() {
        let fix = "set data.train = \"data/train.jsonl\"";
        r.absent(&["data.task", "data.train"], "`data.train` is missing: the file to learn from", fix);
    }
}

pub(super) fn of_files(r: &mut Reader, task: Option<Task>, keys: Keys) -> DataSource {
    // Without a task the effect of the other keys is unknown.
    if let Some(task) = task {
        r.without_effect("data.path", "data.task", NO_DIRECTORY, "name the files with data.train and data.eval");
        require_train(r, &keys);
        refuse_foreign(r, task);
    }
    let (train, eval) = (keys.train.clone().unwrap_or_default(), keys.eval.clone());
    if task == Some(Task::MultiLabel) {
        return DataSource::MultiLabel { train, eval, task: multi_label(r, keys) };
    }
    let Keys { format, text, .. } = keys;
    let columns = match task {
        Some(Task::QuestionAnswering) => {
            return DataSource::QuestionAnswering { train, eval, task: keys.spans };
        }
        Some(Task::TokenClassification) => {
            let labels = keys.labels.map_or(LabelSpec::Discover, LabelSpec::Names);
            let task = TagTask { tokens: keys.tokens, tags: keys.tags, labels, format };
            return DataSource::TokenClassification { train, eval, task };
        }
        Some(Task::Embedding) => {
            return DataSource::Embedding { train, eval, task: EmbeddingTask { format, ..keys.embedding } };
        }
        Some(Task::Language) => LanguageModelingColumns::Language { text, prompt: keys.prompt },
        Some(Task::Seq2Seq) => LanguageModelingColumns::Target { text, target: keys.target },
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
    DataSource::LanguageModeling { train, eval, task: LanguageModelingTask { columns, format } }
}

/// The columns of texts with any number of labels.
fn multi_label(r: &mut Reader, keys: Keys) -> MultiLabelTask {
    let Keys { text, text_pair, label, label_columns, labels, format, .. } = keys;
    let columns = match label_columns {
        Some(columns) => {
            for key in ["data.columns.label", "data.labels"] {
                let why = "its columns have and name the labels";
                r.without_effect(key, "data.columns.labels", why, "remove one of the two");
            }
            LabelColumns::Flags(columns)
        }
        None => LabelColumns::List(label),
    };
    let labels = labels.map_or(LabelSpec::Discover, LabelSpec::Names);
    MultiLabelTask { text, text_pair, columns, labels, format }
}

/// Keys that belong to other tasks on files.
fn refuse_foreign(r: &mut Reader, task: Task) {
    for key in ["data.template", "data.words"] {
        let fix = "remove it, or set data.objective = \"verbalizer\"";
        r.without_effect(key, "data.objective", "it is for data.objective = \"verbalizer\"", fix);
    }
    if task != Task::Language {
        r.without_effect("data.columns.prompt", "data.task", "it is for task language", "remove it");
    }
    if task != Task::Seq2Seq {
        r.without_effect("data.columns.target", "data.task", "it is for task seq2seq", "remove it");
    }
    if task == Task::Regression {
        r.without_effect("data.labels", "data.task", "the labels of a regression are numbers", "remove it");
    }
    if task != Task::TokenClassification {
        refuse_tag_keys(r);
    }
    if task != Task::QuestionAnswering {
        refuse_span_keys(r);
    }
    if let Task::QuestionAnswering | Task::TokenClassification | Task::Embedding = task {
        for key in ["data.columns.text", "data.columns.text_pair", "data.columns.label"] {
            r.without_effect(key, "data.task", "the task has other columns, or knows them", "remove it");
        }
    }
    if task == Task::Embedding {
        r.without_effect("data.labels", "data.task", "texts have no labels", "remove it");
        r.without_effect("model.head", "data.task", "embeddings are made of hidden states", "remove it");
    }
    if task == Task::QuestionAnswering {
        for key in ["data.labels", "data.format", "data.delimiter"] {
            r.without_effect(key, "data.task", "the files are SQuAD's, and answers are spans", "remove it");
        }
    }
    if task == Task::TokenClassification {
        let why = "lists of words are in JSON lines, and columns of CoNLL between white space";
        r.without_effect("data.delimiter", "data.task", why, "remove it");
    }
    if let Task::Language | Task::Seq2Seq = task {
        for key in ["data.labels", "data.columns.text_pair", "data.columns.label"] {
            r.without_effect(key, "data.task", "the labels are the texts' own tokens", "remove it");
        }
        keeps_lm_head(r);
    }
}

/// Keys of words and their tags.
pub(super) fn refuse_tag_keys(r: &mut Reader) {
    for key in ["data.columns.tokens", "data.columns.tags"] {
        r.without_effect(key, "data.task", "it is for task token-classification", "remove it");
    }
}

/// Keys of passages and answers.
pub(super) fn refuse_span_keys(r: &mut Reader) {
    for key in ["data.stride", "data.answer_length"] {
        r.without_effect(key, "data.task", "it is for task question-answering", "remove it");
    }
}

pub(super) fn keeps_lm_head(r: &mut Reader) {
    r.without_effect("model.head", "data.task", "a model keeps its language-modelling head", "remove it");
}

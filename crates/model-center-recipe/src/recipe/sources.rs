//! The keys of `[data]`: which task, which files, which of their columns, how long its texts may be.

use super::class_weights::{ClassWeights, read_class_weights};
use super::data_source::DataSource;
use super::embedding;
use super::keys::{MOST, MOST_SAMPLES};
use super::kinds::{Expected, Range, quote};
use super::layers::Value;
use super::pretraining;
use super::pretraining_objective::PretrainingObjective;
use super::reader::{Otherwise, Reader, Spec};
use super::schema::Shape;
use super::settings::{DataSettings, LastBatch};
use super::sft::{self, Shared};
use super::task_sources::{
    keeps_lm_head, known_directory, of_files, of_template, refuse_span_keys, refuse_tag_keys, require_directory,
};
use model_center_data::{
    EmbeddingTask, Format, OnBadRecord, PROMPTS, PairLabels, PublishedTask, SUPERGLUE, SpanTask, TaskEntry, TaskLabels,
    Template, TooLong,
};
use std::path::PathBuf;

const DELIMITER: Expected = Expected { what: "a character", example: ";" };
const TASK_DIRECTORY: Expected = Expected { what: "the path of a directory of tasks", example: "data/superglue" };
const DATA_FILE: Expected = Expected { what: "the path of a data file", example: "data/train.jsonl" };
const COLUMN: Expected = Expected { what: "the name of a column", example: "text" };

/// Which task, before its files are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Task {
    /// With a line in a registry of records; `None`: in the registry of prompts alone.
    Registered(&'static str, Option<&'static TaskEntry>),
    Published(PublishedTask),
    Squad,
    Classification,
    Regression,
    Language,
    Seq2Seq,
    QuestionAnswering,
    TokenClassification,
    Embedding,
    MultiLabel,
    Sft,
    Pairs(PairLabels),
    Pretrain,
}

impl Task {
    /// Classes or choices as labels.
    fn has_classes(self) -> bool {
        match self {
            Task::Classification | Task::Registered(_, None) | Task::Published(_) => true,
            Task::Registered(_, Some(entry)) => entry.labels.are_classes(),
            Task::Squad
            | Task::Regression
            | Task::Language
            | Task::Seq2Seq
            | Task::QuestionAnswering
            | Task::TokenClassification
            | Task::Embedding
            | Task::MultiLabel
            | Task::Sft
            | Task::Pairs(_)
            | Task::Pretrain => false,
        }
    }

    fn has_targets(self) -> bool {
        match self {
            Task::Registered(_, Some(entry)) => entry.labels == TaskLabels::Target,
            task => matches!(task, Task::Seq2Seq | Task::Squad | Task::Sft),
        }
    }
}

/// What tells the classes of a task apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objective {
    /// Outputs of a head of their own.
    Classifier,
    /// Label words, after a prompt.
    Verbalizer,
    /// Of pretraining: which tokens of a sample are predicted.
    Pretraining(PretrainingObjective),
}

impl Objective {
    /// The objective of pretraining; its default where it is another's.
    fn of_pretraining(self) -> PretrainingObjective {
        if let Objective::Pretraining(objective) = self { objective } else { PretrainingObjective::Causal }
    }
}

/// The keys of all sources.
pub(super) struct Keys {
    pub(super) directory: Option<PathBuf>,
    pub(super) train: Option<PathBuf>,
    pub(super) eval: Option<PathBuf>,
    pub(super) format: Option<Format>,
    pub(super) labels: Option<Vec<String>>,
    pub(super) template: Option<Template>,
    pub(super) words: Option<Vec<String>>,
    pub(super) text: String,
    pub(super) text_pair: Option<String>,
    pub(super) label: String,
    pub(super) label_columns: Option<Vec<String>>,
    pub(super) prompt: Option<String>,
    pub(super) target: String,
    pub(super) tokens: String,
    pub(super) tags: String,
    pub(super) spans: SpanTask,
    pub(super) embedding: EmbeddingTask,
}

pub(super) fn read_data(r: &mut Reader) -> DataSettings {
    let entry = |entry: &'static TaskEntry| (entry.name, Task::Registered(entry.name, Some(entry)));
    let mut tasks: Vec<(&str, Task)> = SUPERGLUE.iter().map(entry).collect();
    let prompted = PROMPTS.iter().map(|entry| entry.name).filter(|name| SUPERGLUE.iter().all(|e| e.name != *name));
    tasks.extend(prompted.map(|name| (name, Task::Registered(name, None))));
    tasks.extend(PublishedTask::ALL.map(|task| (task.name(), Task::Published(task))));
    tasks.extend([
        ("SQuAD", Task::Squad),
        ("classification", Task::Classification),
        ("regression", Task::Regression),
        ("language", Task::Language),
        ("seq2seq", Task::Seq2Seq),
        ("question-answering", Task::QuestionAnswering),
        ("token-classification", Task::TokenClassification),
        ("embedding", Task::Embedding),
        ("multi-label-classification", Task::MultiLabel),
        ("sft", Task::Sft),
        ("preference", Task::Pairs(PairLabels::LogProbs)),
        ("reward", Task::Pairs(PairLabels::Rewards)),
        ("pretrain", Task::Pretrain),
    ]);
    tasks.extend(r.own.tasks.iter().map(entry));
    let task = r.required_choice("data.task", &tasks);
    if let Some(Task::Registered(name, _)) = task
        && tasks.iter().filter(|(other, _)| *other == name).count() > 1
    {
        let reason = format!("two tasks of this program have the name {name}");
        r.contradiction(&["data.task"], reason, "rename the task that the program adds");
    }
    let objective = read_objective(r, task);
    let source = read_source(r, task, objective);
    let parse_special = read_parse_special(r, task, &source);
    let max_length = r.integer("data.max_length", 512, 3..=MOST_SAMPLES);
    let target_length = r.integer("data.target_length", max_length, 3..=MOST_SAMPLES) as usize;
    r.follow("data.target_length", "data.max_length");
    if task.is_some_and(|task| !task.has_targets()) {
        r.without_effect("data.target_length", "data.task", "it is for tasks seq2seq, sft and SQuAD", "remove it");
    }
    let template = Expected { what: "the name of a chat template", example: "tool_use" };
    let chat_template = r.optional_text("data.chat_template", "not set: `default`, with tools `tool_use`", template);
    if task.is_some_and(|task| !matches!(task, Task::Sft | Task::Pairs(_))) {
        r.without_effect("data.chat_template", "data.task", "it is for tasks sft, preference and reward", "remove it");
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
    let shuffle = r.flag("data.shuffle", true);
    let last_batches = [("drop", LastBatch::Drop), ("keep", LastBatch::Keep)];
    let last_batch = r.choice("data.last_batch", &last_batches, LastBatch::Drop);
    let length_grouped = r.flag("data.length_grouped", false);
    if !shuffle {
        let why = "data.shuffle = false keeps the order of the files";
        r.without_effect("data.length_grouped", "data.shuffle", why, "remove one of the two");
    }
    if !shuffle && matches!(&source, DataSource::Sft(task) if task.sets.len() > 1) {
        let why = "several data sets are mixed in a random order";
        r.contradiction(&["data.shuffle", "data.sets"], why, "remove data.shuffle");
    }
    let packing = read_packing(r, task);
    let eval_limit = r.optional_integer("data.eval_limit", "not set: all of them", 1..=MOST, 1000);
    let class_weights = weights_of_classes(r, task, objective);
    let (mut max_length, mut target_length) = (max_length as usize, target_length);
    pretraining::refuse_foreign(r, (task == Some(Task::Pretrain)).then(|| objective.of_pretraining()));
    if let Some(pretraining) = source.pretraining() {
        (max_length, target_length) = (pretraining.sequence_length, pretraining.sequence_length);
        pretraining::check(r, pretraining);
    }
    DataSettings {
        source,
        parse_special,
        max_length,
        target_length,
        chat_template,
        too_long,
        on_bad_record: if skips { OnBadRecord::Skip { max_share } } else { OnBadRecord::Error },
        shuffle,
        last_batch,
        length_grouped,
        packing,
        eval_limit,
        class_weights,
    }
}

/// Whether control tokens in texts are parsed: of texts that are rendered already.
fn read_parse_special(r: &mut Reader, task: Option<Task>, source: &DataSource) -> bool {
    let parse_special = r.flag("data.parse_special", false);
    if task.is_some_and(|task| !matches!(task, Task::Language | Task::Sft | Task::Pairs(_))) {
        let why = "it is for texts of tasks language, sft, preference and reward";
        r.without_effect("data.parse_special", "data.task", why, "remove it");
    }
    if parse_special && matches!(source, DataSource::Sft(task) if task.as_chat) {
        let reason = "`data.as_chat` renders prompts and completions, and `data.parse_special` is for rendered texts";
        r.contradiction(&["data.parse_special", "data.as_chat"], reason, "keep one of the two");
    }
    parse_special
}

fn read_packing(r: &mut Reader, task: Option<Task>) -> bool {
    let packing = r.flag("data.packing", false);
    if task.is_some_and(|task| !matches!(task, Task::Language | Task::Sft)) {
        r.without_effect("data.packing", "data.task", "it is for tasks language and sft", "remove it");
    }
    packing
}

/// Weights of classes, which are for outputs of a head.
fn weights_of_classes(r: &mut Reader, task: Option<Task>, objective: Objective) -> Option<ClassWeights> {
    let weights = read_class_weights(r);
    let (key, fix) = ("data.class_weights", "remove it");
    match (task, objective) {
        (Some(task), _) if !task.has_classes() => {
            r.without_effect(key, "data.task", "it is for tasks with classes", fix);
        }
        (_, Objective::Verbalizer) => {
            r.without_effect(key, "data.objective", "it is for data.objective = \"classifier\"", fix);
        }
        _ => {}
    }
    weights
}

/// Whether the prompt registry has the task.
pub(super) fn has_prompts(task: &str) -> bool {
    PROMPTS.iter().any(|entry| entry.name == task)
}

fn read_objective(r: &mut Reader, task: Option<Task>) -> Objective {
    let causal = Objective::Pretraining(PretrainingObjective::Causal);
    let choices = [
        ("classifier", Objective::Classifier),
        ("verbalizer", Objective::Verbalizer),
        ("causal", causal),
        ("masked", Objective::Pretraining(PretrainingObjective::Masked)),
        ("span-corruption", Objective::Pretraining(PretrainingObjective::SpanCorruption)),
        ("infilling", Objective::Pretraining(PretrainingObjective::Infilling)),
    ];
    let default = match task {
        Some(Task::Registered(_, None)) => Objective::Verbalizer,
        Some(Task::Pretrain) => causal,
        _ => Objective::Classifier,
    };
    let objective = r.choice("data.objective", &choices, default);
    let is_of_pretraining = matches!(objective, Objective::Pretraining(_));
    match task {
        Some(task) if is_of_pretraining != (task == Task::Pretrain) => {
            let reason = match is_of_pretraining {
                true => "this objective is for data.task = \"pretrain\"",
                false => "this objective is for tasks with classes",
            };
            r.contradiction(&["data.objective", "data.task"], reason, "remove data.objective");
            default
        }
        Some(Task::Pretrain) => objective,
        None | Some(Task::Classification) => objective,
        Some(task) if !task.has_classes() => {
            r.without_effect("data.objective", "data.task", "it is for tasks with classes", "remove it");
            Objective::Classifier
        }
        Some(Task::Registered(name, entry)) => {
            if objective == Objective::Verbalizer && !has_prompts(name) {
                let reason = format!("task {name} has no prompts");
                r.contradiction(&["data.objective", "data.task"], reason, "remove data.objective");
            }
            if objective == Objective::Classifier && entry.is_none() {
                let reason = format!("task {name} has prompts, and no form for classifiers");
                r.contradiction(&["data.objective", "data.task"], reason, "set data.objective = \"verbalizer\"");
            }
            objective
        }
        Some(_) => {
            if objective == Objective::Verbalizer {
                let reason = "the task has no prompts".to_owned();
                r.contradiction(&["data.objective", "data.task"], reason, "remove data.objective");
            }
            Objective::Classifier
        }
    }
}

fn read_template(r: &mut Reader) -> Option<Template> {
    let parse = |text: &str| Template::parse(text);
    let read = |value: &Value| if let Value::Text(text) = value { parse(text).ok() } else { None };
    r.shape("data.template", Shape::Text);
    r.read(Spec {
        key: "data.template",
        textual: true,
        wanted: "a text with names of columns in braces, and at most one {answer}".into(),
        example: quote("{text} Was it good?"),
        otherwise: Otherwise::Absent("not set: the task has its own, or none"),
        read: &read,
        render: &|template: &Template| quote(&template.to_string()),
    })
}

/// The format of files, with the delimiter of their columns.
fn read_format(r: &mut Reader) -> Option<Format> {
    let formats = [
        ("auto", None),
        ("jsonl", Some(Format::Jsonl)),
        ("csv", Some(Format::Csv)),
        ("tsv", Some(Format::Tsv)),
        ("arrow", Some(Format::Arrow)),
        ("parquet", Some(Format::Parquet)),
        ("text", Some(Format::Text)),
    ];
    let format = r.choice("data.format", &formats, None);
    let delimiter = r.optional_text("data.delimiter", "not set: a comma in CSV, a tab in TSV", DELIMITER);
    let Some(delimiter) = delimiter else { return format };
    let keys = ["data.delimiter", "data.format"];
    let mut characters = delimiter.chars();
    match (characters.next(), characters.next()) {
        (Some(one), None) if !one.is_alphanumeric() && !['"', '\n', '\r'].contains(&one) => {
            if !matches!(format, None | Some(Format::Csv)) {
                let reason = "a delimiter is between the columns of CSV, and the files have another format";
                r.contradiction(&keys, reason, "remove one of the two");
            }
            Some(Format::Separated(one))
        }
        _ => {
            let reason = format!("{} is not one character that separates columns", quote(&delimiter));
            r.contradiction(&keys[..1], reason, "write one, such as \";\" or \"\\t\"");
            format
        }
    }
}

/// The keys of all kinds of sources; keys of other kinds have no effect.
fn read_source(r: &mut Reader, task: Option<Task>, objective: Objective) -> DataSource {
    let keys = Keys {
        directory: r.optional_path("data.path", "not set", TASK_DIRECTORY),
        train: r.optional_path("data.train", "not set", DATA_FILE),
        eval: r.optional_path("data.eval", "not set: trains without evaluation", DATA_FILE),
        format: read_format(r),
        labels: r.optional_texts("data.labels", "not set: those in the training file, sorted", "[\"no\", \"yes\"]"),
        template: read_template(r),
        words: r.optional_texts("data.words", "not set: the task has its own, or none", "[\" No\", \" Yes\"]"),
        text: r.text("data.columns.text", "text", COLUMN),
        text_pair: r.optional_text("data.columns.text_pair", "not set: single texts", COLUMN),
        label: r.text("data.columns.label", "label", COLUMN),
        prompt: r.optional_text("data.columns.prompt", "not set: no prompt before texts", COLUMN),
        target: r.text("data.columns.target", "target", COLUMN),
        tokens: r.text("data.columns.tokens", "tokens", COLUMN),
        tags: r.text("data.columns.tags", "ner_tags", COLUMN),
        spans: SpanTask {
            stride: r.integer("data.stride", 128, 0..=MOST_SAMPLES) as usize,
            answer_length: r.integer("data.answer_length", 30, 1..=MOST_SAMPLES) as usize,
        },
        label_columns: r.optional_texts(
            "data.columns.labels",
            "not set: lists in data.columns.label",
            "[\"toxic\", \"insult\"]",
        ),
        embedding: embedding::read_columns(r, COLUMN),
    };
    if task.is_some_and(|task| task != Task::MultiLabel) {
        let why = "it is for task multi-label-classification";
        r.without_effect("data.columns.labels", "data.task", why, "remove it");
    }
    if task.is_some_and(|task| task != Task::Embedding) {
        embedding::refuse_columns(r);
    }
    let sft = sft::read(r, COLUMN);
    match task {
        None | Some(Task::Sft) => sft::refuse_of_pairs(r),
        Some(Task::Pairs(labels)) => sft::refuse_of_single(r, labels),
        Some(_) => sft::refuse(r),
    }
    let pretraining = pretraining::read(r, objective.of_pretraining());
    match (task, objective) {
        (Some(Task::Registered(task, Some(entry))), Objective::Classifier) => {
            if entry.labels.are_tokens() {
                keeps_lm_head(r);
            }
            let directory = known_directory(r, task, keys);
            require_directory(r, DataSource::Task { entry, directory })
        }
        // Without a form for classifiers a mistake was already reported.
        (Some(Task::Registered(task, _)), _) => {
            let directory = known_directory(r, task, keys);
            require_directory(r, DataSource::Prompts { task, directory })
        }
        (Some(Task::Published(task)), _) => {
            let directory = known_directory(r, task.name(), keys);
            require_directory(r, DataSource::Published { task, directory })
        }
        (Some(Task::Squad), _) => {
            keeps_lm_head(r);
            let directory = known_directory(r, "SQuAD", keys);
            require_directory(r, DataSource::Squad { directory })
        }
        (Some(Task::Classification), Objective::Verbalizer) => of_template(r, keys),
        (Some(task @ (Task::Sft | Task::Pairs(_))), _) => {
            refuse_tag_keys(r);
            refuse_span_keys(r);
            let pairs = if let Task::Pairs(labels) = task { Some(labels) } else { None };
            let Keys { train, eval, format, prompt, text, label, .. } = keys;
            sft::source(r, sft, Shared { pairs, train, eval, format, prompt, text, label })
        }
        (Some(Task::Pretrain), _) => DataSource::Pretraining(Box::new(pretraining)),
        _ => of_files(r, task, keys),
    }
}

//! The keys of `[data]`: which task, which files, which of their columns, how long its texts may be.

use super::class_weights::{ClassWeights, read_class_weights};
use super::data_source::{DataFiles, DataSource};
use super::engine::kinds::MAX_INTEGER;
use super::engine::kinds::{Expected, Range, quote};
use super::engine::layers::Value;
use super::engine::reader::{Otherwise, Reader, Spec};
use super::engine::schema::Shape;
use super::file_tasks::{
    FILE_TASKS, FileTask, NO_DIRECTORY, columns, named_files, refuse_head, refuse_spans, refuse_tags_and_spans,
};
use super::keys::MAX_SAMPLES;
use super::keys::data::{DataSettings, LastBatch};
use super::keys::embedding;
use super::keys::eval::EvalMetric;
use super::pretraining;
use super::pretraining_objective::PretrainingObjective;
use super::sft::{self, Shared};
use model_center_data::metrics::{LabelKind, Metric, OwnMetric};
use model_center_data::{
    EmbeddingTask, Format, OnBadRecord, PROMPTS, PairLabels, PromptEntry, PublishedTask, SUPERGLUE, SftTask, Split,
    Squad, Task, TaskObject, Template, TooLong,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Keys of the columns of records, which tasks that know their columns do not take.
pub(super) const COLUMN_KEYS: [&str; 7] = [
    "data.columns.text",
    "data.columns.text_pair",
    "data.columns.label",
    "data.columns.prompt",
    "data.columns.target",
    "data.columns.tokens",
    "data.columns.tags",
];

const DELIMITER: Expected = Expected { what: "a character", example: ";" };
const TASK_DIRECTORY: Expected = Expected { what: "the path of a directory of tasks", example: "data/superglue" };
const DATA_FILE: Expected = Expected { what: "the path of a data file", example: "data/train.jsonl" };
const COLUMN: Expected = Expected { what: "the name of a column", example: "text" };

/// A value of `data.task`, before the keys of the task are read.
#[derive(Clone, Copy)]
pub(super) enum TaskChoice {
    /// A task that is the same for every recipe, and its form with prompts.
    Fixed(&'static dyn Task, Option<&'static PromptEntry>),
    /// One whose files and columns are keys.
    Files(&'static FileTask),
    /// Conversations and completions; of pairs, what is compared.
    Sft(Option<PairLabels>),
    /// Token files.
    Pretrain,
}

impl TaskChoice {
    /// Every value by its name.
    fn all(r: &Reader) -> Vec<(&'static str, TaskChoice)> {
        let prompts = |name: &str| PROMPTS.iter().find(|entry| entry.name == name);
        let fixed = |task: &'static dyn Task| (task.name(), TaskChoice::Fixed(task, prompts(task.name())));
        let mut all: Vec<_> = SUPERGLUE.iter().map(|entry| fixed(entry)).collect();
        let prompted = PROMPTS.iter().filter(|entry| SUPERGLUE.iter().all(|other| other.name != entry.name));
        all.extend(prompted.map(|entry| fixed(entry)));
        all.extend(PublishedTask::ALL.iter().map(|task| fixed(task)));
        all.push(fixed(&Squad));
        all.extend(FILE_TASKS.iter().map(|task| (task.name, TaskChoice::Files(task))));
        all.extend([
            ("sft", TaskChoice::Sft(None)),
            ("preference", TaskChoice::Sft(Some(PairLabels::LogProbs))),
            ("reward", TaskChoice::Sft(Some(PairLabels::Rewards))),
            ("pretrain", TaskChoice::Pretrain),
        ]);
        all.extend(r.own.tasks.iter().map(|task| fixed(*task)));
        all
    }

    /// Classes or choices as labels.
    fn has_classes(self) -> bool {
        match self {
            TaskChoice::Fixed(task, _) => task.label_kind() == LabelKind::Classes,
            TaskChoice::Files(task) => task.has_classes,
            TaskChoice::Sft(_) | TaskChoice::Pretrain => false,
        }
    }
}

/// Distinction between the classes of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objective {
    /// Outputs of a head of their own.
    Classifier,
    /// Label words, after a prompt.
    Verbalizer,
    /// Tokens of a sample that pretraining predicts.
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
    pub(super) stride: usize,
    pub(super) answer_length: usize,
    pub(super) embedding: EmbeddingTask,
}

pub(super) fn read_data(r: &mut Reader) -> DataSettings {
    let all = TaskChoice::all(r);
    let names: Vec<(&str, &str)> = all.iter().map(|(name, _)| (*name, *name)).collect();
    let name = r.required_choice("data.task", &names);
    let mut found = all.iter().filter(|(other, _)| Some(*other) == name).map(|(_, task)| *task);
    let task = found.next();
    if let (Some(name), Some(_)) = (name, found.next()) {
        let reason = format!("two tasks of this program have the name {name}");
        r.contradiction(&["data.task"], reason, "rename the task that the program adds");
    }
    refuse_metrics_of_one_name(r);
    let objective = read_objective(r, task);
    let source = read_source(r, task, objective);
    let parse_special = read_parse_special(r, task.is_some(), &source);
    let max_length = r.integer("data.max_length", 512_usize, 3..=MAX_SAMPLES);
    let target_length = r.integer("data.target_length", max_length, 3..=MAX_SAMPLES);
    if task.is_some() && !source.task().has_targets() {
        r.without_effect("data.target_length", "data.task", "it is for tasks seq2seq, sft and SQuAD", "remove it");
    }
    let template = Expected { what: "the name of a chat template", example: "tool_use" };
    let chat_template = r.optional_text("data.chat_template", "not set: `default`, with tools `tool_use`", template);
    if task.is_some() && !source.task().has_conversations() {
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
    if !shuffle && source.task_as().is_some_and(|task: &SftTask| task.sets.len() > 1) {
        let why = "several data sets are mixed in a random order";
        r.contradiction(&["data.shuffle", "data.sets"], why, "remove data.shuffle");
    }
    let packing = read_packing(r, task.is_some(), &source);
    let eval_limit = r.optional_integer("data.eval_limit", "not set: all of them", 1..=MAX_INTEGER, 1000);
    let class_weights = weights_of_classes(r, task, objective);
    let (mut max_length, mut target_length) = (max_length, target_length);
    pretraining::refuse_foreign(r, source.pretraining().map(|_| objective.of_pretraining()));
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

/// Refuses metrics of the program's tasks with the name of another one: recipes and logs name them.
fn refuse_metrics_of_one_name(r: &mut Reader) {
    let mut known: Vec<&'static OwnMetric> = Vec::new();
    let tasks: Vec<(&str, &[Metric])> =
        r.own.tasks.iter().filter_map(|task| Some((task.name(), task.metrics()?))).collect();
    for (task, metrics) in tasks {
        for metric in metrics {
            let Metric::Own(own) = metric else { continue };
            let other = match own.name {
                name if name == EvalMetric::Loss.name() => "the loss",
                name if Metric::all().any(|metric| metric.name() == name) => "a metric of the library",
                name if known.iter().any(|other| other.name == name && !std::ptr::eq(*other, *own)) => {
                    "another metric of this program"
                }
                _ => {
                    known.push(own);
                    continue;
                }
            };
            let reason = format!("metric {} of task {task} has the name of {other}", own.name);
            r.contradiction(&["data.task"], reason, "rename the metric that the program adds");
        }
    }
}

/// Whether control tokens in texts are parsed: of texts that are rendered already.
fn read_parse_special(r: &mut Reader, is_known: bool, source: &DataSource) -> bool {
    let parse_special = r.flag("data.parse_special", false);
    if is_known && !source.task().has_rendered_texts() {
        let why = "it is for texts of tasks language, sft, preference and reward";
        r.without_effect("data.parse_special", "data.task", why, "remove it");
    }
    if parse_special && source.task_as().is_some_and(|task: &SftTask| task.as_chat) {
        let reason = "`data.as_chat` renders prompts and completions, and `data.parse_special` is for rendered texts";
        r.contradiction(&["data.parse_special", "data.as_chat"], reason, "keep one of the two");
    }
    parse_special
}

fn read_packing(r: &mut Reader, is_known: bool, source: &DataSource) -> bool {
    let packing = r.flag("data.packing", false);
    if is_known && !source.task().can_be_packed() {
        r.without_effect("data.packing", "data.task", "it is for tasks language and sft", "remove it");
    }
    packing
}

/// Weights of classes, which are for outputs of a head.
fn weights_of_classes(r: &mut Reader, task: Option<TaskChoice>, objective: Objective) -> Option<ClassWeights> {
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

fn read_objective(r: &mut Reader, task: Option<TaskChoice>) -> Objective {
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
        Some(TaskChoice::Fixed(task, _)) if task.uses_label_words() => Objective::Verbalizer,
        Some(TaskChoice::Pretrain) => causal,
        _ => Objective::Classifier,
    };
    let objective = r.choice("data.objective", &choices, default);
    let is_of_pretraining = matches!(objective, Objective::Pretraining(_));
    match task {
        Some(task) if is_of_pretraining != matches!(task, TaskChoice::Pretrain) => {
            let reason = match is_of_pretraining {
                true => "this objective is for data.task = \"pretrain\"",
                false => "this objective is for tasks with classes",
            };
            r.contradiction(&["data.objective", "data.task"], reason, "remove data.objective");
            default
        }
        None | Some(TaskChoice::Pretrain) => objective,
        Some(task) if !task.has_classes() => {
            r.without_effect("data.objective", "data.task", "it is for tasks with classes", "remove it");
            Objective::Classifier
        }
        Some(TaskChoice::Fixed(task, prompts)) => {
            let name = task.name();
            if objective == Objective::Verbalizer && prompts.is_none() && !task.uses_label_words() {
                let reason = format!("task {name} has no prompts");
                r.contradiction(&["data.objective", "data.task"], reason, "remove data.objective");
                return Objective::Classifier;
            }
            if objective == Objective::Classifier && task.uses_label_words() {
                let reason = format!("task {name} has prompts, and no form for classifiers");
                r.contradiction(&["data.objective", "data.task"], reason, "set data.objective = \"verbalizer\"");
            }
            objective
        }
        Some(_) => objective,
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
fn read_source(r: &mut Reader, task: Option<TaskChoice>, objective: Objective) -> DataSource {
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
        stride: r.integer("data.stride", 128, 0..=MAX_SAMPLES),
        answer_length: r.integer("data.answer_length", 30, 1..=MAX_SAMPLES),
        label_columns: r.optional_texts(
            "data.columns.labels",
            "not set: lists in data.columns.label",
            "[\"toxic\", \"insult\"]",
        ),
        embedding: embedding::read_columns(r, COLUMN),
    };
    let is_other = |wanted: &str| match task {
        None => false,
        Some(TaskChoice::Files(FileTask { name, .. })) => *name != wanted,
        Some(_) => true,
    };
    if is_other("multi-label-classification") {
        let why = "it is for task multi-label-classification";
        r.without_effect("data.columns.labels", "data.task", why, "remove it");
    }
    if is_other("embedding") {
        embedding::refuse_columns(r);
    }
    let sft = sft::read(r, COLUMN);
    match task {
        None | Some(TaskChoice::Sft(None)) => sft::refuse_of_pairs(r),
        Some(TaskChoice::Sft(Some(labels))) => sft::refuse_of_single(r, labels),
        Some(_) => sft::refuse(r),
    }
    let pretraining = pretraining::read(r, objective.of_pretraining());
    match task {
        Some(TaskChoice::Fixed(task, prompts)) => {
            let task = match prompts {
                Some(prompts) if objective == Objective::Verbalizer => prompts.shared(),
                _ => task.shared(),
            };
            if task.label_kind() == LabelKind::Tokens {
                r.without_effect("model.head", "data.task", "a model keeps its language-modelling head", "remove it");
            }
            fixed_source(r, task, keys)
        }
        Some(TaskChoice::Files(task)) => task.source(r, keys, objective == Objective::Verbalizer),
        Some(TaskChoice::Sft(pairs)) => {
            refuse_tags_and_spans(r);
            let Keys { train, eval, format, prompt, text, label, .. } = keys;
            sft::source(r, sft, Shared { pairs, train, eval, format, prompt, text, label })
        }
        Some(TaskChoice::Pretrain) => DataSource::new(Arc::new(pretraining), DataFiles::OfTask),
        // Without a task the effect of the other keys is unknown.
        None => {
            let files = DataFiles::Files { train: keys.train.clone().unwrap_or_default(), eval: keys.eval.clone() };
            DataSource::new(columns(keys, None), files)
        }
    }
}

/// The source of a task that knows its columns and labels, and perhaps its files.
fn fixed_source(r: &mut Reader, task: Arc<dyn Task>, keys: Keys) -> DataSource {
    let name = task.name();
    let knows_files = task.file(Split::Train).is_some();
    let (files, what, fix) = match knows_files {
        true => (&["data.train", "data.eval"][..], "files and labels", "remove it, and set data.path"),
        false => (&[][..], "labels, and names of files determine their formats", "remove it"),
    };
    for key in files.iter().chain(&["data.format", "data.delimiter", "data.labels"]) {
        r.without_effect(key, "data.task", &format!("task {name} knows its {what}"), fix);
    }
    for key in ["data.template", "data.words"] {
        r.without_effect(key, "data.task", &format!("task {name} has its own prompt and label words"), fix);
    }
    for key in COLUMN_KEYS {
        r.without_effect(key, "data.task", &format!("task {name} knows its columns"), "remove it");
    }
    refuse_spans(r);
    if task.uses_label_words() {
        refuse_head(r);
    }
    if !knows_files {
        r.without_effect("data.path", "data.task", NO_DIRECTORY, "name the files with data.train and data.eval");
        let files = named_files(r, &keys);
        return DataSource::new(task, files);
    }
    let source = DataSource::new(task, DataFiles::Directory(keys.directory.unwrap_or_default()));
    if source.directory().is_some_and(|directory| directory.as_os_str().is_empty()) {
        let reason =
            format!("`data.path` is missing: the directory that holds {}", source.files_of_task().join(" and "));
        r.absent(&["data.task", "data.path"], reason, "set data.path = \"data/superglue\"");
    }
    source
}

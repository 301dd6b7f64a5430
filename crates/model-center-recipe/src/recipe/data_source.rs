//! Where the data of a run come from: which task, and what it knows of its files, labels and metrics.
//!
//! Defines [`DataSource`], a part of the [`Settings`](super::Settings). Filled by `sources.rs`; read by the programs.

use super::pretraining::PretrainingSettings;
use super::sources::has_prompts;
use model_center_data::metrics::{
    MULTI_LABEL_METRICS, Metric, MetricKind, RETRIEVAL_METRICS, SPAN_METRICS, TAG_METRICS,
};
use model_center_data::{
    ColumnTask, EmbeddingTask, LabelSpec, LanguageModelingColumns, LanguageModelingTask, MultiLabelTask, PROMPTS,
    PairLabels, PromptEntry, PublishedTask, SQUAD_METRICS, SUPERGLUE, SftTask, SpanTask, Split, Squad, TagTask,
    TaskEntry, TaskLabels, TemplateTask, TextFormats,
};
use std::path::PathBuf;

/// Where the data come from.
#[derive(Debug, Clone, PartialEq)]
pub enum DataSource {
    /// A task of a registry of records: a SuperGLUE task, or one that a program adds.
    Task {
        /// Its registry line.
        entry: &'static TaskEntry,
        /// The directory that holds the task's directory.
        directory: PathBuf,
    },
    /// A task of the prompt registry, answered with label tokens (`verbalizer`).
    Prompts {
        /// Its name in [`PROMPTS`].
        task: &'static str,
        /// The directory that holds the task's directory.
        directory: PathBuf,
    },
    /// A task in the files that it is published in, for classifiers.
    Published {
        /// Which one.
        task: PublishedTask,
        /// The directory that holds the task's directory.
        directory: PathBuf,
    },
    /// SQuAD, whose answers a decoder writes.
    Squad {
        /// The directory that holds its files.
        directory: PathBuf,
    },
    /// Files with a label column, and a user-defined prompt answered with label tokens.
    Template {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Prompt, label words, labels and format.
        task: TemplateTask,
    },
    /// Files with a text and a label column.
    Files {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Columns, labels and format. Numbers as labels make it a regression.
        columns: ColumnTask,
    },
    /// Files of questions about passages, whose answers are spans of the passages.
    QuestionAnswering {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Windows and answers.
        task: SpanTask,
    },
    /// Files of words with tags.
    TokenClassification {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Columns, tags and format.
        task: TagTask,
    },
    /// Files of texts with any number of labels.
    MultiLabel {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Columns, labels and format.
        task: MultiLabelTask,
    },
    /// Files of texts that belong together, for embeddings.
    Embedding {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Columns and format.
        task: EmbeddingTask,
    },
    /// Files of texts for language modelling.
    LanguageModeling {
        /// Learnt from.
        train: PathBuf,
        /// Evaluated on this file; `None` trains without evaluation.
        eval: Option<PathBuf>,
        /// Columns and format.
        task: LanguageModelingTask,
    },
    /// Conversations, prompts with completions, and texts, or pairs of such, of one or several data sets.
    Sft(SftTask),
    /// Token files.
    Pretraining(Box<PretrainingSettings>),
}

impl DataSource {
    /// The name of the task in recipes.
    pub fn task_name(&self) -> &'static str {
        match self {
            DataSource::Task { entry, .. } => entry.name,
            DataSource::Prompts { task, .. } => task,
            DataSource::Published { task, .. } => task.name(),
            DataSource::Squad { .. } => "SQuAD",
            DataSource::Template { .. } => "classification",
            DataSource::Files { .. } if self.is_regression() => "regression",
            DataSource::Files { .. } => "classification",
            DataSource::QuestionAnswering { .. } => "question-answering",
            DataSource::TokenClassification { .. } => "token-classification",
            DataSource::Embedding { .. } => "embedding",
            DataSource::MultiLabel { .. } => "multi-label-classification",
            DataSource::LanguageModeling {
                task: LanguageModelingTask { columns: LanguageModelingColumns::Language { .. }, .. },
                ..
            } => "language",
            DataSource::LanguageModeling { .. } => "seq2seq",
            DataSource::Sft(task) => match task.pairs {
                None => "sft",
                Some(PairLabels::LogProbs | PairLabels::Judged) => "preference",
                Some(PairLabels::Rewards) => "reward",
            },
            DataSource::Pretraining(_) => "pretrain",
        }
    }

    /// The registry line of a task of prompts.
    pub fn prompt_entry(&self) -> Option<&'static PromptEntry> {
        match self {
            DataSource::Prompts { task, .. } => PROMPTS.iter().find(|entry| entry.name == *task),
            _ => None,
        }
    }

    /// Whether there is a form of the task for classifiers, however it is read here: one's own files have one.
    pub fn has_classifier_form(&self) -> bool {
        match self {
            DataSource::Task { .. }
            | DataSource::Published { .. }
            | DataSource::Files { .. }
            | DataSource::Template { .. } => true,
            DataSource::Prompts { task, .. } => SUPERGLUE.iter().any(|entry| entry.name == *task),
            DataSource::Squad { .. }
            | DataSource::LanguageModeling { .. }
            | DataSource::QuestionAnswering { .. }
            | DataSource::TokenClassification { .. }
            | DataSource::Embedding { .. }
            | DataSource::MultiLabel { .. }
            | DataSource::Sft(_)
            | DataSource::Pretraining(_) => false,
        }
    }

    /// Whether the prompt registry has the task.
    pub fn has_prompt_form(&self) -> bool {
        match self {
            DataSource::Task { entry, .. } => has_prompts(entry.name),
            DataSource::Prompts { .. } => true,
            _ => false,
        }
    }

    /// What the evaluation of a registered task reports, the first being what picks the best weights.
    pub fn task_metrics(&self) -> Option<&'static [Metric]> {
        match self {
            DataSource::Squad { .. } => Some(SQUAD_METRICS),
            DataSource::Published { task, .. } => Some(task.metrics()),
            DataSource::QuestionAnswering { .. } => Some(SPAN_METRICS),
            DataSource::TokenClassification { .. } => Some(TAG_METRICS),
            DataSource::Embedding { .. } => Some(RETRIEVAL_METRICS),
            DataSource::MultiLabel { .. } => Some(MULTI_LABEL_METRICS),
            DataSource::Task { entry, .. } => Some(entry.metrics).filter(|metrics| !metrics.is_empty()),
            _ => self.prompt_entry().map(|entry| entry.metrics),
        }
    }

    /// Whether labels are tokens of the vocabulary.
    pub fn has_token_labels(&self) -> bool {
        matches!(self, DataSource::Prompts { .. } | DataSource::Template { .. })
    }

    /// The files that are learnt from and judged by; `None` for a task that knows its own.
    pub fn files(&self) -> Option<(&PathBuf, Option<&PathBuf>)> {
        match self {
            DataSource::Task { .. }
            | DataSource::Prompts { .. }
            | DataSource::Published { .. }
            | DataSource::Squad { .. }
            | DataSource::Sft(_)
            | DataSource::Pretraining(_) => None,
            DataSource::Files { train, eval, .. }
            | DataSource::LanguageModeling { train, eval, .. }
            | DataSource::QuestionAnswering { train, eval, .. }
            | DataSource::TokenClassification { train, eval, .. }
            | DataSource::Embedding { train, eval, .. }
            | DataSource::MultiLabel { train, eval, .. }
            | DataSource::Template { train, eval, .. } => Some((train, eval.as_ref())),
        }
    }

    /// The directory of a task that knows its own files.
    pub fn directory(&self) -> Option<&PathBuf> {
        match self {
            DataSource::Task { directory, .. }
            | DataSource::Prompts { directory, .. }
            | DataSource::Published { directory, .. }
            | DataSource::Squad { directory } => Some(directory),
            _ => None,
        }
    }

    /// The files of such a task, below its directory.
    pub fn files_of_task(&self) -> Vec<String> {
        let splits = [Split::Train, Split::Validation];
        match self {
            DataSource::Task { entry, .. } => splits.iter().map(|split| entry.file(*split)).collect(),
            DataSource::Squad { .. } => splits.iter().map(|split| Squad::file(*split).to_owned()).collect(),
            DataSource::Published { task, .. } => splits.iter().map(|split| task.path(*split).to_owned()).collect(),
            _ => {
                let files = self.prompt_entry().map(|entry| splits.map(|split| (entry.name, entry.files.name(split))));
                files.into_iter().flatten().map(|(task, file)| format!("{task}/{file}")).collect()
            }
        }
    }

    /// Whether numbers are predicted rather than classes.
    pub fn is_regression(&self) -> bool {
        match self {
            DataSource::Task { entry, .. } => entry.labels == TaskLabels::Value,
            DataSource::Files { columns, .. } => columns.labels == LabelSpec::Value,
            _ => false,
        }
    }

    /// Of pairs of completions, what is compared.
    pub fn pairs(&self) -> Option<PairLabels> {
        if let DataSource::Sft(task) = self { task.pairs } else { None }
    }

    /// Makes completions that are compared in pairs ones that are judged one by one.
    pub(super) fn judge(&mut self) {
        if let DataSource::Sft(task) = self {
            task.pairs = Some(PairLabels::Judged);
        }
    }

    /// What is predicted.
    pub fn predicts(&self) -> MetricKind {
        match self {
            DataSource::Sft(SftTask { pairs: Some(PairLabels::LogProbs | PairLabels::Judged), .. }) => {
                MetricKind::Pairs
            }
            DataSource::Sft(SftTask { pairs: Some(PairLabels::Rewards), .. }) => MetricKind::Classes,
            DataSource::LanguageModeling { .. }
            | DataSource::Squad { .. }
            | DataSource::Sft(_)
            | DataSource::Pretraining(_) => MetricKind::Tokens,
            DataSource::QuestionAnswering { .. } => MetricKind::Questions,
            DataSource::TokenClassification { .. } => MetricKind::Tags,
            DataSource::Embedding { .. } => MetricKind::Embeddings,
            DataSource::MultiLabel { .. } => MetricKind::LabelSets,
            DataSource::Task { entry, .. } if entry.labels.are_tokens() => MetricKind::Tokens,
            _ if self.is_regression() => MetricKind::Values,
            _ => MetricKind::Classes,
        }
    }

    /// The hubs' name of what such a trained model does. With label tokens it is the language model's name, which
    /// depends on whether it generates targets.
    pub fn pipeline_tag(&self, generates_targets: bool) -> &'static str {
        let has_targets = match self {
            DataSource::Squad { .. } => true,
            DataSource::QuestionAnswering { .. } => return "question-answering",
            DataSource::TokenClassification { .. } => return "token-classification",
            DataSource::Embedding { .. } => return "sentence-similarity",
            DataSource::Task { entry, .. } if entry.labels.are_tokens() => entry.labels == TaskLabels::Target,
            DataSource::LanguageModeling { task, .. } => {
                matches!(task.columns, LanguageModelingColumns::Target { .. })
            }
            DataSource::Sft(SftTask { pairs: Some(PairLabels::Rewards), .. }) => return "text-classification",
            DataSource::Sft(_) => generates_targets,
            _ if self.has_token_labels() => generates_targets,
            _ => return "text-classification",
        };
        if has_targets { "text2text-generation" } else { "text-generation" }
    }

    /// The texts that inputs and outputs are part of; `None` of tasks without such.
    pub fn text_formats(&self) -> Option<Vec<TextFormats>> {
        if let DataSource::Sft(task) = self { Some(task.formats()) } else { None }
    }

    /// Whether there is anything to evaluate on.
    pub fn has_eval(&self) -> bool {
        match self {
            DataSource::Pretraining(settings) => settings.has_validation(),
            DataSource::Sft(task) => task.has_eval(),
            _ => self.files().is_none_or(|(_, eval)| eval.is_some()),
        }
    }

    /// The key of what is evaluated on.
    pub(super) fn eval_key(&self) -> &'static str {
        if let DataSource::Pretraining(_) = self { "data.valid" } else { "data.eval" }
    }

    /// What is pretrained on; `None` of any other task.
    pub fn pretraining(&self) -> Option<&PretrainingSettings> {
        if let DataSource::Pretraining(settings) = self { Some(settings) } else { None }
    }

    /// The same, to change it.
    pub(super) fn pretraining_mut(&mut self) -> Option<&mut PretrainingSettings> {
        if let DataSource::Pretraining(settings) = self { Some(settings) } else { None }
    }
}

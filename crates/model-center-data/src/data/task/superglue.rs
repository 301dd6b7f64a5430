//! The SuperGLUE tasks of the predecessor's BERT registry.
//!
//! Defines [`TaskEntry`], the static slice [`SUPERGLUE`] and [`find_task`]. A task is a file layout, a `parse`
//! function from a record to inputs, and its metrics. Recipes know the tasks of [`SUPERGLUE`], and those
//! that a program adds with `Registry::with_tasks`. Files are
//! `{directory}/{Task}/{train|val}.jsonl` as SuperGLUE ships them.
//!
//! Source: ModelCenter's `bertdataset`, templates matched. Deliberate differences: labels outside the listed ones are
//! errors (there they silently became the last class), and a `[SEP]` inside a text stays text.

use super::{SplitSource, Task};
use crate::data::{
    Example, Split,
    dataset::Dataset,
    read::{ReadOptions, read},
};
use crate::metrics::{LabelKind, Metric};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::record::{Format, Record};
use model_center_formats::tokenizer::KeepSide;

/// The labels of a task as written in its registry line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLabels {
    /// Named classes in the order of their indices.
    Classes(&'static [&'static str]),
    /// Multiple choice with this number of choices.
    Choices(usize),
    /// A number.
    Value,
    /// The next token at each position; of an example with a second text, of that text.
    NextTokens,
    /// The tokens of a second example, which a decoder generates.
    Target,
}

/// One line of a task registry.
#[derive(Debug, Clone, Copy)]
pub struct TaskEntry {
    /// Name, also the directory of its files.
    pub name: &'static str,
    /// Description of the task, in one sentence.
    pub doc: &'static str,
    /// Its labels.
    pub labels: TaskLabels,
    /// Metrics of an evaluation; the first picks the best weights unless a recipe names another. Empty for the metrics
    /// that suit its labels.
    pub metrics: &'static [Metric],
    /// Whether rare classes are repeated in the training split.
    pub oversample_train: bool,
    /// Which end of a long text stays: that with the question.
    pub keep: KeepSide,
    /// Adds the inputs of one record: one, one per choice, or a text and its target.
    pub parse: fn(&Record<'_>, &mut Vec<Example>) -> Result<()>,
}

/// By name, which identifies a task.
impl PartialEq for TaskEntry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Task for TaskEntry {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn label_kind(&self) -> LabelKind {
        match self.labels {
            TaskLabels::Classes(_) | TaskLabels::Choices(_) => LabelKind::Classes,
            TaskLabels::Value => LabelKind::Values,
            TaskLabels::NextTokens | TaskLabels::Target => LabelKind::Tokens,
        }
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(self.metrics).filter(|metrics| !metrics.is_empty())
    }

    /// `{Task}/{train|val}.jsonl`.
    fn file(&self, split: Split) -> Option<String> {
        Some(format!("{}/{}.jsonl", self.name, split.file_stem()))
    }

    fn has_targets(&self) -> bool {
        self.labels == TaskLabels::Target
    }

    fn has_teachable_labels(&self) -> bool {
        matches!(self.labels, TaskLabels::Classes(_) | TaskLabels::NextTokens)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        let labels = match self.labels {
            TaskLabels::Classes(names) => LabelSpace::Classes(names.iter().map(ToString::to_string).collect()),
            TaskLabels::Choices(choices) => LabelSpace::Choices(choices),
            TaskLabels::Value => LabelSpace::Value,
            TaskLabels::NextTokens => LabelSpace::NextTokens,
            TaskLabels::Target => LabelSpace::Target,
        };
        let options = ReadOptions { keep: self.keep, ..source.options };
        let parse = &mut |record: &Record<'_>, examples: &mut Vec<Example>| (self.parse)(record, examples);
        let mut dataset = read(source.path, Format::Jsonl, &options, labels, parse)?;
        if self.oversample_train && source.split == Split::Train {
            dataset.oversample();
        }
        dataset.seal();
        Ok(dataset)
    }
}

/// Finds a task by name in several registries, upper and lower case alike. For programs with registries of their own.
///
/// # Errors
/// A name that none of them has.
pub fn find_task<'a>(name: &str, registries: &[&'a [TaskEntry]]) -> Result<&'a TaskEntry> {
    let mut entries = registries.iter().flat_map(|registry| registry.iter());
    entries.find(|entry| entry.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<&str> = registries.iter().flat_map(|registry| registry.iter()).map(|entry| entry.name).collect();
        Error::argument("data.task", format!("unknown task {name:?}"), format!("use one of {}", names.join(", ")))
    })
}

pub(crate) const FALSE_TRUE: &[&str] = &["false", "true"];
pub(crate) const ZERO_ONE: &[&str] = &["0", "1"];
pub(crate) const CB_LABELS: &[&str] = &["contradiction", "entailment", "neutral"];
pub(crate) const RTE_LABELS: &[&str] = &["not_entailment", "entailment"];

/// Whether a record's label is true.
pub(crate) fn truth(record: &Record<'_>) -> Result<bool> {
    require_label(record)?;
    record.flag("label")
}

/// The index of a record's label in `names`.
pub(crate) fn label(record: &Record<'_>, names: &[&str]) -> Result<usize> {
    require_label(record)?;
    record.choice("label", names)
}

fn require_label(record: &Record<'_>) -> Result<()> {
    match record.has("label") {
        true => Ok(()),
        false => {
            let fix = "use the splits with labels, train and val: a test split has none";
            Err(record.error("label", "the record has no label", fix))
        }
    }
}

/// The six tasks, in alphabetical order.
pub static SUPERGLUE: &[TaskEntry] = &[
    TaskEntry {
        name: "BoolQ",
        doc: "Does the passage answer the question with yes?",
        labels: TaskLabels::Classes(FALSE_TRUE),
        metrics: &[Metric::Accuracy],
        oversample_train: false,
        keep: KeepSide::End,
        parse: boolq,
    },
    TaskEntry {
        name: "CB",
        doc: "Does the premise contradict, entail or leave open the hypothesis?",
        labels: TaskLabels::Classes(CB_LABELS),
        metrics: &[Metric::Accuracy, Metric::F1Macro],
        oversample_train: true,
        keep: KeepSide::Start,
        parse: cb,
    },
    TaskEntry {
        name: "COPA",
        doc: "Which of two choices is the cause or the effect of the premise?",
        labels: TaskLabels::Choices(2),
        metrics: &[Metric::Accuracy],
        oversample_train: false,
        keep: KeepSide::Start,
        parse: copa,
    },
    TaskEntry {
        name: "RTE",
        doc: "Does the premise entail the hypothesis?",
        labels: TaskLabels::Classes(RTE_LABELS),
        metrics: &[Metric::Accuracy],
        oversample_train: false,
        keep: KeepSide::Start,
        parse: rte,
    },
    TaskEntry {
        name: "WiC",
        doc: "Has a word the same meaning in two sentences? The predecessor's template leaves the word out.",
        labels: TaskLabels::Classes(FALSE_TRUE),
        metrics: &[Metric::Accuracy],
        oversample_train: false,
        keep: KeepSide::Start,
        parse: wic,
    },
    TaskEntry {
        name: "WSC",
        doc: "Does the pronoun refer to the noun?",
        labels: TaskLabels::Classes(FALSE_TRUE),
        metrics: &[Metric::Accuracy],
        oversample_train: false,
        keep: KeepSide::End,
        parse: wsc,
    },
];

fn single(first: String, class: usize) -> Example {
    Example { first, second: None, label: Label::Class(class) }
}

fn pair(first: &str, second: &str, class: usize) -> Example {
    Example { first: first.to_owned(), second: Some(second.to_owned()), label: Label::Class(class) }
}

fn boolq(record: &Record<'_>, examples: &mut Vec<Example>) -> Result<()> {
    let text = format!("{}. {}", record.text("passage")?, record.text("question")?);
    examples.push(single(text, usize::from(truth(record)?)));
    Ok(())
}

fn cb(record: &Record<'_>, examples: &mut Vec<Example>) -> Result<()> {
    let class = label(record, CB_LABELS)?;
    examples.push(pair(record.text("premise")?, record.text("hypothesis")?, class));
    Ok(())
}

fn copa(record: &Record<'_>, examples: &mut Vec<Example>) -> Result<()> {
    let context = format!("The {} of \"{}\"", record.text("question")?, record.text("premise")?);
    let choices = [record.text("choice1")?, record.text("choice2")?];
    let right = label(record, ZERO_ONE)?;
    examples.extend(choices.map(|choice| pair(choice, &context, right)));
    Ok(())
}

fn rte(record: &Record<'_>, examples: &mut Vec<Example>) -> Result<()> {
    let class = label(record, RTE_LABELS)?;
    examples.push(pair(record.text("premise")?, record.text("hypothesis")?, class));
    Ok(())
}

fn wic(record: &Record<'_>, examples: &mut Vec<Example>) -> Result<()> {
    let class = usize::from(truth(record)?);
    examples.push(pair(record.text("sentence1")?, record.text("sentence2")?, class));
    Ok(())
}

fn wsc(record: &Record<'_>, examples: &mut Vec<Example>) -> Result<()> {
    let (text, noun, pronoun) =
        (record.text("text")?, record.text("target.span1_text")?, record.text("target.span2_text")?);
    let text = format!("{text} Does {pronoun} refers to {noun}?");
    examples.push(single(text, usize::from(truth(record)?)));
    Ok(())
}

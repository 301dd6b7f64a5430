//! The tasks of the predecessor's registries for language models: prompts, and a label word for each class.
//!
//! Defines [`PromptEntry`], the static slice [`PROMPTS`] and what a `parse` function makes of a record, [`Prompt`]s.
//! The tasks of passages with several questions are in [`super::passages`]. Recipes name these tasks with
//! `data.objective = "verbalizer"`; docs/tasks.md lists them.
//!
//! Source: ModelCenter's `gpt2dataset`, `llamadataset`, `t5dataset`, `cpm1dataset` and `cpm2dataset`: prompts, label
//! words and COPA's mirrored training split matched. Deliberate differences: labels that are not listed are errors,
//! MultiRC and ReCoRD have metrics, no record is left out to make the ranks even, and lengths count the model's input.

use std::path::Path;

use super::passages::{multirc, record_task};
use super::superglue::{CB_LABELS, FALSE_TRUE, RTE_LABELS, ZERO_ONE, label, truth};
use super::{SplitSource, Task};
use crate::data::{
    Example, Split,
    answers::AnswerForm,
    dataset::Dataset,
    read::{ReadOptions, RowForm, read_as},
};
use crate::metrics::{LabelKind, Metric};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace, Member, VerbalizerPosition};
use model_center_formats::io::record::{Format, Record};

/// Question of a record to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The text before the answer.
    pub before: String,
    /// The text after it, for models that read both sides.
    pub after: String,
    /// The correct class.
    pub class: usize,
    /// Group of answers that are scored together.
    pub member: Option<Member>,
}

impl Prompt {
    /// A prompt that ends with its answer and a full stop.
    pub(crate) fn new(before: String, class: usize) -> Self {
        Prompt { before, after: ".".to_owned(), class, member: None }
    }
}

/// Input of `parse` functions besides the record.
#[derive(Debug, Clone)]
pub struct ParseContext {
    /// Which split the record is of.
    pub split: Split,
    /// Where the model answers.
    pub place: VerbalizerPosition,
    questions: u32,
}

impl ParseContext {
    /// The number of one more question whose samples are judged together.
    pub fn next_question(&mut self) -> u32 {
        self.questions += 1;
        self.questions - 1
    }
}

/// Which files a task has below its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFiles {
    /// `train.jsonl` and `val.jsonl`, as SuperGLUE has them.
    Jsonl,
    /// `train.tsv` and `dev.tsv` with a header row.
    Tsv,
}

impl TaskFiles {
    /// The file of a split.
    pub fn name(self, split: Split) -> &'static str {
        match (self, split) {
            (TaskFiles::Jsonl, Split::Train) => "train.jsonl",
            (TaskFiles::Jsonl, Split::Validation) => "val.jsonl",
            (TaskFiles::Tsv, Split::Train) => "train.tsv",
            (TaskFiles::Tsv, Split::Validation) => "dev.tsv",
        }
    }
}

/// One line of a registry of prompts.
#[derive(Debug, Clone, Copy)]
pub struct PromptEntry {
    /// Name, also the directory of its files.
    pub name: &'static str,
    /// Description of the task, in one sentence.
    pub doc: &'static str,
    /// Its files.
    pub files: TaskFiles,
    /// Names of the classes in the order of their indices.
    pub labels: &'static [&'static str],
    /// The label word of each class, with the space that separates it from a preceding prompt.
    pub words: &'static [&'static str],
    /// Metrics of an evaluation; the first picks the best weights unless a recipe names another.
    pub metrics: &'static [Metric],
    /// Adds the prompts of one record.
    pub parse: fn(&Record<'_>, &mut ParseContext, &mut Vec<Prompt>) -> Result<()>,
}

/// By name, which identifies a task.
impl PartialEq for PromptEntry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Task for PromptEntry {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Classes
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(self.metrics)
    }

    fn file(&self, split: Split) -> Option<String> {
        Some(format!("{}/{}", self.name, self.files.name(split)))
    }

    fn uses_label_words(&self) -> bool {
        true
    }

    /// Errors: an invalid file or record, with its place; label words that are the same token.
    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        let SplitSource { path, split, options, .. } = *source;
        let place = source.place()?;
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (names, words) = (texts(self.labels), texts(self.words));
        let format = match self.files {
            TaskFiles::Jsonl => Format::Jsonl,
            TaskFiles::Tsv => Format::Tsv,
        };
        let mut asking = ParseContext { split, place, questions: 0 };
        let verbalizer = LabelWords { names: &names, words: &words, place, of: &format!("task {}", self.name) };
        read_prompts(path, format, &options, verbalizer, &mut |record, prompts| {
            (self.parse)(record, &mut asking, prompts)
        })
    }
}

/// Maps classes to label words.
pub(crate) struct LabelWords<'a> {
    pub(crate) names: &'a [String],
    pub(crate) words: &'a [String],
    pub(crate) place: VerbalizerPosition,
    /// Who asks, for errors.
    pub(crate) of: &'a str,
}

/// Reads the prompts of a file.
pub(crate) fn read_prompts(
    path: &Path,
    format: Format,
    options: &ReadOptions<'_>,
    verbalizer: LabelWords<'_>,
    parse: &mut dyn FnMut(&Record<'_>, &mut Vec<Prompt>) -> Result<()>,
) -> Result<Dataset> {
    let (form, answers) =
        AnswerForm::new(options.tokenizer, verbalizer.place, (verbalizer.names, verbalizer.words), verbalizer.of)?;
    let (mut prompts, mut members) = (Vec::new(), Vec::new());
    let form = (LabelSpace::Verbalizer(answers), RowForm::Answer(form));
    let mut dataset = read_as(path, format, options, form, &mut |record, examples| {
        prompts.clear();
        parse(record, &mut prompts)?;
        for Prompt { before, after, class, member } in prompts.drain(..) {
            examples.push(Example { first: before, second: Some(after), label: Label::Class(class) });
            members.extend(member);
        }
        Ok(())
    })?;
    if !members.is_empty() && members.len() != dataset.targets.len() {
        let reason = format!("{} of {} samples belong to a question", members.len(), dataset.targets.len());
        return Err(Error::data(path.display().to_string(), reason, "correct the parse function of the task"));
    }
    dataset.members = members;
    dataset.seal();
    Ok(dataset)
}

const NO_YES: &[&str] = &[" No", " Yes"];

/// The tasks, SuperGLUE's in alphabetical order before LCQMC.
pub static PROMPTS: &[PromptEntry] = &[
    PromptEntry {
        name: "BoolQ",
        doc: "Does the passage answer the question with yes?",
        files: TaskFiles::Jsonl,
        labels: FALSE_TRUE,
        words: NO_YES,
        metrics: &[Metric::Accuracy],
        parse: boolq,
    },
    PromptEntry {
        name: "CB",
        doc: "Does the premise contradict, entail or leave open the hypothesis?",
        files: TaskFiles::Jsonl,
        labels: CB_LABELS,
        words: &[" No", " Yes", " Maybe"],
        metrics: &[Metric::Accuracy, Metric::F1Macro],
        parse: cb,
    },
    PromptEntry {
        name: "COPA",
        doc: "Which of two choices is the cause or the effect of the premise? Training sees each pair in both orders.",
        files: TaskFiles::Jsonl,
        labels: ZERO_ONE,
        words: &[" 1", " 2"],
        metrics: &[Metric::Accuracy],
        parse: copa,
    },
    PromptEntry {
        name: "MultiRC",
        doc: "Is the answer one of those to the question about the passage?",
        files: TaskFiles::Jsonl,
        labels: FALSE_TRUE,
        words: NO_YES,
        metrics: &[Metric::F1, Metric::ExactMatch, Metric::F1Macro],
        parse: multirc,
    },
    PromptEntry {
        name: "ReCoRD",
        doc: "Which entity of the passage fills the gap in the query?",
        files: TaskFiles::Jsonl,
        labels: FALSE_TRUE,
        words: NO_YES,
        metrics: &[Metric::TokenF1, Metric::ExactMatch],
        parse: record_task,
    },
    PromptEntry {
        name: "RTE",
        doc: "Does the premise entail the hypothesis?",
        files: TaskFiles::Jsonl,
        labels: RTE_LABELS,
        words: NO_YES,
        metrics: &[Metric::Accuracy],
        parse: rte,
    },
    PromptEntry {
        name: "WiC",
        doc: "Has a word the same meaning in two sentences?",
        files: TaskFiles::Jsonl,
        labels: FALSE_TRUE,
        words: NO_YES,
        metrics: &[Metric::Accuracy],
        parse: wic,
    },
    PromptEntry {
        name: "WSC",
        doc: "Does the pronoun refer to the noun?",
        files: TaskFiles::Jsonl,
        labels: FALSE_TRUE,
        words: NO_YES,
        metrics: &[Metric::Accuracy],
        parse: wsc,
    },
    PromptEntry {
        name: "LCQMC",
        doc: "Do two Chinese questions ask the same?",
        files: TaskFiles::Tsv,
        labels: ZERO_ONE,
        words: &["无关", "有关"],
        metrics: &[Metric::Accuracy],
        parse: lcqmc,
    },
];

fn boolq(record: &Record<'_>, _: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let text = format!("{}. {}?", record.text("passage")?, record.text("question")?);
    prompts.push(Prompt::new(text, usize::from(truth(record)?)));
    Ok(())
}

fn entails(record: &Record<'_>) -> Result<String> {
    let (premise, hypothesis) = (record.text("premise")?, record.text("hypothesis")?);
    Ok(format!("Sentence 1: {premise} Sentence 2: {hypothesis} Does sentence 1 entails sentence 2?"))
}

fn cb(record: &Record<'_>, _: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    prompts.push(Prompt::new(entails(record)?, label(record, CB_LABELS)?));
    Ok(())
}

fn rte(record: &Record<'_>, _: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    prompts.push(Prompt::new(entails(record)?, label(record, RTE_LABELS)?));
    Ok(())
}

fn copa(record: &Record<'_>, asking: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let (question, premise) = (record.text("question")?, record.text("premise")?);
    let right = label(record, ZERO_ONE)?;
    let ask = |first: &str, second: &str| {
        format!("Choice 1: {first} Choice 2: {second} The {question} of \"{premise}\" was choice")
    };
    let (first, second) = (record.text("choice1")?, record.text("choice2")?);
    prompts.push(Prompt::new(ask(first, second), right));
    if asking.split == Split::Train {
        prompts.push(Prompt::new(ask(second, first), 1 - right));
    }
    Ok(())
}

fn wic(record: &Record<'_>, _: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let (first, second, word) = (record.text("sentence1")?, record.text("sentence2")?, record.text("word")?);
    let text = format!(
        "Sentence 1: {first} Sentence 2: {second} \
         Does the word {word} in sentence 1 express the same meaning as in sentence 2?"
    );
    prompts.push(Prompt::new(text, usize::from(truth(record)?)));
    Ok(())
}

fn wsc(record: &Record<'_>, _: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let (text, noun, pronoun) =
        (record.text("text")?, record.text("target.span1_text")?, record.text("target.span2_text")?);
    prompts.push(Prompt::new(format!("{text} Does {pronoun} refers to {noun}?"), usize::from(truth(record)?)));
    Ok(())
}

/// The predecessor has a prompt for CPM-1, which a causal model can read too, and one for CPM-2.
fn lcqmc(record: &Record<'_>, asking: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let (first, second) = (record.text("text_a")?, record.text("text_b")?);
    let class = label(record, ZERO_ONE)?;
    let (before, after) = match asking.place {
        VerbalizerPosition::Next | VerbalizerPosition::Blank => {
            (format!("\"{first}\"与\"{second}\"的关系是:"), "。".to_owned())
        }
        VerbalizerPosition::Sentinel { .. } => (format!("“{first}”与“{second}”是否有关？"), String::new()),
    };
    prompts.push(Prompt { before, after, class, member: None });
    Ok(())
}

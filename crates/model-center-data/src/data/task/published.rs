//! Classification tasks in the files that they are published in: MNLI and QQP of GLUE, and RACE.
//!
//! Defines [`PublishedTask`]. Called by training.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::superglue::ZERO_ONE;
use super::{SplitSource, Task};
use crate::data::{
    Example, Split,
    dataset::Dataset,
    read::{Builder, ReadOptions, RowForm, read},
};
use crate::metrics::{LabelKind, Metric};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_base::file::{read_text, unreadable};
use model_center_formats::io::{
    input::of_data,
    record::{Format, Record},
};

/// A file of RACE has a passage of some kilobytes with its questions.
const MAX_BYTES: u64 = 16 << 20;

/// In GLUE's order.
const MNLI_LABELS: &[&str] = &["contradiction", "entailment", "neutral"];

/// The letters of the answers.
const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// Metrics of an evaluation.
const METRICS: &[Metric] = &[Metric::Accuracy];
const QQP_METRICS: &[Metric] = &[Metric::Accuracy, Metric::F1];

/// A task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedTask {
    /// Whether a premise entails a hypothesis, evaluated on genres of the training data.
    MnliMatched,
    /// The same, evaluated on other genres.
    MnliMismatched,
    /// Whether two questions are the same.
    Qqp,
    /// Which of four options answers a question about a passage.
    Race,
}

/// A file of RACE.
#[derive(Deserialize)]
struct Passage {
    article: String,
    questions: Vec<String>,
    options: Vec<Vec<String>>,
    answers: Vec<String>,
}

impl PublishedTask {
    /// Every task.
    pub const ALL: [PublishedTask; 4] =
        [PublishedTask::MnliMatched, PublishedTask::MnliMismatched, PublishedTask::Qqp, PublishedTask::Race];
}

impl Task for PublishedTask {
    fn name(&self) -> &'static str {
        match self {
            PublishedTask::MnliMatched => "MNLI",
            PublishedTask::MnliMismatched => "MNLI-mm",
            PublishedTask::Qqp => "QQP",
            PublishedTask::Race => "RACE",
        }
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Classes
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(if *self == PublishedTask::Qqp { QQP_METRICS } else { METRICS })
    }

    fn file(&self, split: Split) -> Option<String> {
        let file = match (self, split) {
            (PublishedTask::MnliMatched | PublishedTask::MnliMismatched, Split::Train) => "MNLI/train.tsv",
            (PublishedTask::MnliMatched, Split::Validation) => "MNLI/dev_matched.tsv",
            (PublishedTask::MnliMismatched, Split::Validation) => "MNLI/dev_mismatched.tsv",
            (PublishedTask::Qqp, Split::Train) => "QQP/train.tsv",
            (PublishedTask::Qqp, Split::Validation) => "QQP/dev.tsv",
            (PublishedTask::Race, Split::Train) => "RACE/train",
            (PublishedTask::Race, Split::Validation) => "RACE/dev",
        };
        Some(file.to_owned())
    }

    fn has_directories(&self) -> bool {
        *self == PublishedTask::Race
    }

    fn has_teachable_labels(&self) -> bool {
        *self != PublishedTask::Race
    }

    fn read_split(&self, SplitSource { path, options, .. }: &SplitSource<'_>) -> Result<Dataset> {
        let names = |names: &[&str]| LabelSpace::Classes(names.iter().map(ToString::to_string).collect());
        let mut dataset = match self {
            PublishedTask::MnliMatched | PublishedTask::MnliMismatched => {
                read(path, Format::Tsv, options, names(MNLI_LABELS), &mut |record, examples| {
                    pair(record, ["sentence1", "sentence2"], record.choice("gold_label", MNLI_LABELS)?, examples)
                })?
            }
            PublishedTask::Qqp => read(path, Format::Tsv, options, names(ZERO_ONE), &mut |record, examples| {
                pair(record, ["question1", "question2"], record.choice("is_duplicate", ZERO_ONE)?, examples)
            })?,
            PublishedTask::Race => race(path, options)?,
        };
        dataset.seal();
        Ok(dataset)
    }
}

fn pair(record: &Record<'_>, [first, second]: [&str; 2], class: usize, examples: &mut Vec<Example>) -> Result<()> {
    let (first, second) = (record.text(first)?.to_owned(), Some(record.text(second)?.to_owned()));
    examples.push(Example { first, second, label: Label::Class(class) });
    Ok(())
}

/// The questions of all files of a split: of `high` and `middle`, or of a directory without these. An option takes the
/// place of `_` in its question, or follows it; the passage is the second text.
fn race(split: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
    options.check()?;
    let mut builder = Builder::new(split, options, LabelSpace::Choices(LETTERS.len()), RowForm::Question);
    let (mut number, mut examples) = (0, Vec::new());
    for path in files(split)? {
        if !builder.wants_more()? {
            break;
        }
        let text = read_text(&path, MAX_BYTES).map_err(of_data)?;
        let passage: Passage = serde_json::from_str(&text).map_err(|error| {
            Error::data(path.display().to_string(), format!("not a file of RACE: {error}"), "fetch the file again")
        })?;
        let questions = passage.questions.iter().zip(&passage.options).zip(&passage.answers);
        let count = passage.questions.len();
        if passage.options.len() != count || passage.answers.len() != count {
            let reason =
                format!("{count} questions, {} options, {} answers", passage.options.len(), passage.answers.len());
            return Err(Error::data(path.display().to_string(), reason, "fetch the file again"));
        }
        for (at, ((question, choices), answer)) in questions.enumerate() {
            if !builder.wants_more()? {
                break;
            }
            builder.count();
            number += 1;
            let class = LETTERS.iter().position(|letter| letter == answer);
            let (Some(class), true) = (class, choices.len() == LETTERS.len()) else {
                let place = format!("{}, question {}", path.display(), at + 1);
                let reason = format!("{} options and answer {answer:?}", choices.len());
                builder.skip(Error::data(place, reason, "give four options, and one of A to D"))?;
                continue;
            };
            examples.extend(choices.iter().map(|choice| Example {
                first: match question.contains('_') {
                    true => question.replace('_', choice),
                    false => format!("{question} {choice}"),
                },
                second: Some(passage.article.clone()),
                label: Label::Class(class),
            }));
            builder.add(number, &mut examples)?;
        }
    }
    builder.finish()
}

/// The files of a split in the order of their names.
fn files(split: &Path) -> Result<Vec<PathBuf>> {
    let levels = ["high", "middle"].map(|level| split.join(level));
    let levels: Vec<&Path> = levels.iter().map(PathBuf::as_path).filter(|level| level.is_dir()).collect();
    let mut files = Vec::new();
    for directory in if levels.is_empty() { vec![split] } else { levels } {
        let failed = |error| of_data(unreadable(directory, error));
        let entries = fs::read_dir(directory).map_err(failed)?;
        let mut found = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
        found.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

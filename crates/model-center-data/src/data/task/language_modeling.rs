//! Language modelling and sequence-to-sequence targets, from any JSONL, CSV or TSV file or from plain text.
//!
//! Defines [`LanguageModelingTask`] and its [`LanguageModelingColumns`]. Called by training.

use std::path::Path;

use super::{SplitSource, Task, packed};
use crate::Result;
use crate::data::{
    Example,
    dataset::Dataset,
    read::{ReadOptions, RecordSource},
};
use crate::metrics::LabelKind;
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::record::Format;
use serde_json::{Map, Value};

/// Which columns hold the texts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LanguageModelingColumns {
    /// Every token of a text is predicted from the preceding ones.
    Language {
        /// Column of the text; plain text has none.
        text: String,
        /// Column of a prompt, which is read and not predicted.
        prompt: Option<String>,
    },
    /// A decoder generates a target from a text that the encoder reads.
    Target {
        /// Column of what is read.
        text: String,
        /// Column of what is written.
        target: String,
    },
}

/// A task given by column names whose labels are tokens.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguageModelingTask {
    /// The columns.
    pub columns: LanguageModelingColumns,
    /// The format of files; `None` derives it from the file name.
    #[serde(default)]
    pub format: Option<Format>,
}

impl LanguageModelingTask {
    /// How a file is written.
    ///
    /// # Errors
    /// Neither its name nor the task determines it.
    pub fn format_of(&self, path: &Path) -> Result<Format> {
        self.format.map_or_else(|| Format::of(path), Ok)
    }

    /// Reads a file, or plain text from a directory too. A text ends with EOS, if the tokenizer has one; a prompt and
    /// its text are tokenised separately and concatenated. A space between them must be part of one of the two, unless
    /// the tokenizer adds a leading space to every text.
    ///
    /// # Errors
    /// What is wrong with the file or a record, with its place; a format that nothing determines.
    pub fn read(&self, path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
        let format = self.format_of(path)?;
        if format == Format::Text && matches!(self.columns, LanguageModelingColumns::Language { prompt: None, .. }) {
            return packed::read(path, options);
        }
        self.read_from(RecordSource::File(path, format), options)
    }

    /// Reads records that a program made, objects with the columns as keys; `name` stands for a file in messages.
    ///
    /// Errors: as [`LanguageModelingTask::read`].
    pub fn read_rows(&self, name: &str, rows: Vec<Map<String, Value>>, options: &ReadOptions<'_>) -> Result<Dataset> {
        self.read_from(RecordSource::Given(Path::new(name), rows), options)
    }

    fn read_from(&self, source: RecordSource<'_>, options: &ReadOptions<'_>) -> Result<Dataset> {
        let labels = match self.columns {
            LanguageModelingColumns::Language { .. } => LabelSpace::NextTokens,
            LanguageModelingColumns::Target { .. } => LabelSpace::Target,
        };
        let example = |first: String, second| Example { first, second, label: Label::TokensFrom(0) };
        let mut dataset = source.read(options, labels, &mut |record, examples| {
            match &self.columns {
                LanguageModelingColumns::Language { text, prompt: None } => {
                    examples.push(example(record.filled(text)?.to_owned(), None))
                }
                LanguageModelingColumns::Language { text, prompt: Some(prompt) } => {
                    let prompt = record.text(prompt)?.to_owned();
                    examples.push(example(prompt, Some(record.filled(text)?.to_owned())));
                }
                LanguageModelingColumns::Target { text, target } => {
                    for column in [text, target] {
                        examples.push(example(record.filled(column)?.to_owned(), None));
                    }
                }
            }
            Ok(())
        })?;
        dataset.seal();
        Ok(dataset)
    }
}

impl Task for LanguageModelingTask {
    fn name(&self) -> &'static str {
        match self.columns {
            LanguageModelingColumns::Language { .. } => "language",
            LanguageModelingColumns::Target { .. } => "seq2seq",
        }
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Tokens
    }

    fn has_targets(&self) -> bool {
        matches!(self.columns, LanguageModelingColumns::Target { .. })
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        self.read(source.path, &source.options)
    }
}

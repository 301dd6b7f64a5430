//! Reads a file of records into a [`Dataset`].
//!
//! Defines [`ReadOptions`] and the loop shared by all tasks: read a record, let the task turn it into examples,
//! tokenise in chunks, apply the length limit, count skipped and truncated ones. Text is dropped once tokenised, so
//! memory holds the tokens and one chunk. Called by the tasks of [`super::task`]; SQuAD, whose file has no records,
//! uses the builder alone.

mod rows;

pub(super) use rows::{RowLimit, around, around_text};

use std::path::Path;

use self::rows::Row;
use super::Example;
use super::answers::AnswerForm;
use super::dataset::{Dataset, ReadReport};
use super::task::squad::SquadForm;
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::{
    flaws::{Flaws, OnBadRecord},
    record::{Format, Record},
    record_reader::RecordReader,
};
use model_center_formats::tokenizer::{Encoding, KeepSide, Tokenizer};
use serde_json::{Map, Value};

/// Texts are tokenised together until a chunk holds this many bytes of text.
const CHUNK_BYTES: usize = 1 << 20;

/// Treatment of inputs with more tokens than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// Cut them (pairs: the longer text first) and count them.
    #[default]
    Truncate,
    /// Stop with an error that names the first one.
    Error,
}

/// How a file is read; the same for every task.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions<'a> {
    /// Turns text into ids.
    pub tokenizer: &'a dyn Tokenizer,
    /// Most tokens of one row, special tokens included; at most the positions of the model.
    pub max_length: usize,
    /// The same of a target.
    pub target_length: usize,
    /// Treatment of longer inputs.
    pub too_long: TooLong,
    /// Which part of a longer input stays.
    pub keep: KeepSide,
    /// Treatment of unusable records.
    pub on_bad_record: OnBadRecord,
    /// Longest accepted line, in bytes; bounds memory against hostile files.
    pub max_line_bytes: usize,
    /// Read at most this many usable records; for quick trials.
    pub limit: Option<u64>,
    /// Whether `tokenizer` parses control tokens in texts, which then have their own at their ends.
    pub parse_special: bool,
}

impl<'a> ReadOptions<'a> {
    /// Truncating, strict about bad records, lines up to 1 MiB.
    pub fn new(tokenizer: &'a dyn Tokenizer, max_length: usize) -> Self {
        ReadOptions {
            tokenizer,
            max_length,
            target_length: max_length,
            too_long: TooLong::default(),
            keep: KeepSide::default(),
            on_bad_record: OnBadRecord::default(),
            max_line_bytes: 1 << 20,
            limit: None,
            parse_special: false,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let (key, reason) = match self.on_bad_record {
            OnBadRecord::Skip { max_share } if !(0.0..=1.0).contains(&max_share) => {
                ("data.bad_record_limit", format!("{max_share} is not a share between 0 and 1"))
            }
            _ if self.max_line_bytes == 0 => ("ReadOptions::max_line_bytes", "lines of 0 bytes hold nothing".into()),
            _ if self.limit == Some(0) => ("ReadOptions::limit", "0 records are none".into()),
            _ => return Ok(()),
        };
        Err(Error::argument(key, reason, "correct the value, or leave it out for the default"))
    }
}

/// Reads all records of `path`; `parse` adds the examples of one record, a full sample or none on error.
///
/// The label space is settled by the caller afterwards: `labels` serves until then, its rows per sample must be right.
/// Errors: what the file, a record or the tokenizer is at fault for; an empty file.
pub(super) fn read(
    path: &Path,
    format: Format,
    options: &ReadOptions<'_>,
    labels: LabelSpace,
    parse: &mut dyn FnMut(&Record<'_>, &mut Vec<Example>) -> Result<()>,
) -> Result<Dataset> {
    read_as(path, format, options, (labels, RowForm::Plain), parse)
}

/// How rows are made of examples.
#[derive(Debug, Clone)]
pub(super) enum RowForm {
    /// As the labels ask for it.
    Plain,
    /// Around an answer; of any number of samples for each record.
    Answer(AnswerForm),
    /// As SQuAD's.
    Squad(SquadForm),
    /// Tokenized by the task, which numbers questions.
    Question,
}

/// As [`read`], with rows of a form.
pub(super) fn read_as(
    path: &Path,
    format: Format,
    options: &ReadOptions<'_>,
    (labels, form): (LabelSpace, RowForm),
    parse: &mut dyn FnMut(&Record<'_>, &mut Vec<Example>) -> Result<()>,
) -> Result<Dataset> {
    options.check()?;
    let records = RecordReader::open(path, format, options.max_line_bytes)?;
    read_from(path, records, options, (labels, form), parse)
}

/// Where records come from.
pub(super) enum RecordSource<'a> {
    /// A file.
    File(&'a Path, Format),
    /// A program; the name stands for a file in messages.
    Given(&'a Path, Vec<Map<String, Value>>),
}

impl<'a> RecordSource<'a> {
    /// The file, or what stands for one.
    pub(super) fn path(&self) -> &'a Path {
        match self {
            RecordSource::File(path, _) | RecordSource::Given(path, _) => path,
        }
    }

    /// As [`read`].
    pub(super) fn read(
        self,
        options: &ReadOptions<'_>,
        labels: LabelSpace,
        parse: &mut dyn FnMut(&Record<'_>, &mut Vec<Example>) -> Result<()>,
    ) -> Result<Dataset> {
        match self {
            RecordSource::File(path, format) => read(path, format, options, labels, parse),
            RecordSource::Given(name, rows) => {
                options.check()?;
                if rows.is_empty() {
                    let place = name.display().to_string();
                    return Err(Error::data(place, "there is no record", "give at least one"));
                }
                read_from(name, RecordReader::given(name, rows), options, (labels, RowForm::Plain), parse)
            }
        }
    }
}

/// Reads records to their end.
fn read_from(
    path: &Path,
    mut records: RecordReader,
    options: &ReadOptions<'_>,
    (labels, form): (LabelSpace, RowForm),
    parse: &mut dyn FnMut(&Record<'_>, &mut Vec<Example>) -> Result<()>,
) -> Result<Dataset> {
    let mut builder = Builder::new(path, options, labels, form);
    let mut examples = Vec::new();
    while builder.wants_more()? {
        let Some(record) = records.read_next()? else { break };
        builder.count();
        examples.clear();
        let parsed = record.and_then(|record| parse(&record, &mut examples).map(|()| record.line()));
        match parsed {
            Ok(line) => builder.add(line, &mut examples)?,
            Err(flaw) => builder.skip(flaw)?,
        }
    }
    builder.finish()
}

/// An example waiting to be tokenised, with the line it came from.
struct Waiting {
    line: u64,
    example: Example,
}

/// Collects examples, and makes rows of them in chunks.
pub(super) struct Builder<'a> {
    path: &'a Path,
    options: &'a ReadOptions<'a>,
    form: RowForm,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    report: ReadReport,
    flaws: Flaws,
    dataset: Dataset,
}

impl<'a> Builder<'a> {
    pub(super) fn new(path: &'a Path, options: &'a ReadOptions<'a>, labels: LabelSpace, form: RowForm) -> Self {
        let dataset = Dataset::new(labels, padding(options.tokenizer), options.max_length);
        Builder {
            path,
            options,
            form,
            waiting: Vec::new(),
            waiting_bytes: 0,
            report: ReadReport::default(),
            flaws: Flaws::default(),
            dataset,
        }
    }

    /// Counts a record.
    pub(super) fn count(&mut self) {
        self.report.records += 1;
    }

    pub(super) fn add(&mut self, line: u64, examples: &mut Vec<Example>) -> Result<()> {
        let per_sample = self.dataset.labels.rows_per_sample();
        let is_right = match self.form {
            RowForm::Answer(_) => !examples.is_empty(),
            RowForm::Plain | RowForm::Squad(_) | RowForm::Question => examples.len() == per_sample,
        };
        if !is_right {
            return Err(Error::data(
                self.place(line),
                format!("the task made {} inputs of this record, not {per_sample}", examples.len()),
                "correct the parse function of the task",
            ));
        }
        if let Some(reason) = examples.iter().find_map(|example| misfit(&self.dataset.labels, example.label)) {
            let fix = "correct the parse function of the task";
            return Err(Error::data(self.place(line), reason, fix));
        }
        for example in examples.drain(..) {
            self.waiting_bytes += example.first.len() + example.second.as_ref().map_or(0, String::len);
            self.waiting.push(Waiting { line, example });
        }
        if self.waiting_bytes >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds a sample of one row that the task has tokenized.
    ///
    /// Errors: a row that is longer than the limit where that is an error.
    pub(super) fn push(&mut self, encoding: &Encoding, label: Label) -> Result<()> {
        let length = encoding.input_ids.len() + encoding.removed;
        self.check_length(self.report.records, length, ("max_length", self.options.max_length))?;
        self.dataset.targets.push(label);
        self.keep(&Row::new(encoding.clone(), label));
        Ok(())
    }

    /// Adds a sample of rows that the task has tokenized and shortened.
    pub(super) fn push_sample(&mut self, rows: &[Encoding], label: Label) {
        self.dataset.targets.push(label);
        rows.iter().for_each(|row| self.keep(&Row::new(row.clone(), label)));
    }

    /// Whether as many records as required are usable, by what is known.
    pub(super) fn has_reached_limit(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.report.records - self.flaws.count >= limit)
    }

    /// Whether fewer records are usable than required. Which of them are empty is known once they are tokenised.
    pub(super) fn wants_more(&mut self) -> Result<bool> {
        let Some(limit) = self.options.limit else { return Ok(true) };
        if self.report.records - self.flaws.count >= limit {
            self.flush()?;
        }
        Ok(self.report.records - self.flaws.count < limit)
    }

    pub(super) fn skip(&mut self, flaw: Error) -> Result<()> {
        self.flaws.add(self.options.on_bad_record, flaw)
    }

    /// Tokenises what waits and appends it to the dataset.
    fn flush(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let texts: Vec<&str> = waiting
            .iter()
            .flat_map(|Waiting { example, .. }| std::iter::once(&example.first).chain(&example.second))
            .map(String::as_str)
            .collect();
        let tokenizer = self.options.tokenizer;
        let ids = tokenizer.tokenize(&texts).map_err(|error| self.find_culprit(&waiting, error))?;
        let mut ids = ids.into_iter();
        for sample in waiting.chunks(self.dataset.labels.rows_per_sample().max(1)) {
            let rows = sample.iter().enumerate().map(|(row, Waiting { line, example })| {
                let first = ids.next().unwrap_or_default();
                let second = example.second.as_ref().and_then(|_| ids.next());
                self.row(*line, (&first, second.as_deref()), (row == 0, example.label))
            });
            let rows: Vec<Option<Row>> = rows.collect::<Result<_>>()?;
            // A sample is kept with all of its rows, or not at all.
            match rows.into_iter().collect::<Option<Vec<_>>>() {
                Some(rows) => {
                    self.dataset.targets.extend(rows.first().map(|row| row.label));
                    rows.iter().for_each(|row| self.keep(row));
                }
                None => {
                    let place = self.place(sample.first().map_or(0, |waiting| waiting.line));
                    let reason = match self.dataset.labels.are_tokens() {
                        true => "the text has no token to predict",
                        false => "the text has no token",
                    };
                    self.skip(Error::data(place, reason, "give more text, or leave the record out"))?;
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, Row { encoding, place, .. }: &Row) {
        self.dataset.places.extend(place);
        self.report.rows += 1;
        self.report.truncated += u64::from(encoding.removed > 0);
        self.report.removed_tokens += encoding.removed as u64;
        self.report.tokens += encoding.input_ids.len() as u64;
        self.report.longest = self.report.longest.max(encoding.input_ids.len());
        self.dataset.ids.extend_from_slice(&encoding.input_ids);
        self.dataset.types.extend_from_slice(&encoding.token_type_ids);
        self.dataset.ends.push(self.dataset.ids.len());
    }

    /// Tokenises one example at a time to name the record that the tokenizer failed on.
    fn find_culprit(&self, waiting: &[Waiting], error: Error) -> Error {
        for Waiting { line, example } in waiting {
            let texts: Vec<&str> = std::iter::once(&example.first).chain(&example.second).map(String::as_str).collect();
            if let Err(error) = self.options.tokenizer.tokenize(&texts) {
                return Error::data(
                    self.place(*line),
                    format!("the tokenizer fails on this record: {error}"),
                    "remove the record, or check the tokenizer files",
                );
            }
        }
        error
    }

    pub(super) fn finish(mut self) -> Result<Dataset> {
        self.flush()?;
        let records = self.report.records;
        self.flaws.check(self.path, self.options.on_bad_record, records)?;
        if self.dataset.targets.is_empty() {
            let reason = match records {
                0 if std::fs::metadata(self.path).is_ok_and(|file| file.len() > 0) => "the file has no records",
                0 => "the file is empty",
                _ => "the file has no usable record",
            };
            return Err(Error::data(self.path.display().to_string(), reason, "check that this is the right file"));
        }
        if u32::try_from(self.dataset.targets.len()).is_err() {
            return Err(Error::data(
                self.path.display().to_string(),
                "the file has more than 4 billion records",
                "split the file",
            ));
        }
        self.dataset.ids.shrink_to_fit();
        self.dataset.types.shrink_to_fit();
        let Flaws { count, first } = self.flaws;
        self.dataset.report = ReadReport { skipped: count, first_skipped: first, ..self.report };
        Ok(self.dataset)
    }

    fn place(&self, line: u64) -> String {
        match self.form {
            RowForm::Plain | RowForm::Answer(_) => format!("{}:{line}:1", self.path.display()),
            RowForm::Squad(_) | RowForm::Question => format!("{}, question {line}", self.path.display()),
        }
    }
}

/// Why a label is not of a space; names of classes may be found later, and other spaces are settled by their tasks.
fn misfit(labels: &LabelSpace, label: Label) -> Option<String> {
    let (wanted, count) = match (labels, label) {
        (LabelSpace::Classes(names), Label::Class(class)) if names.is_empty() || class < names.len() => return None,
        (LabelSpace::Choices(choices), Label::Class(class)) if class < *choices => return None,
        (LabelSpace::Value, Label::Value(value)) if value.is_finite() => return None,
        (LabelSpace::NextTokens | LabelSpace::Target, Label::TokensFrom(_) | Label::Learned) => return None,
        (LabelSpace::Classes(names), _) => ("the index of one of", format!("{} classes", names.len())),
        (LabelSpace::Choices(choices), _) => ("the index of one of", format!("{choices} choices")),
        (LabelSpace::Value, _) => ("a finite", "number".to_owned()),
        (LabelSpace::NextTokens | LabelSpace::Target, _) => ("tokens from", "a position on".to_owned()),
        _ => return None,
    };
    Some(format!("the task made the label {label:?} of this record, and it is to be {wanted} {count}"))
}

/// The id that fills rows. Decoder vocabularies without a padding token get any: the mask hides it.
pub fn padding(tokenizer: &dyn Tokenizer) -> u32 {
    let special = tokenizer.special_ids();
    special.pad.or(special.eos).unwrap_or(0)
}

/// Replaces each class of `dataset` by its entry in `order`.
pub(super) fn renumber(dataset: &mut Dataset, order: &[usize]) {
    for target in &mut dataset.targets {
        if let Label::Class(class) = target
            && let Some(new) = order.get(*class)
        {
            *class = *new;
        }
    }
    for set in &mut dataset.sets {
        for label in &mut *set {
            if let Some(new) = order.get(*label as usize) {
                *label = *new as u32;
            }
        }
        set.sort_unstable();
    }
    for tag in &mut dataset.tags {
        if let Some(new) = usize::try_from(*tag).ok().and_then(|tag| order.get(tag)) {
            *tag = *new as i32;
        }
    }
}

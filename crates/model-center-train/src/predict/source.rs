//! Records of files: rows with columns, lines of text, sentences of CoNLL, questions of SQuAD.

use crate::{Error, Result};
use model_center_data::{Format, Record, next_sentence, read_squad};
use model_center_formats::io::{lines::LineReader, record_reader::RecordReader};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The longest accepted line, which bounds the memory.
const MAX_LINE_BYTES: usize = 16 << 20;

/// How inputs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFormat {
    /// Rows with columns.
    Records(Format),
    /// A text in each line.
    Lines,
    /// Words with tags, a word in each line and an empty line after each sentence.
    Conll,
    /// SQuAD's JSON: articles with paragraphs and questions.
    Squad,
}

impl InputFormat {
    /// The format that a file name stands for; a text file has a text in each line.
    ///
    /// # Errors
    /// A name without a known ending.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("conll" | "bio" | "iob" | "iob2") => Ok(InputFormat::Conll),
            _ => match Format::of(path)? {
                Format::Text => Ok(InputFormat::Lines),
                format => Ok(InputFormat::Records(format)),
            },
        }
    }
}

/// The records of a file, one after the other.
#[derive(Debug)]
pub struct InputRecords {
    path: PathBuf,
    kind: Kind,
    /// The record in hand, where the file has no columns.
    object: Map<String, Value>,
    number: u64,
}

#[derive(Debug)]
enum Kind {
    Records(Box<RecordReader>),
    Lines(LineReader),
    Conll(LineReader),
    Given(std::vec::IntoIter<Map<String, Value>>),
}

impl InputRecords {
    /// Opens a file.
    ///
    /// # Errors
    /// A file that cannot be opened or is not of this format.
    pub fn open(path: &Path, format: InputFormat) -> Result<Self> {
        let lines = || LineReader::open(path, MAX_LINE_BYTES);
        let kind = match format {
            InputFormat::Records(format) => Kind::Records(Box::new(RecordReader::open(path, format, MAX_LINE_BYTES)?)),
            InputFormat::Lines => Kind::Lines(lines()?),
            InputFormat::Conll => Kind::Conll(lines()?),
            InputFormat::Squad => Kind::Given(questions(path)?.into_iter()),
        };
        Ok(InputRecords { path: path.to_owned(), kind, object: Map::new(), number: 0 })
    }

    /// Records that a program has; `name` stands for a file in messages.
    pub fn given(name: &str, rows: Vec<Map<String, Value>>) -> Self {
        let kind = Kind::Given(rows.into_iter());
        InputRecords { path: PathBuf::from(name), kind, object: Map::new(), number: 0 }
    }

    /// The next record, `None` at the end. The inner error concerns this record alone, the outer one the file.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Result<Record<'_>>>> {
        let InputRecords { path, kind, object, number } = self;
        let found = match kind {
            Kind::Records(records) => return records.read_next(),
            Kind::Lines(lines) => next_text(lines)?,
            Kind::Conll(lines) => next_sentence(lines)?.map(|read| {
                read.map(|sentence| {
                    let tags: Vec<&str> = sentence.tags.iter().filter_map(|(_, tag)| tag.as_deref()).collect();
                    let mut object = Map::from_iter([("tokens".to_owned(), json!(sentence.words))]);
                    if tags.len() == sentence.words.len() {
                        object.insert("tags".to_owned(), json!(tags));
                    }
                    (sentence.line, object)
                })
            }),
            Kind::Given(rows) => rows.next().map(|row| {
                *number += 1;
                Ok((*number, row))
            }),
        };
        Ok(match found {
            None => None,
            Some(Err(flaw)) => Some(Err(flaw)),
            Some(Ok((line, row))) => {
                *object = row;
                Some(Ok(Record::of_object(path, line, object)))
            }
        })
    }
}

/// A line or row, with its number.
type Numbered = Result<(u64, Map<String, Value>)>;

/// The next line that is not empty.
fn next_text(lines: &mut LineReader) -> Result<Option<Numbered>> {
    while let Some(read) = lines.advance()? {
        if let Err(flaw) = read {
            return Ok(Some(Err(flaw)));
        }
        let line = lines.line();
        if !line.text.trim().is_empty() {
            let object = Map::from_iter([("text".to_owned(), line.text.into())]);
            return Ok(Some(Ok((line.number, object))));
        }
    }
    Ok(None)
}

/// The questions of SQuAD's JSON, each with its passage and, where the file has them, its answers.
fn questions(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let mut rows = Vec::new();
    for paragraph in read_squad(path)?.into_iter().flat_map(|article| article.paragraphs) {
        for question in paragraph.qas {
            let mut row = Map::new();
            row.extend(question.id.map(|id| ("id".to_owned(), id)));
            row.insert("question".to_owned(), question.question.into());
            row.insert("context".to_owned(), paragraph.context.clone().into());
            if let Some(answers) = question.answers {
                let texts: Vec<String> = answers.into_iter().map(|answer| answer.text).collect();
                row.insert("answers".to_owned(), json!({"text": texts}));
            }
            rows.push(row);
        }
    }
    match rows.is_empty() {
        true => {
            Err(Error::data(path.display().to_string(), "the file has no question", "check that it is the right file"))
        }
        false => Ok(rows),
    }
}

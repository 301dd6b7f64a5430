//! One view of the records of JSONL, CSV, TSV, Arrow and Parquet files.
//!
//! Defines [`Format`] and [`Record`]: fields by name, errors with `file:line:column`. Tasks see nothing else, so they
//! are independent of the file format. [`super::record_reader`] yields records.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::arrow;
use super::delimited::Field;
use super::json_place::value_column;
use crate::formats::{
    KnownDirectory,
    saved_data::{SavedKind, saved_kind},
};
use crate::{Error, Result};
use model_center_base::file::printable;

/// Format of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated with a header row, quoted as in RFC 4180.
    Csv,
    /// Columns with another delimiter.
    Separated(char),
    /// Tab-separated with a header row, no quoting.
    Tsv,
    /// Rows of Arrow, in streams, in files with a list of their batches (Feather), and in directories that `datasets`
    /// saved: texts, numbers, truth values, and lists and structures of them.
    Arrow,
    /// Rows of Parquet with the same values; needs the feature `parquet`.
    Parquet,
    /// Plain text without records, one document a file; or a directory of such files.
    Text,
}

impl Format {
    /// The format a file name stands for: `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`, `.tab`, `.arrow`, `.feather`,
    /// `.parquet`, `.txt`; and a directory that `datasets` saved.
    pub fn of(path: &Path) -> Result<Format> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
            Some("csv") => Ok(Format::Csv),
            Some("tsv" | "tab") => Ok(Format::Tsv),
            Some("parquet") => Ok(Format::Parquet),
            Some("arrow" | "feather") => Ok(Format::Arrow),
            Some("txt") => Ok(Format::Text),
            _ => match saved_kind(path) {
                Some(SavedKind::Set) => Ok(Format::Arrow),
                Some(SavedKind::Dictionary) => Err(arrow::not_one(path)),
                None => Err(KnownDirectory::of(path).map_or_else(|| no_format(path), |known| known.no_data())),
            },
        }
    }
}

/// The reason of the error for a name without a known ending.
pub const NO_FORMAT: &str = "the file name does not determine the format";

fn no_format(path: &Path) -> Error {
    // A pipe would wait for its writer.
    let start = path.is_file().then(|| {
        let mut start = [0; 2];
        File::open(path).and_then(|mut file| file.read_exact(&mut start)).map(|()| start)
    });
    if let Some(Ok([0x1F, 0x8B])) = start {
        let fix = "decompress it first: gunzip --keep FILE";
        return Error::data(path.display().to_string(), "the file is compressed with gzip", fix);
    }
    let fix = "give its name the ending of its format (.jsonl, .csv, .tsv, .arrow, .parquet or .txt; save a \
               spreadsheet as .csv), or name the format in a recipe with data.format";
    Error::data(path.display().to_string(), NO_FORMAT, fix)
}

/// A single value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar<'a> {
    /// Text; every field of a CSV or TSV file is text.
    Text(&'a str),
    /// A JSON number.
    Number(&'a serde_json::Number),
    /// A JSON truth value.
    Flag(bool),
}

impl Scalar<'_> {
    /// The value as it would be written in a label list: `entailment`, `3`, `true`.
    pub fn spelled(&self) -> Cow<'_, str> {
        match self {
            Scalar::Text(text) => Cow::Borrowed(text),
            Scalar::Number(number) => Cow::Owned(number.to_string()),
            Scalar::Flag(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
        }
    }
}

/// One record of a file.
#[derive(Debug)]
pub struct Record<'a> {
    /// The file.
    pub path: &'a Path,
    /// The line in it, from 1.
    pub line: u64,
    /// Its values.
    pub fields: Fields<'a>,
}

/// A column of a file whose values are not read, and what it holds, such as `is of type binary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Source of a record.
#[derive(Debug)]
pub enum Fields<'a> {
    /// A line of JSON and its object.
    Json {
        /// The line.
        text: &'a str,
        /// Its object.
        object: Map<String, Value>,
    },
    /// An object in a list of such a line: the column of that list in the line, and the object. Of a row there is no
    /// line.
    Item {
        /// The line.
        text: Option<&'a str>,
        /// The column of the list.
        list: &'a str,
        /// The object.
        object: &'a Map<String, Value>,
    },
    /// The values of a row of Arrow or Parquet, and the columns that it does not have here.
    Columns {
        /// The values by column.
        object: Map<String, Value>,
        /// Columns without values here.
        unread: &'a [Unread],
    },
    /// A row and the names of its columns, equally many.
    Row {
        /// The names of the columns.
        header: &'a [String],
        /// The fields.
        fields: &'a [Field],
    },
}

/// Fix for a record that cannot be used.
pub const SKIPPABLE: &str =
    "give a value, or leave such records out with data.on_bad_record = \"skip\" and data.bad_record_limit";

/// Why a label is not accepted.
pub fn unknown_label<S: AsRef<str>>(value: &str, known: &[S]) -> String {
    format!("unknown label {:?}; known: {}", shorten(value), list(known))
}

impl Record<'_> {
    /// The line of the file it begins in, or the number of the row of Arrow or Parquet, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The record of an object that a program holds; `number` is its number in `path`, from 1.
    pub fn of_object<'r>(path: &'r Path, number: u64, object: &'r Map<String, Value>) -> Record<'r> {
        Record { path, line: number, fields: Fields::Item { text: None, list: "", object } }
    }

    /// All fields as one object; fields of CSV and TSV are texts.
    pub fn object(&self) -> Map<String, Value> {
        match &self.fields {
            Fields::Json { object, .. } | Fields::Columns { object, .. } => object.clone(),
            Fields::Item { object, .. } => (*object).clone(),
            Fields::Row { header, fields } => {
                header.iter().zip(*fields).map(|(name, field)| (name.clone(), field.text.as_str().into())).collect()
            }
        }
    }

    /// The names of its columns.
    pub fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match &self.fields {
            Fields::Json { object, .. } | Fields::Columns { object, .. } => Box::new(object.keys().map(String::as_str)),
            Fields::Item { object, .. } => Box::new(object.keys().map(String::as_str)),
            Fields::Row { header, .. } => Box::new(header.iter().map(String::as_str)),
        }
    }

    /// The text of a column. A dot reaches into JSON objects: `target.span1_text`.
    pub fn text(&self, column: &str) -> Result<&str> {
        match self.scalar(column)? {
            Scalar::Text(text) => Ok(text),
            other => Err(self.error(
                column,
                format!("{column:?} is {}, not text", other.spelled()),
                "write the value between quotes",
            )),
        }
    }

    /// The value of a column, whatever its type.
    pub fn scalar(&self, column: &str) -> Result<Scalar<'_>> {
        match &self.fields {
            Fields::Row { header, fields } => {
                let field = header.iter().position(|name| name == column).and_then(|at| fields.get(at));
                field.map(|field| Scalar::Text(&field.text)).ok_or_else(|| self.missing(column, header))
            }
            Fields::Json { .. } | Fields::Item { .. } | Fields::Columns { .. } => match self.value(column) {
                Ok(Value::String(text)) => Ok(Scalar::Text(text)),
                Ok(Value::Number(number)) => Ok(Scalar::Number(number)),
                Ok(Value::Bool(flag)) => Ok(Scalar::Flag(*flag)),
                Ok(other) if is_conversation(other) => Err(self.conversation(column)),
                Ok(other) => {
                    let kind = match other {
                        Value::Null => "null",
                        Value::Array(_) => "a list",
                        _ => "an object",
                    };
                    let reason = format!("{column:?} is {kind}, not a single value");
                    Err(self.error(column, reason, "give one text, number or truth value"))
                }
                Err(missing) => Err(missing),
            },
        }
    }

    /// Place of the record, as errors about it state it.
    pub fn place(&self) -> String {
        match self.fields {
            Fields::Columns { .. } | Fields::Item { text: None, .. } => {
                format!("{}, row {}", self.path.display(), self.line)
            }
            _ => format!("{}:{}:1", self.path.display(), self.line),
        }
    }

    /// The value of a column of JSON, Arrow or Parquet; `None` where there is none, and for other files.
    pub fn json(&self, column: &str) -> Option<&Value> {
        self.value(column).ok()
    }

    /// Whether there is such a column, whatever it holds.
    pub fn has(&self, column: &str) -> bool {
        match &self.fields {
            Fields::Row { header, .. } => header.iter().any(|name| name == column),
            Fields::Json { .. } | Fields::Item { .. } | Fields::Columns { .. } => self.value(column).is_ok(),
        }
    }

    /// Whether there is such a column with a value: not null in JSON.
    pub fn has_value(&self, column: &str) -> bool {
        match &self.fields {
            Fields::Row { .. } => self.has(column),
            Fields::Json { .. } | Fields::Item { .. } | Fields::Columns { .. } => {
                self.json(column).is_some_and(|value| !value.is_null())
            }
        }
    }

    /// The text of a column that a record need not have: `None` where it is missing, null or empty.
    pub fn optional_text(&self, column: &str) -> Result<Option<&str>> {
        match self.has_value(column) {
            true => self.text(column).map(|text| Some(text).filter(|text| !text.is_empty())),
            false => Ok(None),
        }
    }

    /// The text of a column, which is more than white space: of nothing there is nothing to learn.
    pub fn filled(&self, column: &str) -> Result<&str> {
        let text = self.text(column)?;
        match text.trim().is_empty() {
            false => Ok(text),
            true => Err(self.error(column, format!("{column:?} is empty"), SKIPPABLE)),
        }
    }

    /// The objects of a list, each as a record of its own. Errors in them point to the list.
    pub fn list(&self, column: &'static str) -> Result<Vec<Record<'_>>> {
        let wrong = |what: &str| {
            Err(self.error(column, format!("{column:?} {what}"), "write a list of JSON objects, [{…}, …]"))
        };
        let (text, list) = match &self.fields {
            Fields::Row { .. } => return wrong("is asked for as a list, which this kind of file cannot hold"),
            Fields::Columns { .. } => (None, column),
            Fields::Json { text, .. } => (Some(*text), column),
            // Of a list in a list the outer one can be found in the line.
            Fields::Item { text, list, .. } => (*text, *list),
        };
        let Value::Array(items) = self.value(column)? else { return wrong("is not a list") };
        let objects: Option<Vec<_>> = items.iter().map(Value::as_object).collect();
        let Some(objects) = objects else { return wrong("holds more than objects") };
        let record = |object| Record { path: self.path, line: self.line, fields: Fields::Item { text, list, object } };
        Ok(objects.into_iter().map(record).collect())
    }

    /// A list of single values of JSON, as they would be written in a list of labels.
    pub fn texts(&self, column: &str) -> Result<Vec<String>> {
        let wrong = || self.error(column, format!("{column:?} is not a list of texts or numbers"), "write a JSON list");
        let Value::Array(items) = self.value(column)? else { return Err(wrong()) };
        let spelled = items.iter().map(|item| match item {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            _ => Err(wrong()),
        });
        spelled.collect()
    }

    /// A whole number from 0 on.
    pub fn whole(&self, column: &str) -> Result<usize> {
        let value = self.scalar(column)?;
        value.spelled().parse().map_err(|_| {
            let reason = format!("{column:?} is {:?}", shorten(&value.spelled()));
            self.error(column, reason, "use a whole number from 0 on")
        })
    }

    /// The value of a column of JSON.
    fn value(&self, column: &str) -> Result<&Value> {
        let found = match &self.fields {
            Fields::Json { object, .. } | Fields::Columns { object, .. } => lookup(object, column),
            Fields::Item { object, .. } => lookup(object, column),
            Fields::Row { header, .. } if header.iter().any(|name| name == column) => {
                let fix = "write the records as JSON lines, or labels as a column of 0 and 1 for each";
                return Err(self.error(column, format!("{column:?} has to be a list, which a cell cannot hold"), fix));
            }
            Fields::Row { header, .. } => return Err(self.missing(column, header)),
        };
        found.map_err(|inside| self.missing(column, &inside.keys().cloned().collect::<Vec<_>>()))
    }

    /// A truth value: `true`, `false`, or the numbers 1 and 0.
    pub fn flag(&self, column: &str) -> Result<bool> {
        match self.scalar(column)?.spelled().as_ref() {
            "true" | "True" | "1" => Ok(true),
            "false" | "False" | "0" => Ok(false),
            other => Err(self.error(column, format!("{column:?} is {other:?}"), "use true or false")),
        }
    }

    /// The index of a column's value in `names`.
    pub fn choice(&self, column: &str, names: &[&str]) -> Result<usize> {
        let value = self.scalar(column)?;
        let value = value.spelled();
        names
            .iter()
            .position(|name| *name == value)
            .ok_or_else(|| self.unknown_label(column, &value, names, "correct the record"))
    }

    /// An error that points at the value of `column` in this record.
    pub fn error(&self, column: &str, reason: impl Into<String>, fix: impl Into<String>) -> Error {
        let (line, at) = match &self.fields {
            Fields::Row { header, fields } => header
                .iter()
                .position(|name| name == column)
                .and_then(|at| fields.get(at))
                .map_or((self.line, 1), |field| (field.line, field.column)),
            Fields::Json { text, .. } => (self.line, value_column(text, column)),
            Fields::Item { text: Some(text), list, .. } => (self.line, value_column(text, list)),
            Fields::Columns { .. } | Fields::Item { text: None, .. } => return Error::data(self.place(), reason, fix),
        };
        Error::data(format!("{}:{line}:{at}", self.path.display()), reason, fix)
    }

    /// The error for a label that is not among `known`.
    pub(crate) fn unknown_label<S: AsRef<str>>(&self, column: &str, value: &str, known: &[S], fix: &str) -> Error {
        self.error(column, unknown_label(value, known), fix)
    }

    /// The error for a record that holds a list of messages.
    fn conversation(&self, column: &str) -> Error {
        let reason = format!("{column:?} is a list of messages, which this task does not read");
        self.error(column, reason, "set data.task = \"sft\" to train on conversations")
    }

    fn missing(&self, column: &str, columns: &[String]) -> Error {
        if let Fields::Columns { unread, .. } = &self.fields
            && let Some(found) = unread.iter().find(|one| one.name == column || is_inside(column, &one.name))
        {
            let reason = format!("the column {:?} {}, which is not read", shorten(&found.name), found.reason);
            return self.error(column, reason, "write it as texts, numbers, truth values, or lists of them");
        }
        if let Fields::Json { object, .. } | Fields::Columns { object, .. } = &self.fields
            && let Some((name, _)) = object.iter().find(|(_, value)| is_conversation(value))
        {
            return self.conversation(name);
        }
        let (parent, name) = match self.fields {
            Fields::Json { .. } | Fields::Item { .. } | Fields::Columns { .. } if column.contains('.') => {
                column.rsplit_once('.').unwrap_or(("", column))
            }
            _ => ("", column),
        };
        let inside = if parent.is_empty() { String::new() } else { format!(" in {parent:?}") };
        let fix = match (&self.fields, columns) {
            (Fields::Row { .. }, [header]) => other_delimiter(header).map(delimiter_fix),
            _ => None,
        };
        let fix = fix.unwrap_or_else(|| "name one of these in data.columns, or correct the record".to_owned());
        self.error(parent, format!("no column {name:?}{inside}; columns: {}", list(columns)), fix)
    }
}

/// The delimiter that a header of one column seems to have, where it is not a comma.
pub fn other_delimiter(header: &str) -> Option<char> {
    let count = |delimiter: &char| header.matches(*delimiter).count();
    [';', '\t', '|'].into_iter().filter(|delimiter| count(delimiter) > 0).max_by_key(count)
}

/// Fix for columns with another delimiter.
pub(crate) fn delimiter_fix(delimiter: char) -> String {
    let letter = delimiter.to_string();
    format!("if columns are separated by {delimiter:?}, set data.delimiter = {letter:?}, or --delimiter of a program")
}

/// Whether a dotted path begins with a column.
fn is_inside(path: &str, column: &str) -> bool {
    path.strip_prefix(column).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a value is a list of messages, each with who wrote it and what.
pub fn is_conversation(value: &Value) -> bool {
    let is_message = |item: &Value| {
        [["role", "content"], ["from", "value"]].iter().any(|keys| keys.iter().all(|key| item.get(key).is_some()))
    };
    value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(is_message))
}

/// At most twenty names, each of bounded length, for an error that fits a screen.
pub(super) fn list<S: AsRef<str>>(names: &[S]) -> String {
    const SHOWN: usize = 20;
    let mut text: Vec<String> = names.iter().take(SHOWN).map(|name| printable(name.as_ref(), 60)).collect();
    if names.len() > SHOWN {
        text.push(format!("and {} more", names.len() - SHOWN));
    }
    if text.is_empty() { "none".into() } else { text.join(", ") }
}

/// The first 60 characters of a value.
pub fn shorten(value: &str) -> String {
    match value.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// The value at a dotted path, or the object in which the path ends early.
fn lookup<'a>(object: &'a Map<String, Value>, path: &str) -> std::result::Result<&'a Value, &'a Map<String, Value>> {
    if let Some(value) = object.get(path) {
        return Ok(value);
    }
    let Some((head, rest)) = path.split_once('.') else { return Err(object) };
    match object.get(head) {
        Some(Value::Object(inner)) => lookup(inner, rest),
        _ => Err(object),
    }
}

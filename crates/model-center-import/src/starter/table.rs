//! The columns of data files: how many values each has, how long, how many different ones.

use super::StarterOptions;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_data::{Format, OnBadRecord, Record, each_record};
use model_center_formats::io::{
    input::{file_error, open_text},
    record::other_delimiter,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Records that are read of all files together; a split needs all of them in memory.
const MAX_RECORDS: usize = 200_000;
/// Maximum number of bytes of text.
const MAX_BYTES: usize = 512 << 20;
/// More different values are not counted.
const MAX_VALUES: usize = 10_001;
/// The longest line.
const LINE_BYTES: usize = 1 << 20;
/// The longest header that is looked at for its delimiter.
const HEADER_BYTES: u64 = 1 << 16;

/// The records of some files.
pub(super) struct Table {
    /// In the order of the files.
    pub(super) rows: Vec<Map<String, Value>>,
    /// Columns in their order.
    pub(super) columns: Vec<Column>,
    /// Whether these are all records.
    pub(super) is_whole: bool,
    /// Records that could not be read.
    pub(super) flawed: usize,
    /// The first file, for messages.
    pub(super) place: String,
    /// Delimiter of the columns of CSV where it is not a comma.
    pub(super) delimiter: Option<char>,
}

/// A column.
pub(super) struct Column {
    pub(super) name: String,
    /// Different values with their numbers; if there are many, the values of the first rows.
    pub(super) values: BTreeMap<String, usize>,
    /// Rows with a value that is not empty.
    pub(super) filled: usize,
    /// Characters of all values.
    pub(super) characters: usize,
    /// Whether all values are numbers.
    pub(super) is_number: bool,
    /// Whether a value is not whole.
    pub(super) has_fraction: bool,
    /// Whether all values are single.
    pub(super) is_single: bool,
}

impl Column {
    /// Characters of a value in the mean.
    pub(super) fn mean(&self) -> f64 {
        self.characters as f64 / self.filled.max(1) as f64
    }
}

/// Delimiter of the columns of CSV whose header has no comma.
fn delimiter_of(paths: &[PathBuf]) -> Result<Option<char>> {
    let is_csv = |path: &PathBuf| Format::of(path).is_ok_and(|format| format == Format::Csv);
    let Some(path) = paths.first().filter(|_| paths.iter().all(is_csv)) else { return Ok(None) };
    let mut start = Vec::new();
    let read = open_text(path)?.take(HEADER_BYTES).read_to_end(&mut start);
    read.map_err(|error| file_error(path, error))?;
    let start = String::from_utf8_lossy(&start);
    let header = start.lines().next().unwrap_or_default();
    Ok(if header.contains(',') { None } else { other_delimiter(header) })
}

impl Table {
    /// Reads files.
    ///
    /// # Errors
    /// Files that cannot be read, and files without a record.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Table> {
        Table::read_as(paths, delimiter_of(paths)?)
    }

    fn read_as(paths: &[PathBuf], delimiter: Option<char>) -> Result<Table> {
        let mut table = Table {
            rows: Vec::new(),
            columns: Vec::new(),
            is_whole: true,
            flawed: 0,
            place: paths.first().map_or_else(String::new, |path| path.display().to_string()),
            delimiter,
        };
        let mut bytes = 0;
        for path in paths {
            let mut first_flaw = None;
            each_record(path, delimiter.map(Format::Separated), LINE_BYTES, &mut |record| {
                match record {
                    Ok(record) => {
                        let row = record.object();
                        bytes += row.values().map(weight).sum::<usize>();
                        table.add(row);
                    }
                    Err(flaw) => {
                        table.flawed += 1;
                        first_flaw = first_flaw.take().or(Some(flaw));
                    }
                }
                table.is_whole = table.rows.len() < MAX_RECORDS && bytes < MAX_BYTES;
                Ok(table.is_whole)
            })?;
            let share = table.flawed as f64 / (table.rows.len() + table.flawed).max(1) as f64;
            if let Some(flaw) = first_flaw.filter(|_| share > OnBadRecord::SKIP_SHARE) {
                return Err(flaw);
            }
        }
        match table.rows.is_empty() {
            false => Ok(table),
            true => Err(Error::data(table.place, "there is no record", "give a file with records")),
        }
    }

    /// The records.
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let place = Path::new(&self.place);
        (1..).zip(&self.rows).map(move |(number, row)| Record::of_object(place, number, row))
    }

    fn add(&mut self, row: Map<String, Value>) {
        for (name, value) in &row {
            let at = self.columns.iter().position(|column| column.name == *name).unwrap_or_else(|| {
                self.columns.push(Column {
                    name: name.clone(),
                    values: BTreeMap::new(),
                    filled: 0,
                    characters: 0,
                    is_number: true,
                    has_fraction: false,
                    is_single: true,
                });
                self.columns.len() - 1
            });
            let column = &mut self.columns[at];
            let Some(text) = single(value) else {
                column.is_single = column.is_single && value.is_null();
                continue;
            };
            if text.trim().is_empty() {
                continue;
            }
            column.filled += 1;
            column.characters += text.chars().count();
            let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
            column.is_number &= number.is_some();
            column.has_fraction |= number.is_some_and(|number| number.fract() != 0.0);
            if column.values.len() < MAX_VALUES || column.values.contains_key(&text) {
                *column.values.entry(text).or_default() += 1;
            }
        }
        self.rows.push(row);
    }

    /// A column by its name.
    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The column that a user names for `what`.
    ///
    /// # Errors
    /// A name that no record has.
    pub(super) fn named(&self, options: &StarterOptions, what: &str) -> Result<Option<&Column>> {
        let Some((_, name)) = options.columns.iter().find(|(key, _)| key == what) else { return Ok(None) };
        match self.column(name) {
            Some(column) => Ok(Some(column)),
            None => {
                let place = format!("--column {what}={}", printable(name, 60));
                Err(Error::argument(place, format!("no record of {} has this column", self.place), self.list()))
            }
        }
    }

    /// The columns of a name, whatever its case.
    pub(super) fn called(&self, name: &str) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(move |column| column.name.trim().eq_ignore_ascii_case(name))
    }

    /// The first column of single values whose name is one of some.
    pub(super) fn usual(&self, names: &[&str]) -> Option<&Column> {
        let is_single = |column: &&Column| column.is_single && column.filled > 0;
        names.iter().find_map(|name| self.called(name).find(is_single))
    }

    /// The first two columns of single values whose names are a pair of some.
    pub(super) fn usual_pair(&self, names: &[(&str, &str)]) -> Option<(&Column, &Column)> {
        names.iter().find_map(|(one, other)| Some((self.usual(&[*one])?, self.usual(&[*other])?)))
    }

    /// The list of columns to choose from.
    pub(super) fn list(&self) -> String {
        let names: Vec<String> = self.columns.iter().take(20).map(|column| printable(&column.name, 60)).collect();
        format!("columns are {}", names.join(", "))
    }

    /// A note on records that could not be read.
    pub(super) fn flaws(&self) -> Option<String> {
        let count = self.flawed;
        (count > 0).then(|| format!("{count} records cannot be read and are left out"))
    }
}

/// A single value as a text.
pub(super) fn single(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Bytes of text in a value.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.values().map(weight).sum(),
        _ => 8,
    }
}

/// The file of evaluation data among several, by its name.
pub(super) fn evaluation_file(paths: &[PathBuf]) -> Option<usize> {
    let is_one = |path: &Path| {
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().to_lowercase());
        stem.split(|c: char| !c.is_alphanumeric())
            .any(|part| ["eval", "evaluation", "valid", "validation", "val", "dev", "test"].contains(&part))
    };
    (paths.len() > 1).then(|| paths.iter().position(|path| is_one(path))).flatten()
}

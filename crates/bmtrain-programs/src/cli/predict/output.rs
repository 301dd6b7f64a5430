//! Results as JSON lines or as a table, to standard output or atomically to a file.

use crate::cli::terminal;
use crate::{Error, Result};
use model_center_base::file::AtomicFile;
use model_center_formats::io::delimited::csv_field;
use model_center_train::predict::{Prediction, PredictionKind};
use serde_json::{Map, Value};
use std::io::Write;
use std::path::Path;

/// Written out when so much has come together.
const CHUNK_BYTES: usize = 1 << 20;

/// Format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Lines,
    Table(Table),
}

/// Format of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Csv,
    /// Without quotes, as the reader of this format has none.
    Tsv,
}

impl Table {
    fn line(self, cells: impl Iterator<Item = String>, place: &str) -> Result<Vec<u8>> {
        let mut cells = cells.peekable();
        let mut line = Vec::new();
        while let Some(cell) = cells.next() {
            match self {
                Table::Csv => line.extend(csv_field(&cell).as_bytes()),
                Table::Tsv if cell.contains(['\t', '\n', '\r']) => {
                    let reason = "a field has a tab or a line end, which tab-separated files have no way to write";
                    return Err(Error::data(place, reason, "write CSV: --out FILE.csv"));
                }
                Table::Tsv => line.extend(cell.as_bytes()),
            }
            let end = match (cells.peek(), self) {
                (None, _) => b'\n',
                (Some(_), Table::Csv) => b',',
                (Some(_), Table::Tsv) => b'\t',
            };
            line.push(end);
        }
        Ok(line)
    }
}

/// The results, in the order of the inputs.
pub(super) struct ResultWriter<'k> {
    kind: &'k PredictionKind,
    form: Form,
    file: Option<AtomicFile>,
    bytes: Vec<u8>,
    /// Columns of the records, once the first result is written.
    columns: Option<Vec<String>>,
}

impl<'k> ResultWriter<'k> {
    /// Open the output, before weights are read.
    pub(super) fn open(kind: &'k PredictionKind, out: Option<&Path>) -> Result<Self> {
        let form = match out {
            None => Form::Lines,
            Some(out) => {
                let ending = out.extension().map(|ending| ending.to_string_lossy().to_lowercase());
                match ending.as_deref() {
                    Some("jsonl" | "ndjson" | "json") => Form::Lines,
                    Some("csv") => Form::Table(Table::Csv),
                    Some("tsv" | "tab") => Form::Table(Table::Tsv),
                    _ => {
                        let reason = format!("{} names no format of results", out.display());
                        return Err(Error::argument("--out", reason, "end the name in .jsonl, .csv or .tsv"));
                    }
                }
            }
        };
        let file = out.map(AtomicFile::create).transpose()?;
        Ok(ResultWriter { kind, form, file, bytes: Vec::new(), columns: None })
    }

    /// Add the result of a record with these fields. Returns whether standard output is still open.
    pub(super) fn add(&mut self, place: &str, record: Map<String, Value>, prediction: &Prediction) -> Result<bool> {
        match self.form {
            Form::Lines => self.line(place, record, prediction)?,
            Form::Table(table) => self.row(place, &record, prediction, table)?,
        }
        match self.bytes.len() >= CHUNK_BYTES || self.file.is_none() {
            true => self.flush(),
            false => Ok(true),
        }
    }

    fn line(&mut self, place: &str, mut record: Map<String, Value>, prediction: &Prediction) -> Result<()> {
        let taken = self.kind.field_names().iter().find(|name| record.contains_key(**name));
        if let Some(name) = taken {
            return Err(is_taken(place, name));
        }
        record.extend(prediction.fields(self.kind.names()));
        let written = serde_json::to_writer(&mut self.bytes, &record);
        written.map_err(|error| Error::data(place, error.to_string(), "report this"))?;
        self.bytes.push(b'\n');
        Ok(())
    }

    fn row(&mut self, place: &str, record: &Map<String, Value>, prediction: &Prediction, form: Table) -> Result<()> {
        let own = self.kind.columns();
        let columns = match &self.columns {
            Some(columns) => columns,
            None => {
                if let Some(name) = own.iter().find(|name| record.contains_key(*name)) {
                    return Err(is_taken(place, name));
                }
                let columns: Vec<String> = record.keys().cloned().collect();
                let header = columns.iter().chain(&own).cloned();
                self.bytes.extend(form.line(header, place)?);
                self.columns.insert(columns)
            }
        };
        if let Some(other) = record.keys().find(|name| !columns.contains(name)) {
            let reason = format!("the field {other:?} is not in the first record, whose fields are the columns");
            let fix = "write JSON lines (--out FILE.jsonl), or leave fields out with --only-predictions";
            return Err(Error::data(place, reason, fix));
        }
        let cell = |name: &String| match record.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let cells = columns.iter().map(cell).chain(prediction.cells(self.kind.names()));
        self.bytes.extend(form.line(cells, place)?);
        Ok(())
    }

    fn flush(&mut self) -> Result<bool> {
        let bytes = std::mem::take(&mut self.bytes);
        match &self.file {
            None => terminal::print_bytes(&bytes),
            Some(file) => {
                file.file().write_all(&bytes).map_err(|error| file.refused(error))?;
                Ok(true)
            }
        }
    }

    /// Write what is left, and give the file its name.
    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.file.map_or(Ok(()), AtomicFile::commit)
    }
}

fn is_taken(place: &str, name: &str) -> Error {
    let reason = format!("the record has a field {name:?}, and results have one too");
    Error::data(place, reason, "rename the field, or leave fields out with --only-predictions")
}

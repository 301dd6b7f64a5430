//! From lines to records.
//!
//! Defines [`RecordReader`], which knows the file formats and tells flaws of one record from the end of a file's
//! use. A dataset pulls records from it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::{Map, Value};

use super::arrow::ArrowRows;
use super::delimited::{Fed, RowParser};
use super::input::TextEncoding;
use super::lines::{Flaw, LineReader};
use super::parquet::{ParquetRows, Wanted};
use super::record::{Fields, Format, Record, delimiter_fix, other_delimiter, shorten};
use crate::{Error, Result};

/// Reads the records of one file.
#[derive(Debug)]
pub struct RecordReader {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Json(LineReader),
    Rows { lines: LineReader, parser: RowParser, header: Vec<String> },
    Columns(ParquetRows),
    Batches(Box<ArrowRows>),
    Given { name: PathBuf, rows: std::vec::IntoIter<Map<String, Value>>, number: u64 },
}

impl RecordReader {
    /// Opens a file and, for CSV and TSV, reads its header row; of Arrow and Parquet, lines stand for values.
    ///
    /// Errors: as [`LineReader::open`], [`ArrowRows::open`] or [`ParquetRows::open`], and a header that is missing,
    /// broken or names a column twice.
    pub fn open(path: &Path, format: Format, max_line_bytes: usize) -> Result<RecordReader> {
        let lines = || LineReader::open(path, max_line_bytes);
        match format {
            Format::Jsonl => Ok(RecordReader::objects(lines()?)),
            Format::Csv => RecordReader::rows(lines()?, RowParser::new(',', true)),
            Format::Separated(delimiter) => RecordReader::rows(lines()?, RowParser::new(delimiter, true)),
            Format::Tsv => RecordReader::rows(lines()?, RowParser::new('\t', false)),
            Format::Parquet => {
                let (wanted, limits) = (Wanted { text: None, others: true }, (max_line_bytes, TextEncoding::Utf8));
                let rows = ParquetRows::open(path, wanted, limits, &Arc::default())?;
                Ok(RecordReader { kind: Kind::Columns(rows) })
            }
            Format::Arrow => RecordReader::batches(path, (max_line_bytes, None), &Arc::default()),
            Format::Text => {
                let fix =
                    "write JSON lines, CSV or TSV, or train on plain text: data.task = \"language\" without a prompt";
                Err(Error::data(path.display().to_string(), "plain text has no columns", fix))
            }
        }
    }

    /// Reads one JSON object a line.
    pub fn objects(lines: LineReader) -> RecordReader {
        RecordReader { kind: Kind::Json(lines) }
    }

    /// Reads rows of Arrow; the bytes of their files are added to `read`.
    pub fn batches(
        path: &Path,
        (max_bytes, only): (usize, Option<&str>),
        read: &Arc<AtomicU64>,
    ) -> Result<RecordReader> {
        Ok(RecordReader { kind: Kind::Batches(Box::new(ArrowRows::open(path, (max_bytes, only), read)?)) })
    }

    /// Records that a program made; `name` stands for a file in messages.
    pub fn given(name: &Path, rows: Vec<Map<String, Value>>) -> RecordReader {
        RecordReader { kind: Kind::Given { name: name.to_owned(), rows: rows.into_iter(), number: 0 } }
    }

    /// Reads rows after their header.
    ///
    /// Errors: a header that is missing, broken or names a column twice.
    pub fn rows(mut lines: LineReader, mut parser: RowParser) -> Result<RecordReader> {
        let place = lines.path().display().to_string();
        let header = match next_row(&mut lines, &mut parser)? {
            Some(Ok(_)) => parser.fields.iter().map(|field| field.text.clone()).collect::<Vec<_>>(),
            Some(Err(error)) => return Err(error),
            None => return Err(Error::data(place, "the file is empty", "its first row must name the columns")),
        };
        let mut known = HashSet::new();
        if let Some(again) = header.iter().position(|name| !known.insert(name)) {
            return Err(Error::data(
                format!("{place}:1:{}", parser.fields[again].column),
                format!("the header names {:?} twice", shorten(&header[again])),
                "give every column its own name",
            ));
        }
        Ok(RecordReader { kind: Kind::Rows { lines, parser, header } })
    }

    /// The next record, `None` at the end. The inner error concerns this record alone, the outer one the file.
    pub fn read_next(&mut self) -> Result<Option<std::result::Result<Record<'_>, Flaw>>> {
        match &mut self.kind {
            Kind::Json(lines) => next_object(lines),
            Kind::Columns(rows) => {
                let Some(row) = rows.advance()? else { return Ok(None) };
                let fields = |object| Fields::Columns { object, unread: rows.unread() };
                Ok(Some(row.map(|object| Record { path: rows.path(), line: rows.row(), fields: fields(object) })))
            }
            Kind::Batches(rows) => {
                let Some(row) = rows.advance()? else { return Ok(None) };
                let fields = |object| Fields::Columns { object, unread: rows.unread() };
                Ok(Some(row.map(|object| Record { path: rows.path(), line: rows.row(), fields: fields(object) })))
            }
            Kind::Given { name, rows, number } => {
                let Some(object) = rows.next() else { return Ok(None) };
                *number += 1;
                Ok(Some(Ok(Record { path: name, line: *number, fields: Fields::Columns { object, unread: &[] } })))
            }
            Kind::Rows { lines, parser, header } => {
                let line = match next_row(lines, parser)? {
                    None => return Ok(None),
                    Some(Err(flaw)) => return Ok(Some(Err(with_delimiter(flaw, header)))),
                    Some(Ok(line)) => line,
                };
                let path = lines.path();
                let (found, expected) = (parser.fields.len(), header.len());
                if found != expected {
                    let column = parser.fields.get(expected).or(parser.fields.last()).map_or(1, |field| field.column);
                    let flaw = Error::data(
                        format!("{}:{line}:{column}", path.display()),
                        format!("the row has {found} fields, the header has {expected}"),
                        "add or remove fields; in CSV, text with commas goes between quotes",
                    );
                    return Ok(Some(Err(with_delimiter(flaw, header))));
                }
                Ok(Some(Ok(Record { path, line, fields: Fields::Row { header, fields: &parser.fields } })))
            }
        }
    }
}

/// Flaw of a row, with the fix where the header seems to have another delimiter.
fn with_delimiter(flaw: Flaw, header: &[String]) -> Flaw {
    match (flaw, header) {
        (Error::Data { place, reason, fix }, [one]) => {
            Error::Data { place, reason, fix: other_delimiter(one).map_or(fix, delimiter_fix) }
        }
        (flaw, _) => flaw,
    }
}

/// Reads lines until `parser` has a row; its first line number, `None` at the end of the file.
fn next_row(lines: &mut LineReader, parser: &mut RowParser) -> Result<Option<std::result::Result<u64, Flaw>>> {
    let mut first = None;
    loop {
        let flaw = match lines.advance()? {
            None if first.is_some() => return Err(unclosed(lines, parser, "before the end of the file")),
            None => return Ok(None),
            Some(read) => read.err(),
        };
        match (flaw, first) {
            (Some(flaw), None) => return Ok(Some(Err(flaw))),
            // Inside quotes nothing tells where the next row begins, so this is the end of the file's use.
            (Some(flaw), Some(_)) => return Err(flaw),
            (None, None) if lines.line().text.is_empty() => continue,
            (None, _) => {}
        }
        let line = lines.line();
        let start = *first.get_or_insert(line.number);
        match parser.feed(line.text, line.number) {
            Fed::Row => return Ok(Some(Ok(start))),
            Fed::OpenQuote if parser.bytes > lines.max_bytes() => {
                return Err(unclosed(lines, parser, &format!("within {} bytes", lines.max_bytes())));
            }
            Fed::OpenQuote => {}
            Fed::Misplaced(column) => {
                return Ok(Some(Err(Error::data(
                    format!("{}:{}:{column}", lines.path().display(), line.number),
                    "text follows a closing quote",
                    "double quotes that are part of the text (\"\"), and end the field after the closing one",
                ))));
            }
        }
    }
}

fn unclosed(lines: &LineReader, parser: &RowParser, end: &str) -> Error {
    let (line, column) = parser.open_field();
    Error::data(
        format!("{}:{line}:{column}", lines.path().display()),
        format!("the quote opened here is not closed {end}"),
        "close it, or double it (\"\") if it is part of the text; the file may be cut off",
    )
}

fn next_object(lines: &mut LineReader) -> Result<Option<std::result::Result<Record<'_>, Flaw>>> {
    loop {
        match lines.advance()? {
            None => return Ok(None),
            Some(Err(flaw)) => return Ok(Some(Err(flaw))),
            Some(Ok(())) if lines.line().text.trim().is_empty() => {}
            Some(Ok(())) => break,
        }
    }
    let (line, path) = (lines.line(), lines.path());
    let place = |column: usize| format!("{}:{}:{column}", path.display(), line.number);
    let flaw = match serde_json::from_str::<Value>(line.text) {
        Ok(Value::Object(object)) => {
            let fields = Fields::Json { text: line.text, object };
            return Ok(Some(Ok(Record { path, line: line.number, fields })));
        }
        Ok(_) => Error::data(place(1), "the line is not a JSON object", "write one {…} per line"),
        Err(error) => {
            let upto = line.text.len().min(error.column());
            let column = String::from_utf8_lossy(&line.text.as_bytes()[..upto]).chars().count();
            let (reason, fix) = if error.is_eof() && !line.complete {
                ("the last line is cut off".into(), "the file is incomplete: fetch or write it again")
            } else {
                let text = error.to_string();
                let reason = text.split(" at line ").next().unwrap_or_default();
                (format!("broken JSON: {reason}"), "write one complete JSON object per line")
            };
            Error::data(place(column.max(1)), reason, fix)
        }
    };
    Ok(Some(Err(flaw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, content: &str) -> (tempfile::TempDir, RecordReader) {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        let reader = RecordReader::open(&path, Format::of(&path).unwrap(), 1000).unwrap();
        (directory, reader)
    }

    #[test]
    fn fields_are_reached_by_name_in_every_format() {
        for (name, content) in [
            ("a.jsonl", "{\"text\": \"a b\", \"n\": \"3\"}\n"),
            ("a.csv", "n,text\n3,a b\n"),
            ("a.tsv", "text\tn\r\na b\t3\r\n"),
        ] {
            let (_directory, mut reader) = read(name, content);
            let record = reader.read_next().unwrap().unwrap().unwrap();
            assert_eq!(record.text("text").unwrap(), "a b", "{name}");
            assert_eq!(record.scalar("n").unwrap().spelled(), "3");
            assert_eq!(record.choice("n", &["1", "3"]).unwrap(), 1);
            assert!(reader.read_next().unwrap().is_none());
        }
    }

    #[test]
    fn dotted_names_reach_into_objects() {
        let (_directory, mut reader) = read("a.jsonl", r#"{"target": {"span": "x"}, "a.b": true}"#);
        let record = reader.read_next().unwrap().unwrap().unwrap();
        assert_eq!(record.text("target.span").unwrap(), "x");
        assert!(record.flag("a.b").unwrap());
        let error = record.text("target.other").unwrap_err().to_string();
        assert!(error.contains("no column \"other\" in \"target\"; columns: span"), "{error}");
        assert!(error.contains("a.jsonl:1:12"), "{error}");
    }

    #[test]
    fn a_list_is_not_looked_for_in_a_cell() {
        let (_directory, mut reader) = read("a.csv", "text,label\na b,x\n");
        let record = reader.read_next().unwrap().unwrap().unwrap();
        let error = record.texts("label").unwrap_err().to_string();
        assert!(error.contains("\"label\" has to be a list, which a cell cannot hold"), "{error}");
        assert!(record.texts("other").unwrap_err().to_string().contains("no column \"other\""));
    }

    #[test]
    fn a_compressed_file_is_named_as_one() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("a.jsonl.gz");
        let mut encoder =
            flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, b"{}").unwrap();
        encoder.finish().unwrap();
        let error = Format::of(&path).unwrap_err().to_string();
        assert!(error.contains("compressed with gzip") && error.contains("gunzip"), "{error}");
    }

    #[test]
    fn json_objects_nested_too_deeply_are_refused() {
        let (_directory, mut reader) = read("a.jsonl", &"[".repeat(900));
        let error = reader.read_next().unwrap().unwrap().unwrap_err().to_string();
        assert!(error.contains("recursion limit"), "{error}");
    }
}

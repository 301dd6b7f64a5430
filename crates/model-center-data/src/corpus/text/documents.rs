//! From files to documents.
//!
//! Defines [`Documents`], which opens one file after the other and yields their documents in order.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};

use super::json_array::JsonArray;
use super::wiki::WikiReader;
use super::{TextFormat, TextSource};
use crate::{Error, Result};
use model_center_formats::io::{
    delimited::RowParser,
    flaws::{Flaws, OnBadRecord},
    input::{TextInput, file_error, open_corpus_text},
    lines::{Flaw, LineReader},
    parquet::{ParquetRows, Wanted},
    record::Record,
    record_reader::RecordReader,
};

/// How many documents were met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentCounts {
    /// Documents with a text.
    pub documents: u64,
    /// Bytes of their texts.
    pub bytes: u64,
    /// Documents without a text, or of white space alone, which are left out.
    pub empty: u64,
    /// Records that could not be used and were left out.
    pub unusable: u64,
}

/// A document with the fields of its record.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRecord {
    /// The text.
    pub text: String,
    /// The whole record, the text included; empty for plain text, and where the reader leaves the fields out.
    pub fields: Map<String, Value>,
}

impl TextRecord {
    /// A text without a record.
    pub(super) fn plain(text: String) -> TextRecord {
        TextRecord { text, fields: Map::new() }
    }
}

/// Yields the documents of a [`TextSource`], or of several one after the other, one in memory at a time.
#[derive(Debug)]
pub struct Documents {
    sources: Vec<TextSource>,
    files: Vec<SourceFile>,
    next: usize,
    open: Option<OpenFile>,
    on_bad_record: OnBadRecord,
    flaws: Flaws,
    counts: DocumentCounts,
    read: Arc<AtomicU64>,
    total: u64,
}

/// A file, and which source it is of.
#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    format: TextFormat,
    source: usize,
}

/// A file being read.
#[derive(Debug)]
enum OpenFile {
    Records(RecordReader),
    Array(JsonArray),
    Lines(LineReader),
    Paragraphs(LineReader),
    Wiki(WikiReader),
    Batches(RecordReader),
    Rows(ParquetRows),
    /// A file that is one document, until it is read.
    Whole(TextInput),
    Ended,
}

impl Documents {
    /// Begins with the first file.
    ///
    /// # Errors
    /// As [`TextSource::files`].
    pub fn open(source: TextSource, on_bad_record: OnBadRecord) -> Result<Documents> {
        Documents::open_all(vec![source], on_bad_record)
    }

    /// As [`Documents::open`], with one source after the other.
    ///
    /// # Errors
    /// As [`TextSource::files`].
    pub fn open_all(sources: Vec<TextSource>, on_bad_record: OnBadRecord) -> Result<Documents> {
        let mut files = Vec::new();
        for (at, source) in sources.iter().enumerate() {
            let of_source = |(path, format)| SourceFile { path, format, source: at };
            files.extend(source.files()?.into_iter().map(of_source));
        }
        let total = files.iter().filter_map(|file| file.path.metadata().ok()).map(|metadata| metadata.len()).sum();
        Ok(Documents {
            sources,
            files,
            next: 0,
            open: None,
            on_bad_record,
            flaws: Flaws::default(),
            counts: DocumentCounts::default(),
            read: Arc::default(),
            total,
        })
    }

    /// Bytes of all files, as they are stored.
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Bytes that were read of them.
    pub fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Whether the last file was read.
    pub fn is_at_end(&self) -> bool {
        self.open.is_none() && self.next == self.files.len()
    }

    /// How many documents were met.
    pub fn counts(&self) -> DocumentCounts {
        self.counts
    }

    /// The next document with a text; `None` after the last file.
    ///
    /// # Errors
    /// [`Error::Data`] with file and line for a document that cannot be used, unless such are left out, and for a file
    /// that cannot be read on; [`Error::File`] if reading fails.
    pub fn advance(&mut self) -> Result<Option<String>> {
        Ok(self.next(false)?.map(|record| record.text))
    }

    /// As [`Documents::advance`], with the fields of the records.
    ///
    /// # Errors
    /// As [`Documents::advance`].
    pub fn advance_record(&mut self) -> Result<Option<TextRecord>> {
        self.next(true)
    }

    fn next(&mut self, with_fields: bool) -> Result<Option<TextRecord>> {
        loop {
            if self.open.is_none() {
                if self.next == self.files.len() {
                    self.check_flaws()?;
                    return Ok(None);
                }
                self.next += 1;
            }
            let Some(file) = self.files.get(self.next - 1) else { continue };
            let Some(source) = self.sources.get(file.source) else { continue };
            let open = match &mut self.open {
                Some(open) => open,
                closed => closed.insert(open(file, source, (with_fields, &self.read))?),
            };
            match open.advance(&file.path, source, with_fields)? {
                None => self.open = None,
                Some(Ok(record)) if record.text.trim().is_empty() => self.counts.empty += 1,
                Some(Ok(record)) => {
                    self.counts.documents += 1;
                    self.counts.bytes += record.text.len() as u64;
                    return Ok(Some(record));
                }
                Some(Err(flaw)) => {
                    self.counts.unusable += 1;
                    self.flaws.add(self.on_bad_record, flaw)?;
                }
            }
        }
    }

    fn check_flaws(&self) -> Result<()> {
        let DocumentCounts { documents, empty, unusable, .. } = self.counts;
        let path = self.files.last().map_or(Path::new(""), |file| &file.path);
        self.flaws.check(path, self.on_bad_record, documents + empty + unusable).map_err(|error| match error {
            Error::Data { place, reason, .. } => {
                Error::data(place, reason, "correct the records, or accept a larger share of bad ones")
            }
            other => other,
        })
    }
}

fn open(
    SourceFile { path, format, .. }: &SourceFile,
    source: &TextSource,
    (with_fields, read): (bool, &Arc<AtomicU64>),
) -> Result<OpenFile> {
    let most = source.max_document_bytes;
    let input = || open_corpus_text(path, source.encoding, read);
    let lines = |input| LineReader::over(path, input, most);
    Ok(match format {
        TextFormat::Json => {
            let mut input = input()?;
            let start = input.fill_buf().map_err(|error| file_error(path, error))?;
            match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'[') => OpenFile::Array(JsonArray::new(path, input, most)),
                _ => OpenFile::Records(RecordReader::objects(lines(input))),
            }
        }
        TextFormat::Csv => {
            let parser = RowParser::new(source.delimiter, true);
            OpenFile::Records(RecordReader::rows(lines(input()?), parser)?)
        }
        TextFormat::Tsv => OpenFile::Records(RecordReader::rows(lines(input()?), RowParser::new('\t', false))?),
        TextFormat::Text => OpenFile::Whole(input()?),
        TextFormat::Lines => OpenFile::Lines(lines(input()?)),
        TextFormat::Paragraphs => OpenFile::Paragraphs(lines(input()?)),
        TextFormat::Wiki => OpenFile::Wiki(WikiReader::new(lines(input()?))),
        TextFormat::Arrow => {
            let only = Some(source.key.as_str()).filter(|_| !with_fields);
            OpenFile::Batches(RecordReader::batches(path, (most, only), read)?)
        }
        TextFormat::Parquet => {
            let wanted = Wanted { text: Some(&source.key), others: with_fields };
            OpenFile::Rows(ParquetRows::open(path, wanted, (most, source.encoding), read)?)
        }
    })
}

impl OpenFile {
    /// The next document. The inner error concerns this one alone, the outer one the file.
    fn advance(
        &mut self,
        path: &Path,
        source: &TextSource,
        with_fields: bool,
    ) -> Result<Option<std::result::Result<TextRecord, Flaw>>> {
        let text = match self {
            OpenFile::Records(records) => {
                let Some(record) = records.read_next()? else { return Ok(None) };
                return Ok(Some(record.and_then(|record| text_of(&record, &source.key, with_fields))));
            }
            OpenFile::Batches(records) => {
                let Some(record) = records.read_next()? else { return Ok(None) };
                return Ok(Some(record.and_then(|record| text_of_batch(&record, &source.key, with_fields))));
            }
            OpenFile::Rows(rows) => {
                let Some(row) = rows.advance()? else { return Ok(None) };
                return Ok(Some(row.map(|fields| text_of_row(fields, &source.key, with_fields))));
            }
            OpenFile::Array(array) => return array.advance(|record| text_of(record, &source.key, with_fields)),
            OpenFile::Lines(lines) => lines.advance()?.map(|read| read.map(|()| lines.line().text.to_owned())),
            OpenFile::Paragraphs(lines) => paragraph(lines)?,
            OpenFile::Wiki(wiki) => wiki.advance()?,
            OpenFile::Whole(_) => {
                let OpenFile::Whole(input) = std::mem::replace(self, OpenFile::Ended) else { return Ok(None) };
                Some(Ok(whole(path, input, source.max_document_bytes)?))
            }
            OpenFile::Ended => None,
        };
        Ok(text.map(|text| text.map(TextRecord::plain)))
    }
}

/// The document of a record.
fn text_of(record: &Record<'_>, key: &str, with_fields: bool) -> std::result::Result<TextRecord, Flaw> {
    let text = record.text(key).map(str::to_owned).map_err(|error| match error {
        Error::Data { place, reason, .. } => {
            Error::data(place, reason, "name the key or column of the documents, or correct the record")
        }
        other => other,
    })?;
    Ok(TextRecord { text, fields: if with_fields { record.object() } else { Map::new() } })
}

/// The same of a batch; a row without a text is an empty document, as in Parquet.
fn text_of_batch(record: &Record<'_>, key: &str, with_fields: bool) -> std::result::Result<TextRecord, Flaw> {
    match record.object() {
        fields if fields.get(key).is_some_and(Value::is_null) => Ok(text_of_row(fields, key, with_fields)),
        _ => text_of(record, key, with_fields),
    }
}

/// The document of a row; one without a text is empty.
fn text_of_row(mut fields: Map<String, Value>, key: &str, with_fields: bool) -> TextRecord {
    let text = match fields.get_mut(key) {
        Some(Value::String(text)) if with_fields => text.clone(),
        Some(Value::String(text)) => std::mem::take(text),
        _ => String::new(),
    };
    TextRecord { text, fields: if with_fields { fields } else { Map::new() } }
}

/// Lines up to an empty one.
fn paragraph(lines: &mut LineReader) -> Result<Option<std::result::Result<String, Flaw>>> {
    let mut text = String::new();
    loop {
        match lines.advance()? {
            None if text.is_empty() => return Ok(None),
            None => return Ok(Some(Ok(text))),
            Some(Err(flaw)) => return Ok(Some(Err(flaw))),
            Some(Ok(())) => {}
        }
        let line = lines.line();
        match (line.text.trim().is_empty(), text.is_empty()) {
            (true, true) => continue,
            (true, false) => return Ok(Some(Ok(text))),
            (false, true) => {}
            (false, false) => text.push('\n'),
        }
        require_room(lines, text.len() + line.text.len())?;
        text.push_str(line.text);
    }
}

/// The error for a document of more bytes than allowed that began some lines before.
pub(super) fn require_room(lines: &LineReader, bytes: usize) -> Result<()> {
    if bytes <= lines.max_bytes() {
        return Ok(());
    }
    let place = format!("{}:{}", lines.path().display(), lines.line().number);
    let reason = format!("the document is longer than {} bytes", lines.max_bytes());
    Err(Error::data(place, reason, "check the format, or allow longer documents"))
}

/// A file as one text.
fn whole(path: &Path, input: TextInput, most: usize) -> Result<String> {
    let mut bytes = Vec::new();
    input.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| file_error(path, error))?;
    let place = || path.display().to_string();
    if bytes.len() > most {
        let reason = format!("the file is one document of more than {most} bytes");
        return Err(Error::data(place(), reason, "read its lines or paragraphs, or allow longer documents"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let lines = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        let byte = error.as_bytes().get(valid).copied().unwrap_or_default();
        let reason = format!("byte 0x{byte:02X} is not UTF-8 text");
        Error::data(
            format!("{}:{lines}", place()),
            reason,
            "set the encoding to latin-1, or convert the file with iconv",
        )
    })
}

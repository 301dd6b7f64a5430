//! Rows of Parquet files, one in memory at a time, and the pages that they are in.
//!
//! Defines [`ParquetRows`]. `columns` has the columns, `nested` their lists and structures; `compact` checks footers
//! and reads the headers of pages, `pages` reads and decompresses pages, `delta` bounds the lengths of texts in them;
//! the library parses footers and decodes values. A panic of it is an error of the file. Called by
//! [`super::record_reader`] and by the reader of raw text.

mod columns;
mod compact;
mod delta;
mod nested;
mod pages;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bmtrain_core::panics::catch;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use serde_json::{Map, Value};

use self::columns::{Cell, Column};
use self::compact::check_footer;
use self::nested::{Entries, Fault};
use self::pages::{PageTooLong, Pages};
use super::input::{TextEncoding, file_error, of_data};
use super::lines::Flaw;
use super::record::Unread;
use crate::{Error, Result};
use model_center_base::file::open_regular;

/// Magic bytes at both ends of a file.
const MARK: &[u8; 4] = b"PAR1";
/// Magic bytes of a file whose footer is encrypted.
const ENCRYPTED: &[u8; 4] = b"PARE";
/// The longest footer. A file of 10,000 row groups with ten columns has one of 10 MB.
const MAX_FOOTER_BYTES: u64 = 1 << 26;
/// Pages of this size are read, whatever the limit of texts.
const PAGE_BYTES_ALLOWED: usize = 1 << 26;

/// Part of each row that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// A column that must be there, of text.
    pub text: Option<&'a str>,
    /// Whether the other columns are read too.
    pub others: bool,
}

/// Reads the rows of a file.
pub struct ParquetRows {
    path: PathBuf,
    file: Arc<File>,
    length: u64,
    metadata: ParquetMetaData,
    columns: Vec<Column>,
    unread: Vec<Unread>,
    encoding: TextEncoding,
    /// Bytes of a text.
    most: usize,
    /// Counter of bytes that were read.
    read: Arc<AtomicU64>,
    counted: u64,
    /// The row group after the one being read.
    next_group: usize,
    /// Rows that are left in it.
    left: u64,
    row: u64,
    rows: u64,
}

impl std::fmt::Debug for ParquetRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetRows").field("path", &self.path).field("row", &self.row).finish_non_exhaustive()
    }
}

impl ParquetRows {
    /// Reads the footer. Texts above `most` bytes are refused, and pages above it or 64 MiB. The bytes of the file are
    /// added to `read` as its rows are.
    ///
    /// Errors: the file cannot be opened, is damaged, or has no such column of text.
    pub fn open(
        path: &Path,
        wanted: Wanted<'_>,
        (most, encoding): (usize, TextEncoding),
        read: &Arc<AtomicU64>,
    ) -> Result<ParquetRows> {
        let (file, length) = open_regular(path).map_err(of_data)?;
        let metadata = footer(path, &file, length)?;
        let groups = metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()).ok());
        let rows =
            groups.sum::<Option<u64>>().filter(|rows| i64::try_from(*rows) == Ok(metadata.file_metadata().num_rows()));
        let Some(rows) = rows else {
            return Err(damaged(path, "the rows of its groups do not add up to the rows of the file"));
        };
        let notes = metadata.file_metadata().key_value_metadata();
        let is_arrow = notes.is_some_and(|notes| notes.iter().any(|note| note.key == "ARROW:schema"));
        let (columns, unread) = columns::choose(path, metadata.file_metadata().schema_descr(), (wanted, is_arrow))?;
        Ok(ParquetRows {
            path: path.to_owned(),
            file: Arc::new(file),
            length,
            metadata,
            columns,
            unread,
            encoding,
            most,
            read: Arc::clone(read),
            counted: 0,
            next_group: 0,
            left: 0,
            row: 0,
            rows,
        })
    }

    /// The file being read.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Columns of the file that are left out of rows.
    pub(crate) fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// The number of the row that was read last, from 1.
    pub(crate) fn row(&self) -> u64 {
        self.row
    }

    /// The next row by the names of its columns; `None` after the last. The inner error concerns this row alone, the
    /// outer one the file.
    pub fn advance(&mut self) -> Result<Option<std::result::Result<Map<String, Value>, Flaw>>> {
        while self.left == 0 {
            self.end_group()?;
            if !self.open_group()? {
                return Ok(None);
            }
        }
        self.left -= 1;
        self.row += 1;
        let (mut fields, mut flaw, mut room) = (Map::new(), None, self.most);
        for at in 0..self.columns.len() {
            let Some(column) = self.columns.get_mut(at) else { break };
            let name = column.name().to_owned();
            let read = catch(|| column.read());
            let entries = self.outcome(read)?.ok_or_else(|| {
                let reason = format!(
                    "the column {name:?} has fewer rows than the footer states: it ends before row {}",
                    self.row
                );
                damaged(&self.path, reason)
            })?;
            match self.value(at, entries, &mut room) {
                Ok(value) => drop(fields.insert(name, value)),
                Err(Fault::Broken) => {
                    let reason = format!("the values of column {name:?} contradict each other in row {}", self.row);
                    return Err(damaged(&self.path, reason));
                }
                Err(Fault::Unusable(reason)) => {
                    let place = format!("{}, row {}", self.path.display(), self.row);
                    let fix = "correct the text, or leave the row out";
                    flaw.get_or_insert(Error::data(place, format!("the text in column {name:?} {reason}"), fix));
                }
            }
        }
        let counted = (u128::from(self.length) * u128::from(self.row) / u128::from(self.rows.max(1))) as u64;
        self.read.fetch_add(counted - self.counted, Ordering::Relaxed);
        self.counted = counted;
        Ok(Some(flaw.map_or(Ok(fields), Err)))
    }

    /// Opens the columns of the next row group; whether there is one.
    fn open_group(&mut self) -> Result<bool> {
        let Some(group) = self.metadata.row_groups().get(self.next_group) else {
            self.read.fetch_add(self.length - self.counted, Ordering::Relaxed);
            self.counted = self.length;
            return Ok(false);
        };
        self.next_group += 1;
        self.left = u64::try_from(group.num_rows()).unwrap_or(0);
        if self.left == 0 {
            return Ok(true);
        }
        for column in &mut self.columns {
            let name = column.name().to_owned();
            for leaf in column.leaves() {
                let chunk = group.columns().get(leaf.number);
                let range = chunk.and_then(|chunk| {
                    let dictionary = chunk.dictionary_page_offset().filter(|offset| *offset > 0);
                    let start = u64::try_from(dictionary.unwrap_or(chunk.data_page_offset())).ok()?;
                    let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
                    (end <= self.length).then_some((start, end))
                });
                let (Some(chunk), Some(range)) = (chunk, range) else {
                    let reason = format!("the footer places column {name:?} outside of the file");
                    return Err(damaged(&self.path, reason));
                };
                if chunk.file_path().is_some() {
                    let (place, reason) =
                        (self.path.display().to_string(), format!("column {name:?} is in another file"));
                    return Err(Error::data(place, reason, "write a file with all of its columns"));
                }
                let most = self.most.max(PAGE_BYTES_ALLOWED);
                leaf.open(Pages::new(Arc::clone(&self.file), range, chunk.compression(), most, leaf.levels()));
            }
        }
        Ok(true)
    }

    /// Whether the columns of a row group end with it.
    fn end_group(&mut self) -> Result<()> {
        for at in 0..self.columns.len() {
            let Some(column) = self.columns.get_mut(at) else { break };
            let read = catch(|| column.close());
            if self.outcome(read)? {
                let name = self.columns.get(at).map_or("", Column::name);
                return Err(damaged(&self.path, format!("the column {name:?} has more rows than the footer states")));
            }
        }
        Ok(())
    }

    /// The value of a column in a row. Bytes of texts, and values, are counted against the room that is left for the
    /// row.
    fn value(&self, at: usize, mut entries: Vec<Entries>, room: &mut usize) -> std::result::Result<Value, Fault> {
        let column = self.columns.get(at).ok_or(Fault::Broken)?;
        let mut count = |bytes: usize| match room.checked_sub(bytes) {
            Some(rest) => {
                *room = rest;
                Ok(())
            }
            None => Err(Fault::Unusable(format!("makes the row longer than {} bytes", self.most))),
        };
        let value = column.node.value(&mut entries, &mut |cell| match cell {
            None => count(1).map(|()| Value::Null),
            Some(Cell::Value(value)) => count(1).map(|()| value),
            Some(Cell::Text(bytes)) => {
                count(bytes.data().len())?;
                self.text(bytes.data()).map(Value::from).map_err(Fault::Unusable)
            }
            Some(Cell::Json(bytes)) => {
                count(bytes.data().len())?;
                let text = self.text(bytes.data()).map_err(Fault::Unusable)?;
                serde_json::from_str(&text).map_err(|error| Fault::Unusable(format!("is not JSON: {error}")))
            }
        })?;
        if entries.iter().all(Entries::is_used) { Ok(value) } else { Err(Fault::Broken) }
    }

    fn text(&self, bytes: &[u8]) -> std::result::Result<String, String> {
        match (self.encoding, std::str::from_utf8(bytes)) {
            (TextEncoding::Latin1, _) => Ok(bytes.iter().map(|byte| char::from(*byte)).collect()),
            (TextEncoding::Utf8, Ok(text)) => Ok(text.into()),
            (TextEncoding::Utf8, Err(error)) => {
                let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
                Err(format!("has the byte 0x{byte:02X}, which is not UTF-8 text"))
            }
        }
    }

    /// Result of a call into the library.
    fn outcome<T>(&self, called: std::result::Result<parquet::errors::Result<T>, String>) -> Result<T> {
        match called {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error_of(&self.path, error)),
            Err(panic) => Err(damaged(&self.path, panic)),
        }
    }
}

/// The footer, parsed without statistics.
fn footer(path: &Path, file: &File, length: u64) -> Result<ParquetMetaData> {
    let at = |from: u64, bytes: &mut [u8]| file.read_exact_at(bytes, from).map_err(|error| file_error(path, error));
    let (mut start, mut end) = ([0; 4], [0; 8]);
    let no_parquet = |reason: &str| {
        let fix = "check the path, or set the format that the file has";
        Error::data(path.display().to_string(), reason, fix)
    };
    if length < 12 {
        return Err(no_parquet("the file is too short to be a Parquet file"));
    }
    at(0, &mut start)?;
    at(length - 8, &mut end)?;
    let (size, mark) = (u32::from_le_bytes([end[0], end[1], end[2], end[3]]), &end[4..]);
    if start == *ENCRYPTED || mark == ENCRYPTED {
        return Err(no_parquet("the Parquet file is encrypted"));
    }
    if start != *MARK {
        return Err(no_parquet("this is not a Parquet file"));
    }
    if mark != MARK {
        let fix = "fetch or write the file again";
        return Err(Error::data(path.display().to_string(), "the Parquet file is cut off: it has no footer", fix));
    }
    let size = u64::from(size);
    if size > length - 12 {
        return Err(damaged(path, format!("its footer has {size} bytes, and the file {length}")));
    }
    if size > MAX_FOOTER_BYTES {
        let reason = format!("the footer has {size} bytes, more than {MAX_FOOTER_BYTES}");
        return Err(Error::data(
            path.display().to_string(),
            reason,
            "write fewer or larger row groups, or fewer columns",
        ));
    }
    let mut bytes = vec![0; size as usize];
    at(length - 8 - size, &mut bytes)?;
    check_footer(&bytes).map_err(|_| damaged(path, "its footer is broken"))?;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll);
    match catch(|| ParquetMetaDataReader::decode_metadata_with_options(&bytes, Some(&options))) {
        Ok(Ok(metadata)) => Ok(metadata),
        Ok(Err(error)) => Err(error_of(path, error)),
        Err(panic) => Err(damaged(path, panic)),
    }
}

/// The error for a file that contradicts itself.
fn damaged(path: &Path, reason: impl std::fmt::Display) -> Error {
    let reason = format!("the Parquet file is damaged: {reason}");
    Error::data(path.display().to_string(), reason, "fetch or write the file again")
}

fn error_of(path: &Path, error: ParquetError) -> Error {
    let place = || path.display().to_string();
    match error {
        ParquetError::External(error) => match error.downcast::<PageTooLong>() {
            Ok(long) => {
                let PageTooLong { bytes, most } = *long;
                let reason = format!("a page has {bytes} bytes, more than {most}");
                Error::data(place(), reason, "write smaller pages or fewer rows in a page, or allow longer documents")
            }
            Err(error) => match error.downcast::<std::io::Error>() {
                Ok(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    damaged(path, "it was cut off while it was read")
                }
                Ok(error) => file_error(path, *error),
                Err(error) => damaged(path, error),
            },
        },
        ParquetError::NYI(reason) => Error::data(
            place(),
            format!("the Parquet file cannot be read: {reason}"),
            "write it with snappy, gzip or zstd",
        ),
        ParquetError::General(reason) | ParquetError::EOF(reason) => damaged(path, reason),
        other => damaged(path, other),
    }
}

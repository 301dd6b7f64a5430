//! The texts of a file one after the other, without records.
//!
//! Defines [`read_texts`] and [`TextLayout`]. The training of vocabularies is the caller.

use std::path::Path;

use super::lines::LineReader;
use super::record::Format;
use super::record_reader::RecordReader;
use crate::{Error, Result};

/// Location of a file's texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextLayout {
    /// Each line is a text.
    Lines,
    /// Each record of JSONL, CSV, TSV or Parquet has a text in the column of this name.
    Column(String),
}

/// Calls `each` with the texts of a file in order, one in memory at a time; returns how many there were.
///
/// # Errors
/// [`Error::Data`] with file, line and column: a line above `max_line_bytes`, bytes that are not UTF-8, a record
/// without the column, a file that is missing or no regular file; [`Error::File`] if reading fails; what `each`
/// returns.
pub fn read_texts(
    path: &Path,
    source: &TextLayout,
    max_line_bytes: usize,
    each: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<u64> {
    let mut count = 0;
    match source {
        TextLayout::Lines => {
            let mut lines = LineReader::open(path, max_line_bytes)?;
            while let Some(read) = lines.advance()? {
                read?;
                each(lines.line().text)?;
                count += 1;
            }
        }
        TextLayout::Column(column) => {
            let format = Format::of(path).map_err(|error| match error {
                Error::Data { place, reason, .. } => Error::data(
                    place,
                    reason,
                    "name the file .jsonl, .csv, .tsv or .parquet; without a column its lines are the texts",
                ),
                other => other,
            })?;
            let mut records = RecordReader::open(path, format, max_line_bytes)?;
            while let Some(record) = records.read_next()? {
                each(record?.text(column)?)?;
                count += 1;
            }
        }
    }
    Ok(count)
}

//! The documents that are left, on the disk, in their order.
//!
//! Defines [`StoreWriter`] and [`Store`]: a file of JSON lines and one of their places, read by position. Called by the
//! stages of [`super`].

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};
use model_center_data::corpus::positioned::PositionedFile;
use model_center_data::corpus::spool::Spool;
use model_center_data::corpus::writer::with_suffix;

/// Bytes of an entry: the number of the document in the input, and where its line ends.
const ENTRY: u64 = 16;

/// Written length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StorePosition {
    pub(super) documents: u64,
    pub(super) bytes: u64,
}

/// Appends documents.
#[derive(Debug)]
pub(super) struct StoreWriter {
    lines: Spool,
    places: Spool,
    position: StorePosition,
}

impl StoreWriter {
    /// Goes on after `position`; `None` if the files do not have as much.
    pub(super) fn open(path: &Path, position: StorePosition) -> Result<Option<StoreWriter>> {
        let (mut lines, mut places) = (Spool::open(lines_of(path))?, Spool::open(places_of(path))?);
        let is_there = lines.cut(position.bytes)? && places.cut(ENTRY * position.documents)?;
        Ok(is_there.then_some(StoreWriter { lines, places, position }))
    }

    /// Appends the line of the document `number` of the input.
    pub(super) fn add(&mut self, number: u64, line: &str) -> Result<()> {
        self.lines.write(line.as_bytes())?;
        self.lines.write(b"\n")?;
        self.position.bytes += line.len() as u64 + 1;
        self.position.documents += 1;
        self.places.write(&number.to_le_bytes())?;
        self.places.write(&self.position.bytes.to_le_bytes())
    }

    pub(super) fn sync(&mut self) -> Result<StorePosition> {
        self.lines.sync()?;
        self.places.sync()?;
        Ok(self.position)
    }
}

fn lines_of(path: &Path) -> PathBuf {
    with_suffix(path, ".jsonl")
}

fn places_of(path: &Path) -> PathBuf {
    with_suffix(path, ".places")
}

/// Documents by their place.
#[derive(Debug)]
pub(super) struct Store {
    lines: PositionedFile,
    places: PositionedFile,
    position: StorePosition,
}

impl Store {
    pub(super) fn open(path: &Path, position: StorePosition) -> Result<Store> {
        Ok(Store {
            lines: PositionedFile::open(&lines_of(path))?,
            places: PositionedFile::open(&places_of(path))?,
            position,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.position.documents
    }

    /// The number in the input of the document at a place.
    pub(super) fn number(&self, at: u64) -> Result<u64> {
        self.places.u64_at(ENTRY * at)
    }

    /// The line of the document at a place, without its end.
    pub(super) fn line(&self, at: u64) -> Result<Vec<u8>> {
        let start = if at == 0 { 0 } else { self.places.u64_at(ENTRY * at - 8)? };
        let end = self.places.u64_at(ENTRY * at + 8)?;
        if start >= end || end > self.position.bytes {
            return Err(self.damaged(format!("document {at} begins at {start} and ends at {end}")));
        }
        let mut line = vec![0; (end - start - 1) as usize];
        self.lines.read_at(start, &mut line)?;
        Ok(line)
    }

    /// The record of the document at a place.
    pub(super) fn fields(&self, at: u64) -> Result<Map<String, Value>> {
        serde_json::from_slice(&self.line(at)?).map_err(|error| self.damaged(format!("document {at}: {error}")))
    }

    /// The text of the document at a place.
    pub(super) fn text(&self, at: u64, key: &str) -> Result<String> {
        text_under(&self.fields(at)?, key).map(str::to_owned).ok_or_else(|| self.no_text(at, key))
    }

    fn damaged(&self, reason: String) -> Error {
        let fix = "remove the directory .clean of the result, and run the command again";
        Error::data(self.lines.path().display().to_string(), reason, fix)
    }

    pub(super) fn no_text(&self, at: u64, key: &str) -> Error {
        self.damaged(format!("document {at} has no text under {key}"))
    }
}

/// The text under a key; a dot reaches into objects.
pub(super) fn text_under<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    match (fields.get(key), key.split_once('.')) {
        (Some(value), _) => value.as_str(),
        (None, Some((head, rest))) => text_under(fields.get(head)?.as_object()?, rest),
        (None, None) => None,
    }
}

/// Puts a text under a key, where the record has it or at its end.
pub(crate) fn put_text(fields: &mut Map<String, Value>, key: &str, text: String) {
    if !fields.contains_key(key)
        && let Some((head, rest)) = key.split_once('.')
        && let Some(Value::Object(inner)) = fields.get_mut(head)
    {
        return put_text(inner, rest, text);
    }
    fields.insert(key.to_owned(), Value::String(text));
}

/// The line of a record.
pub(crate) fn line_of(fields: &Map<String, Value>) -> Result<String> {
    serde_json::to_string(fields).map_err(|error| Error::data("record", error.to_string(), "report this"))
}

//! The messages of an Arrow file: a schema, dictionaries and batches of rows, each a header and a body.
//!
//! Defines [`Source`], a file with bounds, and [`Messages`], which finds the messages of both forms: the stream, which
//! `datasets` writes, and the file with a list of its batches at the end, which is also what Feather is since its
//! version 2.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::flatbuffer::{Broken, Table, int64s};
use crate::io::input::{file_error, of_data};
use crate::{Error, Result};
use model_center_base::file::open_regular;

/// Magic bytes at both ends of the form with a list, and of Feather before that.
const MARK: &[u8; 6] = b"ARROW1";
const OLD_FEATHER: &[u8; 4] = b"FEA1";
/// Marker before the length of a header.
const CONTINUED: u32 = u32::MAX;
/// The longest header: a schema, or a batch of many columns.
const MAX_HEADER_BYTES: u64 = 1 << 26;
/// A batch in the list of the form with one.
const BLOCK_BYTES: usize = 24;

/// Kinds of headers, by their numbers in the format.
pub(super) const SCHEMA: u8 = 1;
pub(super) const DICTIONARY: u8 = 2;
pub(super) const BATCH: u8 = 3;

/// A file that is read at positions.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    file: File,
    pub(super) length: u64,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let (file, length) = open_regular(path).map_err(of_data)?;
        Ok(Source { path: path.to_owned(), file, length })
    }

    /// The bytes of a stretch of the file.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.end > self.length || range.start > range.end {
            return Err(self.damaged("it is cut off"));
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.file.read_exact_at(&mut bytes, range.start).map_err(|error| file_error(&self.path, error))?;
        Ok(bytes)
    }

    /// The error for a file that contradicts itself.
    pub(super) fn damaged(&self, reason: impl std::fmt::Display) -> Error {
        let reason = format!("the Arrow file is damaged: {reason}");
        Error::data(self.path.display().to_string(), reason, "fetch or write the file again")
    }

    pub(super) fn broken(&self, _: Broken) -> Error {
        self.damaged("a header contradicts itself")
    }

    /// The error for a file that is well and is not read.
    pub(super) fn refused(&self, reason: impl Into<String>, fix: &str) -> Error {
        Error::data(self.path.display().to_string(), reason, fix)
    }
}

/// A header, and where the body is.
#[derive(Debug)]
pub(super) struct Message {
    header: Vec<u8>,
    pub(super) kind: u8,
    /// Whether it is of the version before the present one, in which unions have a buffer more.
    pub(super) is_old: bool,
    pub(super) body: Range<u64>,
}

impl Message {
    /// The table of the header's kind.
    pub(super) fn table(&self) -> Result<Table<'_>, Broken> {
        Table::root(&self.header)?.table(2)?.ok_or(Broken)
    }
}

/// The messages of a file after its schema.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) source: Source,
    next: Next,
}

#[derive(Debug)]
enum Next {
    /// Offset of the next message of a stream.
    Stream(u64),
    /// Offsets of the messages of a list.
    Listed(std::vec::IntoIter<u64>),
}

impl Messages {
    /// Opens a file, and its schema.
    pub(super) fn open(path: &Path) -> Result<(Messages, Message)> {
        let source = Source::open(path)?;
        let start = source.read(0..source.length.min(8))?;
        if start.starts_with(OLD_FEATHER) {
            let fix = "write it again as Arrow: pyarrow.feather.write_feather with version=2";
            return Err(source.refused("the file is Feather of version 1, which is not read", fix));
        }
        if start.starts_with(MARK) {
            return listed(source);
        }
        let Some((schema, next)) = message(&source, 0).ok().flatten().filter(|(message, _)| message.kind == SCHEMA)
        else {
            let fix = "check the path, or set the format that the file has";
            return Err(source.refused("this is not an Arrow file", fix));
        };
        Ok((Messages { source, next: Next::Stream(next) }, schema))
    }

    pub(super) fn next(&mut self) -> Result<Option<Message>> {
        let at = match &mut self.next {
            Next::Stream(at) => *at,
            Next::Listed(places) => match places.next() {
                Some(at) => at,
                None => return Ok(None),
            },
        };
        match (message(&self.source, at)?, &mut self.next) {
            (Some((message, end)), next) => {
                if let Next::Stream(at) = next {
                    *at = end;
                }
                Ok(Some(message))
            }
            (None, Next::Stream(_)) => Ok(None),
            (None, Next::Listed(_)) => Err(self.source.damaged("its list names a batch that is not there")),
        }
    }

    /// Bytes of the file before the next message.
    pub(super) fn passed(&self) -> u64 {
        match &self.next {
            Next::Stream(at) => *at,
            Next::Listed(_) => 0,
        }
    }
}

/// The message at a place, and where the next one is; `None` at the end.
fn message(source: &Source, at: u64) -> Result<Option<(Message, u64)>> {
    if at == source.length {
        return Ok(None);
    }
    let number = |at: u64| -> Result<u32> {
        let bytes = source.read(at..at.saturating_add(4))?;
        bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).ok_or_else(|| source.damaged("it is cut off"))
    };
    // Before its version 0.15 Arrow wrote the length alone.
    let (length, start) = match number(at)? {
        CONTINUED => (number(at + 4)?, at + 8),
        length => (length, at + 4),
    };
    if length == 0 {
        return Ok(None);
    }
    let end = start + u64::from(length);
    if u64::from(length) > MAX_HEADER_BYTES {
        return Err(source.damaged(format!("a header of {length} bytes, the limit is {MAX_HEADER_BYTES}")));
    }
    let header = source.read(start..end)?;
    let broken = |error| source.broken(error);
    let table = Table::root(&header).map_err(broken)?;
    let version = table.int16(0).map_err(broken)?;
    if !(3..=4).contains(&version) {
        let fix = "write it again with a newer Arrow";
        return Err(source.refused(format!("the Arrow file is of version {version} of the format"), fix));
    }
    let kind = table.byte(1).map_err(broken)?;
    let bytes = u64::try_from(table.int64(3).map_err(broken)?).map_err(|_| source.broken(Broken))?;
    let body = end.checked_add(bytes).filter(|end| *end <= source.length);
    let body = end..body.ok_or_else(|| source.damaged("it is cut off in a batch"))?;
    let next = body.end;
    Ok(Some((Message { header, kind, is_old: version == 3, body }, next)))
}

/// A file with a list of its batches: dictionaries come first, wherever they are.
fn listed(source: Source) -> Result<(Messages, Message)> {
    let cut_off = || source.damaged("it has no list of batches at its end: it is cut off");
    let tail = source.length.checked_sub(10).filter(|tail| *tail >= 8).ok_or_else(cut_off)?;
    let end = source.read(tail..source.length)?;
    let (size, mark) = end.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let size = u64::from(u32::from_le_bytes(*size));
    if mark != MARK {
        return Err(cut_off());
    }
    let start = tail.checked_sub(size).filter(|_| size <= MAX_HEADER_BYTES).ok_or_else(cut_off)?;
    let footer = source.read(start..tail)?;
    let places = || -> Result<Vec<u64>, Broken> {
        let table = Table::root(&footer)?;
        // A batch that is listed twice would be read twice.
        let (mut places, mut known) = (Vec::new(), HashSet::new());
        for field in [2, 3] {
            let blocks = table.vector(field, BLOCK_BYTES)?;
            for block in blocks.map_or(&[][..], |blocks| blocks.items).chunks_exact(BLOCK_BYTES) {
                let place = int64s(block).next().and_then(|place| u64::try_from(place).ok());
                places.push(place.filter(|place| known.insert(*place)).ok_or(Broken)?);
            }
        }
        Ok(places)
    };
    let places = places().map_err(|error| source.broken(error))?;
    // The stream that the file is, too, begins with the schema.
    let Some((schema, _)) = message(&source, 8)?.filter(|(message, _)| message.kind == SCHEMA) else {
        return Err(source.damaged("it does not begin with a schema"));
    };
    Ok((Messages { source, next: Next::Listed(places.into_iter()) }, schema))
}

//! Rows of Arrow files, and of the directories of them that `datasets` saves; one batch in memory at a time.
//!
//! - `flatbuffer`: the encoding of headers; `schema`: the columns; `message`: where headers and batches are.
//! - `batch`: the buffers of a batch, `lz4` one way that they are packed; `array`: the values of a column as JSON.
//! - `saved`: directories of `save_to_disk`.
//!
//! Defines [`ArrowRows`]. Values are what JSON has: texts, numbers, truth values, nulls, lists and structures of them,
//! also where they are stored once and by number. Columns with anything else in them, such as bytes or times, are left
//! out of rows and named where they are asked for. Files are from outside: every length and position is checked, and
//! memory is bounded by the file or by a limit. Called by [`super::record_reader`] and by the reader of raw text.

mod array;
mod batch;
mod flatbuffer;
mod lz4;
mod message;
mod saved;
mod schema;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};

use self::array::{Array, Fault, Room};
use self::batch::{Decoder, Dictionaries};
use self::flatbuffer::Broken;
use self::message::{BATCH, DICTIONARY, Message, Messages, Source};
use self::saved::SavedSet;
use self::schema::{Field, Refused, Schema};
use super::lines::Flaw;
use super::record::Unread;
use crate::{Error, Result};

pub use self::saved::{NOTES, not_one};

/// Rows of a batch: columns of nulls take no bytes.
const MAX_BATCH_ROWS: usize = 1 << 27;

/// Reads the rows of a file, or of the files of a directory one after the other.
#[derive(Debug)]
pub(crate) struct ArrowRows {
    files: std::vec::IntoIter<PathBuf>,
    /// The columns that rows have; `None` for all.
    chosen: Option<Vec<String>>,
    /// The one column that is asked for.
    only: Option<String>,
    open: Option<OpenFile>,
    path: PathBuf,
    unread: Vec<Unread>,
    row: u64,
    /// Bytes of a row.
    most: usize,
    /// Counter of bytes that were read.
    read: Arc<AtomicU64>,
}

/// A file being read.
#[derive(Debug)]
struct OpenFile {
    messages: Messages,
    schema: Schema,
    dictionaries: Dictionaries,
    /// Bytes of each dictionary.
    held: HashMap<i64, u64>,
    /// The columns of the present batch, its rows, and the next of them.
    columns: Vec<Option<Array>>,
    rows: usize,
    next: usize,
    counted: u64,
}

impl ArrowRows {
    /// Reads the schema. Rows with more than `most` bytes are refused. The bytes of the files are added to
    /// `read` as their batches are. With `only`, rows have this column alone.
    ///
    /// Errors: the file cannot be opened or is of another kind; a directory that `save_to_disk` did not write.
    pub(crate) fn open(path: &Path, (most, only): (usize, Option<&str>), read: &Arc<AtomicU64>) -> Result<ArrowRows> {
        let (files, chosen) = match path.is_dir() {
            true => {
                let SavedSet { files, columns } = SavedSet::open(path)?;
                (files, columns)
            }
            false => (vec![path.to_owned()], None),
        };
        let mut rows = ArrowRows {
            files: files.into_iter(),
            chosen,
            only: only.map(str::to_owned),
            open: None,
            path: path.to_owned(),
            unread: Vec::new(),
            row: 0,
            most,
            read: Arc::clone(read),
        };
        rows.open_next()?;
        Ok(rows)
    }

    /// The file being read.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the row of the file that was read last, from 1.
    pub(crate) fn row(&self) -> u64 {
        self.row
    }

    /// Columns of the file that are left out of rows.
    pub(crate) fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// The next row by the names of its columns; `None` after the last. The inner error concerns this row alone, the
    /// outer one the file.
    pub(crate) fn advance(&mut self) -> Result<Option<std::result::Result<Map<String, Value>, Flaw>>> {
        loop {
            let Some(open) = &mut self.open else { return Ok(None) };
            if open.next < open.rows {
                open.next += 1;
                self.row += 1;
                return open.row(open.next - 1, self.row, self.most).map(Some);
            }
            if !open.advance(&self.unread, &self.read)? {
                self.open_next()?;
            }
        }
    }

    fn open_next(&mut self) -> Result<()> {
        self.open = None;
        let Some(path) = self.files.next() else { return Ok(()) };
        let (open, unread) = OpenFile::new(&path, self.chosen.as_deref(), self.only.as_deref())?;
        (self.path, self.unread, self.row, self.open) = (path, unread, 0, Some(open));
        Ok(())
    }
}

impl OpenFile {
    fn new(path: &Path, chosen: Option<&[String]>, only: Option<&str>) -> Result<(OpenFile, Vec<Unread>)> {
        let (messages, message) = Messages::open(path)?;
        let source = &messages.source;
        let table = message.table().map_err(|error| source.broken(error))?;
        let schema = Schema::of(&table).map_err(|refused| match refused {
            Refused::Broken => source.broken(Broken),
            Refused::BigEndian => source.refused("its numbers are big endian, only little is read", "write it again"),
            Refused::TooDeep => source.refused("its columns are too many or nested too deep", "write fewer of them"),
            Refused::Twice(name) => twice(source, &name),
        })?;
        let mut names = BTreeSet::new();
        if let Some(twice) = schema.fields.iter().find(|field| !names.insert(field.name.as_str())) {
            return Err(self::twice(source, &twice.name));
        }
        if let Some(missing) = chosen.iter().copied().flatten().find(|name| !names.contains(name.as_str())) {
            let reason = format!("it has no column {:?}, which state.json names", super::record::shorten(missing));
            return Err(source.refused(reason, "save the data set again"));
        }
        let is_chosen = |field: &&Field| chosen.is_none_or(|chosen| chosen.contains(&field.name));
        let unread = schema.fields.iter().filter(is_chosen).filter_map(|field| {
            let (place, kind) = field.unread()?;
            let reason =
                if place == field.name { format!("is of type {kind}") } else { format!("has {kind} in {place}") };
            Some(Unread { name: field.name.clone(), reason })
        });
        let mut unread: Vec<Unread> = unread.collect();
        let others = schema.fields.iter().filter(|field| !is_chosen(field));
        unread.extend(others.map(|field| Unread {
            name: field.name.clone(),
            reason: "is not among the columns that state.json chooses (set_format)".into(),
        }));
        let passed =
            schema.fields.iter().filter(|field| is_chosen(field) && only.is_some_and(|only| field.name != only));
        unread.extend(passed.map(|field| Unread { name: field.name.clone(), reason: "is not asked for".into() }));
        let (columns, dictionaries, held) = (Vec::new(), Dictionaries::new(), HashMap::new());
        Ok((OpenFile { messages, schema, dictionaries, held, columns, rows: 0, next: 0, counted: 0 }, unread))
    }

    /// Reads the next batch; whether there is one.
    fn advance(&mut self, unread: &[Unread], read: &AtomicU64) -> Result<bool> {
        // They hold dictionaries, which may grow now.
        self.columns.clear();
        (self.rows, self.next) = (0, 0);
        while let Some(message) = self.messages.next()? {
            let passed = self.messages.passed();
            read.fetch_add(passed.saturating_sub(self.counted), Ordering::Relaxed);
            self.counted = passed.max(self.counted);
            match message.kind {
                DICTIONARY => self.dictionary(&message)?,
                BATCH => {
                    self.batch(&message, unread)?;
                    return Ok(true);
                }
                _ => {
                    return Err(self
                        .messages
                        .source
                        .damaged("it has a message that is neither a batch of rows nor a dictionary"));
                }
            }
        }
        read.fetch_add(self.messages.source.length.saturating_sub(self.counted), Ordering::Relaxed);
        Ok(false)
    }

    fn batch(&mut self, message: &Message, unread: &[Unread]) -> Result<()> {
        let source = &self.messages.source;
        let table = message.table().map_err(|error| source.broken(error))?;
        let mut decoder = Decoder::new(source, &table, (message.body.clone(), message.is_old), &self.dictionaries)?;
        if decoder.rows > MAX_BATCH_ROWS {
            let reason = format!("a batch has {} rows, the limit is {MAX_BATCH_ROWS}", decoder.rows);
            return Err(source.refused(reason, "write smaller batches"));
        }
        for field in &self.schema.fields {
            if unread.iter().any(|column| column.name == field.name) {
                decoder.skip(field)?;
                self.columns.push(None);
                continue;
            }
            let array = decoder.array(field)?;
            if array.length != decoder.rows {
                return Err(source.damaged(format!(
                    "column {:?} has {} of {} rows",
                    super::record::shorten(&field.name),
                    array.length,
                    decoder.rows
                )));
            }
            self.columns.push(Some(array));
        }
        (self.rows, self.next) = (decoder.rows, 0);
        Ok(())
    }

    /// Takes a dictionary, or more values of one.
    fn dictionary(&mut self, message: &Message) -> Result<()> {
        let source = &self.messages.source;
        let broken = |error| source.broken(error);
        let table = message.table().map_err(broken)?;
        let (id, is_more) = (table.int64(0).map_err(broken)?, table.flag(2).map_err(broken)?);
        let field = of_dictionary(&self.schema.fields, id).ok_or_else(|| source.broken(Broken))?;
        if field.unread().is_some() {
            return Ok(());
        }
        let values = table.table(1).map_err(broken)?.ok_or_else(|| source.broken(Broken))?;
        let body = (message.body.clone(), message.is_old);
        let values_field = Field { dictionary: None, ..field.clone() };
        let mut decoder = Decoder::new(source, &values, body, &self.dictionaries)?;
        // All dictionaries are in memory at once; one that is not added to takes the place of another.
        let others = self.held.iter().filter(|(own, _)| is_more || **own != id).map(|(_, bytes)| bytes).sum();
        decoder.count(others)?;
        let array = decoder.array(&values_field)?;
        let bytes = decoder.counted().saturating_sub(others);
        let held = self.held.entry(id).or_default();
        *held = if is_more { held.saturating_add(bytes) } else { bytes };
        match self.dictionaries.get_mut(&id).filter(|_| is_more) {
            // Nothing else holds the parts between batches but a dictionary of dictionaries.
            Some(parts) => match Arc::get_mut(parts) {
                Some(parts) => parts.push(array),
                None => return Err(source.refused("a dictionary inside of another grows", "write it again")),
            },
            None => drop(self.dictionaries.insert(id, Arc::new(vec![array]))),
        }
        Ok(())
    }

    /// A row of the present batch. The inner error is about the row alone.
    fn row(&self, at: usize, number: u64, most: usize) -> Result<std::result::Result<Map<String, Value>, Flaw>> {
        let source = &self.messages.source;
        let (mut fields, mut room) = (Map::new(), Room { left: most });
        for (field, column) in self.schema.fields.iter().zip(&self.columns) {
            let Some(column) = column else { continue };
            let flaw = |reason: String, fix: &str| {
                let place = format!("{}, row {number}", source.path.display());
                let name = super::record::shorten(&field.name);
                Ok(Err(Error::data(place, format!("the value in column {name:?} {reason}"), fix)))
            };
            let fix = "correct the text, or leave the row out";
            match column.value(at, &mut room) {
                Ok(value) => drop(fields.insert(field.name.clone(), value)),
                Err(Fault::Broken) => return Err(source.damaged("values are outside of their batch")),
                Err(Fault::TooLong) => {
                    return flaw(format!("makes the row longer than {most} bytes"), "split it into shorter ones");
                }
                Err(Fault::NoText(byte)) => {
                    return flaw(format!("has the byte 0x{byte:02X}, which is not UTF-8 text"), fix);
                }
                Err(Fault::NoJson(reason)) => return flaw(format!("is not JSON: {reason}"), fix),
            }
        }
        Ok(Ok(fields))
    }
}

/// The error for two columns, or two fields of a structure, with one name.
fn twice(source: &Source, name: &str) -> Error {
    let reason = format!("it has two columns named {:?}", super::record::shorten(name));
    source.refused(reason, "give every column its own name")
}

/// The field whose values are numbers of a dictionary.
fn of_dictionary(fields: &[Field], id: i64) -> Option<&Field> {
    fields.iter().find_map(|field| match field.dictionary {
        Some((own, _)) if own == id => Some(field),
        _ => of_dictionary(&field.children, id),
    })
}

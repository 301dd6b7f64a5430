//! The columns of a Parquet file whose values are texts, numbers and truth values, and lists and structures of them.
//!
//! Defines [`choose`] and [`Column`], which reads one row's value after the other.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::Result as ParquetResult;
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type};
use serde_json::Value;

use super::Wanted;
use super::nested::{Builder, Entries, Node};
use super::pages::{MAX_ROW_VALUES, Pages};
use crate::io::record::{Unread, list};
use crate::{Error, Result};

/// Type of a leaf's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Text that is JSON, whose value counts.
    Json,
    Signed,
    Unsigned,
    Float,
    Flag,
}

/// A column, and what of it is left in the row group being read.
pub(super) struct Column {
    name: String,
    pub(super) node: Node,
    leaves: Vec<Leaf>,
    /// Number of values that the pages of the present row may still have, of all leaves together.
    left: Arc<AtomicU64>,
}

/// A column of values in the file.
pub(super) struct Leaf {
    /// Its number among all of the file.
    pub(super) number: usize,
    descriptor: ColumnDescPtr,
    kind: Kind,
    reader: Option<ColumnReader>,
    /// The column's.
    left: Arc<AtomicU64>,
}

/// A value of a leaf.
#[derive(Debug, PartialEq)]
pub(super) enum Cell {
    /// A number or a truth value.
    Value(Value),
    /// The bytes of a text.
    Text(ByteArray),
    /// The bytes of a text that is JSON.
    Json(ByteArray),
}

/// The columns that are wanted, and those that have no plain value.
///
/// Errors: a text is wanted from a column that is missing, or that has another type.
pub(super) fn choose(
    path: &Path,
    schema: &SchemaDescriptor,
    (wanted, is_arrow): (Wanted<'_>, bool),
) -> Result<(Vec<Column>, Vec<Unread>)> {
    let (mut columns, mut unread, mut first) = (Vec::new(), Vec::new(), 0);
    let mut names = BTreeSet::new();
    for field in schema.root_schema().get_fields() {
        if !names.insert(field.name()) {
            return Err(twice(path, field.name()));
        }
        let count = leaves(field);
        let numbers = first..first + count;
        first += count;
        let mut builder = Builder { kinds: Vec::new(), is_arrow };
        let left: Arc<AtomicU64> = Arc::default();
        match builder.node(field, 0, 0) {
            Ok(node) => {
                let leaves = numbers.zip(builder.kinds).map(|(number, kind)| Leaf {
                    number,
                    descriptor: schema.column(number),
                    kind,
                    reader: None,
                    left: Arc::clone(&left),
                });
                let leaves = leaves.collect();
                columns.push(Column { name: field.name().to_owned(), node, leaves, left: Arc::clone(&left) });
            }
            Err((place, kind)) if place == field.name() => {
                unread.push(Unread { name: place, reason: format!("is of type {kind}") });
            }
            Err((place, kind)) => {
                unread.push(Unread { name: field.name().to_owned(), reason: format!("has {kind} in {place}") });
            }
        }
    }
    if let Some(text) = wanted.text {
        if !columns.iter().any(|column| column.name == text && column.is_text()) {
            return Err(no_text(path, schema, &columns, text));
        }
        columns.retain(|column| wanted.others || column.name == text);
    }
    Ok((columns, unread))
}

/// The error for two columns, or two fields of a structure, with one name.
fn twice(path: &Path, name: &str) -> Error {
    let reason = format!("it has two columns named {:?}", list(&[name]));
    Error::data(path.display().to_string(), reason, "give every column its own name")
}

/// Columns of values under a field.
fn leaves(field: &Type) -> usize {
    if field.is_primitive() { 1 } else { field.get_fields().iter().map(|inner| leaves(inner)).sum() }
}

fn no_text(path: &Path, schema: &SchemaDescriptor, columns: &[Column], text: &str) -> Error {
    let fields = schema.root_schema().get_fields();
    let texts: Vec<&str> = columns.iter().filter(|c| c.is_text()).map(Column::name).collect();
    let texts = format!("name a column of text; there are: {}", list(&texts));
    let (place, shown) = (path.display().to_string(), list(&[text]));
    let field = fields.iter().find(|field| field.name() == text);
    if let Some(field) = field {
        let is_single = field.is_primitive() && field.get_basic_info().repetition() != Repetition::REPEATED;
        let kind = if is_single {
            format!("of type {:?}, not text", field.get_physical_type())
        } else {
            "nested: a list, a map or a structure".into()
        };
        return Error::data(place, format!("the column \"{shown}\" is {kind}"), texts);
    }
    let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
    let outer = text.split_once('.').map(|(outer, _)| outer).filter(|outer| names.contains(outer));
    if let Some(outer) = outer {
        let reason = format!(
            "\"{shown}\" names a part of the column {outer:?}, and documents are read from a column of single texts"
        );
        return Error::data(place, reason, texts);
    }
    Error::data(place, format!("no column \"{shown}\"; columns: {}", list(&names)), texts)
}

/// Type of a leaf's values, or the name of a type that has no plain value in JSON. Writers of Arrow mark every text.
pub(super) fn kind(field: &Type, is_arrow: bool) -> Result<Kind, String> {
    let info = field.get_basic_info();
    let (logical, converted) = (info.logical_type_ref(), info.converted_type());
    match logical {
        Some(LogicalType::Decimal { .. }) => return Err("decimal".into()),
        Some(LogicalType::Date) => return Err("date".into()),
        Some(LogicalType::Time { .. }) => return Err("time".into()),
        Some(LogicalType::Timestamp { .. }) => return Err("timestamp".into()),
        _ => {}
    }
    match converted {
        ConvertedType::DECIMAL => return Err("decimal".into()),
        ConvertedType::DATE => return Err("date".into()),
        ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS => return Err("time".into()),
        ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS => return Err("timestamp".into()),
        _ => {}
    }
    match field.get_physical_type() {
        Physical::BYTE_ARRAY => match converted {
            ConvertedType::JSON => Ok(Kind::Json),
            ConvertedType::NONE if is_arrow && logical.is_none() => Err("binary".into()),
            // Old writers of texts state no type.
            ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM => Ok(Kind::Text),
            _ => Err("binary".into()),
        },
        Physical::INT32 | Physical::INT64 => Ok(match converted {
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64 => {
                Kind::Unsigned
            }
            _ => Kind::Signed,
        }),
        Physical::FLOAT | Physical::DOUBLE => Ok(Kind::Float),
        Physical::BOOLEAN => Ok(Kind::Flag),
        Physical::INT96 => Err("timestamp (INT96)".into()),
        Physical::FIXED_LEN_BYTE_ARRAY => Err("fixed-size binary".into()),
    }
}

impl Column {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is one of single texts.
    fn is_text(&self) -> bool {
        matches!((&self.node, self.leaves.as_slice()), (Node::Leaf { .. }, [Leaf { kind: Kind::Text, .. }]))
    }

    pub(super) fn leaves(&mut self) -> &mut [Leaf] {
        &mut self.leaves
    }

    /// Whether values are left that no row was read for; there are none afterwards.
    pub(super) fn close(&mut self) -> ParquetResult<bool> {
        let mut is_left = false;
        self.left.store(MAX_ROW_VALUES, Ordering::Relaxed);
        for leaf in &mut self.leaves {
            is_left |= leaf.reader.is_some() && leaf.read()?.is_some();
            leaf.reader = None;
        }
        Ok(is_left)
    }

    /// The entries of the next row, of each leaf; `None` after the last of the row group. One row at a time: texts that
    /// are stored as differences can be as long as a page each.
    pub(super) fn read(&mut self) -> ParquetResult<Option<Vec<Entries>>> {
        self.left.store(MAX_ROW_VALUES, Ordering::Relaxed);
        self.leaves.iter_mut().map(Leaf::read).collect()
    }
}

impl Leaf {
    /// Whether a row may have no value, and whether it may have several.
    pub(super) fn levels(&self) -> (bool, bool) {
        (self.descriptor.max_def_level() > 0, self.descriptor.max_rep_level() > 0)
    }

    /// Begins with the pages of a row group.
    pub(super) fn open(&mut self, pages: Pages) {
        let pages = pages.counting(Arc::clone(&self.left));
        self.reader = Some(get_column_reader(Arc::clone(&self.descriptor), Box::new(pages)));
    }

    fn read(&mut self) -> ParquetResult<Option<Entries>> {
        let (is_unsigned, is_json) = (self.kind == Kind::Unsigned, self.kind == Kind::Json);
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let text = |text| if is_json { Cell::Json(text) } else { Cell::Text(text) };
        match reader {
            ColumnReader::ByteArrayColumnReader(reader) => row(reader, text),
            ColumnReader::Int32ColumnReader(reader) => row(reader, |number: i32| {
                Cell::Value(if is_unsigned { number.cast_unsigned().into() } else { number.into() })
            }),
            ColumnReader::Int64ColumnReader(reader) => row(reader, |number: i64| {
                Cell::Value(if is_unsigned { number.cast_unsigned().into() } else { number.into() })
            }),
            ColumnReader::FloatColumnReader(reader) => row(reader, |number: f32| Cell::Value(f64::from(number).into())),
            ColumnReader::DoubleColumnReader(reader) => row(reader, |number: f64| Cell::Value(number.into())),
            ColumnReader::BoolColumnReader(reader) => row(reader, |flag: bool| Cell::Value(flag.into())),
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => Ok(None),
        }
    }
}

/// The entries of the next row; `None` at the end.
fn row<T: DataType>(reader: &mut ColumnReaderImpl<T>, cell: impl Fn(T::T) -> Cell) -> ParquetResult<Option<Entries>> {
    let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (rows, _, levels) = reader.read_records(1, Some(&mut defined), Some(&mut repeated), &mut values)?;
    if rows == 0 {
        return Ok(None);
    }
    // Without optional fields on the way there are no levels.
    if defined.is_empty() {
        defined = vec![0; levels.max(values.len())];
    }
    let cells = values.into_iter().map(cell).collect::<Vec<_>>().into_iter();
    Ok(Some(Entries { defined, repeated, cells, next: 0 }))
}

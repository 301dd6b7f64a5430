//! The columns of a Parquet file whose values are single texts, numbers and truth values.
//!
//! Defines [`choose`] and [`Column`], which reads one value after the other.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::Result as ParquetResult;
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use serde_json::Value;

use super::Wanted;
use super::pages::Pages;
use crate::data::io::record::list;
use crate::{Error, Result};

/// What is in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Signed,
    Unsigned,
    Float,
    Flag,
}

/// A column, and the values of it that are left in the row group being read.
pub(super) struct Column {
    name: String,
    leaf: usize,
    descriptor: ColumnDescPtr,
    kind: Kind,
    reader: Option<ColumnReader>,
}

/// A value of a column.
#[derive(Debug, PartialEq)]
pub(super) enum Cell {
    /// A number, a truth value or nothing.
    Value(Value),
    /// The bytes of a text.
    Text(ByteArray),
}

/// The columns that are wanted.
///
/// Errors: a text is wanted from a column that is missing, or that has another type.
pub(super) fn choose(path: &Path, schema: &SchemaDescriptor, wanted: Wanted<'_>) -> Result<Vec<Column>> {
    let columns = schema.columns().iter().enumerate().filter_map(|(leaf, descriptor)| {
        let [name] = descriptor.path().parts() else { return None };
        let kind = kind(descriptor)?;
        Some(Column { name: name.clone(), leaf, descriptor: Arc::clone(descriptor), kind, reader: None })
    });
    let mut columns: Vec<Column> = columns.collect();
    if let Some(text) = wanted.text {
        if !columns.iter().any(|column| column.name == text && column.kind == Kind::Text) {
            return Err(no_text(path, schema, &columns, text));
        }
        columns.retain(|column| wanted.others || column.name == text);
    }
    Ok(columns)
}

fn no_text(path: &Path, schema: &SchemaDescriptor, columns: &[Column], text: &str) -> Error {
    let fields = schema.root_schema().get_fields();
    let texts: Vec<&str> = columns.iter().filter(|c| c.kind == Kind::Text).map(Column::name).collect();
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
        let reason = format!("\"{shown}\" names a part of the column {outer:?}, and nested columns are not read");
        return Error::data(place, reason, texts);
    }
    Error::data(place, format!("no column \"{shown}\"; columns: {}", list(&names)), texts)
}

/// What is in a column of single values; `None` for what has no plain value in JSON.
fn kind(descriptor: &ColumnDescPtr) -> Option<Kind> {
    if descriptor.max_rep_level() > 0 {
        return None;
    }
    let logical = descriptor.logical_type_ref();
    let converted = descriptor.converted_type();
    if converted == ConvertedType::DECIMAL || matches!(logical, Some(LogicalType::Decimal { .. })) {
        return None;
    }
    match descriptor.physical_type() {
        Type::BYTE_ARRAY => {
            let is_text = matches!(
                converted,
                ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
            );
            is_text.then_some(Kind::Text)
        }
        Type::INT32 | Type::INT64 => Some(match converted {
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64 => {
                Kind::Unsigned
            }
            _ => Kind::Signed,
        }),
        Type::FLOAT | Type::DOUBLE => Some(Kind::Float),
        Type::BOOLEAN => Some(Kind::Flag),
        Type::INT96 | Type::FIXED_LEN_BYTE_ARRAY => None,
    }
}

impl Column {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its number among all columns that have values.
    pub(super) fn leaf(&self) -> usize {
        self.leaf
    }

    /// Whether a row may have no value.
    pub(super) fn is_optional(&self) -> bool {
        self.descriptor.max_def_level() > 0
    }

    /// Begins with the pages of a row group.
    pub(super) fn open(&mut self, pages: Pages) {
        self.reader = Some(get_column_reader(Arc::clone(&self.descriptor), Box::new(pages)));
    }

    /// Whether values are left that no row was read for; there are none afterwards.
    pub(super) fn close(&mut self) -> ParquetResult<bool> {
        let is_left = self.reader.is_some() && self.read()?.is_some();
        self.reader = None;
        Ok(is_left)
    }

    /// The next value; `None` after the last of the row group. One at a time: texts that are stored as differences can
    /// be as long as a page each.
    pub(super) fn read(&mut self) -> ParquetResult<Option<Cell>> {
        let is_unsigned = self.kind == Kind::Unsigned;
        let Some(reader) = &mut self.reader else { return Ok(None) };
        Ok(match reader {
            ColumnReader::ByteArrayColumnReader(reader) => one(reader)?.map(|text| text.map(Cell::Text)),
            ColumnReader::Int32ColumnReader(reader) => {
                value(
                    one(reader)?,
                    |number: i32| {
                        if is_unsigned { number.cast_unsigned().into() } else { number.into() }
                    },
                )
            }
            ColumnReader::Int64ColumnReader(reader) => {
                value(
                    one(reader)?,
                    |number: i64| {
                        if is_unsigned { number.cast_unsigned().into() } else { number.into() }
                    },
                )
            }
            // As 0.1 is meant by a float that is next to 0.1.
            ColumnReader::FloatColumnReader(reader) => {
                value(one(reader)?, |number: f32| number.to_string().parse::<f64>().map_or(Value::Null, Value::from))
            }
            ColumnReader::DoubleColumnReader(reader) => value(one(reader)?, |number: f64| number.into()),
            ColumnReader::BoolColumnReader(reader) => value(one(reader)?, |flag: bool| flag.into()),
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => None,
        }
        .map(|cell| cell.unwrap_or(Cell::Value(Value::Null))))
    }
}

fn value<T>(read: Option<Option<T>>, value: impl FnOnce(T) -> Value) -> Option<Option<Cell>> {
    read.map(|read| read.map(|read| Cell::Value(value(read))))
}

/// The next value, or that there is none in this row; `None` at the end.
fn one<T: DataType>(reader: &mut ColumnReaderImpl<T>) -> ParquetResult<Option<Option<T::T>>> {
    let (mut levels, mut values) = (Vec::with_capacity(1), Vec::with_capacity(1));
    let (rows, _, _) = reader.read_records(1, Some(&mut levels), None, &mut values)?;
    Ok((rows > 0).then(|| values.pop()))
}

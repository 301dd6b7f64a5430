//! Metadata of a GGUF file: keys with typed values.
//!
//! Defines [`GgufValue`], [`GgufArray`] and [`Metadata`]; read by [`super::header`], asked by [`super::decoder`] and
//! [`crate::tokenizer::gguf`].

use super::cursor::Cursor;
use super::{damaged, key_place};
use crate::{Error, Result};
use model_center_base::file::printable;

/// Deeper than any real array of arrays; each level is a call of the parser.
const MAX_DEPTH: usize = 8;
/// More keys than any real file has (a few dozen).
const MAX_KEYS: u64 = 65_536;
/// The longest key the format allows.
const KEY_BYTES: usize = 65_535;
const ARRAY: u32 = 9;

/// One value, of the type it is stored in.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(Box<str>),
    Array(GgufArray),
}

/// Values of one type; arrays may hold arrays.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<Box<str>>),
    Arrays(Vec<GgufArray>),
}

impl GgufValue {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        Ok(match cursor.u32()? {
            0 => Self::U8(u8::from_le_bytes(cursor.bytes()?)),
            1 => Self::I8(i8::from_le_bytes(cursor.bytes()?)),
            2 => Self::U16(u16::from_le_bytes(cursor.bytes()?)),
            3 => Self::I16(i16::from_le_bytes(cursor.bytes()?)),
            4 => Self::U32(cursor.u32()?),
            5 => Self::I32(i32::from_le_bytes(cursor.bytes()?)),
            6 => Self::F32(f32::from_le_bytes(cursor.bytes()?)),
            7 => Self::Bool(cursor.truth()?),
            8 => Self::Text(cursor.text()?),
            ARRAY => Self::Array(GgufArray::read(cursor, 0)?),
            10 => Self::U64(cursor.u64()?),
            11 => Self::I64(i64::from_le_bytes(cursor.bytes()?)),
            12 => Self::F64(f64::from_le_bytes(cursor.bytes()?)),
            other => return Err(cursor.bad(format_args!("unknown type of value {other}, the last is 12"))),
        })
    }

    /// Whether it is zero, false or empty, or an array of such values.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Self::U8(n) => *n == 0,
            Self::I8(n) => *n == 0,
            Self::U16(n) => *n == 0,
            Self::I16(n) => *n == 0,
            Self::U32(n) => *n == 0,
            Self::I32(n) => *n == 0,
            Self::U64(n) => *n == 0,
            Self::I64(n) => *n == 0,
            Self::F32(n) => *n == 0.0,
            Self::F64(n) => *n == 0.0,
            Self::Bool(truth) => !truth,
            Self::Text(text) => text.is_empty(),
            Self::Array(array) => array.is_zero(),
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "a text",
            Self::Array(_) => "an array",
            Self::F32(_) | Self::F64(_) => "a number with a fraction",
            _ => "a whole number",
        }
    }
}

impl GgufArray {
    fn is_zero(&self) -> bool {
        fn all<T: Default + PartialEq>(values: &[T]) -> bool {
            values.iter().all(|value| *value == T::default())
        }
        match self {
            Self::U8(values) => all(values),
            Self::I8(values) => all(values),
            Self::U16(values) => all(values),
            Self::I16(values) => all(values),
            Self::U32(values) => all(values),
            Self::I32(values) => all(values),
            Self::U64(values) => all(values),
            Self::I64(values) => all(values),
            Self::F32(values) => all(values),
            Self::F64(values) => all(values),
            Self::Bool(values) => all(values),
            Self::Text(values) => all(values),
            Self::Arrays(arrays) => arrays.iter().all(Self::is_zero),
        }
    }

    fn read(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self> {
        if depth == MAX_DEPTH {
            return Err(cursor.bad(format_args!("arrays are nested more than {MAX_DEPTH} deep")));
        }
        let (kind, count) = (cursor.u32()?, cursor.u64()?);
        Ok(match kind {
            0 => Self::U8(cursor.numbers(count, u8::from_le_bytes)?),
            1 => Self::I8(cursor.numbers(count, i8::from_le_bytes)?),
            2 => Self::U16(cursor.numbers(count, u16::from_le_bytes)?),
            3 => Self::I16(cursor.numbers(count, i16::from_le_bytes)?),
            4 => Self::U32(cursor.numbers(count, u32::from_le_bytes)?),
            5 => Self::I32(cursor.numbers(count, i32::from_le_bytes)?),
            6 => Self::F32(cursor.numbers(count, f32::from_le_bytes)?),
            7 => Self::Bool(cursor.list((count, 1), "truth values", Cursor::truth)?),
            8 => Self::Text(cursor.list((count, 8), "texts", Cursor::text)?),
            ARRAY => Self::Arrays(cursor.list((count, 12), "arrays", |cursor| Self::read(cursor, depth + 1))?),
            10 => Self::U64(cursor.numbers(count, u64::from_le_bytes)?),
            11 => Self::I64(cursor.numbers(count, i64::from_le_bytes)?),
            12 => Self::F64(cursor.numbers(count, f64::from_le_bytes)?),
            other => return Err(cursor.bad(format_args!("unknown type of value {other}, the last is 12"))),
        })
    }
}

/// The keys of a file and their values. Asking for a key of another type is an error that names the key.
#[derive(Debug)]
pub struct Metadata {
    place: String,
    /// Sorted by key.
    entries: Vec<(Box<str>, GgufValue)>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        if count > MAX_KEYS {
            return Err(cursor.bad(format_args!("{count} keys are declared, more than the {MAX_KEYS} that are read")));
        }
        let mut entries = cursor.list((count, 13), "keys", |cursor| {
            let key = cursor.text()?;
            if key.is_empty() || key.len() > KEY_BYTES || key.chars().any(char::is_control) {
                return Err(cursor.bad("a key is empty, too long or has control characters in it"));
            }
            Ok((key, GgufValue::read(cursor)?))
        })?;
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(damaged(key_place(cursor.place(), &pair[0].0), "the key appears twice in the file"));
        }
        Ok(Self { place: cursor.place().to_string(), entries })
    }

    /// All keys and values, sorted by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.entries.binary_search_by(|(known, _)| (**known).cmp(key)).ok().map(|at| &self.entries[at].1)
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.ask(key, "a text", |value| match value {
            GgufValue::Text(text) => Some(&**text),
            _ => None,
        })
    }

    /// A whole number, not below zero, of any stored width.
    pub fn whole(&self, key: &str) -> Result<Option<u64>> {
        self.ask(key, "a whole number from 0", |value| match *value {
            GgufValue::U8(n) => Some(n.into()),
            GgufValue::U16(n) => Some(n.into()),
            GgufValue::U32(n) => Some(n.into()),
            GgufValue::U64(n) => Some(n),
            GgufValue::I8(n) => n.try_into().ok(),
            GgufValue::I16(n) => n.try_into().ok(),
            GgufValue::I32(n) => n.try_into().ok(),
            GgufValue::I64(n) => n.try_into().ok(),
            _ => None,
        })
    }

    /// A finite number; one stored in double precision is rounded.
    pub fn real(&self, key: &str) -> Result<Option<f32>> {
        self.ask(key, "a finite number", |value| {
            match *value {
                GgufValue::F32(number) => Some(number),
                GgufValue::F64(number) => Some(number as f32),
                _ => None,
            }
            .filter(|number| number.is_finite())
        })
    }

    /// A truth value.
    pub fn truth(&self, key: &str) -> Result<Option<bool>> {
        self.ask(key, "a truth value", |value| match value {
            GgufValue::Bool(truth) => Some(*truth),
            _ => None,
        })
    }

    /// An array of texts.
    pub fn texts(&self, key: &str) -> Result<Option<&[Box<str>]>> {
        self.ask(key, "an array of texts", |value| match value {
            GgufValue::Array(GgufArray::Text(texts)) => Some(&**texts),
            _ => None,
        })
    }

    /// An array of whole numbers of four bytes with a sign.
    pub fn wholes(&self, key: &str) -> Result<Option<&[i32]>> {
        self.ask(key, "an array of 32-bit whole numbers", |value| match value {
            GgufValue::Array(GgufArray::I32(numbers)) => Some(&**numbers),
            _ => None,
        })
    }

    /// The error for a key that is needed and not there.
    pub(crate) fn lacking(&self, key: &str) -> Error {
        let reason = "the file does not specify it, and the model cannot be built without it";
        let fix = "convert the model to GGUF again with a current converter, or download another file of it";
        Error::model(key_place(&self.place, key), reason, fix)
    }

    pub(crate) fn place_of(&self, key: &str) -> String {
        key_place(&self.place, key)
    }

    /// The error for a value that cannot be used.
    pub(crate) fn unfit(&self, key: &str, reason: impl Into<String>, fix: &str) -> Error {
        Error::model(key_place(&self.place, key), reason, fix)
    }

    fn ask<'a, T>(&'a self, key: &str, want: &str, take: impl Fn(&'a GgufValue) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match take(value) {
            Some(found) => Ok(Some(found)),
            None => {
                let got = match value {
                    GgufValue::Array(_) => "an array".to_string(),
                    GgufValue::Text(text) => format!("the text \"{}\"", printable(text, 60)),
                    other => format!("{} ({other:?})", other.what()),
                };
                Err(self.unfit(key, format!("the value is {got}, expected {want}"), "convert the model to GGUF again"))
            }
        }
    }
}

//! The values of a field in a batch, and one of them as JSON.
//!
//! Defines [`Array`] and [`Room`]. Lengths and positions are checked where a value is taken.

use std::sync::Arc;

use half::f16;
use serde_json::{Map, Value};

/// The values of a field.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) length: usize,
    /// A bit for each value, set where there is one; `None` if there are all.
    pub(super) validity: Option<Vec<u8>>,
    pub(super) data: Data,
}

/// Values of an array.
#[derive(Debug)]
pub(super) enum Data {
    Null,
    Flags(Vec<u8>),
    Ints {
        bytes: Vec<u8>,
        width: usize,
        is_signed: bool,
    },
    Floats {
        bytes: Vec<u8>,
        width: usize,
    },
    Texts {
        offsets: Numbers,
        bytes: Vec<u8>,
        is_json: bool,
    },
    Views {
        views: Vec<u8>,
        buffers: Vec<Vec<u8>>,
        is_json: bool,
    },
    Lists {
        offsets: Numbers,
        items: Box<Array>,
    },
    /// Lists by where each begins and how long it is.
    Spans {
        offsets: Numbers,
        sizes: Numbers,
        items: Box<Array>,
    },
    FixedLists {
        size: usize,
        items: Box<Array>,
    },
    Structs(Vec<(String, Array)>),
    /// Numbers of values of a dictionary, which comes in parts.
    Indices {
        indices: Box<Array>,
        dictionary: Arc<Vec<Array>>,
    },
}

/// Whole numbers of four or eight bytes.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) bytes: Vec<u8>,
    pub(super) is_large: bool,
}

impl Numbers {
    fn get(&self, at: usize) -> Option<usize> {
        match self.is_large {
            true => usize::try_from(i64::from_le_bytes(chunk(&self.bytes, at)?)).ok(),
            false => usize::try_from(i32::from_le_bytes(chunk(&self.bytes, at)?)).ok(),
        }
    }

    /// From one to the next.
    fn range(&self, at: usize) -> Option<std::ops::Range<usize>> {
        let (start, end) = (self.get(at)?, self.get(at + 1)?);
        (start <= end).then_some(start..end)
    }
}

/// The bytes of number `at`, of `N` bytes each.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at.checked_mul(N)?..)?.first_chunk().copied()
}

fn bit(bytes: &[u8], at: usize) -> Option<bool> {
    bytes.get(at / 8).map(|byte| byte >> (at % 8) & 1 == 1)
}

/// Rest of a row that may still be made: a byte of text, or a value, counts one.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) left: usize,
}

/// Why a value cannot be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The file contradicts itself.
    Broken,
    /// The row is larger than allowed.
    TooLong,
    /// A text is not UTF-8, by its first wrong byte.
    NoText(u8),
    /// A text that is to be JSON is not.
    NoJson(String),
}

impl Room {
    fn take(&mut self, count: usize) -> Result<(), Fault> {
        self.left = self.left.checked_sub(count).ok_or(Fault::TooLong)?;
        Ok(())
    }
}

impl Array {
    /// Value `at` as JSON.
    pub(super) fn value(&self, at: usize, room: &mut Room) -> Result<Value, Fault> {
        room.take(1)?;
        if at >= self.length {
            return Err(Fault::Broken);
        }
        if let Some(validity) = &self.validity
            && !bit(validity, at).ok_or(Fault::Broken)?
        {
            return Ok(Value::Null);
        }
        self.present(at, room)
    }

    fn present(&self, at: usize, room: &mut Room) -> Result<Value, Fault> {
        Ok(match &self.data {
            Data::Null => Value::Null,
            Data::Flags(bits) => bit(bits, at).ok_or(Fault::Broken)?.into(),
            Data::Ints { is_signed, .. } => match (self.index(at).ok_or(Fault::Broken)?, is_signed) {
                (number, true) => number.into(),
                (number, false) => number.cast_unsigned().into(),
            },
            Data::Floats { bytes, width } => float(bytes, *width, at).ok_or(Fault::Broken)?,
            Data::Texts { offsets, bytes, is_json } => {
                let range = offsets.range(at).ok_or(Fault::Broken)?;
                text(bytes.get(range).ok_or(Fault::Broken)?, *is_json, room)?
            }
            Data::Views { views, buffers, is_json } => {
                text(view(views, buffers, at).ok_or(Fault::Broken)?, *is_json, room)?
            }
            Data::Lists { offsets, items } => list(items, offsets.range(at).ok_or(Fault::Broken)?, room)?,
            Data::Spans { offsets, sizes, items } => {
                let (Some(start), Some(size)) = (offsets.get(at), sizes.get(at)) else { return Err(Fault::Broken) };
                list(items, start..start.checked_add(size).ok_or(Fault::Broken)?, room)?
            }
            Data::FixedLists { size, items } => {
                let start = at.checked_mul(*size).ok_or(Fault::Broken)?;
                list(items, start..start.checked_add(*size).ok_or(Fault::Broken)?, room)?
            }
            Data::Structs(fields) => {
                let mut object = Map::new();
                for (name, field) in fields {
                    room.take(name.len())?;
                    object.insert(name.clone(), field.value(at, room)?);
                }
                Value::Object(object)
            }
            Data::Indices { indices, dictionary } => {
                let mut index = indices.index(at).and_then(|index| usize::try_from(index).ok()).ok_or(Fault::Broken)?;
                for part in dictionary.iter() {
                    if index < part.length {
                        return part.value(index, room);
                    }
                    index -= part.length;
                }
                return Err(Fault::Broken);
            }
        })
    }

    /// Whole number `at`; of unsigned ones of eight bytes their bits.
    fn index(&self, at: usize) -> Option<i64> {
        let Data::Ints { bytes, width, is_signed } = &self.data else { return None };
        Some(match (width, is_signed) {
            (1, true) => i64::from(i8::from_le_bytes(chunk(bytes, at)?)),
            (1, false) => i64::from(u8::from_le_bytes(chunk(bytes, at)?)),
            (2, true) => i64::from(i16::from_le_bytes(chunk(bytes, at)?)),
            (2, false) => i64::from(u16::from_le_bytes(chunk(bytes, at)?)),
            (4, true) => i64::from(i32::from_le_bytes(chunk(bytes, at)?)),
            (4, false) => i64::from(u32::from_le_bytes(chunk(bytes, at)?)),
            _ => i64::from_le_bytes(chunk(bytes, at)?),
        })
    }
}

fn float(bytes: &[u8], width: usize, at: usize) -> Option<Value> {
    Some(match width {
        2 => f64::from(f16::from_le_bytes(chunk(bytes, at)?)).into(),
        4 => f64::from(f32::from_le_bytes(chunk(bytes, at)?)).into(),
        _ => f64::from_le_bytes(chunk(bytes, at)?).into(),
    })
}

fn text(bytes: &[u8], is_json: bool, room: &mut Room) -> Result<Value, Fault> {
    room.take(bytes.len())?;
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Fault::NoText(bytes.get(error.valid_up_to()).copied().unwrap_or_default()))?;
    match is_json {
        true => serde_json::from_str(text).map_err(|error| Fault::NoJson(error.to_string())),
        false => Ok(text.into()),
    }
}

/// The bytes that a view of 16 bytes has, or points to: a length, then up to twelve bytes, or four of them, the number
/// of a buffer and the place in it.
fn view<'a>(views: &'a [u8], buffers: &'a [Vec<u8>], at: usize) -> Option<&'a [u8]> {
    let start = at.checked_mul(16)?;
    let view = views.get(start..start.checked_add(16)?)?;
    let number = |at: usize| usize::try_from(i32::from_le_bytes(chunk(view, at)?)).ok();
    let length = number(0)?;
    if length <= 12 {
        return view.get(4..4 + length);
    }
    let start = number(3)?;
    buffers.get(number(2)?)?.get(start..start.checked_add(length)?)
}

fn list(items: &Array, range: std::ops::Range<usize>, room: &mut Room) -> Result<Value, Fault> {
    if range.end > items.length {
        return Err(Fault::Broken);
    }
    if range.len() > room.left {
        return Err(Fault::TooLong);
    }
    range.map(|at| items.value(at, room)).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

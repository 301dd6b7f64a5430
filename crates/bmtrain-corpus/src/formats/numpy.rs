//! Token ids in pickles: lists of numbers, arrays of NumPy, and dictionaries with one of these.
//!
//! Defines [`Pickled`], which reads them, and what writes them. Called by `npy_shards` and `blocks`.

use crate::Error;
use crate::Result;
use model_center_base::file::printable;
use model_center_data::corpus::positioned::PositionedFile;
use model_center_formats::pickle::{Id, PlainPickle, Value, opcode};

/// Stored integers are read in pieces of this many bytes.
const PIECE: u64 = 1 << 16;

/// A pickle with the file that it is in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pickled<'a> {
    pub(super) file: &'a PositionedFile,
    pub(super) pickle: &'a PlainPickle,
}

/// Reads the pickle at byte `start` of a file; where it ends.
pub(super) fn read_pickle(file: &PositionedFile, start: u64, end: u64) -> Result<(PlainPickle, u64)> {
    let read = PlainPickle::read(file.path(), file.file(), start, end);
    read.map_err(|error| match model_center_formats::io::input::of_data(error) {
        Error::Data { place, reason, .. } => {
            Error::data(place, reason, "write the corpus again, with lists or arrays of token ids alone")
        }
        other => other,
    })
}

/// An array of NumPy.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) shape: Vec<u64>,
    pub(super) data: ArrayData,
}

/// Values of an array.
#[derive(Debug)]
pub(super) enum ArrayData {
    /// Integers at a position of the file.
    Integers { at: u64, integer: StoredInteger },
    /// A list of objects.
    Objects(Id),
}

/// Storage of an integer of NumPy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredInteger {
    signed: bool,
    pub(super) bytes: u64,
    big_endian: bool,
}

impl StoredInteger {
    /// The type of a name such as `u2`, `<u2` or `>i8`; `None` for anything but integers.
    pub(super) fn of(name: &str) -> Option<StoredInteger> {
        let (big_endian, name) = match name.as_bytes().first()? {
            b'>' => (true, &name[1..]),
            b'<' | b'|' | b'=' => (false, &name[1..]),
            _ => (false, name),
        };
        let signed = name.starts_with('i');
        let bytes = match name.strip_prefix(['i', 'u'])? {
            "1" => 1,
            "2" => 2,
            "4" => 4,
            "8" => 8,
            _ => return None,
        };
        Some(StoredInteger { signed, bytes, big_endian })
    }

    fn value(self, stored: &[u8]) -> i64 {
        let mut wide = [0; 8];
        for (at, byte) in stored.iter().enumerate() {
            wide[if self.big_endian { stored.len() - 1 - at } else { at }] = *byte;
        }
        let value = i64::from_le_bytes(wide);
        let unused = 64 - 8 * stored.len() as u32;
        // An unsigned number of 8 bytes above all others turns negative, which is refused like any negative one.
        if self.signed { value << unused >> unused } else { value }
    }
}

/// Appends `count` integers of a file to `ids`.
pub(super) fn read_integers(
    file: &PositionedFile,
    at: u64,
    count: u64,
    integer: StoredInteger,
    ids: &mut Vec<u32>,
) -> Result<()> {
    let bytes =
        count.checked_mul(integer.bytes).filter(|bytes| at.checked_add(*bytes).is_some_and(|e| e <= file.length()));
    let Some(bytes) = bytes else {
        return Err(
            file.corrupt(format!("an array of {count} integers at byte {at}, and the file has {}", file.length()))
        );
    };
    let mut buffer = vec![0; bytes.min(PIECE) as usize];
    let mut done = 0;
    while done < bytes {
        let part = &mut buffer[..(bytes - done).min(PIECE) as usize];
        file.read_at(at + done, part)?;
        for stored in part.chunks_exact(integer.bytes as usize) {
            let value = integer.value(stored);
            ids.push(u32::try_from(value).map_err(|_| file.corrupt(format!("the number {value} is not a token id")))?);
        }
        done += part.len() as u64;
    }
    Ok(())
}

impl Pickled<'_> {
    fn wrong(&self, what: &str, id: Id) -> Error {
        self.file.corrupt(format!("{what} is {}", printable(&self.pickle.describe(id), 120)))
    }

    /// The ids of a document: a list or tuple of numbers, an array of integers, or a dictionary with one of these under
    /// `key`.
    pub(super) fn ids(&self, id: Id, key: &str, ids: &mut Vec<u32>) -> Result<()> {
        let id = match self.pickle.is_dict(id) {
            true => self.pickle.get(id, key).ok_or_else(|| {
                let reason = format!("a record is a dictionary without {key:?}");
                Error::data(self.file.path().display().to_string(), reason, "name the key of the token ids with --key")
            })?,
            false => id,
        };
        if let Some(members) = self.pickle.members(id) {
            ids.reserve(members.len());
            for member in members {
                ids.push(self.number(*member)?);
            }
            return Ok(());
        }
        match self.array(id) {
            Some(Array { shape, data: ArrayData::Integers { at, integer } }) if shape.len() == 1 => {
                read_integers(self.file, at, shape[0], integer, ids)
            }
            Some(Array { shape, data: ArrayData::Objects(list) }) if shape.len() == 1 => self.ids(list, key, ids),
            _ => Err(self.wrong("a document, in place of token ids,", id)),
        }
    }

    /// A number: one of Python, or one of NumPy.
    fn number(&self, id: Id) -> Result<u32> {
        let value = match self.pickle.integer(id) {
            Some(value) => value,
            None => {
                let scalar = match self.pickle.call(id) {
                    Some((module, "scalar", call)) if is_multiarray(module) => {
                        self.pickle.members(call.arguments).and_then(|arguments| {
                            let [dtype, data] = arguments else { return None };
                            Some((self.integer_type(*dtype)?, self.stretch(*data)?))
                        })
                    }
                    _ => None,
                };
                let Some((integer, (at, bytes))) = scalar.filter(|(integer, (_, bytes))| integer.bytes == *bytes)
                else {
                    return Err(self.wrong("a token id", id));
                };
                let mut stored = [0; 8];
                self.file.read_at(at, &mut stored[..bytes as usize])?;
                integer.value(&stored[..bytes as usize])
            }
        };
        u32::try_from(value).map_err(|_| self.file.corrupt(format!("the number {value} is not a token id")))
    }

    /// An array.
    pub(super) fn array(&self, id: Id) -> Option<Array> {
        let (module, name, call) = self.pickle.call(id)?;
        let (shape, dtype, data) = match name {
            "_reconstruct" if is_multiarray(module) => {
                let [_, shape, dtype, order, data] = self.pickle.members(call.state?)? else { return None };
                // In another order only one axis reads the same.
                let is_plain = !matches!(self.pickle.value(*order), Some(Value::Truth(true)));
                (self.shape(*shape).filter(|shape| is_plain || shape.len() == 1)?, *dtype, *data)
            }
            "_frombuffer" if matches!(module, "numpy.core.numeric" | "numpy._core.numeric") => {
                let [data, dtype, shape, ..] = self.pickle.members(call.arguments)? else { return None };
                (self.shape(*shape).filter(|shape| shape.len() == 1)?, *dtype, *data)
            }
            _ => return None,
        };
        let count = shape.iter().try_fold(1_u64, |count, side| count.checked_mul(*side))?;
        let data = match self.stretch(data) {
            Some((at, bytes)) => {
                let integer = self.integer_type(dtype)?;
                (count.checked_mul(integer.bytes)? == bytes).then_some(ArrayData::Integers { at, integer })?
            }
            None => (self.pickle.members(data)?.len() as u64 == count).then_some(ArrayData::Objects(data))?,
        };
        Some(Array { shape, data })
    }

    fn shape(&self, id: Id) -> Option<Vec<u64>> {
        let sides = self.pickle.members(id)?.iter();
        sides.map(|side| u64::try_from(self.pickle.integer(*side)?).ok()).collect()
    }

    fn stretch(&self, id: Id) -> Option<(u64, u64)> {
        match self.pickle.value(id)? {
            Value::Stretch { at, bytes } => Some((*at, *bytes)),
            _ => None,
        }
    }

    /// The type of `numpy.dtype("u2", …)` with its state, which has the order of bytes.
    fn integer_type(&self, id: Id) -> Option<StoredInteger> {
        let ("numpy", "dtype", call) = self.pickle.call(id)? else { return None };
        let plain = StoredInteger::of(self.pickle.text(*self.pickle.members(call.arguments)?.first()?)?)?;
        let order = call.state.and_then(|state| self.pickle.text(*self.pickle.members(state)?.get(1)?));
        Some(StoredInteger { big_endian: order == Some(">"), ..plain })
    }
}

fn is_multiarray(module: &str) -> bool {
    matches!(module, "numpy.core.multiarray" | "numpy._core.multiarray")
}

/// Begins a pickle of a list of ids, as Python's `pickle.dumps` of one.
pub(super) fn list(ids: &[u32], out: &mut Vec<u8>) {
    out.extend([opcode::PROTO, 4, opcode::EMPTY_LIST]);
    for part in ids.chunks(1000) {
        out.push(opcode::MARK);
        part.iter().for_each(|id| integer(u64::from(*id), out));
        out.push(opcode::APPENDS);
    }
    out.push(opcode::STOP);
}

/// An integer.
pub(super) fn integer(number: u64, out: &mut Vec<u8>) {
    match number {
        0..=0xFF => out.extend([opcode::BININT1, number as u8]),
        0x100..=0xFFFF => {
            out.push(opcode::BININT2);
            out.extend((number as u16).to_le_bytes());
        }
        0x1_0000..=0x7FFF_FFFF => {
            out.push(opcode::BININT);
            out.extend((number as u32).to_le_bytes());
        }
        _ => {
            // A ninth byte keeps the number positive.
            out.extend([opcode::LONG1, 9]);
            out.extend(number.to_le_bytes());
            out.push(0);
        }
    }
}

/// A name of a module.
pub(super) fn global(module: &str, name: &str, out: &mut Vec<u8>) {
    out.push(opcode::GLOBAL);
    out.extend(format!("{module}\n{name}\n").as_bytes());
}

/// A text.
pub(super) fn text(text: &str, out: &mut Vec<u8>) {
    out.push(opcode::BINUNICODE);
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

//! NumPy's array files of integers: one array of fixed shape, written as it comes and read by position.
//!
//! Defines [`NpyWriter`], [`NpyFile`] and, for any array, [`NpyHeader`]. Called by [`super::maps`] and
//! converters of corpora.

use std::fmt::Display;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::positioned::PositionedFile;
use crate::Result;
use model_center_base::file::{AtomicFile, printable};

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
/// More is not a header that NumPy writes for these arrays.
const MAX_HEADER: u32 = 4096;

/// The integer types of index maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NpyInteger {
    I32,
    U32,
    I64,
}

impl NpyInteger {
    const ALL: [NpyInteger; 3] = [NpyInteger::I32, NpyInteger::U32, NpyInteger::I64];

    const fn descr(self) -> &'static str {
        match self {
            NpyInteger::I32 => "<i4",
            NpyInteger::U32 => "<u4",
            NpyInteger::I64 => "<i8",
        }
    }

    const fn bytes(self) -> u64 {
        match self {
            NpyInteger::I32 | NpyInteger::U32 => 4,
            NpyInteger::I64 => 8,
        }
    }
}

/// Shape and type, as the header has them.
pub fn header(descr: &str, rows: u64, columns: u64) -> Vec<u8> {
    let shape = if columns == 1 { format!("({rows},)") } else { format!("({rows}, {columns})") };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Room in which the number of rows could grow to 21 digits, then up to a multiple of 64 bytes with the line ending.
    let growth = 21_usize.saturating_sub(rows.to_string().len());
    text.push_str(&" ".repeat(growth));
    let before = MAGIC.len() + 2;
    let padding = (before + text.len() + 1).next_multiple_of(64) - (before + text.len() + 1);
    text.push_str(&" ".repeat(padding));
    text.push('\n');
    [MAGIC, &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// Writes an array, which gets its name when it is whole.
#[derive(Debug)]
pub(super) struct NpyWriter {
    file: AtomicFile,
    buffer: BufWriter<std::fs::File>,
    integer: NpyInteger,
    hasher: blake3::Hasher,
    /// Numbers still to come.
    left: u64,
    bytes: Vec<u8>,
}

impl NpyWriter {
    /// An array of `rows` × `columns`.
    pub(super) fn create(path: &Path, integer: NpyInteger, rows: u64, columns: u64) -> Result<NpyWriter> {
        let file = AtomicFile::create(path)?;
        let buffer = BufWriter::with_capacity(1 << 20, file.file().try_clone().map_err(|e| file.refused(e))?);
        let left = rows * columns;
        let mut writer = NpyWriter { file, buffer, integer, hasher: blake3::Hasher::new(), left, bytes: Vec::new() };
        writer.bytes = header(integer.descr(), rows, columns);
        writer.put()?;
        Ok(writer)
    }

    /// Appends numbers that the type can hold.
    pub(super) fn write(&mut self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        self.bytes.clear();
        let width = self.integer.bytes() as usize;
        for number in numbers {
            self.bytes.extend_from_slice(&number.to_le_bytes()[..width]);
        }
        self.left = self.left.wrapping_sub(self.bytes.len() as u64 / self.integer.bytes());
        self.put()
    }

    fn put(&mut self) -> Result<()> {
        self.hasher.update(&self.bytes);
        self.buffer.write_all(&self.bytes).map_err(|e| self.file.refused(e))
    }

    /// Flushes and names the file; its BLAKE3 hash.
    pub(super) fn commit(mut self) -> Result<String> {
        debug_assert_eq!(self.left, 0, "an array is written whole");
        self.buffer.flush().map_err(|e| self.file.refused(e))?;
        drop(self.buffer);
        self.file.commit()?;
        Ok(self.hasher.finalize().to_hex().to_string())
    }
}

/// An array that is read by position.
#[derive(Debug)]
pub(super) struct NpyFile {
    file: PositionedFile,
    integer: NpyInteger,
    data: u64,
    rows: u64,
    columns: u64,
}

impl NpyFile {
    /// Opens an array of `columns` columns.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for a file that is something else, or shorter or longer than its shape.
    pub(super) fn open(path: &Path, columns: u64) -> Result<NpyFile> {
        let file = PositionedFile::open(path)?;
        let NpyHeader { descr, fortran_order, shape, data } = NpyHeader::read(&file)?;
        let wrong =
            |reason: &dyn Display| file.corrupt(format!("the file is not an array of integers of NumPy: {reason}"));
        let integer = NpyInteger::ALL.into_iter().find(|integer| integer.descr() == descr && !fortran_order);
        let rows = match shape[..] {
            [rows] if columns == 1 => Some(rows),
            [rows, wide] if columns > 1 && wide == columns => Some(rows),
            _ => None,
        };
        let (Some(integer), Some(rows)) = (integer, rows) else {
            return Err(wrong(&format!("it has the type {descr} and the shape {shape:?}")));
        };
        let bytes =
            rows.checked_mul(columns).and_then(|numbers| numbers.checked_mul(integer.bytes())?.checked_add(data));
        if bytes != Some(file.length()) {
            return Err(wrong(&format!("{rows} rows in {} bytes", file.length())));
        }
        Ok(NpyFile { file, integer, data, rows, columns })
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// The numbers of consecutive rows from `row` on.
    pub(super) fn read(&self, row: u64, numbers: &mut [u64]) -> Result<()> {
        let width = self.integer.bytes();
        let at = row.checked_mul(self.columns * width).and_then(|at| at.checked_add(self.data));
        let at = at.ok_or_else(|| self.file.corrupt(format!("row {row} is beyond 64 bits")))?;
        let mut bytes = vec![0; numbers.len() * width as usize];
        self.file.read_at(at, &mut bytes)?;
        for (stored, number) in bytes.chunks_exact(width as usize).zip(numbers) {
            let mut wide = [0; 8];
            wide[..stored.len()].copy_from_slice(stored);
            *number = u64::from_le_bytes(wide);
        }
        Ok(())
    }
}

/// Dtype and shape of an array, by its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type, such as `<u2`, and `|O` for objects.
    pub descr: String,
    /// Whether the first axis is contiguous.
    pub fortran_order: bool,
    /// The lengths of the axes.
    pub shape: Vec<u64>,
    /// Where the data begin.
    pub data: u64,
}

impl NpyHeader {
    /// # Errors
    /// [`crate::Error::Data`] for a file that is something else.
    pub fn read(file: &PositionedFile) -> Result<NpyHeader> {
        let wrong = |reason: &dyn Display| file.corrupt(format!("the file is not an array of NumPy: {reason}"));
        let mut start = [0; 12];
        if file.length() < start.len() as u64 {
            return Err(wrong(&"it is shorter than a header"));
        }
        file.read_at(0, &mut start)?;
        let (begin, length) = match start {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
                (10, u32::from(u16::from_le_bytes([low, high])))
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d] => (12, u32::from_le_bytes([a, b, c, d])),
            _ => return Err(wrong(&"it does not begin with NUMPY and version 1, 2 or 3")),
        };
        let data = begin + u64::from(length);
        if length > MAX_HEADER || data > file.length() {
            return Err(wrong(&format!("a header of {length} bytes")));
        }
        let mut text = vec![0; length as usize];
        file.read_at(begin, &mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let parsed = parse(&text).ok_or_else(|| wrong(&printable(text.trim_end(), 120)))?;
        Ok(NpyHeader { data, ..parsed })
    }
}

/// Type, order and shape of the text of a header.
fn parse(text: &str) -> Option<NpyHeader> {
    let after = |key: &str| Some(text.split_once(&format!("'{key}':"))?.1.trim_start());
    let (descr, _) = after("descr")?.strip_prefix('\'')?.split_once('\'')?;
    let order = after("fortran_order")?;
    let fortran_order = order.starts_with("True");
    let (shape, _) = after("shape")?.strip_prefix('(')?.split_once(')')?;
    let sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
    let shape = sides.map(|side| side.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let is_known = fortran_order || order.starts_with("False");
    is_known.then(|| NpyHeader { descr: descr.to_owned(), fortran_order, shape, data: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_come_back_and_damaged_ones_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        for (integer, columns) in [(NpyInteger::I32, 2), (NpyInteger::U32, 1), (NpyInteger::I64, 1)] {
            let mut writer = NpyWriter::create(&path, integer, 3, columns).unwrap();
            writer.write(0..3 * columns).unwrap();
            writer.commit().unwrap();
            let file = NpyFile::open(&path, columns).unwrap();
            let mut numbers = vec![0; 2 * columns as usize];
            file.read(1, &mut numbers).unwrap();
            assert_eq!((file.rows(), numbers), (3, (columns..3 * columns).collect()));
            assert!(file.read(2, &mut vec![0; 2 * columns as usize]).is_err());
            assert!(NpyFile::open(&path, 3 - columns).is_err());
            let whole = std::fs::read(&path).unwrap();
            for end in [0, 5, 9, 40, whole.len() - 1] {
                std::fs::write(&path, &whole[..end]).unwrap();
                assert!(NpyFile::open(&path, columns).is_err(), "{end}");
            }
        }
    }
}

//! Thrift's compact protocol, in which Parquet writes its structures, as far as it is needed to bound memory before the
//! library reads a footer, and to know the sizes of a page before it is read.
//!
//! Defines [`check_footer`] and [`PageHeader`].

/// Structures in structures; Parquet's are seven deep.
const MAX_NESTING: usize = 16;
/// Groups of columns in groups. The library descends by calls of itself.
const MAX_SCHEMA_DEPTH: usize = 64;

// Types of fields.
const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Why bytes are no structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// They end before the structure.
    CutOff,
    /// They contradict the protocol.
    Wrong,
}

type Read<T> = Result<T, Broken>;

/// Reads from the front of bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    fn byte(&mut self) -> Read<u8> {
        let byte = *self.bytes.get(self.at).ok_or(Broken::CutOff)?;
        self.at += 1;
        Ok(byte)
    }

    fn pass(&mut self, count: u64) -> Read<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            return Err(Broken::CutOff);
        }
        self.at += count as usize;
        Ok(())
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Broken::Wrong)
    }

    fn integer(&mut self) -> Read<i64> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn int32(&mut self) -> Read<i32> {
        i32::try_from(self.integer()?).map_err(|_| Broken::Wrong)
    }

    /// Type and number of the next field; `None` at the end of the structure.
    fn field(&mut self, last: &mut i16) -> Read<Option<(u8, i16)>> {
        let byte = self.byte()?;
        if byte == STOP {
            return Ok(None);
        }
        let number = match byte >> 4 {
            0 => i16::try_from(self.integer()?).map_err(|_| Broken::Wrong)?,
            more => last.checked_add(i16::from(more)).ok_or(Broken::Wrong)?,
        };
        *last = number;
        Ok(Some((byte & 0x0F, number)))
    }

    /// The type and the number of the elements that follow.
    fn list(&mut self) -> Read<(u8, u64)> {
        let byte = self.byte()?;
        let count = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        Ok((byte & 0x0F, count))
    }

    /// Passes a value; an element of a list has a truth value in a byte of its own.
    fn skip(&mut self, kind: u8, nesting: usize, is_element: bool) -> Read<()> {
        let Some(nesting) = nesting.checked_sub(1) else { return Err(Broken::Wrong) };
        match kind {
            TRUE | FALSE if is_element => self.pass(1),
            TRUE | FALSE => Ok(()),
            I8 => self.pass(1),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => self.pass(8),
            UUID => self.pass(16),
            BINARY => {
                let length = self.varint()?;
                self.pass(length)
            }
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip(kind, nesting, true))
            }
            MAP => {
                let count = self.varint()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                (0..count).try_for_each(|_| {
                    self.skip(kinds >> 4, nesting, true)?;
                    self.skip(kinds & 0x0F, nesting, true)
                })
            }
            STRUCT => {
                let mut last = 0;
                while let Some((kind, _)) = self.field(&mut last)? {
                    self.skip(kind, nesting, false)?;
                }
                Ok(())
            }
            _ => Err(Broken::Wrong),
        }
    }
}

/// Compares a footer with the protocol to its end: every list has the elements it announces, and neither structures nor
/// the columns of the schema are nested without bound.
pub(super) fn check_footer(footer: &[u8]) -> Read<()> {
    const SCHEMA: i16 = 2;
    let mut reader = Reader::new(footer);
    let mut last = 0;
    while let Some((kind, number)) = reader.field(&mut last)? {
        if (kind, number) == (LIST, SCHEMA) {
            check_schema(&mut reader)?;
        } else {
            reader.skip(kind, MAX_NESTING, false)?;
        }
    }
    Ok(())
}

/// The schema is a tree, written with each group before its members.
fn check_schema(reader: &mut Reader<'_>) -> Read<()> {
    const CHILDREN: i16 = 5;
    let (kind, count) = reader.list()?;
    if kind != STRUCT && count > 0 {
        return Err(Broken::Wrong);
    }
    // Of the groups that are open, how many members each still has.
    let mut open: Vec<u64> = Vec::new();
    for _ in 0..count {
        let (mut last, mut children) = (0, 0);
        while let Some((kind, number)) = reader.field(&mut last)? {
            if (kind, number) == (I32, CHILDREN) {
                children = u64::try_from(reader.int32()?).map_err(|_| Broken::Wrong)?;
            } else {
                reader.skip(kind, MAX_NESTING, false)?;
            }
        }
        while open.pop_if(|left| *left == 0).is_some() {}
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Err(Broken::Wrong);
        }
    }
    Ok(())
}

/// Header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Bytes of the header.
    pub(super) length: usize,
    /// Bytes of the page without compression.
    pub(super) plain_bytes: usize,
    /// Bytes of the page in the file.
    pub(super) stored_bytes: usize,
    /// The checksum of the page as it is stored.
    pub(super) checksum: Option<u32>,
    /// Content of the page.
    pub(super) content: PageContent,
}

/// Content of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageContent {
    /// The values that pages of numbers refer to.
    Dictionary { values: u32, encoding: i32 },
    /// Values after their levels.
    Data { values: u32, encoding: i32, level_encoding: i32 },
    /// Values after their levels, which are not compressed.
    DataV2 { values: u32, nulls: u32, rows: u32, encoding: i32, level_bytes: [u32; 2], is_compressed: bool },
    /// An index, or a kind of page that is to come.
    Other,
}

impl PageHeader {
    /// Reads a header at the front of bytes.
    pub(super) fn read(bytes: &[u8]) -> Read<PageHeader> {
        let mut reader = Reader::new(bytes);
        let (mut kind, mut plain, mut stored, mut checksum) = (None, None, None, None);
        let (mut data, mut dictionary, mut data_v2) = (None, None, None);
        let mut last = 0;
        while let Some(field) = reader.field(&mut last)? {
            match field {
                (I32, 1) => kind = Some(reader.int32()?),
                (I32, 2) => plain = Some(size(reader.int32()?)?),
                (I32, 3) => stored = Some(size(reader.int32()?)?),
                (I32, 4) => checksum = Some(reader.int32()?.cast_unsigned()),
                (STRUCT, 5) => data = Some(numbers(&mut reader)?),
                (STRUCT, 7) => dictionary = Some(numbers(&mut reader)?),
                (STRUCT, 8) => data_v2 = Some(numbers(&mut reader)?),
                (kind, _) => reader.skip(kind, MAX_NESTING, false)?,
            }
        }
        let content = match (kind, data, dictionary, data_v2) {
            (Some(0), Some(n), _, _) => PageContent::Data {
                values: count(n[1])?,
                encoding: n[2].unwrap_or(-1),
                level_encoding: n[3].unwrap_or(-1),
            },
            (Some(2), _, Some(n), _) => PageContent::Dictionary { values: count(n[1])?, encoding: n[2].unwrap_or(-1) },
            (Some(3), _, _, Some(n)) => PageContent::DataV2 {
                values: count(n[1])?,
                nulls: count(n[2])?,
                rows: count(n[3])?,
                encoding: n[4].unwrap_or(-1),
                level_bytes: [count(n[6])?, count(n[5])?],
                is_compressed: n[7] != Some(0),
            },
            (Some(0 | 2 | 3), ..) => return Err(Broken::Wrong),
            _ => PageContent::Other,
        };
        let (Some(plain_bytes), Some(stored_bytes)) = (plain, stored) else { return Err(Broken::Wrong) };
        Ok(PageHeader { length: reader.at, plain_bytes, stored_bytes, checksum, content })
    }
}

/// The numbers of a structure by the numbers of their fields, truth values among them; other fields are passed.
fn numbers(reader: &mut Reader<'_>) -> Read<[Option<i32>; 8]> {
    let (mut numbers, mut last) = ([None; 8], 0);
    while let Some((kind, number)) = reader.field(&mut last)? {
        let place = usize::try_from(number).ok().and_then(|number| numbers.get_mut(number));
        match (kind, place) {
            (I32, Some(place)) => *place = Some(reader.int32()?),
            (TRUE | FALSE, Some(place)) => *place = Some(i32::from(kind == TRUE)),
            _ => reader.skip(kind, MAX_NESTING, false)?,
        }
    }
    Ok(numbers)
}

fn size(number: i32) -> Read<usize> {
    usize::try_from(number).map_err(|_| Broken::Wrong)
}

fn count(number: Option<i32>) -> Read<u32> {
    number.and_then(|number| u32::try_from(number).ok()).ok_or(Broken::Wrong)
}

#[cfg(test)]
mod tests;

//! FlatBuffers, in which Arrow writes its schemas and the headers of its batches, read in place and with bounds.
//!
//! Defines [`Table`]. Nothing is trusted: every position is checked against the bytes, and what is not there has its
//! default.

/// Why bytes are no structure: they contradict themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

type Read<T> = Result<T, Broken>;

/// A table, whose fields are found by their numbers in the schema of the format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    /// Its start, and the list of its fields' places.
    at: usize,
    fields: usize,
    /// Bytes of that list.
    listed: usize,
}

impl<'a> Table<'a> {
    /// The table that a buffer holds.
    pub(super) fn root(bytes: &'a [u8]) -> Read<Self> {
        Self::at(bytes, follow(bytes, 0)?)
    }

    fn at(bytes: &'a [u8], at: usize) -> Read<Self> {
        let back = i64::from(i32::from_le_bytes(take(bytes, at)?));
        let fields = i64::try_from(at).ok().and_then(|at| usize::try_from(at - back).ok()).ok_or(Broken)?;
        let listed = usize::from(u16::from_le_bytes(take(bytes, fields)?));
        Ok(Self { bytes, at, fields, listed })
    }

    /// Position of a field; `None` for one that has its default.
    fn place(&self, field: usize) -> Read<Option<usize>> {
        let entry = 4 + 2 * field;
        if entry + 2 > self.listed {
            return Ok(None);
        }
        let place = u16::from_le_bytes(take(self.bytes, self.fields + entry)?);
        Ok((place != 0).then(|| self.at + usize::from(place)))
    }

    fn number<const N: usize>(&self, field: usize) -> Read<Option<[u8; N]>> {
        self.place(field)?.map(|at| take(self.bytes, at)).transpose()
    }

    pub(super) fn byte(&self, field: usize) -> Read<u8> {
        Ok(self.number::<1>(field)?.map_or(0, |[byte]| byte))
    }

    pub(super) fn flag(&self, field: usize) -> Read<bool> {
        Ok(self.byte(field)? != 0)
    }

    pub(super) fn int16(&self, field: usize) -> Read<i16> {
        Ok(self.number(field)?.map_or(0, i16::from_le_bytes))
    }

    pub(super) fn int32(&self, field: usize) -> Read<i32> {
        Ok(self.number(field)?.map_or(0, i32::from_le_bytes))
    }

    pub(super) fn int64(&self, field: usize) -> Read<i64> {
        Ok(self.number(field)?.map_or(0, i64::from_le_bytes))
    }

    pub(super) fn table(&self, field: usize) -> Read<Option<Table<'a>>> {
        let Some(at) = self.place(field)? else { return Ok(None) };
        Ok(Some(Table::at(self.bytes, follow(self.bytes, at)?)?))
    }

    pub(super) fn text(&self, field: usize) -> Read<Option<&'a str>> {
        let Some(vector) = self.vector(field, 1)? else { return Ok(None) };
        std::str::from_utf8(vector.items).map(Some).map_err(|_| Broken)
    }

    /// Items of `width` bytes each; `None` where there is no such field.
    pub(super) fn vector(&self, field: usize, width: usize) -> Read<Option<Vector<'a>>> {
        let Some(at) = self.place(field)? else { return Ok(None) };
        let at = follow(self.bytes, at)?;
        let count = u32::from_le_bytes(take(self.bytes, at)?) as usize;
        let start = at + 4;
        let end = count.checked_mul(width).and_then(|bytes| start.checked_add(bytes)).ok_or(Broken)?;
        let items = self.bytes.get(start..end).ok_or(Broken)?;
        Ok(Some(Vector { bytes: self.bytes, start, items }))
    }

    /// The tables of a vector of them.
    pub(super) fn tables(&self, field: usize) -> Read<impl Iterator<Item = Read<Table<'a>>> + use<'a>> {
        let vector = self.vector(field, 4)?;
        let places = vector.into_iter().flat_map(|vector| {
            let count = vector.items.len() / 4;
            (0..count).map(move |index| Table::at(vector.bytes, follow(vector.bytes, vector.start + 4 * index)?))
        });
        Ok(places)
    }
}

/// The items of a vector.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vector<'a> {
    bytes: &'a [u8],
    start: usize,
    /// Their bytes.
    pub(super) items: &'a [u8],
}

/// Eight-byte numbers, one after the other; bytes that make no whole one are passed.
pub(super) fn int64s(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes))
}

pub fn take<const N: usize>(bytes: &[u8], at: usize) -> Read<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().ok_or(Broken)
}

/// The place that the four bytes at a place lead to.
fn follow(bytes: &[u8], at: usize) -> Read<usize> {
    let ahead = u32::from_le_bytes(take(bytes, at)?) as usize;
    at.checked_add(ahead).filter(|at| *at < bytes.len()).ok_or(Broken)
}

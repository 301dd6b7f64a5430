//! A batch of rows: its buffers, read and unpacked, as the arrays of its columns.
//!
//! Defines [`Decoder`]. Only the buffers of columns that are wanted are read.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use super::array::{Array, Data, Numbers};
use super::flatbuffer::{Broken, Table, int64s};
use super::lz4;
use super::message::Source;
use super::schema::{Field, Kind};
use crate::io::zstandard;
use crate::{Error, Result};

/// Bytes of a batch, unpacked. What `datasets` writes has 1,000 rows.
const MAX_BATCH_BYTES: u64 = 1 << 31;

/// Dictionaries by their numbers, each in the parts that it came in.
pub(super) type Dictionaries = HashMap<i64, Arc<Vec<Array>>>;

/// Compression of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Codec {
    Plain,
    Lz4,
    Zstd,
}

/// Takes the arrays of a batch in the order of its fields.
pub(super) struct Decoder<'a> {
    source: &'a Source,
    body: Range<u64>,
    codec: Codec,
    is_old: bool,
    dictionaries: &'a Dictionaries,
    nodes: Vec<i64>,
    node: usize,
    buffers: Vec<i64>,
    buffer: usize,
    /// Number of buffers with texts, for each field of views.
    views: Vec<i64>,
    view: usize,
    read: u64,
    /// The rows of the batch.
    pub(super) rows: usize,
}

impl<'a> Decoder<'a> {
    /// A batch by its header.
    pub(super) fn new(
        source: &'a Source,
        table: &Table<'_>,
        (body, is_old): (Range<u64>, bool),
        dictionaries: &'a Dictionaries,
    ) -> Result<Self> {
        let broken = |error| source.broken(error);
        let pairs = |field: usize| -> Result<Vec<i64>, Broken> {
            Ok(table.vector(field, 16)?.map_or_else(Vec::new, |vector| int64s(vector.items).collect()))
        };
        let views = table.vector(4, 8).map_err(broken)?;
        let rows = usize::try_from(table.int64(0).map_err(broken)?).map_err(|_| source.broken(Broken))?;
        let codec = match table.table(3).map_err(broken)? {
            None => Codec::Plain,
            Some(packed) => match (packed.byte(0).map_err(broken)?, packed.byte(1).map_err(broken)?) {
                (1, 0) => Codec::Zstd,
                (0, 0) => Codec::Lz4,
                _ => return Err(source.refused("its batches are compressed in an unknown way", "write it without")),
            },
        };
        Ok(Decoder {
            source,
            body,
            codec,
            is_old,
            dictionaries,
            nodes: pairs(1).map_err(broken)?,
            node: 0,
            buffers: pairs(2).map_err(broken)?,
            buffer: 0,
            views: views.map_or_else(Vec::new, |vector| int64s(vector.items).collect()),
            view: 0,
            read: 0,
            rows,
        })
    }

    fn broken(&self) -> Error {
        self.source.broken(Broken)
    }

    /// The array of a field, which is the next one.
    pub(super) fn array(&mut self, field: &Field) -> Result<Array> {
        let length = self.node()?;
        let (validity, data) = match (&field.dictionary, &field.kind) {
            (Some((id, index)), _) => {
                let validity = self.validity(length)?;
                let Kind::Int { width, is_signed } = *index else { return Err(self.broken()) };
                let indices = Data::Ints { bytes: self.exact(length, width)?, width, is_signed };
                let indices = Box::new(Array { length, validity: None, data: indices });
                let dictionary = self.dictionaries.get(id).cloned();
                let dictionary = dictionary.ok_or_else(|| self.source.damaged("a dictionary is missing"))?;
                (validity, Data::Indices { indices, dictionary })
            }
            (None, Kind::Null) => (None, Data::Null),
            (None, kind) => {
                let validity = self.validity(length)?;
                (validity, self.data(kind, length, field)?)
            }
        };
        Ok(Array { length, validity, data })
    }

    fn data(&mut self, kind: &Kind, length: usize, field: &Field) -> Result<Data> {
        let is_json = field.is_json;
        Ok(match *kind {
            Kind::Flag => Data::Flags(self.at_least(length.div_ceil(8))?),
            Kind::Int { width, is_signed } => Data::Ints { bytes: self.exact(length, width)?, width, is_signed },
            Kind::Float { width } => Data::Floats { bytes: self.exact(length, width)?, width },
            Kind::Text { is_large } => {
                let offsets = self.offsets(length, is_large)?;
                Data::Texts { offsets, bytes: self.next_buffer()?, is_json }
            }
            Kind::TextView => {
                let views = self.exact(length, 16)?;
                let count = self.views.get(self.view).and_then(|count| usize::try_from(*count).ok());
                let count = count.ok_or_else(|| self.broken())?;
                self.view += 1;
                let buffers = (0..count).map(|_| self.next_buffer()).collect::<Result<_>>()?;
                Data::Views { views, buffers, is_json }
            }
            Kind::List { is_large } => {
                let offsets = self.offsets(length, is_large)?;
                Data::Lists { offsets, items: Box::new(self.child(field)?) }
            }
            Kind::ListView { is_large } => {
                let width = if is_large { 8 } else { 4 };
                let offsets = Numbers { bytes: self.exact(length, width)?, is_large };
                let sizes = Numbers { bytes: self.exact(length, width)?, is_large };
                Data::Spans { offsets, sizes, items: Box::new(self.child(field)?) }
            }
            Kind::FixedList { length: size } => Data::FixedLists { size, items: Box::new(self.child(field)?) },
            Kind::Struct => {
                let fields = field.children.iter().map(|child| Ok((child.name.clone(), self.array(child)?)));
                Data::Structs(fields.collect::<Result<_>>()?)
            }
            Kind::Null | Kind::Unread { .. } => return Err(self.broken()),
        })
    }

    fn child(&mut self, field: &Field) -> Result<Array> {
        let child = field.children.first().ok_or_else(|| self.broken())?;
        self.array(child)
    }

    /// Passes over a field, which is the next one.
    pub(super) fn skip(&mut self, field: &Field) -> Result<()> {
        self.node()?;
        if field.dictionary.is_some() {
            self.buffer += 2;
            return Ok(());
        }
        self.buffer += match &field.kind {
            Kind::Null => 0,
            Kind::Flag | Kind::Int { .. } | Kind::Float { .. } | Kind::List { .. } => 2,
            Kind::Text { .. } | Kind::ListView { .. } => 3,
            Kind::FixedList { .. } | Kind::Struct => 1,
            Kind::TextView => 2 + self.skip_views()?,
            Kind::Unread { buffers, has_views: true, .. } => buffers + self.skip_views()?,
            Kind::Unread { name, buffers, .. } => buffers + usize::from(name == "union" && self.is_old),
        };
        field.children.iter().try_for_each(|child| self.skip(child))
    }

    fn skip_views(&mut self) -> Result<usize> {
        let count = self.views.get(self.view).and_then(|count| usize::try_from(*count).ok());
        self.view += 1;
        count.filter(|count| *count <= self.buffers.len()).ok_or_else(|| self.broken())
    }

    /// The length of the next field.
    fn node(&mut self) -> Result<usize> {
        let length = self.nodes.get(2 * self.node).and_then(|length| usize::try_from(*length).ok());
        self.node += 1;
        length.ok_or_else(|| self.broken())
    }

    fn validity(&mut self, length: usize) -> Result<Option<Vec<u8>>> {
        let bits = self.next_buffer()?;
        match bits.len() {
            0 => Ok(None),
            bytes if bytes >= length.div_ceil(8) => Ok(Some(bits)),
            _ => Err(self.broken()),
        }
    }

    /// One number more than there are values; none of no values.
    fn offsets(&mut self, length: usize, is_large: bool) -> Result<Numbers> {
        let bytes = self.next_buffer()?;
        let wanted = length.checked_add(1).and_then(|count| count.checked_mul(if is_large { 8 } else { 4 }));
        match wanted {
            Some(wanted) if bytes.len() >= wanted || length == 0 => Ok(Numbers { bytes, is_large }),
            _ => Err(self.broken()),
        }
    }

    fn exact(&mut self, length: usize, width: usize) -> Result<Vec<u8>> {
        let bytes = length.checked_mul(width).ok_or_else(|| self.broken())?;
        self.at_least(bytes)
    }

    fn at_least(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let buffer = self.next_buffer()?;
        if buffer.len() < bytes { Err(self.broken()) } else { Ok(buffer) }
    }

    /// The next buffer, unpacked.
    fn next_buffer(&mut self) -> Result<Vec<u8>> {
        let place = self.buffers.get(2 * self.buffer..2 * self.buffer + 2);
        let place = place.map(|place| (u64::try_from(place[0]), u64::try_from(place[1])));
        self.buffer += 1;
        let Some((Ok(start), Ok(bytes))) = place else { return Err(self.broken()) };
        let range = self.body.start.checked_add(start).and_then(|start| Some(start..start.checked_add(bytes)?));
        let range = range.filter(|range| range.end <= self.body.end).ok_or_else(|| self.broken())?;
        self.count(bytes)?;
        let stored = self.source.read(range)?;
        match self.codec {
            Codec::Lz4 | Codec::Zstd if !stored.is_empty() => self.unpack(&stored),
            _ => Ok(stored),
        }
    }

    /// A length of eight bytes, then the packed bytes; as they are where the length is -1.
    fn unpack(&mut self, stored: &[u8]) -> Result<Vec<u8>> {
        let (length, packed) = stored.split_first_chunk::<8>().ok_or_else(|| self.broken())?;
        let length = i64::from_le_bytes(*length);
        if length == -1 {
            return Ok(packed.to_vec());
        }
        let length = u64::try_from(length).map_err(|_| self.broken())?;
        if length == 0 {
            return Ok(Vec::new());
        }
        self.count(length)?;
        if self.codec == Codec::Lz4 {
            let plain = lz4::unpack(packed, length as usize);
            return plain.map_err(|_| self.source.damaged("a buffer cannot be decompressed"));
        }
        let mut plain = Vec::new();
        let unpacked = zstandard::decoder(packed)
            .and_then(|decoder| decoder.take(length.saturating_add(1)).read_to_end(&mut plain));
        unpacked.map_err(|error| self.source.damaged(format!("a buffer cannot be decompressed: {error}")))?;
        match plain.len() as u64 == length {
            true => Ok(plain),
            false => Err(self.source.damaged("a buffer has not the length that it states")),
        }
    }

    /// Bytes that were read and unpacked so far.
    pub(super) fn counted(&self) -> u64 {
        self.read
    }

    /// Counts bytes against the limit.
    pub(super) fn count(&mut self, bytes: u64) -> Result<()> {
        self.read = self.read.saturating_add(bytes);
        match self.read > MAX_BATCH_BYTES {
            true => Err(self.source.refused(
                format!("a batch of rows has more than {MAX_BATCH_BYTES} bytes"),
                "write smaller batches: writer_batch_size of datasets, max_chunksize of pyarrow",
            )),
            false => Ok(()),
        }
    }
}

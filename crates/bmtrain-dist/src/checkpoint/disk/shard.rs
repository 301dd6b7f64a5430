//! Write one rank's file: a safetensors header, then the pieces, hashed while written, without a copy in memory.
//!
//! The file is an ordinary safetensors file: a piece's key is `kind:name@start`, with `:stride` after it for a piece of
//! several runs. Its shape is the tensor's where the piece is all of it, else one axis, and one more for several runs.

use super::fail_point::{FailPoint, FailPoints};
use super::fault::{refused, request};
use super::filesystem::WriteFile;
use super::piece::{FileRecord, PieceRecord, PieceSpec, STORED};
use crate::error::{Error, Result};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::collections::BTreeSet;

/// Bytes hashed and written at a time: they are still in the cache for the second hash and the write.
pub(super) const CHUNK: usize = 256 << 10;
/// The longest header the format allows.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// A file being written, piece by piece in the order of [`ShardWriter::specs`].
#[derive(Debug)]
pub struct ShardWriter {
    file: Box<dyn WriteFile>,
    name: String,
    place: String,
    fail_points: FailPoints,
    specs: Vec<PieceSpec>,
    /// The records of the pieces before `specs[records.len()]`.
    records: Vec<PieceRecord>,
    /// Bytes that the current piece still lacks.
    left: u64,
    /// Bytes of the file so far.
    bytes: u64,
    /// Whether a piece that has bytes is complete.
    under_way: bool,
    piece_hash: blake3::Hasher,
    file_hash: blake3::Hasher,
}

impl ShardWriter {
    /// Start the file with a header for these pieces. They are sorted into the order in which they must be written:
    /// wider dtypes first, so that every piece is aligned; apart from that, as given.
    pub(super) fn start(
        file: Box<dyn WriteFile>,
        name: String,
        place: String,
        fail_points: FailPoints,
        mut specs: Vec<PieceSpec>,
    ) -> Result<Self> {
        let wrong = |reason| request(&place, reason, "save each run of a tensor once, with its true shape");
        specs.sort_by_key(|spec| std::cmp::Reverse(spec.dtype.size()));
        let header = header(&specs).map_err(wrong)?;
        let mut shard = ShardWriter {
            file,
            name,
            place,
            fail_points,
            specs,
            records: Vec::new(),
            left: 0,
            bytes: 0,
            under_way: false,
            piece_hash: blake3::Hasher::new(),
            file_hash: blake3::Hasher::new(),
        };
        shard.put(&header)?;
        shard.begin_piece()?;
        Ok(shard)
    }

    /// The pieces in the order in which their bytes must come.
    pub fn specs(&self) -> &[PieceSpec] {
        &self.specs
    }

    /// The next bytes, of the current piece and perhaps of those after it.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.left == 0 {
                return Err(self.misfit("more bytes than its pieces have"));
            }
            let count = bytes.len().min(CHUNK).min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let (now, later) = bytes.split_at(count);
            self.piece_hash.update(now);
            self.put(now)?;
            self.left -= count as u64;
            bytes = later;
            if self.left == 0 {
                self.end_piece()?;
                self.begin_piece()?;
            }
        }
        Ok(())
    }

    /// Flush and close the file.
    pub fn finish(mut self) -> Result<FileRecord> {
        if self.records.len() < self.specs.len() {
            return Err(self.misfit("fewer bytes than its pieces have"));
        }
        self.fail_points.reach(FailPoint::SaveBeforeFsync)?;
        self.file.sync().map_err(|e| refused(&self.place, "flush", &e))?;
        drop(self.file);
        self.fail_points.reach(FailPoint::SaveAfterShard)?;
        Ok(FileRecord {
            name: self.name,
            bytes: self.bytes,
            hash: self.file_hash.finalize().into(),
            pieces: self.records,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file_hash.update(bytes);
        self.file.write_all(bytes).map_err(|e| refused(&self.place, "write", &e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn begin_piece(&mut self) -> Result<()> {
        while let Some(spec) = self.specs.get(self.records.len()) {
            self.left = spec.bytes().unwrap_or(0);
            if self.left > 0 {
                break;
            }
            self.end_piece()?;
        }
        Ok(())
    }

    fn end_piece(&mut self) -> Result<()> {
        let Some(spec) = self.specs.get(self.records.len()).cloned() else { return Ok(()) };
        let length = spec.bytes().unwrap_or(0);
        let hash = self.piece_hash.finalize().into();
        self.piece_hash.reset();
        self.records.push(PieceRecord { spec, offset: self.bytes - length, hash });
        if length > 0 && !std::mem::replace(&mut self.under_way, true) {
            self.fail_points.reach(FailPoint::SaveMidShard)?;
        }
        Ok(())
    }

    fn misfit(&self, what: &str) -> Error {
        request(&self.place, format!("it was given {what}"), "write exactly the elements that the pieces name")
    }
}

/// Length, JSON, and blanks up to the next multiple of eight; or why these pieces cannot be in one file.
fn header(specs: &[PieceSpec]) -> Result<Vec<u8>, String> {
    let mut keys = BTreeSet::new();
    let mut total = 0u64;
    for spec in specs {
        spec.check()?;
        if !keys.insert((&spec.name, &spec.kind, spec.start)) {
            return Err(format!("{} {} from element {}: given twice", spec.kind, spec.name, spec.start));
        }
        let end = spec.bytes().and_then(|bytes| total.checked_add(bytes));
        total = end.ok_or("the pieces together have more bytes than a file can")?;
    }
    let mut header = vec![0; 8];
    entries(specs, &mut header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() - 8;
    if length > MAX_HEADER_BYTES {
        return Err(format!("the header has {length} bytes, the format allows {MAX_HEADER_BYTES}"));
    }
    header[..8].copy_from_slice(&(length as u64).to_le_bytes());
    Ok(header)
}

#[derive(Serialize)]
struct HeaderEntry<'a> {
    dtype: String,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

fn entries(specs: &[PieceSpec], out: &mut Vec<u8>) -> Result<(), String> {
    let wrong = |e: serde_json::Error| e.to_string();
    let mut json = serde_json::Serializer::new(out);
    let mut map = json.serialize_map(None).map_err(wrong)?;
    let mut start = 0u64;
    for spec in specs {
        if !STORED.contains(&spec.dtype) {
            return Err(format!("{}: {} has no stored form", spec.name, spec.dtype));
        }
        // The format writes the names of dtypes in capitals.
        let dtype = spec.dtype.name().to_ascii_uppercase();
        let end = start + spec.bytes().unwrap_or(0);
        let (line, lines) = ([spec.length], [spec.runs, spec.length]);
        let (shape, stride) = match spec.runs {
            1 if spec.elements() == Some(spec.length) => (spec.shape.as_slice(), String::new()),
            1 => (line.as_slice(), String::new()),
            _ => (lines.as_slice(), format!(":{}", spec.stride)),
        };
        let key = format!("{}:{}@{}{stride}", spec.kind, spec.name, spec.start);
        map.serialize_entry(&key, &HeaderEntry { dtype, shape, data_offsets: (start, end) }).map_err(wrong)?;
        start = end;
    }
    map.end().map_err(wrong)
}

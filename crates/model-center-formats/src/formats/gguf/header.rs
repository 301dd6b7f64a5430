//! Parses an untrusted GGUF header: bounded memory, every inconsistency is reported.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::cursor::Cursor;
use super::{GgmlType, Metadata, damaged, tensor_place};
use crate::formats::safetensors::TensorEntry;
use crate::{Error, Result};

/// More tensors than any one real file has (a few thousand), few enough to list in memory.
const MAX_TENSORS: u64 = 262_144;
/// The most dimensions the format has.
const MAX_RANK: u32 = 4;
/// Longer than any real tensor name.
const MAX_NAME: usize = 1024;
/// The format's default if the key [`ALIGNMENT_KEY`] is absent.
const ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// A header whose claims were checked against the file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    /// Sorted by name.
    pub(super) tensors: Vec<Stored>,
}

/// One tensor: its name and row-major shape, how it is stored, and the bytes of the file that hold it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) entry: TensorEntry,
    pub(super) kind: GgmlType,
    pub(super) range: Range<u64>,
}

impl Header {
    /// Read and check the header of an open file of `length` bytes.
    pub(super) fn read(path: &Path, file: &File, length: u64) -> Result<Self> {
        let mut cursor = Cursor::new(path, file, length);
        let version = version(&mut cursor)?;
        let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
        if tensors > MAX_TENSORS {
            return Err(cursor.bad(format_args!("{tensors} tensors are declared, more than {MAX_TENSORS} in one file")));
        }
        let metadata = Metadata::read(&mut cursor, keys)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = cursor.list((tensors, 24), "tensors", tensor)?;
        let data_start = cursor.position().next_multiple_of(alignment);
        locate(cursor.place(), &mut tensors, data_start, alignment, length)?;
        tensors.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].entry.name == pair[1].entry.name) {
            let place = tensor_place(cursor.place(), &pair[0].entry.name);
            return Err(damaged(&place, "the name appears twice in the file"));
        }
        Ok(Self { version, metadata, tensors })
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let refuse = |cursor: &Cursor<'_>, reason: String, fix: &str| Err(Error::model(cursor.place(), reason, fix));
    if cursor.bytes()? != *b"GGUF" {
        return refuse(cursor, "the file does not start with GGUF, so it is not a GGUF file".into(), "check the path");
    }
    match cursor.u32()? {
        version @ 2..=3 => Ok(version),
        1 => refuse(cursor, "the file is of version 1; 2 and 3 are read".into(), "convert the model to GGUF again"),
        other if (1..=3).contains(&other.swap_bytes()) => {
            let reason = "the file is big endian; little endian is read".into();
            refuse(cursor, reason, "download the file for little-endian machines, or convert the model again")
        }
        other => refuse(
            cursor,
            format!("the file claims version {other}; 2 and 3 are read"),
            "download the file again, or convert the model to version 3",
        ),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    match metadata.whole(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT) {
        // Beyond a page of the largest kind nothing is gained, and sums of it could overflow.
        good if good.is_power_of_two() && good <= 1 << 30 => Ok(good),
        other => Err(metadata.unfit(
            ALIGNMENT_KEY,
            format!("an alignment of {other} bytes is not a power of two up to 2^30"),
            "the file is damaged: download or copy it again",
        )),
    }
}

/// One tensor's claims; the range is still relative to the start of the data.
fn tensor(cursor: &mut Cursor<'_>) -> Result<Stored> {
    let name = cursor.text()?;
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(cursor.bad("a tensor name is empty, too long or has control characters in it"));
    }
    let place = tensor_place(cursor.place(), &name);
    let rank = cursor.u32()?;
    if rank > MAX_RANK {
        return Err(damaged(&place, format!("{rank} dimensions are declared, the format has at most {MAX_RANK}")));
    }
    let mut shape = cursor.numbers(u64::from(rank), u64::from_le_bytes)?;
    // In the file the fastest axis comes first.
    shape.reverse();
    let (kind, offset) = (cursor.u32()?, cursor.u64()?);
    let kind = GgmlType::of(kind).map_err(|known| match known {
        Some(name) => Error::model(
            &place,
            format!("the tensor is stored as {name}, which is not read; read are {}", GgmlType::supported()),
            "download the model in another quantisation, such as Q8_0, Q4_K_M or F16",
        ),
        None => damaged(&place, format!("unknown type {kind}")),
    })?;
    let bytes = bytes(kind, &shape).map_err(|reason| damaged(&place, reason))?;
    let end = offset.checked_add(bytes).ok_or_else(|| damaged(&place, "its place in the file overflows"))?;
    // Every dimension is a factor of a size that memory has.
    let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
    Ok(Stored { entry: TensorEntry::new(name, kind.presented(), shape), kind, range: offset..end })
}

fn bytes(kind: GgmlType, shape: &[u64]) -> Result<u64, String> {
    let (elements, bytes) = kind.block();
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(elements as u64) {
        return Err(format!("rows of {row} elements are no whole number of {kind} blocks, which have {elements}"));
    }
    let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    // Also as single precision it has to be a size that memory has.
    let count = count.filter(|n| n.checked_mul(4).is_some_and(|bytes| bytes <= isize::MAX as u64));
    match count {
        Some(0) => Err(format!("a tensor of shape {shape:?} has no elements")),
        Some(n) => Ok(n / elements as u64 * bytes as u64),
        None => Err(format!("{kind} of shape {shape:?} is too large for memory")),
    }
}

/// Check the layout and turn offsets into places in the file.
fn locate(place: &str, tensors: &mut [Stored], data_start: u64, alignment: u64, length: u64) -> Result<()> {
    tensors.sort_by_key(|stored| stored.range.start);
    let mut before = 0;
    for Stored { entry, range, .. } in tensors {
        let bad = |reason: String| Err(damaged(tensor_place(place, &entry.name), reason));
        if !range.start.is_multiple_of(alignment) {
            return bad(format!("data begins at {}, which is not a multiple of {alignment}", range.start));
        }
        if range.start < before {
            return bad(format!("data begins at {}, but the tensor before it ends at {before}", range.start));
        }
        before = range.end;
        match data_start.checked_add(range.end) {
            Some(end) if end <= length => *range = data_start + range.start..end,
            _ => {
                let (end, present) = (range.end, length.saturating_sub(data_start));
                return bad(format!("the tensor ends at {end}, but {present} bytes of data are there"));
            }
        }
    }
    Ok(())
}

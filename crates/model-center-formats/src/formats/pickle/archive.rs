//! The zip container of PyTorch 1.6 and later: the offsets of its entries.
//!
//! An archive has one directory with `data.pkl`, `byteorder`, `version` and, one for each storage, `data/KEY`. PyTorch
//! stores entries as they are, so a tensor is read from its place. Nothing is unpacked and no name becomes a path.
//! Checksums are not compared: PyTorch can be told not to compute them.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::super::stored::{damaged, read_at};
use super::input::{Input, refused};
use super::machine;
use super::state::Storage;
use super::value::Object;
use crate::Result;
use model_center_base::file::printable;

pub(super) const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// Bytes of the record that ends an archive, without its comment, and of the longest comment.
const END_BYTES: u64 = 22;
const MAX_COMMENT: u64 = 0xffff;
/// Bytes of the record that ends a large archive, and of its locator.
const END64_BYTES: u64 = 56;
const LOCATOR_BYTES: u64 = 20;
/// Bytes of an entry's own header, before its name.
const HEADER_BYTES: u64 = 30;
/// More entries than any real archive has; a storage for each tensor and a handful beside.
const MAX_ENTRIES: u64 = 1 << 17;
const MAX_NAME: u64 = 1024;
/// The longest pickle. A model of 10,000 tensors has one of 2 MB.
const MAX_PICKLE_BYTES: u64 = 64 << 20;
/// The newest version of the archive that PyTorch has had.
const NEWEST_VERSION: u32 = 10;

#[derive(Debug)]
pub(super) struct Archive {
    /// The one directory in it, with its slash.
    root: String,
    /// By full name.
    entries: HashMap<String, ZipEntry>,
    /// End of the entries and start of their list.
    end: u64,
}

/// An entry of the central directory.
#[derive(Debug, Clone, Copy)]
struct ZipEntry {
    header: u64,
    bytes: u64,
    /// Whether the bytes are stored uncompressed.
    plain: bool,
}

impl Archive {
    /// Read the list of entries of the archive that is in the bytes `within` of a file, which has them, and its pickle.
    pub(super) fn open(path: &Path, file: &File, within: Range<u64>) -> Result<(Self, Object)> {
        let base = within.start;
        let (start, end, count) = directory(path, file, within)?;
        let entries = list(&mut Input::new(path, file, "list of entries", start, end), count, base)?;
        let mut roots =
            entries.keys().filter_map(|name| name.strip_suffix("data.pkl")).filter(|root| is_directory(root));
        let root = match (roots.next(), roots.next()) {
            (Some(root), None) => root.to_string(),
            (None, _) => return Err(refused(path, "a zip file without a DIRECTORY/data.pkl, which PyTorch writes")),
            _ => return Err(refused(path, "a zip file with a data.pkl in several directories")),
        };
        let archive = Self { root, entries, end: start };
        if archive.entries.contains_key(&format!("{}constants.pkl", archive.root)) {
            return Err(refused(path, "a TorchScript program, not a dictionary of tensors"));
        }
        archive.check_marks(path, file)?;
        let (at, bytes) = archive.place(path, file, "data.pkl")?;
        if bytes > MAX_PICKLE_BYTES {
            return Err(refused(path, format!("data.pkl has {bytes} bytes, the limit is {MAX_PICKLE_BYTES}")));
        }
        let mut input = Input::new(path, file, "data.pkl", at, at + bytes);
        let object = machine::parse(&mut input, machine::MAX_VALUES)?;
        if input.left() > 0 {
            return Err(input.damaged(input.offset(), format!("{} bytes follow the end", input.left())));
        }
        Ok((archive, object))
    }

    /// Byte order and version, if they are stated: early versions state neither.
    fn check_marks(&self, path: &Path, file: &File) -> Result<()> {
        let stated = |name: &str| -> Result<Option<String>> {
            if !self.entries.contains_key(&format!("{}{name}", self.root)) {
                return Ok(None);
            }
            let (at, bytes) = self.place(path, file, name)?;
            let mut text = vec![0; bytes.min(32) as usize];
            read_at(path, file, at, &mut text, None)?;
            Ok(Some(String::from_utf8_lossy(&text).trim().to_string()))
        };
        match stated("byteorder")?.as_deref() {
            None | Some("little") => {}
            Some(order) => {
                let reason = format!("its numbers are {} endian, only little is read", printable(order, 20));
                return Err(refused(path, reason));
            }
        }
        match stated("version")?.map(|text| text.parse::<u32>().map_err(|_| text)) {
            None | Some(Ok(..=NEWEST_VERSION)) => Ok(()),
            Some(Ok(version)) => {
                Err(refused(path, format!("version {version} of the archive, {NEWEST_VERSION} is the newest known")))
            }
            Some(Err(text)) => {
                Err(damaged(path.display(), format!("the archive's version is {:?}, no number", printable(&text, 20))))
            }
        }
    }

    /// Offset of a storage's values in the file.
    pub(super) fn locate(&self, path: &Path, file: &File, storage: &Storage<'_>) -> Result<u64> {
        let (at, bytes) = self.place(path, file, &format!("data/{}", storage.key))?;
        if storage.bytes() != Some(bytes) {
            let key = printable(storage.key, 40);
            let claim = format!("{} values of {:?}", storage.elements, storage.dtype);
            return Err(damaged(path.display(), format!("data/{key} has {bytes} bytes, the pickle declares {claim}")));
        }
        Ok(at)
    }

    /// Start and length of an entry's data; its own header has to agree with the list.
    fn place(&self, path: &Path, file: &File, name: &str) -> Result<(u64, u64)> {
        let full = format!("{}{name}", self.root);
        let bad = |reason: &str| damaged(path.display(), format!("entry {}: {reason}", printable(&full, 120)));
        let entry = self.entries.get(&full).ok_or_else(|| bad("the archive does not have it"))?;
        if !entry.plain {
            return Err(refused(path, format!("entry {} is compressed or encrypted", printable(&full, 120))));
        }
        let outside = || bad("it leaves the part of the file that has entries");
        let begin = entry.header.checked_add(HEADER_BYTES).filter(|end| *end <= self.end).ok_or_else(outside)?;
        let mut header = [0; HEADER_BYTES as usize];
        read_at(path, file, entry.header, &mut header, None)?;
        let (name_bytes, extra_bytes) = (u16_at(&header, 26), u16_at(&header, 28));
        if header[..4] != MAGIC || usize::from(name_bytes) != full.len() {
            return Err(bad("its header is not where the central directory specifies"));
        }
        let data = begin + u64::from(name_bytes) + u64::from(extra_bytes);
        data.checked_add(entry.bytes).filter(|end| *end <= self.end).ok_or_else(outside)?;
        let mut own_name = vec![0; full.len()];
        read_at(path, file, begin, &mut own_name, None)?;
        if own_name != full.as_bytes() {
            return Err(bad("its header has another name"));
        }
        if u16_at(&header, 8) != 0 || u16_at(&header, 6) & 1 != 0 {
            return Err(bad("its header declares compression or encryption"));
        }
        Ok((data, entry.bytes))
    }
}

fn is_directory(name: &str) -> bool {
    name.find('/').is_some_and(|slash| slash > 0 && slash + 1 == name.len())
}

/// Start and end of the list of entries in the file, and their number, from the records at the end of the archive. What
/// an archive states of places counts from its own start.
fn directory(path: &Path, file: &File, within: Range<u64>) -> Result<(u64, u64, u64)> {
    let mut tail = vec![0; within.end.saturating_sub(within.start).min(END_BYTES + MAX_COMMENT) as usize];
    let tail_start = within.end - tail.len() as u64;
    read_at(path, file, tail_start, &mut tail, None)?;
    let is_end = |at: &usize| {
        let at = *at;
        let whole = tail.len() - at;
        tail[at..].starts_with(b"PK\x05\x06") && usize::from(u16_at(&tail, at + 20)) + END_BYTES as usize == whole
    };
    let last = tail.len().checked_sub(END_BYTES as usize);
    let Some(at) = last.and_then(|last| (0..=last).rev().find(is_end)) else {
        return Err(damaged(path.display(), "the zip file has no end: it is truncated"));
    };
    let record = tail_start + at as u64;
    let (mut count, mut bytes, mut start) =
        (u64::from(u16_at(&tail, at + 10)), u64::from(u32_at(&tail, at + 12)), u64::from(u32_at(&tail, at + 16)));
    let mut limit = record;
    if count == 0xffff || bytes == 0xffff_ffff || start == 0xffff_ffff {
        let bad = || damaged(path.display(), "the zip file's records for large archives are missing or wrong");
        let mut locator = [0; LOCATOR_BYTES as usize];
        let locator_at = record.checked_sub(LOCATOR_BYTES).filter(|at| *at >= within.start).ok_or_else(bad)?;
        read_at(path, file, locator_at, &mut locator, None)?;
        limit = within.start.checked_add(u64_at(&locator, 8)).ok_or_else(bad)?;
        if locator[..4] != *b"PK\x06\x07" || limit.checked_add(END64_BYTES).is_none_or(|end| end > locator_at) {
            return Err(bad());
        }
        let mut end64 = [0; END64_BYTES as usize];
        read_at(path, file, limit, &mut end64, None)?;
        if end64[..4] != *b"PK\x06\x06" {
            return Err(bad());
        }
        (count, bytes, start) = (u64_at(&end64, 32), u64_at(&end64, 40), u64_at(&end64, 48));
    }
    let at = within.start.checked_add(start);
    match at.and_then(|at| Some((at, at.checked_add(bytes)?))) {
        Some((at, end)) if end <= limit && count <= MAX_ENTRIES => Ok((at, end, count)),
        Some((_, end)) if end <= limit => Err(refused(path, format!("{count} entries, the limit is {MAX_ENTRIES}"))),
        _ => {
            Err(damaged(path.display(), format!("the list of entries, {bytes} bytes from {start} on, leaves the file")))
        }
    }
}

/// The entries; their places count from byte `base` of the file.
fn list(input: &mut Input<'_>, count: u64, base: u64) -> Result<HashMap<String, ZipEntry>> {
    let mut entries = HashMap::new();
    for _ in 0..count {
        let at = input.offset();
        let fixed: [u8; 46] = input.array()?;
        if fixed[..4] != *b"PK\x01\x02" {
            return Err(input.damaged(at, "there should be an entry"));
        }
        let name = input.text(u64::from(u16_at(&fixed, 28)), MAX_NAME)?;
        let extra = input.bytes(u64::from(u16_at(&fixed, 30)), u64::from(u16::MAX))?;
        input.skip(u64::from(u16_at(&fixed, 32)))?;
        // The sizes that do not fit the fixed part are in the extra field, in this order.
        let mut fields = [u32_at(&fixed, 24), u32_at(&fixed, 20), u32_at(&fixed, 42)].map(u64::from);
        widen(&mut fields, &extra).ok_or_else(|| input.damaged(at, "the entry's large sizes are missing"))?;
        let [bytes, packed, header] = fields;
        let header = header.checked_add(base).ok_or_else(|| input.damaged(at, "an entry is outside of the file"))?;
        let plain = u16_at(&fixed, 10) == 0 && u16_at(&fixed, 8) & 1 == 0 && packed == bytes;
        if entries.contains_key(&name) {
            return Err(input.damaged(at, format!("the entry {} appears twice", printable(&name, 120))));
        }
        entries.insert(name, ZipEntry { header, bytes, plain });
    }
    match input.left() {
        0 => Ok(entries),
        left => Err(input.damaged(input.offset(), format!("{left} bytes follow the last entry"))),
    }
}

/// Replaces sizes that are all ones with those from the extra field for large archives.
fn widen(fields: &mut [u64; 3], extra: &[u8]) -> Option<()> {
    if fields.iter().all(|field| *field != 0xffff_ffff) {
        return Some(());
    }
    let mut rest = extra;
    while rest.len() >= 4 {
        let (kind, bytes) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
        let mut body = rest.get(4..4 + bytes)?;
        if kind == 1 {
            for field in fields.iter_mut().filter(|field| **field == 0xffff_ffff) {
                let (value, after) = body.split_first_chunk::<8>()?;
                *field = u64::from_le_bytes(*value);
                body = after;
            }
            return Some(());
        }
        rest = &rest[4 + bytes..];
    }
    None
}

// Little-endian numbers at places that the callers know to be there.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

//! Parses an untrusted safetensors header: bounded memory, every inconsistency is reported.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ::safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{MAX_RANK, MAX_TENSORS, StoredDtype, TensorEntry, is_tensor_name};
use crate::Result;
use crate::formats::entries::{Entries, FromEntries};
use crate::formats::stored::{damaged, tensor_place};
use model_center_base::file::{printable, unreadable};

const LENGTH_BYTES: u64 = 8;
/// The longest header the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A header whose claims were checked against the file.
#[derive(Debug)]
pub(super) struct Header {
    /// Sorted by name.
    pub(super) tensors: Vec<TensorEntry>,
    /// Bytes of the file that hold each tensor.
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) metadata: Vec<(String, String)>,
}

/// Read and check the header of an open file of `length` bytes.
pub(super) fn read(path: &Path, file: &File, length: u64) -> Result<Header> {
    let bad = |reason: String| damaged(path.display(), reason);
    if length < LENGTH_BYTES {
        return Err(bad(format!(
            "the file has {length} bytes, a safetensors file starts with 8 for the header's length"
        )));
    }
    let mut prefix = [0u8; LENGTH_BYTES as usize];
    file.read_exact_at(&mut prefix, 0).map_err(|e| unreadable(path, e))?;
    let header_length = u64::from_le_bytes(prefix);
    if header_length > MAX_HEADER_BYTES.min(length - LENGTH_BYTES) {
        let why =
            if header_length > MAX_HEADER_BYTES { "the format allows 100000000" } else { "the file ends before that" };
        return Err(bad(format!("the header declares {header_length} bytes, but {why} (the file has {length} bytes)")));
    }
    let mut text = vec![0u8; header_length as usize];
    file.read_exact_at(&mut text, LENGTH_BYTES).map_err(|e| unreadable(path, e))?;
    let raw = parse(path, &text)?;
    drop(text);
    locate(path, raw, LENGTH_BYTES + header_length, length)
}

fn parse(path: &Path, text: &[u8]) -> Result<RawHeader> {
    if text.first() != Some(&b'{') {
        return Err(damaged(path.display(), "the header does not start with {, so this is not a safetensors file"));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    Entries::deserialize(&mut json)
        .and_then(|Entries(header)| json.end().map(|()| header))
        .map_err(|e| damaged(path.display(), format!("the header is not valid: {}", printable(&e.to_string(), 300))))
}

/// Check each tensor's claims, then the whole layout, and turn offsets into places in the file.
fn locate(path: &Path, raw: RawHeader, data_start: u64, length: u64) -> Result<Header> {
    let mut tensors = raw.tensors;
    tensors.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
    let mut end = 0;
    for &((begin, stop), ref entry) in &tensors {
        let bad = |reason: String| damaged(tensor_place(path.display(), &entry.name), reason);
        let bytes = entry
            .bytes()
            .ok_or_else(|| bad(format!("{:?} of shape {:?} is too large for memory", entry.dtype, entry.shape)))?;
        if stop.checked_sub(begin) != Some(bytes as u64) {
            return Err(bad(format!(
                "offsets {begin}..{stop} do not fit {:?} of shape {:?}, which has {bytes} bytes",
                entry.dtype, entry.shape
            )));
        }
        if begin != end {
            return Err(bad(format!("data begins at {begin}, but the tensor before it ends at {end}")));
        }
        end = stop;
    }
    let present = length - data_start;
    if end > present {
        return Err(damaged(path.display(), format!("the file is truncated: {present} of {end} data bytes are there")));
    }
    if end < present {
        return Err(damaged(path.display(), format!("{} bytes follow the last tensor", present - end)));
    }
    confirm(path, &tensors)?;
    tensors.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].1.name == pair[1].1.name) {
        return Err(damaged(tensor_place(path.display(), &pair[0].1.name), "the name appears twice in the header"));
    }
    let (ranges, tensors) =
        tensors.into_iter().map(|((begin, end), entry)| (data_start + begin..data_start + end, entry)).unzip();
    Ok(Header { tensors, ranges, metadata: raw.metadata })
}

/// Confirms the layout with the format's reference implementation, which ignores names.
fn confirm(path: &Path, tensors: &[((u64, u64), TensorEntry)]) -> Result<()> {
    let layout = tensors.iter().map(|((begin, end), entry)| {
        let data_offsets = (*begin as usize, *end as usize);
        (String::new(), TensorInfo { dtype: entry.dtype, shape: entry.shape.clone(), data_offsets })
    });
    Metadata::new(None, layout.collect()).map(drop).map_err(|e| damaged(path.display(), printable(&e.to_string(), 300)))
}

/// The tensors of a header with the offsets that it claims, relative to its end.
#[derive(Debug)]
struct RawHeader {
    tensors: Vec<((u64, u64), TensorEntry)>,
    metadata: Vec<(String, String)>,
}

/// Entries one by one: the crate's own parser first holds the whole header as generic JSON, many times its size, and
/// lets the last of two equal names win.
impl FromEntries for RawHeader {
    const EXPECTED: &'static str = "an object of tensors";

    fn from_entries<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut header = RawHeader { tensors: Vec::new(), metadata: Vec::new() };
        let mut metadata_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut metadata_seen, true) {
                    return Err(A::Error::custom("__metadata__ appears twice in the header"));
                }
                header.metadata = map.next_value::<Option<Entries<FreeText>>>()?.map(|m| m.0.0).unwrap_or_default();
                continue;
            }
            if !is_tensor_name(&name) {
                return Err(A::Error::custom("a tensor name is empty, too long or has control characters in it"));
            }
            if header.tensors.len() == MAX_TENSORS {
                return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors in one file")));
            }
            let tensor: RawTensor = map.next_value()?;
            header.tensors.push((tensor.data_offsets, TensorEntry::new(name, tensor.dtype, tensor.shape.0)));
        }
        Ok(header)
    }
}

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: StoredDtype,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

/// A shape of at most [`MAX_RANK`] dimensions.
struct Dimensions(Vec<usize>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DimensionsVisitor)
    }
}

struct DimensionsVisitor;

impl<'de> Visitor<'de> for DimensionsVisitor {
    type Value = Dimensions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shape")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dimensions, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = seq.next_element()? {
            if shape.len() == MAX_RANK {
                return Err(A::Error::custom(format_args!("a tensor of more than {MAX_RANK} dimensions")));
            }
            shape.push(dimension);
        }
        Ok(Dimensions(shape))
    }
}

/// `__metadata__`: text to text, the first 64 pairs of it; nothing reads more than `format`.
struct FreeText(Vec<(String, String)>);

impl FromEntries for FreeText {
    const EXPECTED: &'static str = "an object of text";

    fn from_entries<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut pairs = Vec::new();
        while pairs.len() < 64
            && let Some(pair) = map.next_entry::<String, String>()?
        {
            pairs.push(pair);
        }
        while map.next_entry::<IgnoredAny, String>()?.is_some() {}
        Ok(FreeText(pairs))
    }
}

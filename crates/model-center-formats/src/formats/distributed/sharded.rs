//! The files of `HuggingFaceStorageWriter` before they are consolidated: safetensors whose headers tell which part of
//! its tensor each has.
//!
//! Defines [`has_files`] and [`read`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::safetensors::{MAX_RANK, SafetensorsFile, TensorEntry};
use super::super::stored::damaged;
use super::parts::Part;
use crate::{Error, Result};
use model_center_base::file::{printable, resolve_inside, unreadable};

/// The key of a header under which the first elements are.
const OFFSETS: &str = "DCP_SHARDING_INFO";
/// Files of a directory.
const MAX_FILES: usize = 1 << 14;

/// `shard-00001-model-00001-of-00001.safetensors`.
pub(super) fn is_shard(name: &str) -> bool {
    let inner = name.strip_prefix("shard-").and_then(|rest| rest.strip_suffix(".safetensors"));
    inner
        .and_then(|inner| inner.split_once("-model-"))
        .is_some_and(|(rank, _)| rank.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a directory has such files.
pub(super) fn has_files(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.take(MAX_FILES).flatten().any(|entry| is_shard(&entry.file_name().to_string_lossy()))
}

/// A tensor and its parts.
pub(super) type Sharded = (TensorEntry, Vec<Part>);

/// The files of a directory, and their tensors with the parts that each file has.
pub(super) fn read(directory: &Path) -> Result<(Vec<PathBuf>, Vec<Sharded>)> {
    let mut names = Vec::new();
    for (number, entry) in std::fs::read_dir(directory).map_err(|e| unreadable(directory, e))?.enumerate() {
        if number == MAX_FILES {
            let reason = format!("it has more than {MAX_FILES} files");
            return Err(Error::model(directory.display().to_string(), reason, "remove the files that are not shards"));
        }
        let name = entry.map_err(|e| unreadable(directory, e))?.file_name().to_string_lossy().into_owned();
        names.extend(is_shard(&name).then_some(name));
    }
    names.sort();
    let (mut paths, mut tensors): (Vec<PathBuf>, BTreeMap<String, Sharded>) = (Vec::new(), BTreeMap::new());
    for name in &names {
        let path = resolve_inside(directory, name)?;
        let file = SafetensorsFile::open(&path)?;
        let offsets = offsets(&file)?;
        for (entry, range) in file.tensors().iter().zip(file.ranges()) {
            let first = offsets.get(&entry.name).filter(|first| first.len() == entry.shape.len());
            let first = first.ok_or_else(|| {
                let reason = format!("tensor {}: {OFFSETS} does not tell its part", printable(&entry.name, 200));
                damaged(path.display(), reason)
            })?;
            let ends = first.iter().zip(&entry.shape).map(|(offset, size)| offset.checked_add(*size));
            let ends = ends.collect::<Option<Vec<usize>>>();
            let ends = ends.ok_or_else(|| damaged(path.display(), "the place of a part overflows"))?;
            let start = range.start;
            let part =
                Part { offsets: first.clone(), sizes: entry.shape.clone(), file: paths.len(), start, strides: None };
            let found = tensors.entry(entry.name.clone());
            let (known, parts) = found.or_insert_with(|| {
                (TensorEntry::new(entry.name.as_str(), entry.dtype, vec![0; ends.len()]), Vec::new())
            });
            if known.dtype != entry.dtype || known.shape.len() != ends.len() {
                let reason = format!("tensor {}: its parts have different dtypes or axes", printable(&entry.name, 200));
                return Err(damaged(path.display(), reason));
            }
            // The headers have no size of the whole: its parts end where it does.
            known.shape.iter_mut().zip(&ends).for_each(|(size, end)| *size = (*size).max(*end));
            // What several ranks have whole is one part.
            if !parts.iter().any(|other| other.offsets == part.offsets && other.sizes == part.sizes) {
                parts.push(part);
            }
        }
        paths.push(path);
    }
    Ok((paths, tensors.into_values().collect()))
}

/// The first element of each tensor's part.
fn offsets(file: &SafetensorsFile) -> Result<BTreeMap<String, Vec<usize>>> {
    let bad = |reason: &str, fix: &str| Error::model(file.path().display().to_string(), reason, fix);
    let Some(text) = file.metadata(OFFSETS) else {
        let reason = "its header does not tell which part of its tensors it has (DCP_SHARDING_INFO)";
        let fix = "write the checkpoint with HuggingFaceStorageWriter(enable_consolidation=True)";
        return Err(bad(reason, fix));
    };
    let wrong =
        || damaged(file.path().display(), format!("{OFFSETS} is not an object with the saved_offsets of tensors"));
    let Ok(Value::Object(map)) = serde_json::from_str(text) else { return Err(wrong()) };
    let mut offsets = BTreeMap::new();
    for (name, value) in map {
        let list = value.get("saved_offsets").and_then(Value::as_array).filter(|list| list.len() <= MAX_RANK);
        let whole = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
        let list = list.and_then(|list| list.iter().map(whole).collect::<Option<Vec<usize>>>());
        offsets.insert(name, list.ok_or_else(wrong)?);
    }
    Ok(offsets)
}

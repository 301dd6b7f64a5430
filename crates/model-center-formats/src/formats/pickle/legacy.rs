//! The container that PyTorch wrote before 1.6, and writes on request: pickles one after another, then storages.
//!
//! In order: a magic number, the version, facts about the writing machine, the object, the keys of its storages, each a
//! pickle; then for each key the number of elements in eight bytes and the elements.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use super::super::stored::damaged;
use super::input::{Input, refused};
use super::machine;
use super::state::{Storage, storage};
use super::value::{Object, Value};
use crate::Result;
use model_center_base::file::printable;

/// The magic number, 0x1950a86a20f9469cfc6c, little endian.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The one version there is.
const VERSION: i64 = 1001;
/// Values of the pickles beside the object.
const SMALL: usize = 64;
/// Storages of one file; there are fewer than tensors.
const MAX_STORAGES: usize = 1 << 16;
/// The longest stretch of pickles at the beginning.
const MAX_PICKLE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Legacy {
    starts: HashMap<String, u64>,
}

impl Legacy {
    /// Read the pickles and the lengths of the storages of a file of `length` bytes.
    pub(super) fn open(path: &Path, file: &File, length: u64) -> Result<(Self, Object)> {
        // A limit on the pickles bounds time on a file whose storages pass for instructions.
        let mut input = Input::new(path, file, "pickle", 0, length.min(MAX_PICKLE_BYTES));
        let magic = machine::parse(&mut input, SMALL)?;
        if !matches!(magic.value(magic.root), Some(Value::Long(bytes)) if **bytes == MAGIC) {
            return Err(refused(path, "a pickle that PyTorch did not write: it has no magic number"));
        }
        let version = machine::parse(&mut input, SMALL)?;
        if version.integer(version.root) != Some(VERSION) {
            return Err(refused(path, format!("a file of PyTorch whose version is not {VERSION}")));
        }
        let facts = machine::parse(&mut input, SMALL)?;
        match facts.get(facts.root, "little_endian").and_then(|id| facts.value(id)) {
            Some(Value::Truth(true)) => {}
            Some(Value::Truth(false)) => return Err(refused(path, "its numbers are big endian, only little is read")),
            _ => return Err(input.damaged(input.offset(), "the file does not specify its byte order")),
        }
        let object = machine::parse(&mut input, machine::MAX_VALUES)?;
        let described = described(&input, &object)?;
        // A key each, and what is there from the start.
        let keys = machine::parse(&mut input, described.len() + SMALL)?;
        let mut data = Input::new(path, file, "storages", input.position(), length);
        let starts = measure(&mut data, &described, &keys)?;
        drop(described);
        Ok((Self { starts }, object))
    }

    /// Offset of a storage's values in the file.
    pub(super) fn locate(&self, path: &Path, storage: &Storage<'_>) -> Result<u64> {
        self.starts.get(storage.key).copied().ok_or_else(|| {
            damaged(path.display(), format!("the storage {} is not in the file", printable(storage.key, 40)))
        })
    }
}

fn described<'a>(input: &Input<'_>, object: &'a Object) -> Result<HashMap<&'a str, Storage<'a>>> {
    let mut described: HashMap<&str, Storage<'_>> = HashMap::new();
    for value in &object.values {
        let Value::Storage(id) = value else { continue };
        let storage = storage(input.path(), object, *id)?;
        let before = described.insert(storage.key, storage);
        if before.is_some_and(|before| before.dtype != storage.dtype || before.elements != storage.elements) {
            let reason = format!("two accounts of the storage {}", printable(storage.key, 40));
            return Err(input.damaged(input.offset(), reason));
        }
        if described.len() > MAX_STORAGES {
            return Err(input.refused(input.offset(), format!("more than {MAX_STORAGES} storages")));
        }
    }
    Ok(described)
}

/// Walk over the storages: the pickle knows their types, the file their lengths, and both have to agree.
fn measure(
    data: &mut Input<'_>,
    described: &HashMap<&str, Storage<'_>>,
    keys: &Object,
) -> Result<HashMap<String, u64>> {
    let Some(Value::List(order)) = keys.value(keys.root) else {
        return Err(data.damaged(0, "the keys of the storages are no list"));
    };
    let mut starts = HashMap::new();
    for key in order {
        let at = data.offset();
        let key = keys.text(*key).ok_or_else(|| data.damaged(at, "the key of a storage is not text"))?;
        let shown = printable(key, 40);
        let storage =
            described.get(key).ok_or_else(|| data.damaged(at, format!("nothing refers to the storage {shown}")))?;
        let count = u64::from_le_bytes(data.array()?);
        if count != storage.elements {
            let reason = format!("the storage {shown} has {count} elements, the pickle specifies {}", storage.elements);
            return Err(data.damaged(at, reason));
        }
        let bytes = storage.bytes().ok_or_else(|| data.damaged(at, format!("the size of {shown} overflows")))?;
        if starts.insert(key.to_string(), data.position()).is_some() {
            return Err(data.damaged(at, format!("the storage {shown} appears twice")));
        }
        data.skip(bytes)?;
    }
    match data.left() {
        0 => Ok(starts),
        left => Err(data.damaged(data.offset(), format!("{left} bytes follow the last storage"))),
    }
}

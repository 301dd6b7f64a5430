//! Write one safetensors file whose tensors are known by name, type and shape before any data exist.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{StoredDtype, TensorEntry};
use crate::formats::stored::{CHUNK, narrow, tensor_place};
use crate::{Error, Result};
use ::safetensors::tensor::{Metadata, TensorInfo};
use model_center_base::file::AtomicFile;

/// A safetensors file being written.
///
/// The header goes out first; each tensor is then written once, in any order, to the place the header promised, so
/// that only one tensor need be in memory. Tensors are ordered by descending element size, then by name, as in the
/// format's reference writer: equal tensors give equal bytes.
#[derive(Debug)]
pub struct SafetensorsWriter {
    file: AtomicFile,
    slots: HashMap<String, Slot>,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Slot {
    dtype: StoredDtype,
    begin: u64,
    bytes: usize,
    written: bool,
}

impl SafetensorsWriter {
    /// Start `path` with the given tensors and `"format": "pt"`, which `transformers` insists on.
    pub fn create(path: &Path, tensors: &[TensorEntry]) -> Result<Self> {
        let bad = |entry: &TensorEntry, reason: &str| {
            let fix = "give every tensor one name and a shape that fits in memory";
            Error::model(tensor_place(path.display(), &entry.name), reason, fix)
        };
        let mut order: Vec<&TensorEntry> = tensors.iter().collect();
        order.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
        let (mut layout, mut slots, mut end) = (Vec::new(), HashMap::new(), 0usize);
        for entry in order {
            let bytes = entry.bytes().ok_or_else(|| bad(entry, "the size overflows"))?;
            let begin = end;
            end = begin.checked_add(bytes).ok_or_else(|| bad(entry, "the size of the file overflows"))?;
            let info = TensorInfo { dtype: entry.dtype, shape: entry.shape.clone(), data_offsets: (begin, end) };
            layout.push((entry.name.clone(), info));
            let slot = Slot { dtype: entry.dtype, begin: begin as u64, bytes, written: false };
            if entry.name == "__metadata__" || slots.insert(entry.name.clone(), slot).is_some() {
                return Err(bad(entry, "the name appears twice or is reserved"));
            }
        }
        let header = header_bytes(path, layout)?;
        for slot in slots.values_mut() {
            slot.begin += header.len() as u64;
        }
        let file = AtomicFile::create(path)?;
        file.file().write_all_at(&header, 0).map_err(|e| file.refused(e))?;
        Ok(Self { file, slots, scratch: Vec::new() })
    }

    /// Write one tensor from single precision; it is stored in the type that [`SafetensorsWriter::create`] was told.
    ///
    /// Numerics: f16 and bf16 round to nearest, ties to even; a finite value that f16 cannot hold is an error.
    pub fn write_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let (dtype, begin) = self.claim(name, |dtype| (dtype.bitsize() / 8).checked_mul(values.len()))?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut offset = begin;
        for part in values.chunks(CHUNK) {
            narrow(dtype, part, &mut scratch).map_err(|reason| self.refuse(name, reason))?;
            self.file.file().write_all_at(&scratch, offset).map_err(|e| self.file.refused(e))?;
            offset += scratch.len() as u64;
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Write one tensor from its stored bytes, little endian.
    pub fn write_raw(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let (_, begin) = self.claim(name, |_| Some(bytes.len()))?;
        self.file.file().write_all_at(bytes, begin).map_err(|e| self.file.refused(e))
    }

    /// Flush to the disk and give the file its name.
    pub fn finish(self) -> Result<()> {
        self.complete()?.commit()
    }

    /// Check that all is written and flush; the file still has its temporary name. Lets shards appear together.
    pub(crate) fn complete(self) -> Result<AtomicFile> {
        let mut unwritten: Vec<&String> = self.slots.iter().filter(|(_, slot)| !slot.written).map(|(n, _)| n).collect();
        unwritten.sort();
        if let Some(name) = unwritten.first() {
            return Err(self.refuse(name, format!("{} announced tensors were not written", unwritten.len())));
        }
        self.file.sync()?;
        Ok(self.file)
    }

    fn claim(&mut self, name: &str, bytes: impl Fn(StoredDtype) -> Option<usize>) -> Result<(StoredDtype, u64)> {
        let Some(slot) = self.slots.get_mut(name) else {
            return Err(self.refuse(name, "the tensor was not announced".into()));
        };
        let (want, got) = (slot.bytes, bytes(slot.dtype));
        if got != Some(want) {
            return Err(self.refuse(name, format!("got {got:?} bytes of data, announced {want}")));
        }
        if std::mem::replace(&mut slot.written, true) {
            return Err(self.refuse(name, "the tensor was written before".into()));
        }
        Ok((slot.dtype, slot.begin))
    }

    fn refuse(&self, name: &str, reason: String) -> Error {
        let place = tensor_place(self.file.target().display(), name);
        Error::model(place, reason, "write every announced tensor once, in a type that holds its values")
    }
}

/// The length and the JSON, padded with spaces so that data start on a multiple of 8 bytes.
fn header_bytes(path: &Path, layout: Vec<(String, TensorInfo)>) -> Result<Vec<u8>> {
    let bad = |e: String| Error::model(path.display().to_string(), e, "check names and shapes of the tensors");
    let note = [("format".to_string(), "pt".to_string())].into_iter().collect();
    let metadata = Metadata::new(Some(note), layout).map_err(|e| bad(e.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| bad(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

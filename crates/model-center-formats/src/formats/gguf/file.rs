//! Read one GGUF file, tensor by tensor, into memory that the caller owns.
//!
//! Defines [`GgufFile`]; called by [`super::names`] and by programs that look at a single file.

use std::fs::File;
use std::path::{Path, PathBuf};

use bmtrain_core::quantised::BlockFormat;

use super::dequantise::decode;
use super::header::{Header, Stored};
use super::{GgmlType, Metadata, damaged, read_at, tensor_place};
use crate::formats::safetensors::{TensorEntry, TensorSource};
use crate::formats::stored::require_length;
use crate::{Error, Result};
use model_center_base::file::open_regular;

/// Elements decoded at a time: a multiple of every block, small enough to stay in the second-level cache.
const CHUNK: usize = 64 * 1024;

/// An open GGUF file whose header was checked; data are read on request.
///
/// As a [`TensorSource`] it has the format's own names (`blk.0.attn_q.weight`) with shapes in row-major order,
/// `[out, in]` for a matrix. Quantised tensors are presented as F32, which is also what [`TensorSource::read_raw_at`]
/// gives of them; [`GgufFile::stored`] tells how they are stored.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    version: u32,
    metadata: Metadata,
    tensors: Vec<Stored>,
}

impl GgufFile {
    /// Open `path` and check its header against the file's length.
    ///
    /// Memory: a few times the header, which has at most 128 MiB.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, length) = open_regular(path)?;
        let Header { version, metadata, tensors } = Header::read(path, &file, length)?;
        Ok(Self { path: path.to_path_buf(), file, version, metadata, tensors })
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The file's metadata about the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The entry of one tensor.
    pub fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.position(name).map(|at| &self.tensors[at].entry)
    }

    /// Stored type of one tensor.
    pub fn stored(&self, name: &str) -> Option<GgmlType> {
        self.position(name).map(|at| self.tensors[at].kind)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.tensors.binary_search_by(|stored| stored.entry.name.as_str().cmp(name)).ok()
    }

    fn not_rows(&self, name: &str, first: usize, bytes: usize) -> Error {
        let reason = format!("{bytes} bytes from row {first} on are no rows in blocks of this tensor");
        Error::model(tensor_place(self.place(), name), reason, "ask for whole rows of a quantised matrix")
    }

    fn require(&self, name: &str) -> Result<&Stored> {
        self.position(name).map(|at| &self.tensors[at]).ok_or_else(|| {
            let place = tensor_place(self.place(), name);
            Error::model(place, "there is no tensor of this name in the file", "check the name against the file's list")
        })
    }

    /// Fill `raw` from byte `offset` of a tensor's place, which the caller keeps within it.
    fn read_at(&self, tensor: &Stored, offset: u64, raw: &mut [u8]) -> Result<()> {
        read_at(&self.path, &self.file, tensor.range.start + offset, raw, Some(&tensor.entry.name))
    }

    /// Decode elements from `start` on, which begins a block, as does what follows `out` unless it is the tensor's end.
    fn decode_from(&self, tensor: &Stored, start: usize, out: &mut [f32]) -> Result<()> {
        let (elements, bytes) = tensor.kind.block();
        let mut raw = vec![0u8; CHUNK.min(out.len()) / elements * bytes];
        for (i, part) in out.chunks_mut(CHUNK).enumerate() {
            let raw = &mut raw[..part.len() / elements * bytes];
            self.read_at(tensor, ((start + i * CHUNK) / elements * bytes) as u64, raw)?;
            decode(tensor.kind, raw, part);
        }
        Ok(())
    }
}

impl TensorSource for GgufFile {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.tensors.iter().map(|stored| &stored.entry).collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let tensor = self.require(name)?;
        require_length(&self.place(), &tensor.entry, out.len())?;
        self.decode_from(tensor, 0, out)
    }

    fn block_format(&self, name: &str) -> Option<BlockFormat> {
        let stored = self.position(name).map(|at| &self.tensors[at])?;
        stored.kind.blocks().filter(|_| stored.entry.shape.len() == 2)
    }

    fn read_blocks_at(&self, name: &str, first: usize, out: &mut [u8]) -> Result<()> {
        let tensor = self.require(name)?;
        let [rows, columns] = *tensor.entry.shape else { return Err(self.not_rows(name, first, out.len())) };
        let row = tensor.kind.blocks().and_then(|format| format.row_bytes(columns));
        let end = row.and_then(|row| first.checked_add(out.len() / row).filter(|_| out.len().is_multiple_of(row)));
        match (row, end) {
            (Some(row), Some(end)) if end <= rows => self.read_at(tensor, (first * row) as u64, out),
            _ => Err(self.not_rows(name, first, out.len())),
        }
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let tensor = self.require(name)?;
        let size = tensor.entry.bytes().unwrap_or(0) as u64;
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > size) {
            let place = tensor_place(self.place(), name);
            return Err(damaged(&place, format!("{} bytes at {offset} leave the tensor", out.len())));
        }
        if tensor.kind.is_plain() {
            return self.read_at(tensor, offset, out);
        }
        // The bytes that the decoded elements would have.
        let (elements, _) = tensor.kind.block();
        let (mut at, mut rest) = (offset as usize, out);
        let mut values = Vec::new();
        while !rest.is_empty() {
            let first = at / 4 / elements * elements;
            let skipped = at - first * 4;
            let count = (skipped + rest.len()).div_ceil(4).next_multiple_of(elements).min(CHUNK);
            values.resize(count, 0f32);
            self.decode_from(tensor, first, &mut values)?;
            let (part, after) = rest.split_at_mut(rest.len().min(count * 4 - skipped));
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).skip(skipped);
            part.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }
}

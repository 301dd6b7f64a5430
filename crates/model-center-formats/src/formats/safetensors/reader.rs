//! Read one safetensors file, tensor by tensor, into memory that the caller owns.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bmtrain_core::limits::make_room;

use super::header;
use super::{StoredDtype, TensorEntry, TensorSource};
use crate::Result;
use crate::formats::stored::{
    FLOATS, absent, damaged, read_at, require_length, require_range, tensor_place, widen, wrong_type,
};
use model_center_base::file::{open_regular, printable};

/// An open safetensors file whose header was checked; data are read on request.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: Vec<TensorEntry>,
    ranges: Vec<Range<u64>>,
    metadata: Vec<(String, String)>,
}

impl SafetensorsFile {
    /// Open `path` and check its header against the file's length.
    ///
    /// Memory: about twice the header. Only the header is read; the data of a file cannot be told right from wrong.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, length) = open_regular(path)?;
        let header = header::read(path, &file, length)?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            tensors: header.tensors,
            ranges: header.ranges,
            metadata: header.metadata,
        })
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The bytes of the file that each of them has, in the same order.
    pub(in crate::formats) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The entry of one tensor.
    pub fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.position(name).map(|i| &self.tensors[i])
    }

    /// A value of the header's `__metadata__`, such as `format`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The stored bytes of one tensor, little endian.
    pub fn read_raw(&self, name: &str) -> Result<Vec<u8>> {
        let index = self.require(name)?;
        let length = (self.ranges[index].end - self.ranges[index].start) as usize;
        let mut bytes = reserve(self, name, length)?;
        bytes.resize(length, 0);
        self.read_at(index, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// An integer or truth-value tensor as `i64`: `I64`, `I32`, `I16`, `I8`, `U8` or `BOOL`.
    pub fn read_i64(&self, name: &str) -> Result<Vec<i64>> {
        let entry = &self.tensors[self.require(name)?];
        let bytes = self.read_raw(name)?;
        Ok(match entry.dtype {
            StoredDtype::I64 => little_endian(&bytes, i64::from_le_bytes),
            StoredDtype::I32 => little_endian(&bytes, |b| i64::from(i32::from_le_bytes(b))),
            StoredDtype::I16 => little_endian(&bytes, |b| i64::from(i16::from_le_bytes(b))),
            StoredDtype::I8 => little_endian(&bytes, |b| i64::from(i8::from_le_bytes(b))),
            StoredDtype::U8 | StoredDtype::BOOL => bytes.into_iter().map(i64::from).collect(),
            _ => return Err(wrong_type(&self.place(), entry, "integers (i64, i32, i16, i8, u8 or bool)")),
        })
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.tensors.binary_search_by(|entry| entry.name.as_str().cmp(name)).ok()
    }

    fn require(&self, name: &str) -> Result<usize> {
        self.position(name).ok_or_else(|| absent(&self.place(), name))
    }

    fn read_at(&self, index: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = &self.ranges[index];
        let begin = range.start.saturating_add(offset);
        let fits = begin.checked_add(out.len() as u64).is_some_and(|end| end <= range.end);
        let name = &self.tensors[index].name;
        if !fits {
            let reason = format!("{} bytes at {offset} leave the tensor", out.len());
            return Err(damaged(tensor_place(self.path.display(), name), reason));
        }
        read_at(&self.path, &self.file, begin, out, Some(name))
    }
}

impl TensorSource for SafetensorsFile {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.tensors.iter().collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        require_length(&self.place(), &self.tensors[self.require(name)?], out.len())?;
        self.read_f32_at(name, 0, out)
    }

    fn read_f32_at(&self, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        let index = self.require(name)?;
        let entry = &self.tensors[index];
        require_range(&self.place(), entry, first, out.len())?;
        let start = (first * entry.dtype.bitsize() / 8) as u64;
        match widen(entry.dtype, out, |offset, bytes| self.read_at(index, start + offset, bytes))? {
            true => Ok(()),
            false => Err(wrong_type(&self.place(), entry, FLOATS)),
        }
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_at(self.require(name)?, offset, out)
    }

    fn reads_parts(&self, _name: &str) -> bool {
        true
    }
}

/// An empty vector with room for `length` bytes, or an error that names the limit.
fn reserve(file: &SafetensorsFile, name: &str, length: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    make_room(&mut bytes, length, format_args!("tensor {} of {}", printable(name, 200), file.path.display()))?;
    Ok(bytes)
}

fn little_endian<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> i64) -> Vec<i64> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| one(*chunk)).collect()
}

//! Read one PyTorch file, tensor by tensor, into memory that the caller owns.
//!
//! Defines [`PickleFile`]; called by [`crate::formats::weights`] and by programs that read a single file.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::super::safetensors::{StoredDtype, TensorEntry, TensorSource};
use super::super::stored::{FLOATS, absent, damaged, read_at, require_length, require_range, widen, wrong_type};
use super::archive::{self, Archive};
use super::input::refused;
use super::legacy::Legacy;
use super::state::{self, State, Storage, View, element_bytes};
use super::strided::{self, Elements};
use super::tree::{self, Scalar};
use super::value::Object;
use crate::Result;
use model_center_base::file::{open_regular, printable};

/// Elements of a non-contiguous tensor that are read at a time: some rows of the largest matrices.
const BLOCK: usize = 8 << 20;

/// An open file of `torch.save` whose tensors were checked against its length; data are read on request.
#[derive(Debug)]
pub struct PickleFile {
    path: PathBuf,
    file: File,
    tensors: Vec<TensorEntry>,
    views: Vec<View>,
    others: Vec<String>,
    scalars: Vec<(String, Scalar)>,
}

impl PickleFile {
    /// Open `path`, an archive or a file of the older kind, and find the dictionary of tensors in it: at the top, or
    /// under `state_dict`, `model` or `module`.
    ///
    /// Nothing in the file is run, see [`crate::formats::pickle`]. Memory: some bytes per value of the pickle, at most
    /// 64 MiB more than the pickle has; data of tensors are not read.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, |path, object, locate| state::tensors(path, object, locate))
    }

    /// Open a file whose tensors are anywhere in its dictionaries and lists. Names are paths, joined by dots, such as
    /// `optimizer_state_dict.single_partition_of_fp32_groups.0`; `is_read` chooses among the keys at the top. Other
    /// values are [`PickleFile::scalars`].
    pub fn open_tree(path: &Path, is_read: &dyn Fn(&str) -> bool) -> Result<Self> {
        Self::open_with(path, |path, object, locate| tree::tensors(path, object, is_read, locate))
    }

    fn open_with(
        path: &Path,
        tensors_of: impl FnOnce(&Path, &Object, &mut dyn FnMut(&Storage<'_>) -> Result<u64>) -> Result<State>,
    ) -> Result<Self> {
        let (file, length) = open_regular(path)?;
        let mut magic = vec![0; length.min(16) as usize];
        read_at(path, &file, 0, &mut magic, None)?;
        let mut state = if magic.starts_with(&archive::MAGIC) {
            let (archive, object) = Archive::open(path, &file, 0..length)?;
            tensors_of(path, &object, &mut |storage| archive.locate(path, &file, storage))?
        } else if magic.first() == Some(&0x80) {
            let (legacy, object) = Legacy::open(path, &file, length)?;
            tensors_of(path, &object, &mut |storage| legacy.locate(path, storage))?
        } else {
            return Err(no_pickle(path, &magic));
        };
        state.tensors.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        if let Some(pair) = state.tensors.windows(2).find(|pair| pair[0].0.name == pair[1].0.name) {
            let reason = format!("the tensor {} appears twice", printable(&pair[0].0.name, 200));
            return Err(damaged(path.display(), reason));
        }
        let State { tensors, others, scalars, .. } = state;
        let (tensors, views) = tensors.into_iter().unzip();
        Ok(Self { path: path.to_path_buf(), file, tensors, views, others, scalars })
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Keys of the dictionary whose values are no tensors, such as counters, in the order of the file. They are not
    /// read.
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// Values of a file of [`PickleFile::open_tree`] that are no tensors, by path, in the order of the file.
    pub fn scalars(&self) -> &[(String, Scalar)] {
        &self.scalars
    }

    /// One of them.
    pub fn scalar(&self, path: &str) -> Option<&Scalar> {
        self.scalars.iter().find(|(name, _)| name == path).map(|(_, scalar)| scalar)
    }

    fn require(&self, name: &str) -> Result<usize> {
        let found = self.tensors.binary_search_by(|entry| entry.name.as_str().cmp(name));
        found.map_err(|_| absent(&self.place(), name))
    }

    fn read_at(&self, index: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let (entry, view) = (&self.tensors[index], &self.views[index]);
        let fits =
            offset.checked_add(out.len() as u64).is_some_and(|end| entry.bytes().is_some_and(|all| end <= all as u64));
        if !fits {
            let reason = format!("tensor {}: {} bytes at {offset} leave it", printable(&entry.name, 200), out.len());
            return Err(damaged(self.path.display(), reason));
        }
        let Some(strides) = view.strides.as_deref() else {
            return read_at(&self.path, &self.file, view.start + offset, out, None);
        };
        let width = element_bytes(entry.dtype);
        let (first, skipped) = (offset / width, (offset % width) as usize);
        let from = Elements { shape: &entry.shape, strides, start: view.start, width, first };
        if skipped == 0 && out.len().is_multiple_of(width as usize) {
            return strided::read(&self.path, &self.file, &from, out);
        }
        let mut whole = vec![0; (skipped + out.len()).next_multiple_of(width as usize)];
        strided::read(&self.path, &self.file, &from, &mut whole)?;
        out.copy_from_slice(&whole[skipped..skipped + out.len()]);
        Ok(())
    }
}

impl TensorSource for PickleFile {
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

    fn reads_parts(&self, name: &str) -> bool {
        self.require(name).is_ok_and(|index| self.views[index].strides.is_none())
    }

    fn read_f32_at(&self, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        let index = self.require(name)?;
        let entry = &self.tensors[index];
        require_range(&self.place(), entry, first, out.len())?;
        let width = element_bytes(entry.dtype) as usize;
        let read_all = |start: usize, out: &mut [f32]| {
            widen(entry.dtype, out, |offset, bytes| self.read_at(index, (start * width) as u64 + offset, bytes))
        };
        let is_float = if self.views[index].strides.is_none() || !entry.is_float() || entry.dtype == StoredDtype::F32 {
            read_all(first, out)?
        } else {
            // Widened little by little, a transposed matrix would be fetched in as many tiny pieces.
            let mut block = Vec::new();
            let mut at = first;
            for part in out.chunks_mut(BLOCK) {
                block.resize(part.len() * width, 0);
                self.read_at(index, (at * width) as u64, &mut block)?;
                widen(entry.dtype, part, |offset, bytes| {
                    let offset = offset as usize;
                    bytes.copy_from_slice(&block[offset..offset + bytes.len()]);
                    Ok(())
                })?;
                at += part.len();
            }
            true
        };
        if is_float { Ok(()) } else { Err(wrong_type(&self.place(), entry, FLOATS)) }
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_at(self.require(name)?, offset, out)
    }

    fn are_tied(&self, first: &str, second: &str) -> bool {
        match (self.require(first), self.require(second)) {
            (Ok(first), Ok(second)) => {
                self.views[first] == self.views[second]
                    && self.tensors[first].dtype == self.tensors[second].dtype
                    && self.tensors[first].shape == self.tensors[second].shape
            }
            _ => false,
        }
    }
}

/// The error for a file that is neither kind, with what it looks like.
fn no_pickle(path: &Path, magic: &[u8]) -> crate::Error {
    let looks = if magic.is_empty() {
        "it is empty"
    } else if magic.starts_with(b"version https") {
        "it looks like the pointer that git-lfs leaves in place of a file"
    } else if magic.starts_with(b"<") {
        "it looks like a page of the web"
    } else if magic.starts_with(b"PK") {
        "it is a zip file without entries"
    } else {
        "it begins neither as a zip file nor as a pickle"
    };
    refused(path, format!("this is not a file that torch.save wrote: {looks}"))
}

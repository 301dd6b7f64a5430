//! The model's tensors of a distributed checkpoint.
//!
//! Defines [`DistributedWeights`].

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::super::pickle::saved_tensor;
use super::super::safetensors::{StoredDtype, TensorEntry, TensorSource};
use super::super::stored::{FLOATS, absent, damaged, require_length, require_range, tensor_place, widen, wrong_type};
use super::metadata::{self, Chunk, SavedTensor, stored_type};
use super::names::{self, Chosen, LeftOut, is_megatron_core};
use super::parts::{Part, check_tiling, read_range};
use super::{METADATA_FILE, sharded};
use crate::{Error, Result};
use model_center_base::file::{open_regular, printable, resolve_inside};

/// A directory of `torch.distributed.checkpoint`, whose parts were checked against their files and against each other;
/// data are read on request.
#[derive(Debug)]
pub struct DistributedWeights {
    directory: PathBuf,
    files: Vec<PathBuf>,
    /// Sorted by name.
    tensors: Vec<TensorEntry>,
    parts: Vec<Vec<Part>>,
    left: LeftOut,
}

impl DistributedWeights {
    /// Opens a directory: `.metadata` with its `.distcp` files, or the safetensors of `HuggingFaceStorageWriter`. Of a
    /// training state the model's tensors are taken, under their names in the model; see [`DistributedWeights::left`].
    ///
    /// Nothing in the files is run. Memory: some bytes for each part; data are not read.
    ///
    /// # Errors
    /// [`Error::Model`] for files that contradict the list, parts that do not make their tensor, no tensors of a model
    /// or of several, and dtypes that are not read.
    pub fn open(directory: &Path) -> Result<Self> {
        if !directory.join(METADATA_FILE).is_file() {
            let (files, tensors) = sharded::read(directory)?;
            return Self::of_parts(directory, files, tensors, LeftOut::new());
        }
        refuse_megatron_core(directory)?;
        let saved = metadata::read(directory)?;
        let files: Vec<PathBuf> =
            saved.files.iter().map(|name| resolve_inside(directory, name)).collect::<Result<_>>()?;
        let Chosen { tensors, left } = names::choose(directory, saved)?;
        let mut opened = Opened { files: &files, held: HashMap::new() };
        let tensors = tensors.into_iter().map(|(name, tensor)| opened.parts(name, &tensor)).collect::<Result<_>>()?;
        Self::of_parts(directory, files, tensors, left)
    }

    fn of_parts(
        directory: &Path,
        files: Vec<PathBuf>,
        mut tensors: Vec<sharded::Sharded>,
        left: LeftOut,
    ) -> Result<Self> {
        tensors.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        for (entry, parts) in &tensors {
            check_tiling(&entry.shape, parts)
                .map_err(|reason| damaged(tensor_place(directory.display(), &entry.name), reason))?;
        }
        let (tensors, parts) = tensors.into_iter().unzip();
        Ok(Self { directory: directory.to_owned(), files, tensors, parts, left })
    }

    /// Parts that are not the model's, such as an optimizer's state.
    pub fn left(&self) -> &LeftOut {
        &self.left
    }

    fn require(&self, name: &str) -> Result<usize> {
        let found = self.tensors.binary_search_by(|entry| entry.name.as_str().cmp(name));
        found.map_err(|_| absent(&self.place(), name))
    }

    /// Elements from `first` on as they are stored.
    fn read_elements(&self, index: usize, first: usize, width: usize, out: &mut [u8]) -> Result<()> {
        let lost = || damaged(self.place(), "a part of a tensor is in no file");
        let (entry, parts) = self.tensors.get(index).zip(self.parts.get(index)).ok_or_else(lost)?;
        parts.iter().try_for_each(|part| {
            read_range(self.files.get(part.file).ok_or_else(lost)?, (&entry.shape, part), (first, width), out)
        })
    }
}

impl TensorSource for DistributedWeights {
    fn place(&self) -> String {
        self.directory.display().to_string()
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
        let width = width_of(entry.dtype);
        let read =
            |offset: u64, bytes: &mut [u8]| self.read_elements(index, first + offset as usize / width, width, bytes);
        if widen(entry.dtype, out, read)? { Ok(()) } else { Err(wrong_type(&self.place(), entry, FLOATS)) }
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let index = self.require(name)?;
        let entry = &self.tensors[index];
        let width = width_of(entry.dtype);
        let fits =
            offset.checked_add(out.len() as u64).is_some_and(|end| entry.bytes().is_some_and(|all| end <= all as u64));
        if !fits {
            let reason = format!("tensor {}: {} bytes at {offset} leave it", printable(name, 200), out.len());
            return Err(damaged(self.place(), reason));
        }
        let (first, skipped) = (offset as usize / width, offset as usize % width);
        let mut whole = vec![0; (skipped + out.len()).next_multiple_of(width)];
        self.read_elements(index, first, width, &mut whole)?;
        out.copy_from_slice(&whole[skipped..skipped + out.len()]);
        Ok(())
    }

    fn reads_parts(&self, _name: &str) -> bool {
        true
    }
}

fn width_of(dtype: StoredDtype) -> usize {
    (dtype.bitsize() / 8).max(1)
}

/// Refuses Megatron core's form of this container, with layers in one tensor, and names and settings of its own.
fn refuse_megatron_core(directory: &Path) -> Result<()> {
    // Megatron core's own list, and what its ranks have in common.
    if is_megatron_core(directory) {
        let reason = "it is a checkpoint of Megatron core (torch_dist), whose layers and names are its own";
        return Err(Error::model(directory.display().to_string(), reason, names::MEGATRON_CORE_FIX));
    }
    Ok(())
}

/// Files that are open while parts are looked at.
struct Opened<'a> {
    files: &'a [PathBuf],
    held: HashMap<usize, (File, u64)>,
}

/// Files that are open at the same time.
const MAX_OPEN_FILES: usize = 128;

impl Opened<'_> {
    fn file(&mut self, number: usize) -> Result<Option<(&Path, &File, u64)>> {
        let Some(path) = self.files.get(number) else { return Ok(None) };
        if !self.held.contains_key(&number) {
            if self.held.len() == MAX_OPEN_FILES {
                self.held.clear();
            }
            self.held.insert(number, open_regular(path)?);
        }
        Ok(self.held.get(&number).map(|(file, length)| (path.as_path(), file, *length)))
    }

    /// A tensor under its name in the model, with its parts.
    fn parts(&mut self, name: String, tensor: &SavedTensor) -> Result<sharded::Sharded> {
        let Some(dtype) = stored_type(&tensor.dtype) else {
            let place = tensor_place(self.files.first().map_or(Path::new(""), PathBuf::as_path).display(), &name);
            let reason = format!("the tensor is of torch.{}, which is not read", printable(&tensor.dtype, 40));
            return Err(Error::model(place, reason, "save it as float32, float16 or bfloat16"));
        };
        let parts = tensor.chunks.iter().map(|chunk| self.part(&name, dtype, chunk)).collect::<Result<_>>()?;
        Ok((TensorEntry::new(name, dtype, tensor.shape.as_slice()), parts))
    }

    fn part(&mut self, name: &str, dtype: StoredDtype, chunk: &Chunk) -> Result<Part> {
        let Chunk { offsets, sizes, file: number, start, bytes } = chunk;
        let Some((path, file, length)) = self.file(*number)? else {
            return Err(damaged(name, "a part is in no file"));
        };
        let end = start.checked_add(*bytes).filter(|end| *end <= length).ok_or_else(|| {
            let reason =
                format!("its part at {offsets:?} has {bytes} bytes from {start} on by the list, and the file {length}");
            damaged(tensor_place(path.display(), name), reason)
        })?;
        let held = saved_tensor(path, file, *start..end)?;
        if held.dtype != dtype || held.shape != *sizes {
            let reason = format!(
                "its part at {offsets:?} is {:?} of {:?}, and the list has {dtype:?} of {sizes:?}",
                held.dtype, held.shape
            );
            return Err(damaged(tensor_place(path.display(), name), reason));
        }
        let (offsets, sizes) = (offsets.clone(), sizes.clone());
        Ok(Part { offsets, sizes, file: *number, start: held.start, strides: held.strides })
    }
}

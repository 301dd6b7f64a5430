//! One tensor that `torch.save` wrote by itself, into a file or a stretch of one.
//!
//! Defines [`saved_tensor`] and [`read_elements`]; called by [`crate::formats::distributed`].

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::super::safetensors::StoredDtype;
use super::super::stored::read_at;
use super::archive::Archive;
use super::input::refused;
use super::state;
use super::strided::{self, Elements};
use super::value::Value;
use crate::Result;

/// Location of a tensor in its file.
#[derive(Debug)]
pub(in crate::formats) struct SavedTensor {
    pub(in crate::formats) dtype: StoredDtype,
    pub(in crate::formats) shape: Vec<usize>,
    /// The byte of the file at which the first element begins.
    pub(in crate::formats) start: u64,
    /// Distance in elements along each axis; `None` if contiguous and row-major.
    pub(in crate::formats) strides: Option<Box<[u64]>>,
}

/// The tensor that is saved in the bytes `within` of a file, which has them.
pub(in crate::formats) fn saved_tensor(path: &Path, file: &File, within: Range<u64>) -> Result<SavedTensor> {
    let (archive, object) = Archive::open(path, file, within)?;
    let Some(Value::Tensor(arguments)) = object.value(object.root) else {
        let reason = format!("it holds {} in the place of a tensor", object.describe(object.root));
        return Err(refused(path, reason));
    };
    let locate = &mut |storage: &state::Storage<'_>| archive.locate(path, file, storage);
    let (entry, view) = state::resolve(path, &object, "tensor", *arguments, locate)?;
    Ok(SavedTensor { dtype: entry.dtype, shape: entry.shape, start: view.start, strides: view.strides })
}

/// Fills `out` with elements of `width` bytes from element `first` on, of a tensor that begins at byte `start` of a
/// file.
pub(in crate::formats) fn read_elements(
    path: &Path,
    file: &File,
    (shape, strides): (&[usize], Option<&[u64]>),
    (start, width): (u64, u64),
    first: u64,
    out: &mut [u8],
) -> Result<()> {
    match strides {
        None => read_at(path, file, start + first * width, out, None),
        Some(strides) => strided::read(path, file, &Elements { shape, strides, start, width, first }, out),
    }
}

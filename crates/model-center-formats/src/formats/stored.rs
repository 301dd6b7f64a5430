//! Stored values to single precision and back, a chunk at a time, for every container of tensors.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bmtrain_core::dtype::Float;
use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::safetensors::{StoredDtype, TensorEntry};
use crate::{Error, Result};
use model_center_base::file::{printable, unreadable};

/// Elements converted at a time: 256 KiB of f16, small enough to stay in the second-level cache.
pub(super) const CHUNK: usize = 128 * 1024;

/// Fill `out` with the values of a tensor of type `dtype`, whose bytes `read` fetches from a given byte on. `false`
/// without reading anything if the type is not a float. Numerics: f16 and bf16 widen exactly, f64 rounds to nearest.
/// Memory: one chunk, never a second copy of the tensor.
pub(super) fn widen(
    dtype: StoredDtype,
    out: &mut [f32],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<bool> {
    match dtype {
        StoredDtype::F32 => {
            read(0, bytemuck::cast_slice_mut(out))?;
            for value in out.iter_mut() {
                *value = f32::from_bits(u32::from_le(value.to_bits()));
            }
        }
        StoredDtype::F16 => {
            let mut halves = vec![f16::ZERO; CHUNK.min(out.len())];
            in_chunks::<2>(out, read, |raw, part| {
                let halves = &mut halves[..part.len()];
                for (half, pair) in halves.iter_mut().zip(raw.as_chunks::<2>().0) {
                    *half = f16::from_le_bytes(*pair);
                }
                halves.convert_to_f32_slice(part);
            })?;
        }
        StoredDtype::BF16 => in_chunks::<2>(out, read, |raw, part| {
            for (value, pair) in part.iter_mut().zip(raw.as_chunks::<2>().0) {
                *value = Float::to_f32(bf16::from_le_bytes(*pair));
            }
        })?,
        StoredDtype::F64 => in_chunks::<8>(out, read, |raw, part| {
            for (value, octet) in part.iter_mut().zip(raw.as_chunks::<8>().0) {
                *value = f64::from_le_bytes(*octet) as f32;
            }
        })?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Convert elements of `N` bytes chunk by chunk.
fn in_chunks<const N: usize>(
    out: &mut [f32],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    mut one: impl FnMut(&[u8], &mut [f32]),
) -> Result<()> {
    let mut bytes = vec![0u8; N * CHUNK.min(out.len())];
    for (i, part) in out.chunks_mut(CHUNK).enumerate() {
        let raw = &mut bytes[..N * part.len()];
        read((i * CHUNK * N) as u64, raw)?;
        one(raw, part);
    }
    Ok(())
}

/// Put `values` into `bytes` as they are stored in type `dtype`, in place of what `bytes` held. Numerics: f16 and bf16
/// round to nearest, ties to even. A finite value that f16 cannot hold is an error.
pub(super) fn narrow(dtype: StoredDtype, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), String> {
    bytes.clear();
    match dtype {
        StoredDtype::F32 => extend(bytes, values, |v| v.to_le_bytes()),
        StoredDtype::F16 => extend(bytes, values, |v| f16::from_f32(v).to_le_bytes()),
        StoredDtype::BF16 => extend(bytes, values, |v| <bf16 as Float>::from_f32(v).to_le_bytes()),
        StoredDtype::F64 => extend(bytes, values, |v| f64::from(v).to_le_bytes()),
        other => return Err(format!("the tensor was announced as {other:?}, no float")),
    }
    if dtype == StoredDtype::F16
        && let Some(value) = values.iter().find(|v| v.is_finite() && f16::from_f32(**v).is_infinite())
    {
        return Err(format!("the value {value:e} does not fit f16, whose largest is 65504"));
    }
    Ok(())
}

fn extend<const N: usize>(out: &mut Vec<u8>, values: &[f32], one: impl Fn(f32) -> [u8; N]) {
    out.extend(values.iter().flat_map(|v| one(*v)));
}

/// The place of a tensor, for messages.
pub(crate) fn tensor_place(place: impl Display, name: &str) -> String {
    format!("{place}, tensor {}", printable(name, 200))
}

/// The error for contents that contradict themselves, or the file's length.
pub(super) fn damaged(place: impl Display, reason: impl Into<String>) -> Error {
    Error::model(place.to_string(), reason, "the file is damaged or incomplete: download or copy it again")
}

/// Fill `out` from byte `at` of a file on; `tensor` is the one that is read, if it is one.
pub(super) fn read_at(path: &Path, file: &File, at: u64, out: &mut [u8], tensor: Option<&str>) -> Result<()> {
    file.read_exact_at(out, at).map_err(|e| match (e.kind(), tensor) {
        (ErrorKind::UnexpectedEof, None) => damaged(path.display(), SHORTER),
        (ErrorKind::UnexpectedEof, Some(name)) => damaged(tensor_place(path.display(), name), SHORTER),
        _ => unreadable(path, e),
    })
}

pub(super) const SHORTER: &str = "the file became shorter while it was read";

/// The error for a name that is not there.
pub(crate) fn absent(place: &str, name: &str) -> Error {
    let reason = "there is no tensor of this name in the weights";
    Error::model(tensor_place(place, name), reason, "check the name against the weights' list of tensors")
}

/// The error for a tensor that is not of the wanted type.
pub(super) fn wrong_type(place: &str, entry: &TensorEntry, want: &str) -> Error {
    let reason = format!("the tensor is stored as {:?}, expected {want}", entry.dtype);
    Error::model(tensor_place(place, &entry.name), reason, "store the tensor in one of these types")
}

/// Expected type in [`wrong_type`] for f32 reads.
pub(super) const FLOATS: &str = "a float (f64, f32, f16 or bf16)";

/// Checks that a range is inside a tensor.
pub(super) fn require_range(place: &str, entry: &TensorEntry, first: usize, length: usize) -> Result<()> {
    match first.checked_add(length).is_some_and(|end| entry.elements().is_some_and(|all| end <= all)) {
        true => Ok(()),
        false => Err(misfit(place, entry, format_args!("{length} elements from {first} on"))),
    }
}

/// Checks a tensor's number of values.
pub(crate) fn require_length(place: &str, entry: &TensorEntry, length: usize) -> Result<()> {
    match entry.elements() == Some(length) {
        true => Ok(()),
        false => Err(misfit(place, entry, format_args!("{length} elements"))),
    }
}

fn misfit(place: &str, entry: &TensorEntry, asked: fmt::Arguments<'_>) -> Error {
    let reason = format!("the tensor has shape {:?}, asked for {asked}", entry.shape);
    Error::model(tensor_place(place, &entry.name), reason, "compare the model's configuration with the weights")
}

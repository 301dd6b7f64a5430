//! The safetensors format: one file of named arrays after a JSON header.
//!
//! - `header`: the guarded parser of an untrusted header.
//! - `reader`: [`SafetensorsFile`], positioned reads of one tensor at a time.
//! - `writer`: [`SafetensorsWriter`], a file whose layout is known before its data.
//!
//! The format's own rules (types, contiguous offsets, sizes) are checked by the `safetensors` crate as well as here,
//! where the error messages and the bounds are. Files are never mapped into memory: a mapped file that another process
//! truncates kills the reader with a signal instead of an error.
//! Called by [`crate::formats::weights`], [`crate::formats::shards`] and readers of a single file of arrays.

mod header;
mod reader;
mod writer;

pub use ::safetensors::Dtype as StoredDtype;
pub use reader::SafetensorsFile;
pub use writer::SafetensorsWriter;

use crate::formats::stored::{absent, require_range, tensor_place};
use crate::{Error, Result};
use bmtrain_core::dtype::DType;
use bmtrain_core::quantised::BlockFormat;

/// More tensors than any one real file has (a few thousand), few enough to list in memory.
pub(in crate::formats) const MAX_TENSORS: usize = 262_144;
/// More dimensions than any real tensor has.
pub(in crate::formats) const MAX_RANK: usize = 16;
/// Longer than any real tensor name.
const MAX_NAME: usize = 1024;

/// Whether a tensor may be called so: not empty, not too long, without control characters.
pub(in crate::formats) fn is_tensor_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
}

/// One tensor of a file: what it is called, how it is stored and its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// The name in the file, not empty, without control characters.
    pub name: String,
    /// The stored element type, also those that [`DType`] has no name for.
    pub dtype: StoredDtype,
    /// The shape, row-major; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorEntry {
    /// An entry from its parts.
    pub fn new(name: impl Into<String>, dtype: StoredDtype, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Number of elements, `None` if it overflows.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// Number of bytes, `None` if it overflows or is fractional.
    pub fn bytes(&self) -> Option<usize> {
        let bits = self.elements()?.checked_mul(self.dtype.bitsize())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Whether [`TensorSource::read_f32`] can widen or narrow it: `F64`, `F32`, `F16` or `BF16`.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype, StoredDtype::F64 | StoredDtype::F32 | StoredDtype::F16 | StoredDtype::BF16)
    }
}

/// Something that names tensors and reads them: a file, a directory of shards, or another container.
pub trait TensorSource {
    /// Source of the tensors, for messages.
    fn place(&self) -> String;

    /// All tensors, sorted by name, each name once.
    fn entries(&self) -> Vec<&TensorEntry>;

    /// Read a floating-point tensor as single precision into `out`, which has as many elements as the tensor. Numerics:
    /// f16 and bf16 widen exactly, f64 rounds to nearest.
    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()>;

    /// As [`TensorSource::read_f32`] for `out.len()` elements from `first` on. A source that cannot read a part reads
    /// the whole tensor.
    fn read_f32_at(&self, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        let place = self.place();
        let entry = self.entries().into_iter().find(|entry| entry.name == name).ok_or_else(|| absent(&place, name))?;
        require_range(&place, entry, first, out.len())?;
        let mut whole = vec![0.0; entry.elements().unwrap_or(0)];
        self.read_f32(name, &mut whole)?;
        out.copy_from_slice(&whole[first..first + out.len()]);
        Ok(())
    }

    /// Read stored bytes (little endian) of a tensor from byte `offset` within it.
    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()>;

    /// The format of a matrix that is stored in quantised blocks along its rows; `None` for all others.
    fn block_format(&self, _name: &str) -> Option<BlockFormat> {
        None
    }

    /// Fill `out` with the blocks of whole rows of such a matrix from row `first` on.
    fn read_blocks_at(&self, name: &str, _first: usize, _out: &mut [u8]) -> Result<()> {
        let fix = "read it as single precision";
        Err(Error::model(tensor_place(self.place(), name), "the tensor is not stored in quantised blocks", fix))
    }

    /// Source of one tensor, for messages.
    fn place_of(&self, _name: &str) -> String {
        self.place()
    }

    /// Whether reading a part of a tensor costs only the part's bytes. `false` if unknown.
    fn reads_parts(&self, _name: &str) -> bool {
        false
    }

    /// Whether two names are known to have the same bytes and shape, which saves a comparison. `false` if unknown.
    fn are_tied(&self, _first: &str, _second: &str) -> bool {
        false
    }
}

/// The stored type of one of our types.
pub fn stored(dtype: DType) -> Result<StoredDtype> {
    Ok(match dtype {
        DType::F32 => StoredDtype::F32,
        DType::F16 => StoredDtype::F16,
        DType::BF16 => StoredDtype::BF16,
        DType::I64 => StoredDtype::I64,
        DType::I32 => StoredDtype::I32,
        DType::U8 => StoredDtype::U8,
        other => {
            let fix = "convert the tensor to f32, f16, bf16, i64, i32 or u8";
            return Err(Error::model("safetensors writer", format!("there is no stored form of {other}"), fix));
        }
    })
}

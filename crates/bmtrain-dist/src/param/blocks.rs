//! Parameters in quantised blocks: frozen matrices that stay as a file stores them.
//!
//! Defines [`BlockValues`], the storage of such a parameter, which is outside of the flat storages: it has no gradient,
//! is not sharded (each rank holds all of it) and is not read back. [`BuilderOptions`](super::BuilderOptions) names the
//! parameters.

use super::{Param, ParamSpec};
use crate::error::{Error, Result};
use bmtrain_core::{BlockFormat, DType, Device, Lane, Segment, Storage, Tensor};

/// Bytes that are read from a file at a time.
const AT_ONCE: usize = 1 << 20;

/// Fills the slice with the blocks of whole rows of a matrix from the given row on.
pub type ReadRows<'a, E = Error> = &'a mut dyn FnMut(usize, &mut [u8]) -> Result<(), E>;

/// The rows of a matrix in blocks.
#[derive(Debug)]
pub(super) struct BlockValues {
    format: BlockFormat,
    rows: usize,
    row_bytes: usize,
    storage: Storage,
}

impl BlockValues {
    /// Memory for a declared matrix.
    pub(super) fn new(device: &Device, spec: &ParamSpec, format: BlockFormat) -> Result<Self> {
        let sizes = match *spec.shape.dims() {
            [rows, columns] => format.row_bytes(columns).filter(|bytes| *bytes > 0).map(|bytes| (rows, bytes)),
            _ => None,
        };
        let (rows, row_bytes) = sizes.ok_or_else(|| {
            let reason =
                format!("expected a matrix of whole {format} blocks of {}, got {}", format.elements(), spec.shape);
            Error::parameter(spec.name.clone(), reason)
        })?;
        let bytes =
            rows.checked_mul(row_bytes).ok_or_else(|| Error::parameter(spec.name.clone(), "it is too large"))?;
        let storage = Storage::empty(device, bytes, DType::Blocks(format), Segment::Parameters)?;
        Ok(BlockValues { format, rows, row_bytes, storage })
    }

    pub(super) fn format(&self) -> BlockFormat {
        self.format
    }

    /// `[rows, bytes of a row]`.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        Ok(self.storage.tensor(0, [self.rows, self.row_bytes])?)
    }
}

impl Param {
    /// The format of the blocks it is held in, if it is.
    pub fn block_format(&self) -> Option<BlockFormat> {
        self.inner.blocks.as_ref().map(BlockValues::format)
    }

    /// Set the values of a parameter in blocks, some rows at a time. Memory: one megabyte, or one row.
    ///
    /// # Errors
    /// A parameter that is not held in blocks; what `read` returns.
    pub fn load_blocks<E: From<Error>>(&self, read: ReadRows<'_, E>) -> Result<(), E> {
        let Some(BlockValues { rows, row_bytes, storage, .. }) = &self.inner.blocks else {
            return Err(Error::parameter(self.name(), "is not held in quantised blocks").into());
        };
        let at_once = (AT_ONCE / row_bytes).clamp(1, (*rows).max(1));
        let mut bytes = vec![0; at_once * row_bytes];
        for first in (0..*rows).step_by(at_once) {
            let part = &mut bytes[..at_once.min(rows - first) * row_bytes];
            read(first, part)?;
            let start = first * row_bytes;
            let to = storage.view_mut(start..start + part.len()).map_err(Error::from)?;
            storage.device().backend().upload(part, to, Lane::Compute).map_err(Error::from)?;
        }
        self.inner.initialized.set(true);
        Ok(())
    }
}

//! Parameters in quantised blocks: frozen matrices that stay as a file stores them, or are quantised as they are read.
//!
//! Defines [`BlockValues`], the storage of such a parameter, which is outside of the flat storages: it has no gradient,
//! is not sharded over data-parallel ranks (each holds all of it) and is not read back. Tensor-parallel ranks hold
//! their rows, or the blocks of their columns. [`BuilderOptions`](super::BuilderOptions) names the parameters.

use super::split::divided_block;
use super::{LocalPart, Param, ParamSpec};
use crate::error::{Error, Result};
use bmtrain_core::{BlockFormat, DType, Device, Lane, Segment, Storage, Tensor};
use std::ops::Range;

/// Bytes that are read at a time.
const AT_ONCE: usize = 1 << 20;

/// Fills the slice with the blocks of whole rows of a matrix from the given row on.
pub type ReadRows<'a, E = Error> = &'a mut dyn FnMut(usize, &mut [u8]) -> Result<(), E>;

/// This tensor-parallel rank's part of a matrix in blocks.
#[derive(Debug)]
pub(super) struct BlockValues {
    format: BlockFormat,
    /// Rows of the full matrix that this rank has, in order, and bytes of each.
    rows: Vec<Range<usize>>,
    bytes: Vec<Range<usize>>,
    /// Bytes of a row of the full matrix.
    full_row: usize,
    storage: Storage,
}

impl BlockValues {
    /// Memory for a rank's part of a declared matrix.
    pub(super) fn new(device: &Device, spec: &ParamSpec, local: &LocalPart, format: BlockFormat) -> Result<Self> {
        let wrong = |reason: String| Error::parameter(spec.name.clone(), reason);
        let elements = format.elements();
        let sizes = match *spec.shape.dims() {
            [rows, columns] => format.row_bytes(columns).filter(|bytes| *bytes > 0).map(|bytes| (rows, bytes)),
            _ => None,
        };
        let (rows, full_row) = sizes.ok_or_else(|| {
            wrong(format!("expected a matrix of whole {format} blocks of {elements}, got {}", spec.shape))
        })?;
        if local.is_padded() {
            return Err(wrong(format!("is in {format} blocks, which have no padding for tensor-parallel ranks")));
        }
        let (rows, bytes) = if local.axis == 1 {
            if let Some(end) = divided_block(local, elements) {
                let reason = format!("tensor-parallel ranks split its rows at {end}, inside a {format} block");
                return Err(wrong(format!("{reason} of {elements}: use fewer of them, or do not keep it in blocks")));
            }
            let at = |column: usize| column / elements * format.bytes();
            (
                std::iter::once(0..rows).collect(),
                local.ranges.iter().map(|range| at(range.start)..at(range.end)).collect(),
            )
        } else {
            (local.ranges.clone(), std::iter::once(0..full_row).collect())
        };
        let [height, width] = [&rows, &bytes].map(|ranges| ranges.iter().map(Range::len).sum::<usize>());
        let size = height.checked_mul(width).ok_or_else(|| wrong("it is too large".to_owned()))?;
        let storage = Storage::empty(device, size, DType::Blocks(format), Segment::Parameters)?;
        Ok(BlockValues { format, rows, bytes, full_row, storage })
    }

    pub(super) fn format(&self) -> BlockFormat {
        self.format
    }

    /// `[rows, bytes of a row]`.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        let [height, width] = [&self.rows, &self.bytes].map(|ranges| ranges.iter().map(Range::len).sum::<usize>());
        Ok(self.storage.tensor(0, [height, width])?)
    }
}

impl Param {
    /// The format of the blocks it is held in, if it is.
    pub fn block_format(&self) -> Option<BlockFormat> {
        self.inner.blocks.as_ref().map(BlockValues::format)
    }

    /// Set the values of a parameter in blocks, some rows at a time: `read` fills rows of the full matrix, and this
    /// tensor-parallel rank takes its part of them. Memory: one megabyte, or one row, and as much for a part of the
    /// columns.
    ///
    /// # Errors
    /// A parameter that is not held in blocks; what `read` returns.
    pub fn load_blocks<E: From<Error>>(&self, read: ReadRows<'_, E>) -> Result<(), E> {
        let Some(BlockValues { rows, bytes: held, full_row, storage, .. }) = &self.inner.blocks else {
            return Err(Error::parameter(self.name(), "is not held in quantised blocks").into());
        };
        let at_once = (AT_ONCE / full_row).max(1);
        let (mut bytes, mut own, mut start) = (Vec::<u8>::new(), Vec::new(), 0);
        for range in rows {
            for first in range.clone().step_by(at_once) {
                bytes.resize(at_once.min(range.end - first) * full_row, 0);
                read(first, &mut bytes)?;
                let part = if matches!(held.as_slice(), [all] if all.len() == *full_row) {
                    &bytes
                } else {
                    own.clear();
                    let rows = bytes.chunks_exact(*full_row);
                    rows.for_each(|row| held.iter().for_each(|range| own.extend_from_slice(&row[range.clone()])));
                    &own
                };
                let to = storage.view_mut(start..start + part.len()).map_err(Error::from)?;
                storage.device().backend().upload(part, to, Lane::Compute).map_err(Error::from)?;
                start += part.len();
            }
        }
        self.inner.initialized.set(true);
        Ok(())
    }
}

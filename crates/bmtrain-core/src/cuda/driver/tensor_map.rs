//! Descriptions of tensors, with which the copy engine of compute capability 9.0 finds the boxes that it copies.
#![allow(unsafe_code)]

use super::Context;
use super::functions::answer;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Dimensions of every map.
const RANK: usize = 4;

/// `CUtensorMap`: what the driver made of a description, to be passed to a kernel as it is.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C, align(128))]
pub(in crate::cuda) struct TensorMap([u64; 16]);

/// A tensor in global memory, and the boxes of it that are copied.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Tensor {
    pub(in crate::cuda) address: u64,
    /// f16 or bf16.
    pub(in crate::cuda) dtype: DType,
    /// Elements of each dimension, the one whose elements are adjacent first.
    pub(in crate::cuda) size: [usize; RANK],
    /// Bytes from one element to the next of each other dimension.
    pub(in crate::cuda) stride: [usize; RANK - 1],
    /// Elements of a box. Its rows have 128 bytes, and their places of 16 bytes are changed by their row.
    pub(in crate::cuda) block: [u32; RANK],
}

impl TensorMap {
    /// Whether the driver makes maps.
    pub(in crate::cuda) fn is_known(context: &Context) -> bool {
        context.driver.tensor_map.is_some()
    }

    /// The map of a tensor. Nothing of the tensor is read.
    ///
    /// # Errors
    /// A driver before CUDA 12.0; an address or strides that are no multiples of 16; sizes that a map cannot have.
    pub(in crate::cuda) fn of(context: &Context, tensor: &Tensor) -> Result<Self> {
        // `CUtensorMapDataType`, `CUtensorMapSwizzle`, `CUtensorMapL2promotion`.
        const F16: i32 = 6;
        const BF16: i32 = 9;
        const BY_ROWS_OF_128_BYTES: i32 = 3;
        const LINES_OF_256_BYTES: i32 = 3;
        let Tensor { address, dtype, size, stride, block } = *tensor;
        let dtype = match dtype {
            DType::F16 => F16,
            DType::BF16 => BF16,
            _ => return Err(Error::argument("tensor map", format!("{}: only f16 and bf16", dtype.name()))),
        };
        let Some(encode) = context.driver.tensor_map else {
            return Err(super::failure("cuTensorMapEncodeTiled", "the driver is older than CUDA 12.0; update it"));
        };
        let (size, stride) = (size.map(|size| size as u64), stride.map(|stride| stride as u64));
        context.bind()?;
        let mut map = TensorMap([0; 16]);
        // SAFETY: as many numbers as there are dimensions, and room for a map that is aligned as the driver asks. The
        // address is written down and not read.
        let status = unsafe {
            encode(
                (&raw mut map).cast(),
                dtype,
                RANK as u32,
                address,
                size.as_ptr(),
                stride.as_ptr(),
                block.as_ptr(),
                [1; RANK].as_ptr(),
                0,
                BY_ROWS_OF_128_BYTES,
                LINES_OF_256_BYTES,
                0,
            )
        };
        answer("cuTensorMapEncodeTiled", status)?;
        Ok(map)
    }
}

//! Matrices whose rows are blocks of small integers with their scales: as GGUF files store them, or quantised to NF4.
//!
//! Defines [`dequantise`] (in `decode`), the one place where blocks of a [`BlockFormat`] become numbers: readers of
//! files call it, and the CPU kernels of [`crate::kernel::QuantisedLinear`], [`crate::kernel::QuantisedInputGradient`]
//! and [`crate::kernel::QuantisedRows`]. [`Nf4`] makes blocks from numbers. A [`Tensor`](crate::Tensor) holds such a
//! matrix under [`DType::Blocks`](crate::DType::Blocks).

mod decode;
mod dynamic_map;
mod nf4;

pub use crate::dtype::BlockFormat;
pub use decode::dequantise;
pub(crate) use dynamic_map::{DynamicMap, SIGNED, UNSIGNED};
pub use nf4::Nf4;

//! Arguments of kernels that generate random numbers. Every number has an address; nothing is streamed.

use super::{Dest, expect_replaced};
use crate::error::{Error, Result};
use crate::philox::Key;
use crate::view::{View, ViewMut};

/// A dropout mask as a pure function of its address.
///
/// Element `(row, column)` of what a kernel works on is element `offset + row * row_stride + column` of the unsharded
/// tensor. Number `e % 4` of Philox block `e / 4` under `key`, `step` and `micro_batch` decides: below `threshold` it
/// is dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// An element is dropped if its 32 random bits are below this.
    pub threshold: u32,
    /// Factor of the kept elements, `1 / (1 - p)`.
    pub scale: f32,
    /// Seed and site.
    pub key: Key,
    /// Optimizer step.
    pub step: u32,
    /// Global number of the micro-batch within the step.
    pub micro_batch: u32,
    /// Index of the first element in the unsharded tensor.
    pub offset: u64,
    /// Elements between rows in the unsharded tensor; 0 when the rows follow each other without gaps.
    pub row_stride: u64,
}

impl Dropout {
    /// The mask of one site for a tensor that is not sharded; `None` when nothing is dropped.
    ///
    /// # Errors
    /// A probability outside `[0, 1)`.
    pub fn new(probability: f32, key: Key, step: u32, micro_batch: u32) -> Result<Option<Self>> {
        if !(0.0..1.0).contains(&probability) {
            return Err(Error::argument("dropout", format!("probability {probability} is outside [0, 1)")));
        }
        // 2^32 as a double is exact, and the product is below it.
        let threshold = (f64::from(probability) * 4_294_967_296.0) as u32;
        let dropout =
            Dropout { threshold, scale: 1.0 / (1.0 - probability), key, step, micro_batch, offset: 0, row_stride: 0 };
        Ok((threshold > 0).then_some(dropout))
    }

    /// Address of the first element of a row of `columns`.
    pub fn row(&self, row: u64, columns: u64) -> u64 {
        self.offset + row * if self.row_stride == 0 { columns } else { self.row_stride }
    }
}

/// `y (+)= x * mask * scale`; without `x` the old content of `y` is masked. Its own gradient.
#[derive(Debug)]
pub struct DropoutApply<'a> {
    /// The mask.
    pub dropout: Dropout,
    /// Rows, for the address of an element.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Input `[rows, columns]`.
    pub x: Option<View<'a>>,
    /// Output `[rows, columns]`.
    pub y: Dest<'a>,
}

arguments! {
    DropoutApply, "dropout", |a| { x: Float[a.rows * a.columns], y: Float[a.rows * a.columns] },
    expect_replaced(Self::NAME, a.x.as_ref(), &a.y, "an in-place mask cannot be added")
}

/// A distribution of initial values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Normal with mean and standard deviation.
    Normal(f32, f32),
    /// Uniform between two bounds.
    Uniform(f32, f32),
    /// Normal with mean and standard deviation, cut at two standard deviations.
    TruncatedNormal(f32, f32),
}

/// Random values as a pure function of key and element index: element `i` of the range is element `offset + i` of the
/// unsharded parameter.
#[derive(Debug)]
pub struct FillRandom<'a> {
    /// The distribution to sample from.
    pub distribution: Distribution,
    /// Seed and parameter name.
    pub key: Key,
    /// Index of the first element.
    pub offset: u64,
    /// The range written.
    pub out: ViewMut<'a>,
}

arguments! {
    FillRandom, "fill_random", |a| { out: Float }
}

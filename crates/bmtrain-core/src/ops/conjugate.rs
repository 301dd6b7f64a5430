//! Conjugate operators of tensor parallelism: [`copy_to_ranks`], [`sum_over_ranks`], [`gather_last`], [`split_last`].
//!
//! They are for values that all ranks of a tensor-parallel group have alike and for one loss, which each rank computes
//! and seeds with the same gradient. Then the gradient of such a value is alike on all ranks too and is counted once,
//! where [`all_gather`](super::all_gather) and the other collectives add up the losses of the ranks. Each operator
//! communicates in one direction at most:
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`copy_to_ranks`] | identity | all-reduce |
//! | [`sum_over_ranks`] | all-reduce | identity |
//! | [`gather_last`] | all-gather | this rank's columns |
//! | [`split_last`] | this rank's columns | all-gather |
//!
//! All ranks of the group walk the same tape. Numerics: values and gradients travel in the dtype of the input; sums are
//! taken in f32, in the order of the ranks, and rounded once.
//!
//! Source: the operators f and g of Shoeybi et al. (2019), section 3.

use super::gemm::{add_to_rows, bias_gradient};
use super::rows::{columns_of, side_by_side};
use super::*;
use crate::comm::{Communicator, Reduction, tensors};
use std::ops::Range;
use std::sync::Arc;

/// The value itself, for ranks that compute different parts from it. Its gradient is the sum of the gradients of all
/// ranks.
pub fn copy_to_ranks(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var) -> Var {
    let (shape, dtype) = (x.shape(), x.dtype());
    cx.record(x.value().clone(), &[x], || Box::new(CopyBackward { ranks: Arc::clone(ranks), shape, dtype }))
}

#[derive(Debug)]
struct CopyBackward {
    ranks: Arc<dyn Communicator>,
    shape: Shape,
    dtype: DType,
}

impl Backward for CopyBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let CopyBackward { ranks, shape, dtype } = *self;
        let dy = in_dtype(only("copy_to_ranks", dy)?, dtype)?.reshape(shape)?;
        cx.give(0, tensors::all_reduce(&*ranks, dy, Reduction::Sum)?)
    }
}

/// The sum of the terms of all ranks plus a bias, which is added once. Each rank's term has the gradient of the sum.
/// Memory that `x` owns alone is used again.
///
/// Shapes: x `[.., N]`, bias `[N]` → `[.., N]`.
///
/// # Errors
/// A bias of another length.
pub fn sum_over_ranks(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: Var, bias: Option<&Var>) -> Result<Var> {
    const OP: &str = "sum_over_ranks";
    if let Some(bias) = bias {
        expect_shape(OP, "bias", Shape::from([x.shape().last()]), bias.shape())?;
    }
    let (value, source) = x.into_parts();
    let mut y = tensors::all_reduce(&**ranks, value, Reduction::Sum)?; // [.., N]
    if let Some(bias) = bias {
        add_to_rows(bias.value(), &mut y)?;
    }
    let x = Var::from_parts(y.clone(), source);
    let absent = x.detach();
    let (columns, bias_dtype) = (y.shape().last(), bias.map_or(y.dtype(), Var::dtype));
    Ok(cx.record(y, &[&x, bias.unwrap_or(&absent)], || Box::new(SumBackward { columns, bias_dtype })))
}

#[derive(Debug)]
struct SumBackward {
    columns: usize,
    bias_dtype: DType,
}

impl Backward for SumBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("sum_over_ranks", dy)?;
        bias_gradient(cx, 1, &dy, self.columns, self.bias_dtype)?;
        cx.give(0, dy)
    }
}

/// The columns of all ranks side by side, in the order of the ranks.
///
/// Shapes: x `[.., C]`, alike on all T ranks → `[.., T C]`.
pub fn gather_last(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var) -> Result<Var> {
    let y = gathered(&**ranks, x.value())?; // [.., T C]
    let (columns, shape, dtype) = (own_columns(&**ranks, x.shape().last()), y.shape(), x.dtype());
    Ok(cx.record(y, &[x], || Box::new(GatherBackward { columns, shape, dtype })))
}

#[derive(Debug)]
struct GatherBackward {
    columns: Range<usize>,
    /// Shape of the result.
    shape: Shape,
    dtype: DType,
}

impl Backward for GatherBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let GatherBackward { columns, shape, dtype } = *self;
        let dy = in_dtype(only("gather_last", dy)?, dtype)?.reshape(shape)?;
        cx.give(0, columns_of(&dy, columns)?)
    }
}

/// This rank's columns of a value that all ranks have. Its gradient is the gradients of all ranks side by side.
///
/// Shapes: x `[.., T C]` on T ranks → `[.., C]`.
///
/// # Errors
/// A last axis that is not a multiple of the number of ranks.
pub fn split_last(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var) -> Result<Var> {
    let (wide, size) = (x.shape().last(), ranks.size());
    if x.shape().rank() == 0 || !wide.is_multiple_of(size) {
        return Err(Error::shape("split_last", "last axis", format!("a multiple of {size} ranks"), x.shape()));
    }
    let y = columns_of(x.value(), own_columns(&**ranks, wide / size))?; // [.., C]
    let (shape, dtype) = (y.shape(), x.dtype());
    Ok(cx.record(y, &[x], || Box::new(SplitBackward { ranks: Arc::clone(ranks), shape, dtype })))
}

#[derive(Debug)]
struct SplitBackward {
    ranks: Arc<dyn Communicator>,
    /// Shape of the result.
    shape: Shape,
    dtype: DType,
}

impl Backward for SplitBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let SplitBackward { ranks, shape, dtype } = *self;
        let dy = in_dtype(only("split_last", dy)?, dtype)?.reshape(shape)?;
        cx.give(0, gathered(&*ranks, &dy)?)
    }
}

fn own_columns(ranks: &dyn Communicator, each: usize) -> Range<usize> {
    ranks.rank() * each..(ranks.rank() + 1) * each
}

/// `[.., C]` of T ranks to `[.., T C]`.
fn gathered(ranks: &dyn Communicator, x: &Tensor) -> Result<Tensor> {
    let (shape, size) = (x.shape(), ranks.size());
    if size == 1 {
        return Ok(x.clone());
    }
    let all = tensors::all_gather(ranks, &x.reshape([shape.rows(), shape.last()])?)?; // [T rows, C]
    side_by_side(&all, size, shape.with_last(size * shape.last())?)
}

//! Collectives with gradients: [`all_gather`], [`reduce_scatter`], [`all_reduce`], [`broadcast`], [`all_to_all`].
//!
//! Gradients are derivatives of the sum of the losses of all ranks, and each rank seeds its own: a rank's gradient is
//! how that sum changes with this rank's input. Where all ranks compute one and the same loss it is counted once for
//! each; give each its share as the seed.
//!
//! The backward pass is a collective as well, so every rank has to walk it. While ops are recorded these are too, also
//! where no input of this rank needs a gradient or nothing of its loss depends on the result: another rank's may. For
//! constants there are the calls of [`comm::tensors`](crate::comm::tensors). A rank's tape walks back in the reverse
//! order of its forward pass, so the same calls in the same order forwards are that backwards.
//!
//! Numerics: gradients travel in the dtype of the input; sums over ranks are taken in f32, in the order of the ranks,
//! and rounded once.

use super::*;
use crate::comm::{Communicator, Reduction, tensors};
use crate::kernel::{Activation, ActivationBackward, AddScaled, Multiply};
use std::sync::Arc;

/// The values of all ranks, concatenated. Its gradient: each rank's part of the sum of all gradients.
///
/// Shapes: x `[A, ..]`, alike on all W ranks → `[W A, ..]`.
pub fn all_gather(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var) -> Result<Var> {
    let y = tensors::all_gather(&**ranks, x.value())?; // [W A, ..]
    record(cx, ranks, x, y, Kind::Gather)
}

/// Each rank's part of the sum, or the average, of the values of all ranks. Its gradient: all parts' gradients.
///
/// Shapes: x `[W A, ..]` → `[A, ..]`.
///
/// # Errors
/// A leading axis that is not a multiple of the number of ranks; another reduction, whose gradient [`all_reduce`]
/// has.
pub fn reduce_scatter(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var, by: Reduction) -> Result<Var> {
    if !matches!(by, Reduction::Sum | Reduction::Average) {
        let reason = format!("the gradient of {by:?} is not implemented: take a slice of an all_reduce");
        return Err(Error::argument("reduce_scatter", reason));
    }
    let y = tensors::reduce_scatter(&**ranks, x.value(), by)?; // [A, ..]
    record(cx, ranks, x, y, Kind::Scatter(by))
}

/// The reduction of the values of all ranks, on every rank.
///
/// With D the sum of the gradients of all ranks, x gets: D of a sum; D over the number of ranks of an average; of the
/// largest and of the smallest D where this rank has it and no rank before it has the same, else 0; of a product D
/// times the product of the others' values, so that zeros need no division. A largest or smallest value that is not
/// finite gets 0.
pub fn all_reduce(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var, by: Reduction) -> Result<Var> {
    let y = tensors::all_reduce(&**ranks, x.value().clone(), by)?;
    let kind = match by {
        Reduction::Sum | Reduction::Average => Kind::Reduce(by),
        Reduction::Max => Kind::Winner { above: y.clone(), below: x.value().clone() },
        Reduction::Min => Kind::Winner { above: x.value().clone(), below: y.clone() },
        Reduction::Product => Kind::Product { x: x.value().clone() },
    };
    record(cx, ranks, x, y, kind)
}

/// Broadcast of rank `root`'s value; the others give a value of the same shape that is not read. Its gradient: the sum
/// of all gradients on the root, none on the others.
pub fn broadcast(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var, root: usize) -> Result<Var> {
    let y = tensors::broadcast(&**ranks, x.value().clone(), root)?;
    record(cx, ranks, x, y, Kind::Broadcast { root })
}

/// Part r of the result is the part that rank r had for this one. Its gradient goes the same ways back.
///
/// Shapes: x `[W A, ..]` → `[W A, ..]`.
///
/// # Errors
/// A leading axis that is not a multiple of the number of ranks.
pub fn all_to_all(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var) -> Result<Var> {
    let y = tensors::all_to_all(&**ranks, x.value())?; // [W A, ..]
    record(cx, ranks, x, y, Kind::Exchange)
}

/// Integers have no gradient, on any rank.
fn record(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var, y: Tensor, kind: Kind) -> Result<Var> {
    if !cx.is_recording() || !x.dtype().is_float() {
        return Ok(Var::constant(y));
    }
    let node =
        CollectiveBackward { ranks: Arc::clone(ranks), kind, x_shape: x.shape(), y_shape: y.shape(), dtype: x.dtype() };
    cx.record_node(vec![y], &[x], Box::new(node))
        .pop()
        .ok_or_else(|| Error::argument("collective", "the tape gave no variable for the result"))
}

#[derive(Debug)]
struct CollectiveBackward {
    ranks: Arc<dyn Communicator>,
    kind: Kind,
    x_shape: Shape,
    y_shape: Shape,
    dtype: DType,
}

#[derive(Debug)]
enum Kind {
    Gather,
    Scatter(Reduction),
    Reduce(Reduction),
    /// This rank's value is the result where `above - below`, which is never below 0, is 0.
    Winner {
        above: Tensor,
        below: Tensor,
    },
    Product {
        x: Tensor,
    },
    Broadcast {
        root: usize,
    },
    Exchange,
}

impl Backward for CollectiveBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let CollectiveBackward { ranks, kind, x_shape, y_shape, dtype } = *self;
        let (ranks, device) = (&*ranks, cx.device().clone());
        let dy = gradient(&device, dy, y_shape, dtype)?;
        let dx = match kind {
            Kind::Gather => tensors::reduce_scatter(ranks, &dy, Reduction::Sum)?,
            Kind::Scatter(by) => tensors::all_gather(ranks, &share(dy, by, ranks.size())?)?,
            Kind::Reduce(by) => tensors::all_reduce(ranks, dy, by)?,
            Kind::Exchange => tensors::all_to_all(ranks, &dy)?,
            Kind::Broadcast { root } => match tensors::reduce(ranks, dy, Reduction::Sum, root)? {
                Some(dx) => dx,
                None => return Ok(()),
            },
            Kind::Winner { above, below } => {
                let sum = tensors::all_reduce(ranks, dy, Reduction::Sum)?;
                let wins = winner(ranks, &device, &above, &below)?;
                product(&device, &wins, &sum, dtype)?
            }
            Kind::Product { x } => {
                let sum = tensors::all_reduce(ranks, dy, Reduction::Sum)?;
                let others = product_of_others(ranks, &device, &x)?;
                product(&device, &others, &sum, dtype)?
            }
        };
        cx.give(0, dx.reshape(x_shape)?)
    }

    fn saved_bytes(&self) -> usize {
        match &self.kind {
            Kind::Winner { above, below } => above.bytes() + below.bytes(),
            Kind::Product { x } => x.bytes(),
            _ => 0,
        }
    }

    fn always_runs(&self) -> bool {
        true
    }
}

/// The gradient of a result in its communication dtype; zeros without a gradient.
pub(super) fn gradient(device: &Device, dy: Grads, shape: Shape, dtype: DType) -> Result<Tensor> {
    match dy.into_iter().flatten().next() {
        Some(dy) => in_dtype(dy, dtype)?.reshape(shape),
        None => Tensor::full_in(device, shape, dtype, 0.0, Segment::Activations),
    }
}

/// Gradient of each of the averaged parts.
fn share(dy: Tensor, by: Reduction, ranks: usize) -> Result<Tensor> {
    if by != Reduction::Average {
        return Ok(dy);
    }
    let mut share = Tensor::empty_in(dy.device(), dy.shape(), dy.dtype(), Segment::Activations)?;
    let alpha = 1.0 / ranks as f32;
    dy.device().launch(AddScaled { alpha, a: dy.view()?, beta: 0.0, b: None, out: share.view_mut()? })?;
    Ok(share)
}

/// 1 where `above - below` is 0 here and on no rank before this one, else 0; f32.
fn winner(ranks: &dyn Communicator, device: &Device, above: &Tensor, below: &Tensor) -> Result<Tensor> {
    let (size, rank) = (ranks.size() as f32, ranks.rank() as f32);
    let same = not_above(device, above, below)?;
    // The first of those who have it: each of them names itself, the others a rank that is not there.
    let mut first = Tensor::full_in(device, same.shape(), DType::F32, size, Segment::Activations)?;
    let own = AddScaled { alpha: rank - size, a: same.view()?, beta: 1.0, b: None, out: first.view_mut()? };
    device.launch(own)?;
    let first = tensors::all_reduce(ranks, first, Reduction::Min)?;
    let own = Tensor::full_in(device, same.shape(), DType::F32, rank, Segment::Activations)?;
    let before = not_above(device, &own, &first)?;
    product(device, &same, &before, DType::F32)
}

/// 1 where `a <= b`, else 0, also where their difference is not a number; f32.
fn not_above(device: &Device, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let full = |value| Tensor::full_in(device, a.shape(), DType::F32, value, Segment::Activations);
    let mut difference = Tensor::empty_in(device, a.shape(), DType::F32, Segment::Activations)?;
    let (left, right) = (a.view()?, Some(b.view()?));
    device.launch(AddScaled { alpha: 1.0, a: left, beta: -1.0, b: right, out: difference.view_mut()? })?;
    // The derivative of a rectifier is 0 up to 0 and 1 elsewhere.
    let (minus, mut is) = (full(-1.0)?, full(1.0)?);
    let dx = is.dest(true)?;
    let (activation, x, dy) = (Activation::Relu, difference.view()?, minus.view()?);
    device.launch(ActivationBackward { activation, x, dy, dx })?;
    Ok(is)
}

/// The product of the values of all other ranks, f32.
fn product_of_others(ranks: &dyn Communicator, device: &Device, x: &Tensor) -> Result<Tensor> {
    let elements = x.elements();
    let all = tensors::all_gather(ranks, &x.reshape([elements])?)?; // [W elements]
    let mut others: Option<Tensor> = None;
    for rank in (0..ranks.size()).filter(|rank| *rank != ranks.rank()) {
        let other = all.slice(rank * elements..(rank + 1) * elements)?;
        match &mut others {
            Some(others) => {
                device.launch(Multiply { a: other.view()?, b: None, out: others.dest(false)? })?;
            }
            None => {
                let mut first = Tensor::empty_in(device, other.shape(), DType::F32, Segment::Activations)?;
                device.launch(Cast { x: other.view()?, out: first.dest(false)? })?;
                others = Some(first);
            }
        }
    }
    match others {
        Some(others) => others.reshape(x.shape()),
        None => Tensor::full_in(device, x.shape(), DType::F32, 1.0, Segment::Activations),
    }
}

/// `a * b`, rounded once to `dtype`.
fn product(device: &Device, a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut out = Tensor::empty_in(device, b.shape(), dtype, Segment::Activations)?;
    device.launch(Multiply { a: a.view()?, b: Some(b.view()?), out: out.dest(false)? })?;
    Ok(out)
}

//! Losses: [`cross_entropy`] over classes and [`squared_error`] of a regression. Heads and evaluation call them.

use super::{empty, expect_elements, in_dtype, only};
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Var};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CrossEntropyBackward, CrossEntropyForward, SquaredErrorBackward, SquaredErrorForward};
use crate::pool::Segment;
use crate::tensor::Tensor;

/// How the losses of the rows become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reduction {
    /// Their sum divided by the sum of the rows' weights; not a number when every row is ignored.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// One loss for each row.
    None,
}

/// How a cross-entropy is computed.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Rows with this target contribute nothing.
    pub ignore_index: i64,
    /// Share of the target probability that is spread over all classes, in `[0, 1)`.
    pub label_smoothing: f32,
    /// Weight of each class, f32 `[V]`.
    pub class_weights: Option<Tensor>,
    /// How the losses of the rows become one number.
    pub reduction: Reduction,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy { ignore_index: -100, label_smoothing: 0.0, class_weights: None, reduction: Reduction::Mean }
    }
}

/// Softmax and cross-entropy in one.
///
/// Shapes: logits `[.., V]`, targets i64 `[..]` → f32 `[1]`, or f32 of the targets' shape without reduction.
/// Numerics: f32 arithmetic for every type of logits. The gradient overwrites the logits when nobody else holds them.
/// Source: `torch.nn.functional.cross_entropy`, whose rules for weights, smoothing and ignored rows these are.
///
/// # Errors
/// Shapes that do not fit, a target outside the classes, a smoothing outside `[0, 1)`, a failing device.
pub fn cross_entropy(cx: &Ctx, logits: &Var, targets: &Tensor, options: &CrossEntropy) -> Result<Var> {
    let (rows, classes) = (logits.shape().rows(), logits.shape().last());
    if logits.shape().rank() == 0 || classes == 0 {
        return Err(Error::shape("cross_entropy", "logits", "at least one class", logits.shape()));
    }
    expect_elements("cross_entropy", "targets", rows, targets.shape())?;
    let mut losses = empty(cx, targets.shape(), DType::F32)?; // [..]
    let mut lse = empty(cx, [rows], DType::F32)?; // [rows]
    let mut totals = empty(cx, [3], DType::F32)?; // [3]
    cx.device().launch(CrossEntropyForward {
        rows,
        classes,
        logits: logits.value().view()?,
        targets: targets.view()?,
        ignore_index: options.ignore_index,
        smoothing: options.label_smoothing,
        class_weights: options.class_weights.as_ref().map(Tensor::view).transpose()?,
        losses: losses.view_mut()?,
        lse: lse.view_mut()?,
        totals: totals.view_mut()?,
    })?;
    let value = match options.reduction {
        Reduction::Mean => totals.slice(2..3)?,
        Reduction::Sum => totals.slice(0..1)?,
        Reduction::None => losses,
    };
    Ok(cx.record(value, &[logits], || {
        Box::new(CrossEntropyNode {
            logits: logits.value().clone(),
            targets: targets.clone(),
            options: options.clone(),
            lse,
            totals,
        })
    }))
}

#[derive(Debug)]
struct CrossEntropyNode {
    logits: Tensor,
    targets: Tensor,
    options: CrossEntropy,
    lse: Tensor,
    totals: Tensor,
}

impl Backward for CrossEntropyNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let CrossEntropyNode { logits, targets, options, lse, totals } = *self;
        let dloss = in_dtype(only("cross_entropy", dy)?, DType::F32)?;
        if !cx.needs(0) {
            return Ok(());
        }
        let (rows, classes) = (logits.shape().rows(), logits.shape().last());
        let (kept, mut dlogits) = if logits.may_be_overwritten() {
            (None, logits)
        } else {
            let fresh = Tensor::empty_in(cx.device(), logits.shape(), logits.dtype(), Segment::Activations)?; // [.., V]
            (Some(logits), fresh)
        };
        cx.device().launch(CrossEntropyBackward {
            rows,
            classes,
            logits: kept.as_ref().map(Tensor::view).transpose()?,
            targets: targets.view()?,
            ignore_index: options.ignore_index,
            smoothing: options.label_smoothing,
            class_weights: options.class_weights.as_ref().map(Tensor::view).transpose()?,
            lse: lse.view()?,
            totals: totals.view()?,
            dloss: dloss.view()?,
            mean: options.reduction == Reduction::Mean,
            dlogits: dlogits.view_mut()?,
        })?;
        drop(kept);
        cx.give(0, dlogits)
    }

    fn saved_bytes(&self) -> usize {
        super::bytes_of([&self.logits, &self.lse, &self.totals])
    }
}

/// Mean of the squared differences.
///
/// Shapes: x and f32 targets of equally many elements → f32 `[1]`.
///
/// # Errors
/// Other sizes, no element, a failing device.
pub fn squared_error(cx: &Ctx, x: &Var, targets: &Tensor) -> Result<Var> {
    expect_elements("squared_error", "targets", x.shape().elements(), targets.shape())?;
    if targets.elements() == 0 {
        return Err(Error::shape("squared_error", "x", "at least one element", x.shape()));
    }
    let mut loss = empty(cx, [1], DType::F32)?; // [1]
    cx.device().launch(SquaredErrorForward {
        x: x.value().view()?,
        targets: targets.view()?,
        loss: loss.view_mut()?,
    })?;
    let targets = targets.clone();
    Ok(cx.record(loss, &[x], || Box::new(SquaredErrorNode { x: x.value().clone(), targets })))
}

#[derive(Debug)]
struct SquaredErrorNode {
    x: Tensor,
    targets: Tensor,
}

impl Backward for SquaredErrorNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let SquaredErrorNode { x, targets } = *self;
        let dloss = in_dtype(only("squared_error", dy)?, DType::F32)?;
        if !cx.needs(0) {
            return Ok(());
        }
        let mut dx = Tensor::empty_in(cx.device(), x.shape(), x.dtype(), Segment::Activations)?;
        cx.device().launch(SquaredErrorBackward {
            x: x.view()?,
            targets: targets.view()?,
            dloss: dloss.view()?,
            dx: dx.view_mut()?,
        })?;
        cx.give(0, dx)
    }

    fn saved_bytes(&self) -> usize {
        self.x.bytes()
    }
}

//! Losses of elements: [`squared_error`], [`absolute_error`], [`huber_loss`], [`binary_cross_entropy`],
//! [`kl_divergence`], and what others are made of, [`log_odds`] and [`cosine_similarity`].

use super::*;
use crate::kernel::{
    NormKind, Pointwise, PointwiseBackward, PointwiseForward, SquaredErrorBackward, SquaredErrorForward,
};

/// Mean of the squared differences.
///
/// Shapes: x and f32 targets with the same number of elements, at least one → f32 `[1]`.
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

/// The absolute differences.
///
/// Shapes: x and f32 targets with the same number of elements → f32 `[1]`, or without reduction f32 of the shape of x.
/// Source: `torch.nn.functional.l1_loss`.
///
/// # Errors
/// Shapes that do not match, a mean of no elements.
pub fn absolute_error(cx: &Ctx, x: &Var, targets: &Tensor, reduction: Reduction) -> Result<Var> {
    loss_of(cx, Pointwise::AbsoluteError, (x, targets), reduction)
}

/// Half of the squared differences up to `delta`, and a line beyond.
///
/// Shapes: as [`absolute_error`].
/// Source: `torch.nn.functional.huber_loss`.
///
/// # Errors
/// As [`absolute_error`]; a `delta` that is not above 0.
pub fn huber_loss(cx: &Ctx, x: &Var, targets: &Tensor, delta: f32, reduction: Reduction) -> Result<Var> {
    if !(delta > 0.0 && delta.is_finite()) {
        return Err(Error::argument("huber_loss", format!("delta {delta} is not a positive number")));
    }
    loss_of(cx, Pointwise::Huber { delta }, (x, targets), reduction)
}

/// The cross-entropy of independent classes that are there or not, of logits x and target probabilities.
///
/// Shapes: as [`absolute_error`].
/// Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
///
/// # Errors
/// As [`absolute_error`].
pub fn binary_cross_entropy(cx: &Ctx, logits: &Var, targets: &Tensor, reduction: Reduction) -> Result<Var> {
    loss_of(cx, Pointwise::BinaryCrossEntropy, (logits, targets), reduction)
}

/// The divergence of a distribution with the log-probabilities x from the target probabilities.
///
/// Shapes: as [`absolute_error`]. The mean is over elements; a sum divided by the number of rows is PyTorch's
/// `batchmean`.
/// Source: `torch.nn.functional.kl_div`.
///
/// # Errors
/// As [`absolute_error`].
pub fn kl_divergence(cx: &Ctx, log_probs: &Var, targets: &Tensor, reduction: Reduction) -> Result<Var> {
    loss_of(cx, Pointwise::KlDivergence, (log_probs, targets), reduction)
}

/// The logarithm of the odds, `log p - log(1 - p)`, of log-probabilities.
///
/// Shapes: x → f32 of the same shape.
/// Numerics: `1 - p` counts as at least 2^-23, so that certainty has a finite value.
pub fn log_odds(cx: &Ctx, log_probs: &Var) -> Result<Var> {
    pointwise(cx, Pointwise::LogOdds, log_probs, None)
}

/// The cosine of the angle between the rows of two matrices.
///
/// Shapes: a and b `[.., D]` → f32 `[rows]`.
/// Numerics: `epsilon` is added to the mean square of each row, so that a row of zeros has the cosine 0.
/// Source: `torch.nn.functional.cosine_similarity`, which has its bound on the norms instead.
///
/// # Errors
/// Shapes that do not match, no columns, an epsilon that is not positive.
pub fn cosine_similarity(cx: &Ctx, a: &Var, b: &Var, epsilon: f32) -> Result<Var> {
    expect_shape("cosine_similarity", "b", a.shape(), b.shape())?;
    let (rows, columns) = (a.shape().rows(), a.shape().last());
    let constant = |shape: [usize; 2], value| {
        Ok::<_, Error>(Var::constant(Tensor::full_in(cx.device(), shape, DType::F32, value, Segment::Activations)?))
    };
    let ones = constant([1, columns], 1.0)?.reshape([columns])?;
    let rule = NormRule::new(NormKind::Rms, epsilon);
    let unit = |x: &Var| norm(cx, rule, &cast(cx, x, DType::F32)?, &ones, None); // [.., D]
    let products = mul(cx, &unit(a)?, &unit(b)?)?.reshape([rows, columns])?;
    // Of norm sqrt(D) each.
    let mean = constant([1, columns], 1.0 / columns.max(1) as f32)?;
    linear(cx, &products, &mean, None, None)?.reshape([rows])
}

fn loss_of(cx: &Ctx, function: Pointwise, (x, targets): (&Var, &Tensor), reduction: Reduction) -> Result<Var> {
    let losses = pointwise(cx, function, x, Some(targets))?;
    match reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => sum(cx, &losses),
        Reduction::Mean => mean(cx, &losses),
    }
}

fn pointwise(cx: &Ctx, function: Pointwise, x: &Var, targets: Option<&Tensor>) -> Result<Var> {
    if let Some(targets) = targets {
        expect_elements(function.name(), "targets", x.shape().elements(), targets.shape())?;
    }
    let mut y = empty(cx, x.shape(), DType::F32)?;
    let view = targets.map(Tensor::view).transpose()?;
    cx.device().launch(PointwiseForward { function, x: x.value().view()?, targets: view, y: y.view_mut()? })?;
    Ok(cx.record(y, &[x], || Box::new(PointwiseNode { function, x: x.value().clone(), targets: targets.cloned() })))
}

#[derive(Debug)]
struct PointwiseNode {
    function: Pointwise,
    x: Tensor,
    targets: Option<Tensor>,
}

impl Backward for PointwiseNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let PointwiseNode { function, x, targets } = *self;
        let dy = in_dtype(only(function.name(), dy)?, DType::F32)?;
        let targets = targets.as_ref().map(Tensor::view).transpose()?;
        cx.write(0, x.shape(), x.dtype(), |device, dx| {
            device.launch(PointwiseBackward { function, x: x.view()?, targets, dy: dy.view()?, dx })
        })
    }

    fn saved_bytes(&self) -> usize {
        self.x.bytes()
    }
}

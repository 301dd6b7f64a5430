//! Mean squared error of a regression: [`squared_error`].

use super::*;
use crate::kernel::{SquaredErrorBackward, SquaredErrorForward};

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

//! [`dropout`] as an op of its own; norms and attention carry theirs inside.

use super::*;
use crate::kernel::{Dropout, DropoutApply};

/// `y = x * mask / (1 - p)`, with a mask that is a pure function of its address; `x` itself when nothing is dropped.
pub fn dropout(cx: &Ctx, x: &Var, dropout: Option<Dropout>) -> Result<Var> {
    let Some(dropout) = dropout else { return Ok(x.clone()) };
    let mut y = empty(cx, x.shape(), x.dtype())?;
    let (rows, columns) = (x.shape().rows(), x.shape().last());
    cx.device().launch(DropoutApply { dropout, rows, columns, x: Some(x.value().view()?), y: y.dest(false)? })?;
    let (shape, dtype) = (x.shape(), x.dtype());
    Ok(cx.record(y, &[x], || Box::new(DropoutBackward { dropout, shape, dtype })))
}

#[derive(Debug)]
struct DropoutBackward {
    dropout: Dropout,
    shape: Shape,
    dtype: DType,
}

impl Backward for DropoutBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let DropoutBackward { dropout, shape, dtype } = *self;
        let mut dy = only("dropout", dy)?;
        let (rows, columns) = (shape.rows(), shape.last());
        if dy.may_be_overwritten() && !cx.accumulates(0) {
            cx.device().launch(DropoutApply { dropout, rows, columns, x: None, y: dy.dest(false)? })?;
            return cx.give(0, dy);
        }
        cx.write(0, shape, dtype, |device, y| {
            device.launch(DropoutApply { dropout, rows, columns, x: Some(dy.view()?), y })
        })
    }
}

//! The two projections of a transformer's feed-forward layer as one op, which saves less than its parts would.

use super::gemm::{bias_gradient, check_linear, input_gradient, project, weight_gradient};
use super::{bytes_of, empty, only};
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Saved, Var};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Activation, ActivationBackward, ActivationSplit, Dest, Epilogue, Multiply};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// `y = activation(x w_in^T + b_in) w_out^T + b_out`.
///
/// Shapes: x `[.., D]`, w_in `[F, D]`, b_in `[F]`, w_out `[E, F]`, b_out `[E]` → `[.., E]`.
/// Numerics: as [`linear`](super::linear) twice. Saves x and the input of the activation; its value is made again, together with
/// its derivative, in one pass of the backward pass.
///
/// # Errors
/// Shapes that do not fit, a failing device.
pub fn feed_forward(
    cx: &Ctx,
    x: &Var,
    w_in: &Var,
    b_in: Option<&Var>,
    activation: Activation,
    w_out: &Var,
    b_out: Option<&Var>,
) -> Result<Var> {
    let [f, d] = check_linear("feed_forward", x.shape(), w_in, b_in)?;
    let wide = x.shape().with_last(f)?;
    let [e, _] = check_linear("feed_forward", wide, w_out, b_out)?;
    let absent = x.detach();
    let inputs = [x, w_in, b_in.unwrap_or(&absent), w_out, b_out.unwrap_or(&absent)];
    let mut hidden = empty(cx, wide, x.dtype())?; // [.., F]
    let mut pre = if cx.records(&inputs) { Some(empty(cx, wide, x.dtype())?) } else { None }; // [.., F]
    let epilogue = Epilogue {
        bias: b_in.map(|bias| bias.value().view()).transpose()?,
        activation: Some(activation),
        pre_activation: pre.as_mut().map(Tensor::view_mut).transpose()?,
    };
    project(cx.device(), x.value(), w_in.value(), epilogue, &mut hidden)?;
    let mut y = empty(cx, x.shape().with_last(e)?, x.dtype())?; // [.., E]
    let epilogue = Epilogue { bias: b_out.map(|bias| bias.value().view()).transpose()?, ..Epilogue::default() };
    project(cx.device(), &hidden, w_out.value(), epilogue, &mut y)?;
    drop(hidden);
    let Some(pre) = pre else { return Ok(Var::constant(y)) };
    Ok(cx.record(y, &inputs, || {
        Box::new(FeedForwardBackward {
            x: x.value().clone(),
            pre,
            activation,
            w_in: Saved::of(w_in),
            w_out: Saved::of(w_out),
            sizes: [d, f, e],
            dtypes: [w_in.dtype(), w_out.dtype()],
        })
    }))
}

#[derive(Debug)]
struct FeedForwardBackward {
    x: Tensor,
    /// Input of the activation.
    pre: Tensor,
    activation: Activation,
    w_in: Saved,
    w_out: Saved,
    /// D, F and E.
    sizes: [usize; 3],
    dtypes: [DType; 2],
}

impl Backward for FeedForwardBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let FeedForwardBackward { x, mut pre, activation, w_in, w_out, sizes: [d, f, e], dtypes } = *self;
        let dy = only("feed_forward", dy)?;
        let empty_hidden =
            |cx: &BackwardCtx<'_>| Tensor::empty(cx.device(), pre.shape(), pre.dtype(), Segment::Activations);
        bias_gradient(cx, 4, &dy, e, dtypes[1])?;
        let weight_wanted = cx.needs(3);
        if weight_wanted {
            let mut hidden = empty_hidden(cx)?; // [.., F]
            cx.device().launch(ActivationSplit { activation, x: pre.view_mut()?, y: hidden.view_mut()? })?;
            cx.write(3, Shape::from([e, f]), dtypes[1], |device, dw| {
                weight_gradient(device, &dy, &hidden, [e, f], dw)
            })?;
        }
        if !(0..3).any(|index| cx.needs(index)) {
            return Ok(());
        }
        let mut dpre = Tensor::empty(cx.device(), pre.shape(), pre.dtype(), Segment::Activations)?; // [.., F]
        input_gradient(cx.device(), &dy, &w_out.get()?, [e, f], Dest { view: dpre.view_mut()?, add: false })?;
        drop((dy, w_out));
        if weight_wanted {
            // What was the input is the derivative by now.
            let out = Dest { view: dpre.view_mut()?, add: false };
            cx.device().launch(Multiply { a: pre.view()?, b: None, out })?;
        } else {
            let mut dx = Tensor::empty(cx.device(), pre.shape(), pre.dtype(), Segment::Activations)?; // [.., F]
            let dest = Dest { view: dx.view_mut()?, add: false };
            cx.device().launch(ActivationBackward { activation, x: pre.view()?, dy: dpre.view()?, dx: dest })?;
            dpre = dx;
        }
        drop(pre);
        bias_gradient(cx, 2, &dpre, f, dtypes[0])?;
        cx.write(1, Shape::from([f, d]), dtypes[0], |device, dw| weight_gradient(device, &dpre, &x, [f, d], dw))?;
        let (shape, dtype, w_in) = (x.shape(), x.dtype(), w_in.get()?);
        drop(x);
        cx.write(0, shape, dtype, |device, dx| input_gradient(device, &dpre, &w_in, [f, d], dx))
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.x, &self.pre])
    }
}

//! The two projections of a transformer's feed-forward layer as one op, which saves less than its parts would.

use super::gemm::{check_linear, input_gradient, parameter_gradients, project};
use super::{bytes_of, empty, only};
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Saved, Var};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Activation, ActivationBackward, ActivationForward, ActivationSplit, Epilogue, Multiply};
use crate::pool::Segment;
use crate::tensor::Tensor;

/// `y = activation(x w_in^T + b_in) w_out^T + b_out`.
///
/// Shapes: x `[.., D]`, w_in `[F, D]`, b_in `[F]`, w_out `[E, F]`, b_out `[E]` → `[.., E]`.
/// Numerics: as [`linear`](super::linear) twice. Saves x and the input of the activation; its value is made again in
/// the backward pass, together with its derivative, unless the device applies that to a product as it makes it.
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
        ..Epilogue::default()
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

/// Times the derivative of the activation: a product's own work on devices that fuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Derivative {
    /// Applied to the product.
    Fused,
    /// Already where the input of the activation was.
    Ready,
    /// Made from the input of the activation.
    Made,
}

impl Backward for FeedForwardBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let FeedForwardBackward { x, mut pre, activation, w_in, w_out, sizes: [d, f, e], dtypes } = *self;
        let dy = only("feed_forward", dy)?;
        let derivative = match (cx.device().backend().fuses_gradients(), cx.needs(3)) {
            (true, _) => Derivative::Fused,
            (false, true) => Derivative::Ready,
            (false, false) => Derivative::Made,
        };
        let hidden = cx.needs(3).then(|| again(cx.device(), activation, &mut pre, derivative)).transpose()?; // [.., F]
        parameter_gradients(cx, [3, 4], &dy, hidden.as_ref(), [e, f], dtypes[1])?;
        drop(hidden);
        if !(0..3).any(|index| cx.needs(index)) {
            return Ok(());
        }
        let mut dpre = like(cx.device(), &pre)?; // [.., F]
        let fused = (derivative == Derivative::Fused).then_some((activation, &pre));
        input_gradient(cx.device(), &dy, &w_out.get()?, [e, f], fused, dpre.dest(false)?)?;
        drop((dy, w_out));
        match derivative {
            Derivative::Fused => {}
            Derivative::Ready => {
                cx.device().launch(Multiply { a: pre.view()?, b: None, out: dpre.dest(false)? })?;
            }
            Derivative::Made => {
                let mut dx = like(cx.device(), &pre)?; // [.., F]
                let dest = dx.dest(false)?;
                cx.device().launch(ActivationBackward { activation, x: pre.view()?, dy: dpre.view()?, dx: dest })?;
                dpre = dx;
            }
        }
        drop(pre);
        parameter_gradients(cx, [1, 2], &dpre, Some(&x), [f, d], dtypes[0])?;
        let (shape, dtype, w_in) = (x.shape(), x.dtype(), w_in.get()?);
        drop(x);
        cx.write(0, shape, dtype, |device, dx| input_gradient(device, &dpre, &w_in, [f, d], None, dx))
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.x, &self.pre])
    }
}

fn like(device: &Device, x: &Tensor) -> Result<Tensor> {
    Tensor::empty_in(device, x.shape(), x.dtype(), Segment::Activations)
}

/// The value of the activation again; with [`Derivative::Ready`] its derivative in place of its input.
fn again(device: &Device, activation: Activation, pre: &mut Tensor, derivative: Derivative) -> Result<Tensor> {
    let mut value = like(device, pre)?;
    if derivative == Derivative::Ready {
        device.launch(ActivationSplit { activation, x: pre.view_mut()?, y: value.view_mut()? })?;
    } else {
        device.launch(ActivationForward { activation, x: pre.view()?, y: value.view_mut()? })?;
    }
    Ok(value)
}

//! The projections of a transformer's feed-forward layer as one op, which saves less than its parts would:
//! [`feed_forward`] and [`gated_feed_forward`].

use super::elementwise::gate;
use super::gemm::{check_linear, gradient_dtype, input_gradient, parameter_gradients};
use super::product_input::{ProductOperands, SavedInput};
use super::product_weight::OutputRanks;
use super::*;
use crate::kernel::{Activation, ActivationBackward, ActivationForward, ActivationSplit, GatedBackward, Multiply};

/// `y = activation(x w_in^T + b_in) w_out^T + b_out`.
///
/// Shapes: x `[.., D]`, w_in `[F, D]`, b_in `[F]`, w_out `[E, F]`, b_out `[E]` → `[.., E]`.
/// Numerics: as [`linear`](super::linear) twice. Saves x and the input of the activation; its value is made again in
/// the backward pass, together with its derivative, unless the device applies that to a product as it makes it. Where x
/// comes from several tensor-parallel ranks it is a [`ProductInput`], and where y goes to them w_out is a
/// [`ProductWeight`].
pub fn feed_forward<'a>(
    cx: &Ctx,
    x: impl Into<ProductInput<'a>>,
    w_in: &Var,
    b_in: Option<&Var>,
    activation: Activation,
    w_out: impl Into<ProductWeight<'a>>,
    b_out: Option<&Var>,
) -> Result<Var> {
    FeedForward { op: "feed_forward", gated: false, activation }.forward(
        cx,
        &x.into(),
        w_in,
        &w_out.into(),
        [b_in, b_out],
    )
}

/// `y = (activation(gate) * up) w_out^T + b_out`, where gate and up are the halves of `x w_in^T + b_in`.
///
/// Shapes: x `[.., D]`, w_in `[2F, D]` and b_in `[2F]`, the gate first, w_out `[E, F]`, b_out `[E]` → `[.., E]`.
/// Numerics: as [`linear`](super::linear), [`gated`](super::gated) and `linear` again. Saves x and gate and up,
/// `[.., 2F]`; what they make is made again in the backward pass.
/// Source: gated linear units of Shazeer (2020), with a fused input projection.
pub fn gated_feed_forward<'a>(
    cx: &Ctx,
    x: impl Into<ProductInput<'a>>,
    w_in: &Var,
    b_in: Option<&Var>,
    activation: Activation,
    w_out: impl Into<ProductWeight<'a>>,
    b_out: Option<&Var>,
) -> Result<Var> {
    FeedForward { op: "gated_feed_forward", gated: true, activation }.forward(
        cx,
        &x.into(),
        w_in,
        &w_out.into(),
        [b_in, b_out],
    )
}

#[derive(Debug, Clone, Copy)]
struct FeedForward {
    op: &'static str,
    /// The input projection has twice the width: gate and up.
    gated: bool,
    activation: Activation,
}

impl FeedForward {
    fn forward(
        self,
        cx: &Ctx,
        input: &ProductInput<'_>,
        w_in: &Var,
        output: &ProductWeight<'_>,
        [b_in, b_out]: [Option<&Var>; 2],
    ) -> Result<Var> {
        let FeedForward { op, gated, activation } = self;
        let w_out = output.var();
        let (x, shape) = (input.x(), input.shape(op)?);
        let [wide, d] = check_linear(op, shape, w_in, b_in)?;
        if gated && !wide.is_multiple_of(2) {
            return Err(Error::shape(op, "rows of w_in", "an even number: gate and factor", w_in.shape()));
        }
        let f = if gated { wide / 2 } else { wide };
        let [e, _] = check_linear(op, shape.with_last(f)?, w_out, b_out)?;
        output.check(op, shape.with_last(f)?, false)?;
        let absent = x.detach();
        let inputs = [x, w_in, b_in.unwrap_or(&absent), w_out, b_out.unwrap_or(&absent)];
        let new = |width: usize| empty(cx, shape.with_last(width)?, x.dtype());
        let mut projected = new(wide)?; // [.., F], or [.., 2F] of gate and up
        let (hidden, pre) = if gated {
            input.project(w_in.value(), (b_in, None), None, &mut projected)?;
            let hidden = gate(cx.device(), activation, &projected, op)?; // [.., F]
            (hidden, cx.records(&inputs).then_some(projected))
        } else {
            let mut pre = if cx.records(&inputs) { Some(new(f)?) } else { None }; // [.., F]
            input.project(w_in.value(), (b_in, Some(activation)), pre.as_mut(), &mut projected)?;
            (projected, pre)
        };
        let y = output.product(&hidden, b_out, e)?; // [.., E], or [own, E]
        drop(hidden);
        let Some(pre) = pre else { return Ok(Var::constant(y)) };
        Ok(cx.record(y, &inputs, || {
            Box::new(FeedForwardBackward {
                kind: self,
                input: input.saved(w_in.needs_grad()),
                pre,
                w_in: Saved::of(w_in),
                w_out: Saved::of(w_out),
                output: output.ranks(),
                sizes: [d, f, e],
                dtypes: [x.dtype(), gradient_dtype(w_in.value(), x.dtype()), gradient_dtype(w_out.value(), x.dtype())],
            })
        }))
    }
}

#[derive(Debug)]
struct FeedForwardBackward {
    kind: FeedForward,
    input: SavedInput,
    /// Input of the activation; gate and up.
    pre: Tensor,
    w_in: Saved,
    w_out: Saved,
    output: OutputRanks,
    /// D, F and E.
    sizes: [usize; 3],
    /// Of x, w_in and w_out.
    dtypes: [DType; 3],
}

/// How the gradient of the hidden values becomes the gradient of the activation's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Derivative {
    /// The product is multiplied by the derivative as it is made.
    Fused,
    /// The derivative is already where the input of the activation was.
    Ready,
    /// The derivative is made from the input of the activation.
    Made,
    /// As `Made`, of gate and up.
    Gated,
}

impl Backward for FeedForwardBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let FeedForwardBackward { kind, input, mut pre, w_in, w_out, output, sizes: [d, f, e], dtypes } = *self;
        let FeedForward { op, gated, activation } = kind;
        let [of_x, of_in, of_out] = dtypes;
        let (dy, b_out) = output.gradient(cx, only(op, dy)?, (4, e), [of_x, of_out])?; // [.., E]
        let derivative = match (gated, cx.device().backend().fuses_gradients(), cx.needs(3)) {
            (true, ..) => Derivative::Gated,
            (_, true, _) => Derivative::Fused,
            (_, false, true) => Derivative::Ready,
            (_, false, false) => Derivative::Made,
        };
        let hidden = cx.needs(3).then(|| again(cx.device(), kind, &mut pre, derivative)).transpose()?; // [.., F]
        parameter_gradients(cx, (3, b_out), &dy, hidden.as_ref(), [e, f], of_out)?;
        drop(hidden);
        if !(0..3).any(|index| cx.needs(index)) {
            return Ok(());
        }
        let mut dhidden = like(cx.device(), &pre, pre.shape().with_last(f)?)?; // [.., F]
        let fused = (derivative == Derivative::Fused).then_some((activation, &pre));
        input_gradient(cx.device(), &dy, &w_out.get()?, [e, f], fused, dhidden.dest(false)?)?;
        drop((dy, w_out));
        let dpre = through_activation(cx.device(), activation, derivative, pre, dhidden)?; // [.., F] or [.., 2F]
        let wide = dpre.shape().last();
        let factor = cx.needs(0).then_some(w_in);
        let size = [wide, d];
        input.gradients(cx, &dpre, ProductOperands { input: 0, weight: 1, bias: Some(2), size, dtype: of_in, factor })
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(self.input.tensors().chain([&self.pre]))
    }
}

fn like(device: &Device, x: &Tensor, shape: Shape) -> Result<Tensor> {
    Tensor::empty_in(device, shape, x.dtype(), Segment::Activations)
}

/// The hidden values again; with [`Derivative::Ready`] the derivative in place of the input of the activation.
fn again(device: &Device, kind: FeedForward, pre: &mut Tensor, derivative: Derivative) -> Result<Tensor> {
    let FeedForward { op, gated, activation } = kind;
    if gated {
        return gate(device, activation, pre, op);
    }
    let mut value = like(device, pre, pre.shape())?;
    if derivative == Derivative::Ready {
        device.launch(ActivationSplit { activation, x: pre.view_mut()?, y: value.view_mut()? })?;
    } else {
        device.launch(ActivationForward { activation, x: pre.view()?, y: value.view_mut()? })?;
    }
    Ok(value)
}

/// The gradient of the input of the activation, or of gate and up.
fn through_activation(
    device: &Device,
    activation: Activation,
    derivative: Derivative,
    pre: Tensor,
    mut dhidden: Tensor,
) -> Result<Tensor> {
    match derivative {
        Derivative::Fused => return Ok(dhidden),
        Derivative::Ready => {
            device.launch(Multiply { a: pre.view()?, b: None, out: dhidden.dest(false)? })?;
            return Ok(dhidden);
        }
        Derivative::Made | Derivative::Gated => {}
    }
    let mut gradient = like(device, &pre, pre.shape())?;
    let (x, dy, dx) = (pre.view()?, dhidden.view()?, gradient.dest(false)?);
    if derivative == Derivative::Made {
        device.launch(ActivationBackward { activation, x, dy, dx })?;
    } else {
        let (rows, columns) = (pre.shape().rows(), dhidden.shape().last());
        device.launch(GatedBackward { activation, rows, columns, x, dy, dx })?;
    }
    Ok(gradient)
}

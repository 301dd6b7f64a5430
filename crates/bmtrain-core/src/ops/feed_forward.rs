//! The projections of a transformer's feed-forward layer as one op, which saves less than its parts would:
//! [`feed_forward`] and [`gated_feed_forward`].

use super::elementwise::gate;
use super::gemm::{
    ProductParameters, ProductPrecision, check_linear, gradient_dtype, input_gradient, parameter_gradients,
};
use super::product_input::{ProductOperands, SavedInput};
use super::product_weight::OutputRanks;
use super::*;
use crate::kernel::{Activation, ActivationForward, ActivationInPlace, GatedInPlace};

/// `y = activation(x w_in^T + b_in) w_out^T + b_out`.
///
/// Shapes: x `[.., D]`, w_in `[F, D]`, b_in `[F]`, w_out `[E, F]`, b_out `[E]` → `[.., E]`.
/// Numerics: as [`linear`](super::linear) twice. Saves x and the input of the activation; its value is made again in
/// the backward pass, together with its derivative, unless the device applies that to a product as it makes it. Where x
/// comes from several tensor-parallel ranks it is a [`ProductInput`], and where y goes to them, or is added to a
/// residual, w_out is a [`ProductWeight`].
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
        output.check(op, x.value(), shape.with_last(f)?, (e, false))?;
        let absent = x.detach();
        let residual = output.residual().unwrap_or(&absent);
        let inputs = [x, w_in, b_in.unwrap_or(&absent), w_out, b_out.unwrap_or(&absent), residual];
        let new = |width: usize| empty(cx, shape.with_last(width)?, x.dtype());
        let mut projected = new(wide)?; // [.., F], or [.., 2F] of gate and up
        let (hidden, pre) = if gated {
            input.project(w_in.value(), b_in, None, None, &mut projected)?;
            let hidden = gate(cx.device(), activation, &projected, op)?; // [.., F]
            (hidden, cx.records(&inputs).then_some(projected))
        } else {
            let mut pre = if cx.records(&inputs) { Some(new(f)?) } else { None }; // [.., F]
            input.project(w_in.value(), b_in, Some(activation), pre.as_mut(), &mut projected)?;
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
                precision: output.precision(),
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
    /// Precision of the product with w_out.
    precision: ProductPrecision,
    /// D, F and E.
    sizes: [usize; 3],
    /// Dtypes of x, w_in and w_out.
    dtypes: [DType; 3],
}

impl Backward for FeedForwardBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let FeedForwardBackward { kind, input, pre, w_in, w_out, output, precision, sizes, dtypes } = *self;
        let [d, f, e] = sizes;
        let FeedForward { op, gated, activation } = kind;
        let [of_x, of_in, of_out] = dtypes;
        let dy = only(op, dy)?;
        if cx.needs(5) {
            cx.give(5, dy.clone())?;
        }
        let (dy, b_out) = output.gradient(cx, dy, (4, e), [of_x, of_out])?; // [.., E]
        let out = ProductParameters { weight: 3, bias: b_out, size: [e, f], dtype: of_out, precision };
        let continues = (0..3).any(|index| cx.needs(index));
        let is_fused = !gated && cx.device().backend().fuses_derivative(activation, pre.dtype());
        if !continues || is_fused {
            let hidden = cx.needs(3).then(|| again(cx.device(), kind, &pre)).transpose()?; // [.., F]
            parameter_gradients(cx, out, &dy, hidden.as_ref())?;
        }
        if !continues {
            return Ok(());
        }
        let mut dhidden = like(cx.device(), &pre, pre.shape().with_last(f)?)?; // [.., F]
        let fused = is_fused.then_some((activation, &pre));
        input_gradient(cx.device(), &dy, &w_out.get()?, [e, f], fused, precision, dhidden.dest(false)?)?;
        drop(w_out);
        let dpre = if is_fused {
            dhidden // [.., F]
        } else {
            // [.., F], and [.., F] or [.., 2F]
            let (hidden, dpre) = through_activation(cx.device(), kind, pre, dhidden)?;
            let hidden = cx.needs(3).then_some(hidden);
            parameter_gradients(cx, out, &dy, hidden.as_ref())?;
            dpre
        };
        drop(dy);
        let factor = cx.needs(0).then_some(w_in);
        let size = [dpre.shape().last(), d];
        input.gradients(cx, &dpre, ProductOperands { input: 0, weight: 1, bias: Some(2), size, dtype: of_in, factor })
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(self.input.tensors().chain([&self.pre]))
    }
}

fn like(device: &Device, x: &Tensor, shape: Shape) -> Result<Tensor> {
    Tensor::empty_in(device, shape, x.dtype(), Segment::Activations)
}

/// The hidden values again.
fn again(device: &Device, FeedForward { op, gated, activation }: FeedForward, pre: &Tensor) -> Result<Tensor> {
    if gated {
        return gate(device, activation, pre, op);
    }
    let mut value = like(device, pre, pre.shape())?;
    device.launch(ActivationForward { activation, x: pre.view()?, y: value.view_mut()? })?;
    Ok(value)
}

/// The hidden values again, and the gradient of the input of the activation, or of gate and up, in the memory of what
/// they are made of.
fn through_activation(
    device: &Device,
    FeedForward { gated, activation, .. }: FeedForward,
    mut pre: Tensor,
    mut dhidden: Tensor,
) -> Result<(Tensor, Tensor)> {
    if gated {
        let (rows, columns) = (pre.shape().rows(), dhidden.shape().last());
        let (x, dy) = (pre.view_mut()?, dhidden.view_mut()?);
        device.launch(GatedInPlace { activation, rows, columns, x, dy })?;
        return Ok((dhidden, pre));
    }
    device.launch(ActivationInPlace { activation, x: pre.view_mut()?, dy: dhidden.view_mut()? })?;
    Ok((pre, dhidden))
}

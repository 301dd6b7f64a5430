//! The projections of a transformer's gated feed-forward layer as one op, which saves less than its parts would.

use super::elementwise::gate;
use super::gemm::{check_linear, input_gradient, parameter_gradients, project};
use super::{bytes_of, empty, only};
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Saved, Var};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Activation, Epilogue, GatedBackward};
use crate::pool::Segment;
use crate::tensor::Tensor;

const NAME: &str = "gated_feed_forward";

/// `y = (activation(gate) * up) w_out^T + b_out`, where gate and up are the halves of `x w_in^T + b_in`.
///
/// Shapes: x `[.., D]`, w_in `[2F, D]` and b_in `[2F]`, the gate first, w_out `[E, F]`, b_out `[E]` → `[.., E]`.
/// Numerics: as [`linear`](super::linear), [`gated`](super::gated) and `linear` again. Saves x and gate and up,
/// `[.., 2F]`; what they make is made again in the backward pass.
/// Source: gated linear units of Shazeer (2020), with a fused input projection.
pub fn gated_feed_forward(
    cx: &Ctx,
    x: &Var,
    w_in: &Var,
    b_in: Option<&Var>,
    activation: Activation,
    w_out: &Var,
    b_out: Option<&Var>,
) -> Result<Var> {
    let [wide, d] = check_linear(NAME, x.shape(), w_in, b_in)?;
    if !wide.is_multiple_of(2) {
        return Err(Error::shape(NAME, "rows of w_in", "an even number: gate and factor", w_in.shape()));
    }
    let f = wide / 2;
    let [e, _] = check_linear(NAME, x.shape().with_last(f)?, w_out, b_out)?;
    let absent = x.detach();
    let inputs = [x, w_in, b_in.unwrap_or(&absent), w_out, b_out.unwrap_or(&absent)];
    let mut halves = empty(cx, x.shape().with_last(wide)?, x.dtype())?; // [.., 2F]
    project(cx.device(), x.value(), w_in.value(), with_bias(b_in)?, &mut halves)?;
    let hidden = gate(cx.device(), activation, &halves, NAME)?; // [.., F]
    let halves = cx.records(&inputs).then_some(halves);
    let mut y = empty(cx, x.shape().with_last(e)?, x.dtype())?; // [.., E]
    project(cx.device(), &hidden, w_out.value(), with_bias(b_out)?, &mut y)?;
    drop(hidden);
    let Some(halves) = halves else { return Ok(Var::constant(y)) };
    Ok(cx.record(y, &inputs, || {
        Box::new(GatedFeedForwardBackward {
            x: x.value().clone(),
            halves,
            activation,
            w_in: Saved::of(w_in),
            w_out: Saved::of(w_out),
            sizes: [d, f, e],
            dtypes: [w_in.dtype(), w_out.dtype()],
        })
    }))
}

fn with_bias(bias: Option<&Var>) -> Result<Epilogue<'_>> {
    Ok(Epilogue { bias: bias.map(|bias| bias.value().view()).transpose()?, ..Epilogue::default() })
}

#[derive(Debug)]
struct GatedFeedForwardBackward {
    x: Tensor,
    /// Gate and up.
    halves: Tensor,
    activation: Activation,
    w_in: Saved,
    w_out: Saved,
    /// D, F and E.
    sizes: [usize; 3],
    dtypes: [DType; 2],
}

impl Backward for GatedFeedForwardBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let GatedFeedForwardBackward { x, halves, activation, w_in, w_out, sizes: [d, f, e], dtypes } = *self;
        let dy = only(NAME, dy)?;
        let hidden = cx.needs(3).then(|| gate(cx.device(), activation, &halves, NAME)).transpose()?; // [.., F]
        parameter_gradients(cx, [3, 4], &dy, hidden.as_ref(), [e, f], dtypes[1])?;
        drop(hidden);
        if !(0..3).any(|index| cx.needs(index)) {
            return Ok(());
        }
        let empty = |shape| Tensor::empty_in(cx.device(), shape, halves.dtype(), Segment::Activations);
        let mut dhidden = empty(halves.shape().with_last(f)?)?; // [.., F]
        let dest = dhidden.dest(false)?;
        input_gradient(cx.device(), &dy, &w_out.get()?, [e, f], None, dest)?;
        drop((dy, w_out));
        let mut dhalves = empty(halves.shape())?; // [.., 2F]
        let (rows, dx) = (halves.shape().rows(), dhalves.dest(false)?);
        let (at, dy) = (halves.view()?, dhidden.view()?);
        cx.device().launch(GatedBackward { activation, rows, columns: f, x: at, dy, dx })?;
        drop((halves, dhidden));
        parameter_gradients(cx, [1, 2], &dhalves, Some(&x), [2 * f, d], dtypes[0])?;
        let (shape, dtype, w_in) = (x.shape(), x.dtype(), w_in.get()?);
        drop(x);
        cx.write(0, shape, dtype, |device, dx| input_gradient(device, &dhalves, &w_in, [2 * f, d], None, dx))
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.x, &self.halves])
    }
}

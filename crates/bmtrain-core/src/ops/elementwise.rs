//! Elementwise ops: [`activation`], [`gated`], [`add`], [`scale`], [`mul`], [`cast`].

use super::*;
use crate::kernel::{
    Activation, ActivationBackward, ActivationForward, AddScaled, GatedBackward, GatedForward, Multiply,
    expect_soft_cap,
};

/// `y = activation(x)`.
pub fn activation(cx: &Ctx, x: &Var, activation: Activation) -> Result<Var> {
    let mut y = empty(cx, x.shape(), x.dtype())?;
    cx.device().launch(ActivationForward { activation, x: x.value().view()?, y: y.view_mut()? })?;
    Ok(cx.record(y, &[x], || Box::new(ActivationNode { activation, x: x.value().clone() })))
}

#[derive(Debug)]
struct ActivationNode {
    activation: Activation,
    x: Tensor,
}

impl Backward for ActivationNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let ActivationNode { activation, x } = *self;
        let dy = only("activation", dy)?;
        cx.write(0, x.shape(), x.dtype(), |device, dx| {
            device.launch(ActivationBackward { activation, x: x.view()?, dy: dy.view()?, dx })
        })
    }

    fn saved_bytes(&self) -> usize {
        self.x.bytes()
    }
}

/// `y = activation(gate) * up`, with gate and up side by side in x.
///
/// Shapes: x `[.., 2F]`, the gate first → `[.., F]`.
/// Source: gated linear units of Shazeer (2020), with a fused input projection.
pub fn gated(cx: &Ctx, x: &Var, activation: Activation) -> Result<Var> {
    let y = gate(cx.device(), activation, x.value(), "gated")?; // [.., F]
    Ok(cx.record(y, &[x], || Box::new(GatedNode { activation, x: x.value().clone() })))
}

/// `activation(gate) * up` of a tensor that holds both, `[.., 2F]` → `[.., F]`.
pub(super) fn gate(device: &Device, activation: Activation, x: &Tensor, op: &'static str) -> Result<Tensor> {
    let (rows, wide) = (x.shape().rows(), x.shape().last());
    if x.shape().rank() == 0 || !wide.is_multiple_of(2) {
        return Err(Error::shape(op, "innermost axis of x", "an even number: gate and factor", x.shape()));
    }
    let columns = wide / 2;
    let mut y = Tensor::empty_in(device, x.shape().with_last(columns)?, x.dtype(), Segment::Activations)?; // [.., F]
    let span = (rows * wide).saturating_sub(columns);
    let (gate, up) = (x.view()?.part(0, span)?, x.view()?.part(columns.min(rows * wide), span)?);
    device.launch(GatedForward { activation, rows, columns, ld: wide, gate, up, y: y.view_mut()? })?;
    Ok(y)
}

#[derive(Debug)]
struct GatedNode {
    activation: Activation,
    x: Tensor,
}

impl Backward for GatedNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let GatedNode { activation, x } = *self;
        let dy = only("gated", dy)?;
        let (rows, columns) = (x.shape().rows(), x.shape().last() / 2);
        cx.write(0, x.shape(), x.dtype(), |device, dx| {
            device.launch(GatedBackward { activation, rows, columns, x: x.view()?, dy: dy.view()?, dx })
        })
    }

    fn saved_bytes(&self) -> usize {
        self.x.bytes()
    }
}

/// `y = a + b`, of one shape.
pub fn add(cx: &Ctx, a: &Var, b: &Var) -> Result<Var> {
    expect_shape("add", "b", a.shape(), b.shape())?;
    let mut y = empty(cx, a.shape(), a.dtype())?;
    let (left, right) = (a.value().view()?, b.value().view()?);
    cx.device().launch(AddScaled { alpha: 1.0, a: left, beta: 1.0, b: Some(right), out: y.view_mut()? })?;
    Ok(cx.record(y, &[a, b], || Box::new(AddBackward)))
}

#[derive(Debug)]
struct AddBackward;

impl Backward for AddBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("add", dy)?;
        cx.give(0, dy.clone())?;
        cx.give(1, dy)
    }
}

/// `y = cap * tanh(x / cap)`, as logits are limited where a model was trained so; `x` without a cap.
///
/// Source: Gemma 2 (Riviere et al., 2024).
///
/// # Errors
/// A cap that is not above 0.
pub fn soft_cap(cx: &Ctx, x: &Var, cap: Option<f32>) -> Result<Var> {
    expect_soft_cap("soft_cap", cap)?;
    let Some(cap) = cap else { return Ok(x.clone()) };
    let ratio = activation(cx, &scale(cx, x, 1.0 / cap)?, Activation::Tanh)?;
    scale(cx, &ratio, cap)
}

/// `y = factor * x`.
pub fn scale(cx: &Ctx, x: &Var, factor: f32) -> Result<Var> {
    let mut y = empty(cx, x.shape(), x.dtype())?;
    cx.device().launch(AddScaled { alpha: factor, a: x.value().view()?, beta: 0.0, b: None, out: y.view_mut()? })?;
    let (shape, dtype) = (x.shape(), x.dtype());
    Ok(cx.record(y, &[x], || Box::new(ScaleBackward { factor, shape, dtype })))
}

#[derive(Debug)]
struct ScaleBackward {
    factor: f32,
    shape: Shape,
    dtype: DType,
}

impl Backward for ScaleBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("scale", dy)?;
        cx.write(0, self.shape, self.dtype, |device, Dest { view, add }| {
            let beta = if add { 1.0 } else { 0.0 };
            device.launch(AddScaled { alpha: self.factor, a: dy.view()?, beta, b: None, out: view })
        })
    }
}

/// `y = a * b`, elementwise, of one shape.
pub fn mul(cx: &Ctx, a: &Var, b: &Var) -> Result<Var> {
    expect_shape("mul", "b", a.shape(), b.shape())?;
    let mut y = empty(cx, a.shape(), a.dtype())?;
    cx.device().launch(Multiply { a: a.value().view()?, b: Some(b.value().view()?), out: y.dest(false)? })?;
    Ok(cx.record(y, &[a, b], || {
        Box::new(MulBackward {
            a: b.needs_grad().then(|| Saved::of(a)),
            b: a.needs_grad().then(|| Saved::of(b)),
            shape: a.shape(),
            dtypes: [a.dtype(), b.dtype()],
        })
    }))
}

#[derive(Debug)]
struct MulBackward {
    /// Present when the gradient of `b` is wanted.
    a: Option<Saved>,
    /// Present when the gradient of `a` is wanted.
    b: Option<Saved>,
    shape: Shape,
    dtypes: [DType; 2],
}

impl Backward for MulBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("mul", dy)?;
        for (index, other) in [&self.b, &self.a].into_iter().enumerate() {
            let Some(other) = other else { continue };
            let other = other.get()?;
            cx.write(index, self.shape, self.dtypes[index], |device, out| {
                device.launch(Multiply { a: dy.view()?, b: Some(other.view()?), out })
            })?;
        }
        Ok(())
    }

    fn saved_bytes(&self) -> usize {
        self.a.iter().chain(&self.b).map(Saved::bytes).sum()
    }
}

/// Conversion to another dtype, rounded to nearest, ties to even.
pub fn cast(cx: &Ctx, x: &Var, dtype: DType) -> Result<Var> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    let mut y = empty(cx, x.shape(), dtype)?;
    cx.device().launch(Cast { x: x.value().view()?, out: y.dest(false)? })?;
    let (shape, dtype) = (x.shape(), x.dtype());
    Ok(cx.record(y, &[x], || Box::new(CastBackward { shape, dtype })))
}

#[derive(Debug)]
struct CastBackward {
    shape: Shape,
    dtype: DType,
}

impl Backward for CastBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("cast", dy)?;
        cx.write(0, self.shape, self.dtype, |device, out| device.launch(Cast { x: dy.view()?, out }))
    }
}

//! [`softmax`], [`log_softmax`], [`sum`] and [`mean`].

use super::*;
use crate::kernel::{AddScaled, ColumnSum, Gemm, Matrix, Softmax, SoftmaxBackward};

/// Probabilities along the innermost axis.
pub fn softmax(cx: &Ctx, x: &Var) -> Result<Var> {
    along_rows(cx, x, false)
}

/// Log-probabilities along the innermost axis.
pub fn log_softmax(cx: &Ctx, x: &Var) -> Result<Var> {
    along_rows(cx, x, true)
}

fn along_rows(cx: &Ctx, x: &Var, log: bool) -> Result<Var> {
    let (rows, columns) = (x.shape().rows(), x.shape().last());
    let mut y = empty(cx, x.shape(), x.dtype())?;
    cx.device().launch(Softmax { rows, columns, log, x: x.value().view()?, y: y.view_mut()? })?;
    let saved = y.clone();
    Ok(cx.record(y, &[x], || Box::new(SoftmaxNode { log, y: saved })))
}

#[derive(Debug)]
struct SoftmaxNode {
    log: bool,
    y: Tensor,
}

impl Backward for SoftmaxNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let SoftmaxNode { log, y } = *self;
        let dy = only("softmax", dy)?;
        let (rows, columns) = (y.shape().rows(), y.shape().last());
        cx.write(0, y.shape(), y.dtype(), |device, dx| {
            device.launch(SoftmaxBackward { rows, columns, log, y: y.view()?, dy: dy.view()?, dx })
        })
    }

    fn saved_bytes(&self) -> usize {
        self.y.bytes()
    }
}

/// The sum of all elements, f32 `[1]`.
pub fn sum(cx: &Ctx, x: &Var) -> Result<Var> {
    reduce(cx, x, 1.0)
}

/// The mean of all elements, f32 `[1]`.
pub fn mean(cx: &Ctx, x: &Var) -> Result<Var> {
    match x.shape().elements() {
        0 => Err(Error::shape("mean", "x", "at least one element", x.shape())),
        n => reduce(cx, x, 1.0 / n as f32),
    }
}

/// `factor * sum(x)`: over rows, then over columns, in f32.
fn reduce(cx: &Ctx, x: &Var, factor: f32) -> Result<Var> {
    let (rows, columns) = (x.shape().rows(), x.shape().last());
    let device = cx.device();
    let mut by_column = Tensor::empty_in(device, [columns], DType::F32, Segment::Workspace)?; // [columns]
    device.launch(ColumnSum { rows, columns, x: x.value().view()?, out: by_column.dest(false)? })?;
    let mut total = empty(cx, [1], DType::F32)?; // [1]
    device.launch(ColumnSum { rows: columns, columns: 1, x: by_column.view()?, out: total.dest(false)? })?;
    if factor != 1.0 {
        let sum = std::mem::replace(&mut total, empty(cx, [1], DType::F32)?); // [1]
        device.launch(AddScaled { alpha: factor, a: sum.view()?, beta: 0.0, b: None, out: total.view_mut()? })?;
    }
    let (shape, dtype) = (x.shape(), x.dtype());
    Ok(cx.record(total, &[x], || Box::new(ReduceBackward { factor, shape, dtype })))
}

#[derive(Debug)]
struct ReduceBackward {
    factor: f32,
    shape: Shape,
    dtype: DType,
}

impl Backward for ReduceBackward {
    /// Every element gets `factor * dy`. The value is on the device, so it is spread as an outer product with ones.
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let ReduceBackward { factor, shape, dtype } = *self;
        let dy = only("sum", dy)?;
        let (rows, columns) = (shape.rows(), shape.last());
        cx.write(0, shape, dtype, |device, dx| {
            let ones = Tensor::full_in(device, [rows.max(columns)], DType::F32, 1.0, Segment::Workspace)?;
            let mut row = Tensor::empty_in(device, [columns], DType::F32, Segment::Workspace)?; // [columns]
            let spread = row.dest(false)?;
            outer(device, factor, (&dy, 1), (&ones, columns), spread)?;
            outer(device, 1.0, (&ones, rows), (&row, columns), dx)
        })
    }
}

/// `c (+)= alpha * a b^T` of two vectors.
fn outer(device: &Device, alpha: f32, (a, m): (&Tensor, usize), (b, n): (&Tensor, usize), c: Dest<'_>) -> Result<()> {
    let (a, b) = (Matrix::plain(a.view()?, 1), Matrix::plain(b.view()?, n));
    device.launch(Gemm { alpha, ..Gemm::single([m, n, 1], a, b, c) })
}

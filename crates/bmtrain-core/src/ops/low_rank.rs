//! The low-rank update of a product: [`add_low_rank`].

use super::gemm::matrix_dims;
use super::*;
use crate::kernel::{Gemm, Matrix, MatrixMut};

/// `y[.., first..first + C] += factor · t b^T`, in place when y owns its memory alone: what LoRA adds to the outputs of
/// a linear layer, or to the outputs of one part of a fused layer.
///
/// Shapes: y `[.., N]`, t `[.., R]`, b `[C, R]` with `first + C <= N` → `[.., N]`.
/// Errors: shapes that do not fit.
/// Numerics: sums over R in f32, added to y and rounded once. Saves t; the gradient of y is the result's.
/// Source: Hu et al., 2021.
pub fn add_low_rank(cx: &Ctx, y: Var, t: &Var, b: &Var, first: usize, factor: f32) -> Result<Var> {
    let [columns, rank] = matrix_dims("add_low_rank", b.value())?;
    let (rows, width) = (y.shape().rows(), y.shape().last());
    expect_shape("add_low_rank", "t", y.shape().with_last(rank)?, t.shape())?;
    if first.checked_add(columns).is_none_or(|end| end > width) {
        let got = format!("{columns} columns from {first} on");
        return Err(Error::shape("add_low_rank", "rows of b", format!("columns inside {width} of y"), got));
    }
    let update = LowRankUpdate { rows, columns, rank, width, first, factor };
    let (value, source) = y.into_parts();
    let mut value = value.owned()?; // [.., N]
    if !update.is_empty() {
        let sums = value.view_mut()?.part(first, update.span())?;
        let (t, b) = (Matrix::plain(t.value().view()?, rank), Matrix::transposed(b.value().view()?, rank));
        let product = Gemm::single([rows, columns, rank], t, b, Dest { view: sums, add: true });
        let c = MatrixMut { ld: width, ..product.c };
        cx.device().launch(Gemm { alpha: factor, c, ..product })?;
    }
    let y = Var::from_parts(value.clone(), source);
    Ok(cx.record(value, &[&y, t, b], || {
        Box::new(LowRankBackward {
            update,
            t: b.needs_grad().then(|| t.value().clone()),
            b: t.needs_grad().then(|| Saved::of(b)),
            shape: t.shape(),
            dtypes: [t.dtype(), b.dtype()],
        })
    }))
}

/// Columns of a matrix that are updated, and the product that updates them.
#[derive(Debug, Clone, Copy)]
struct LowRankUpdate {
    /// M, rows of y and of t.
    rows: usize,
    /// C, rows of b.
    columns: usize,
    /// R.
    rank: usize,
    /// N, columns of y.
    width: usize,
    /// The first updated column.
    first: usize,
    factor: f32,
}

impl LowRankUpdate {
    fn is_empty(&self) -> bool {
        self.rows == 0 || self.columns == 0
    }

    /// From the first updated element to the last.
    fn span(&self) -> usize {
        (self.rows - 1) * self.width + self.columns
    }

    /// The updated columns of the gradient of y.
    fn columns_of<'d>(&self, dy: &'d Tensor) -> Result<View<'d>> {
        dy.view()?.part(self.first, self.span())
    }
}

#[derive(Debug)]
struct LowRankBackward {
    update: LowRankUpdate,
    /// Present when the gradient of `b` is wanted.
    t: Option<Tensor>,
    /// Present when the gradient of `t` is wanted.
    b: Option<Saved>,
    /// Shape of `t`.
    shape: Shape,
    /// Dtypes of `t` and of `b`.
    dtypes: [DType; 2],
}

impl Backward for LowRankBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let LowRankBackward { update, t, b, shape, dtypes } = *self;
        let LowRankUpdate { rows, columns, rank, width, factor, .. } = update;
        let dy = only("add_low_rank", dy)?;
        if update.is_empty() {
            return cx.give(0, dy);
        }
        if let Some(b) = b {
            let b = b.get()?;
            // dt [M, R] = factor · dy b
            cx.write(1, shape, dtypes[0], |device, dt| {
                let (a, b) = (Matrix::plain(update.columns_of(&dy)?, width), Matrix::plain(b.view()?, rank));
                device.launch(Gemm { alpha: factor, ..Gemm::single([rows, rank, columns], a, b, dt) })
            })?;
        }
        if let Some(t) = t {
            let kept = cx.keep(&dy)?;
            cx.later([2], move |cx, [b]| {
                // db [C, R] = factor · dy^T t
                cx.write(b, Shape::from([columns, rank]), dtypes[1], |device, db| {
                    let (a, t) = (Matrix::transposed(update.columns_of(&kept)?, width), Matrix::plain(t.view()?, rank));
                    device.launch(Gemm { alpha: factor, ..Gemm::single([columns, rank, rows], a, t, db) })
                })
            })?;
        }
        cx.give(0, dy)
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(&self.t)
    }
}

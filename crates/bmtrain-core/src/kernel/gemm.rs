//! Arguments of matrix products.

use super::elementwise::Activation;
use super::{Access, Arguments, expect_float, expect_len};
use crate::buffer::{View, ViewMut};
use crate::error::{Error, Result};

/// A matrix inside a view: element `(row, column)` of batch entry `(o, i)` is at
/// `o * batch[0] + i * batch[1] + row * ld + column`, or with rows and columns exchanged when `transposed`.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// The elements.
    pub view: View<'a>,
    /// Elements from one stored row to the next.
    pub ld: usize,
    /// The product sees the transpose of what is stored.
    pub transposed: bool,
    /// Elements from one batch entry to the next, outer and inner.
    pub batch: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// A single matrix stored as it is used.
    pub fn plain(view: View<'a>, ld: usize) -> Self {
        Matrix { view, ld, transposed: false, batch: [0, 0] }
    }

    /// A single matrix used as its transpose.
    pub fn transposed(view: View<'a>, ld: usize) -> Self {
        Matrix { view, ld, transposed: true, batch: [0, 0] }
    }
}

/// The written matrix; never transposed.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    /// The elements.
    pub view: ViewMut<'a>,
    /// Elements from one row to the next.
    pub ld: usize,
    /// Elements from one batch entry to the next, outer and inner.
    pub batch: [usize; 2],
}

/// How many products: `outer * inner`, e.g. batch and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Slow count.
    pub outer: usize,
    /// Fast count.
    pub inner: usize,
}

impl Batch {
    /// A single product.
    pub const ONE: Batch = Batch { outer: 1, inner: 1 };
}

/// What is done to the product before it is written, in this order: add the bias to every row, keep a copy of that,
/// apply the activation.
#[derive(Debug, Default)]
pub struct Epilogue<'a> {
    /// One value for each column.
    pub bias: Option<View<'a>>,
    /// The function applied last.
    pub activation: Option<Activation>,
    /// Receives the input of the activation, `[m, n]` without gaps, when the backward pass needs it.
    pub pre_activation: Option<ViewMut<'a>>,
}

/// `c = activation(alpha * a * b + beta * c + bias)` with `a` `[m, k]`, `b` `[k, n]`, `c` `[m, n]`, all row-major.
///
/// Numerics: the sum over `k` is accumulated in f32 whatever the types, and rounded once.
#[derive(Debug)]
pub struct Gemm<'a> {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Factor of the product.
    pub alpha: f32,
    /// Left factor.
    pub a: Matrix<'a>,
    /// Right factor.
    pub b: Matrix<'a>,
    /// Factor of the old content; with 0 it is not read.
    pub beta: f32,
    /// Result.
    pub c: MatrixMut<'a>,
    /// Number of products.
    pub batch: Batch,
    /// Applied while the result is at hand.
    pub epilogue: Epilogue<'a>,
}

impl Arguments for Gemm<'_> {
    const NAME: &'static str = "gemm";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        for (what, dtype) in [("a", self.a.view.dtype()), ("b", self.b.view.dtype()), ("c", self.c.view.dtype())] {
            expect_float(name, what, dtype)?;
        }
        let (m, n, k) = (self.m, self.n, self.k);
        let stored = |rows, columns, transposed| if transposed { (columns, rows) } else { (rows, columns) };
        check_matrix("a", stored(m, k, self.a.transposed), self.a.ld, self.a.batch, self.batch, self.a.view.len())?;
        check_matrix("b", stored(k, n, self.b.transposed), self.b.ld, self.b.batch, self.batch, self.b.view.len())?;
        check_matrix("c", (m, n), self.c.ld, self.c.batch, self.batch, self.c.view.len())?;
        let entries = self.batch.outer * self.batch.inner;
        if entries > 1 && m > 0 && n > 0 {
            let span = (m - 1) * self.c.ld + n;
            let inner_fits = self.batch.inner == 1 || disjoint(self.c.batch[1], span, n, self.c.ld);
            let outer_fits = self.batch.outer == 1 || disjoint(self.c.batch[0], span, n, self.c.ld);
            if !(inner_fits && outer_fits) {
                return Err(Error::argument(name, "results of different batch entries overlap"));
            }
        }
        if let Some(bias) = &self.epilogue.bias {
            expect_len(name, "bias", n, bias.len())?;
            expect_float(name, "bias", bias.dtype())?;
        }
        if let Some(copy) = &self.epilogue.pre_activation {
            expect_len(name, "pre-activation", m * n, copy.len())?;
            expect_float(name, "pre-activation", copy.dtype())?;
        }
        if entries > 1 && self.epilogue.pre_activation.is_some() {
            return Err(Error::argument(name, "a pre-activation copy is for single products"));
        }
        Ok(())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        super::visit_all(
            visit,
            &[Some(&self.a.view), Some(&self.b.view), self.epilogue.bias.as_ref()],
            &[Some(&self.c.view), self.epilogue.pre_activation.as_ref()],
        );
    }

    fn flops(&self) -> u64 {
        2 * (self.batch.outer * self.batch.inner) as u64 * self.m as u64 * self.n as u64 * self.k as u64
    }
}

/// Batch entries `stride` apart do not share elements: they lie behind each other, or side by side within the rows.
fn disjoint(stride: usize, span: usize, columns: usize, ld: usize) -> bool {
    stride >= span || (stride >= columns && stride < ld)
}

fn check_matrix(
    what: &str,
    (rows, columns): (usize, usize),
    ld: usize,
    strides: [usize; 2],
    batch: Batch,
    len: usize,
) -> Result<()> {
    if ld < columns {
        return Err(Error::shape(
            Gemm::NAME,
            format!("leading dimension of {what}"),
            format!("at least {columns}"),
            ld,
        ));
    }
    if rows == 0 || columns == 0 || batch.outer == 0 || batch.inner == 0 {
        return Ok(());
    }
    let last = |count: usize, stride: usize| (count - 1).checked_mul(stride);
    let end = last(rows, ld)
        .and_then(|end| end.checked_add(columns))
        .and_then(|end| end.checked_add(last(batch.outer, strides[0])?))
        .and_then(|end| end.checked_add(last(batch.inner, strides[1])?));
    match end {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::shape(Gemm::NAME, what, format!("at least {end:?} elements"), len)),
    }
}

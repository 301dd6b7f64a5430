//! Arguments of matrix products.

use super::elementwise::Activation;
use super::{Access, Arguments, Dest, Operand, expect_float, expect_float_operand};
use crate::error::{Error, Result};
use crate::fp8::Fp8Factors;
use crate::shape::expect_apart;
use crate::view::{View, ViewMut};

/// A matrix inside a view: element `(row, column)` of batch entry `(o, i)` is at
/// `o * batch[0] + i * batch[1] + row * ld + column`, or with rows and columns swapped if `transposed`.
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

/// Number of products: `outer * inner`, e.g. batch and heads.
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

/// Operations on the product before it is written, in this order: add the bias to every row and the residual, keep a
/// copy of that, apply the activation, multiply by a derivative; and the sums computed with it.
#[derive(Debug, Default)]
pub struct Epilogue<'a> {
    /// One value for each column.
    pub bias: Option<View<'a>>,
    /// Added to the product, `[m, n]` without gaps, of the result's dtype: the hidden states to which a layer adds. It
    /// goes with a bias alone, and takes the place of the result's old content.
    pub residual: Option<View<'a>>,
    /// The function applied last.
    pub activation: Option<Activation>,
    /// Receives the input of the activation, `[m, n]` without gaps, when the backward pass needs it.
    pub pre_activation: Option<ViewMut<'a>>,
    /// The result is multiplied by the derivative of this function at these points, `[m, n]` without gaps: the gradient
    /// of a layer's result becomes the gradient of the argument of the activation before it. Not with an activation.
    pub derivative: Option<(Activation, View<'a>)>,
    /// Receives the sum of each row of `a`, `[m]`, in f32 and rounded once: where the product is the gradient of a
    /// weight, that is the gradient of its bias. `a` is the transpose of a matrix without gaps.
    pub sums_of_a: Option<Dest<'a>>,
}

impl Operand for Matrix<'_> {
    visits!(view);
}

impl Operand for MatrixMut<'_> {
    visits!(view);
}

impl Operand for Epilogue<'_> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.bias.visit(visit);
        self.residual.visit(visit);
        self.derivative.iter().for_each(|(_, points)| points.visit(visit));
        self.pre_activation.visit(visit);
        self.sums_of_a.visit(visit);
    }
}

impl Epilogue<'_> {
    pub(super) fn check(&self, name: &'static str, a: &Matrix<'_>, [m, n, k]: [usize; 3], batch: Batch) -> Result<()> {
        if let Some(bias) = &self.bias {
            expect_float_operand(name, "bias", n, bias)?;
        }
        let copy = self.pre_activation.as_ref().map(|copy| ("pre-activation", copy.as_view()));
        let points = self.derivative.map(|(_, points)| ("points of the derivative", points));
        for (what, matrix) in [copy, points].into_iter().flatten() {
            expect_float_operand(name, what, m * n, &matrix)?;
        }
        if let Some(sums) = &self.sums_of_a {
            expect_float_operand(name, "sums of a", m, &sums.view)?;
            if !a.transposed || (a.ld != m && k > 1) {
                return Err(Error::argument(name, "sums of a are for the transpose of a matrix without gaps"));
            }
        }
        if let Some(residual) = &self.residual {
            expect_float_operand(name, "residual", m * n, residual)?;
            let is_alone = self.activation.is_none() && copy.is_none() && points.is_none() && self.sums_of_a.is_none();
            if !is_alone {
                return Err(Error::argument(name, "a residual goes with a bias alone"));
            }
        }
        if self.derivative.is_some() && self.activation.is_some() {
            return Err(Error::argument(name, "an activation and a derivative exclude each other"));
        }
        let single = copy.is_some() || points.is_some() || self.sums_of_a.is_some() || self.residual.is_some();
        if single && batch != Batch::ONE {
            let message = "a residual, a pre-activation copy, a derivative and sums of a are for single products";
            return Err(Error::argument(name, message));
        }
        Ok(())
    }
}

/// `c = activation(alpha * a * b + beta * c + bias + residual)` with `a` `[m, k]`, `b` `[k, n]`, `c` `[m, n]`, all
/// row-major.
///
/// Numerics: the sum over `k` is accumulated in f32 whatever the types, and rounded once. With
/// [`fp8`](Gemm::fp8) the tensor cores of a device add 8-bit products with fewer bits.
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
    /// Formats to which both factors of a single product are rounded before they are multiplied.
    pub fp8: Option<Fp8Factors>,
}

impl<'a> Gemm<'a> {
    /// `c (+)= a b` of one product of `[m, n, k]`, without gaps between the rows of `c`.
    pub fn single([m, n, k]: [usize; 3], a: Matrix<'a>, b: Matrix<'a>, c: Dest<'a>) -> Self {
        Gemm {
            m,
            n,
            k,
            alpha: 1.0,
            a,
            b,
            beta: if c.add { 1.0 } else { 0.0 },
            c: MatrixMut { view: c.view, ld: n, batch: [0, 0] },
            batch: Batch::ONE,
            epilogue: Epilogue::default(),
            fp8: None,
        }
    }
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
        let Batch { outer, inner } = self.batch;
        if outer.checked_mul(inner).is_none() {
            return Err(Error::shape(name, "batch", "a count below 2^64", format!("{outer} x {inner}")));
        }
        let axes = [(1, n), (self.c.ld, m), (self.c.batch[0], outer), (self.c.batch[1], inner)];
        expect_apart(axes).map_err(|got| Error::shape(name, "strides of c", "no element written twice", got))?;
        if let Some(residual) = &self.epilogue.residual {
            let (c, got) = (self.c.view.dtype(), residual.dtype());
            if got != c {
                return Err(Error::DType { op: name, what: "residual".into(), expected: c.name().into(), got });
            }
            if self.beta != 0.0 || self.c.ld != n {
                let message = "a residual takes the place of the old content, and the result has no gaps";
                return Err(Error::argument(name, message));
            }
        }
        if self.fp8.is_some() && self.batch != Batch::ONE {
            return Err(Error::argument(name, "factors are rounded to 8 bits in single products"));
        }
        self.epilogue.check(name, &self.a, [m, n, k], self.batch)
    }

    visits!(a, b, c, epilogue);

    fn flops(&self) -> u64 {
        let factors = [self.batch.outer, self.batch.inner, self.m, self.n, self.k];
        factors.into_iter().fold(2, |product, factor| product.saturating_mul(factor as u64))
    }
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
        let expected = format!("at least {columns}");
        return Err(Error::shape(Gemm::NAME, format!("leading dimension of {what}"), expected, ld));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Segment, Storage};

    /// Layout of the results of a batch: rows, columns, row distance, counts, batch strides.
    struct BatchLayout(usize, usize, usize, [usize; 2], [usize; 2]);

    impl BatchLayout {
        /// Every element that is written, once for each time it is.
        fn elements(&self) -> Vec<usize> {
            let BatchLayout(m, n, ld, [outer, inner], [o_stride, i_stride]) = *self;
            let rows = |start: usize| (0..m).flat_map(move |i| (0..n).map(move |j| start + i * ld + j));
            (0..outer).flat_map(|o| (0..inner).flat_map(move |i| rows(o * o_stride + i * i_stride))).collect()
        }

        fn check(&self) -> Result<()> {
            let BatchLayout(m, n, ld, [outer, inner], batch) = *self;
            let device = Device::cpu(1).unwrap();
            let zeros = |len| Storage::zeros(&device, len, DType::F32, Segment::Activations).unwrap();
            let (a, b, c) = (zeros(m), zeros(n), zeros(1024));
            let (a, b) = (Matrix::plain(a.view(0..m).unwrap(), 1), Matrix::plain(b.view(0..n).unwrap(), n));
            let dest = Dest { view: c.view_mut(0..1024).unwrap(), add: false };
            let mut gemm = Gemm { batch: Batch { outer, inner }, ..Gemm::single([m, n, 1], a, b, dest) };
            (gemm.c.ld, gemm.c.batch) = (ld, batch);
            gemm.check()
        }
    }

    #[test]
    fn results_that_share_an_element_are_refused_whichever_entries_they_are() {
        let refused = [
            // Entries (0, 1) and (1, 0) of equal strides are one and the same.
            BatchLayout(2, 3, 3, [2, 2], [6, 6]),
            BatchLayout(2, 3, 12, [2, 2], [3, 3]),
            // The third inner entry is the second outer one.
            BatchLayout(2, 3, 3, [2, 3], [12, 6]),
            // Four heads of three columns do not fit rows of nine.
            BatchLayout(2, 3, 9, [1, 4], [0, 3]),
            // Heads inside rows, and sequences that start before the rows of the one before are over.
            BatchLayout(4, 3, 6, [2, 2], [18, 3]),
            BatchLayout(2, 3, 3, [1, 2], [0, 5]),
            BatchLayout(1, 3, 3, [2, 1], [0, 0]),
        ];
        for layout in refused {
            let mut elements = layout.elements();
            elements.sort_unstable();
            assert!(elements.windows(2).any(|pair| pair[0] == pair[1]), "the layout is fine, the test is not");
            let error = layout.check().unwrap_err().to_string();
            assert!(error.contains("written twice") && error.contains("stride"), "{error}");
        }
    }

    #[test]
    fn results_side_by_side_or_behind_each_other_are_taken() {
        let taken = [
            BatchLayout(4, 3, 3, [1, 1], [0, 0]),
            // Heads inside rows, sequences one after the other; and the other way round.
            BatchLayout(4, 3, 6, [5, 2], [24, 3]),
            BatchLayout(4, 3, 6, [2, 5], [3, 24]),
            // Heads one after the other, with gaps.
            BatchLayout(4, 3, 4, [2, 3], [60, 17]),
            // Heads inside rows, rows of sequences between each other.
            BatchLayout(4, 3, 12, [2, 2], [6, 3]),
            // Strides of axes with one entry do not count, nor does anything where nothing is written.
            BatchLayout(4, 3, 3, [1, 2], [0, 12]),
            BatchLayout(4, 3, 3, [2, 1], [12, 0]),
            BatchLayout(1, 3, 3, [2, 2], [3, 6]),
            BatchLayout(0, 3, 3, [2, 2], [0, 0]),
            BatchLayout(4, 3, 3, [0, 2], [0, 0]),
        ];
        for layout in taken {
            let mut elements = layout.elements();
            elements.sort_unstable();
            assert!(elements.windows(2).all(|pair| pair[0] < pair[1]), "the layout is wrong, the test is not");
            layout.check().unwrap();
        }
    }

    #[test]
    fn a_batch_beyond_any_count_is_an_error() {
        // Nothing is written, so that no length bounds the counts.
        assert!(BatchLayout(0, 3, 3, [usize::MAX, 2], [0, 0]).check().is_err());
    }
}

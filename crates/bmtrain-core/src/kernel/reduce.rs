//! Arguments of reductions and of softmax. All sums are made in an order that depends on sizes alone.

use super::optimizer::NormOrder;
use super::{Arguments, Dest, expect_float, expect_float_operand, expect_len, expect_operand};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::Result;
use crate::exact::WORDS;

/// `out[c] (+)= sum over rows of x[r, c]`: the gradient of a bias.
#[derive(Debug)]
pub struct ColumnSum<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Summed, `[rows, columns]`.
    pub x: View<'a>,
    /// Sums `[columns]`.
    pub out: Dest<'a>,
}

impl Arguments for ColumnSum<'_> {
    const NAME: &'static str = "column_sum";

    fn check(&self) -> Result<()> {
        expect_float_operand(Self::NAME, "x", self.rows * self.columns, &self.x)?;
        expect_float_operand(Self::NAME, "out", self.columns, &self.out.view)
    }

    visits!(x, out);
}

/// Accumulate the sum of squares, or the largest magnitude, of `x` into `out`. NaN and infinity propagate.
///
/// Numerics: the squares of each [`NORM_CHUNK`] elements are summed in f64 in a fixed order, the sums of the chunks
/// exactly ([`exact::Sum`](crate::exact::Sum)). So values that are cut at multiples of a chunk give the same bits in
/// whatever parts and order they come, on any number of ranks.
#[derive(Debug)]
pub struct GradNorm<'a> {
    /// Sum of squares or maximum.
    pub order: NormOrder,
    /// The values.
    pub x: View<'a>,
    /// Accumulated result: the i64 integers of [`exact::Sum`](crate::exact::Sum), or the bits of the largest magnitude
    /// and zeros. Results of several ranks are added, or their maximum taken, elementwise.
    pub out: Dest<'a>,
}

/// Elements whose squares are summed in floating point; parts of a whole are cut at multiples of it.
pub const NORM_CHUNK: usize = 128;

impl Arguments for GradNorm<'_> {
    const NAME: &'static str = "grad_norm";

    fn check(&self) -> Result<()> {
        expect_float(Self::NAME, "x", self.x.dtype())?;
        expect_operand(Self::NAME, "out", WORDS, DType::I64, &self.out.view)
    }

    visits!(x, out);
}

/// Set `flag` to 1 if anything in `x` is infinite or not a number; leave it otherwise.
#[derive(Debug)]
pub struct NonFinite<'a> {
    /// The values.
    pub x: View<'a>,
    /// i32 `[1]`.
    pub flag: ViewMut<'a>,
}

impl Arguments for NonFinite<'_> {
    const NAME: &'static str = "non_finite";

    fn check(&self) -> Result<()> {
        expect_float(Self::NAME, "x", self.x.dtype())?;
        expect_operand(Self::NAME, "flag", 1, DType::I32, &self.flag)
    }

    visits!(x, flag);
}

/// `y = softmax(x)` along rows; `log` writes log-probabilities instead.
#[derive(Debug)]
pub struct Softmax<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// Write log-probabilities.
    pub log: bool,
    /// Input `[rows, columns]`.
    pub x: View<'a>,
    /// Output `[rows, columns]`.
    pub y: ViewMut<'a>,
}

impl Arguments for Softmax<'_> {
    const NAME: &'static str = "softmax";

    fn check(&self) -> Result<()> {
        expect_float_operand(Self::NAME, "x", self.rows * self.columns, &self.x)?;
        expect_float_operand(Self::NAME, "y", self.x.len(), &self.y)
    }

    visits!(x, y);
}

/// Gradient of [`Softmax`] from its output: `dx (+)= y * (dy - sum(y * dy))`, or `dy - exp(y) * sum(dy)` for logs.
#[derive(Debug)]
pub struct SoftmaxBackward<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// The output holds log-probabilities.
    pub log: bool,
    /// Output of the forward pass.
    pub y: View<'a>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of the input.
    pub dx: Dest<'a>,
}

impl Arguments for SoftmaxBackward<'_> {
    const NAME: &'static str = "softmax_backward";

    fn check(&self) -> Result<()> {
        for (what, dtype, len) in [
            ("y", self.y.dtype(), self.y.len()),
            ("dy", self.dy.dtype(), self.dy.len()),
            ("dx", self.dx.view.dtype(), self.dx.view.len()),
        ] {
            expect_float(Self::NAME, what, dtype)?;
            expect_len(Self::NAME, what, self.rows * self.columns, len)?;
        }
        Ok(())
    }

    visits!(y, dy, dx);
}

//! Arguments of reductions and of softmax. All sums are made in an order that depends on sizes alone.

use super::optimizer::NormOrder;
use super::{Arguments, Dest, Elements, expect};
use crate::error::{Error, Result};
use crate::exact::WORDS;
use crate::view::{View, ViewMut};

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

arguments! {
    ColumnSum, "column_sum", |a| { x: Float[a.rows * a.columns], out: Float[a.columns] }
}

/// Accumulate the sum of squares, or the largest magnitude, of all `xs` into `out`. NaN and infinity propagate.
///
/// Numerics: the squares of each [`NORM_CHUNK`] elements are summed in f64 in a fixed order, the sums of the chunks
/// exactly ([`exact::Sum`](crate::exact::Sum)). So values that are cut at multiples of a chunk give the same bits in
/// whatever parts and order they come, on any number of ranks.
#[derive(Debug)]
pub struct GradNorm<'a> {
    /// Sum of squares or maximum.
    pub order: NormOrder,
    /// The values, of one type: e.g. the gradients of all parameters of a model.
    pub xs: Vec<View<'a>>,
    /// Accumulated result: the i64 integers of [`exact::Sum`](crate::exact::Sum), or the bits of the largest magnitude
    /// and zeros. Results of several ranks are added, or their maximum taken, elementwise.
    pub out: Dest<'a>,
}

/// Elements whose squares are summed in floating point; parts of a whole are cut at multiples of it.
pub const NORM_CHUNK: usize = 128;

arguments! {
    GradNorm, "grad_norm", |a| { xs: Any, out: I64[WORDS] }, a.check_values()
}

impl GradNorm<'_> {
    fn check_values(&self) -> Result<()> {
        self.xs.iter().try_for_each(|x| expect(Self::NAME, "xs", x, Elements::Float, None))?;
        match self.xs.windows(2).all(|pair| pair[0].dtype() == pair[1].dtype()) {
            true => Ok(()),
            false => Err(Error::argument(Self::NAME, "xs are of several types")),
        }
    }
}

/// Set `flag` to 1 if anything in `x` is infinite or not a number; leave it otherwise.
#[derive(Debug)]
pub struct NonFinite<'a> {
    /// The values.
    pub x: View<'a>,
    /// i32 `[1]`.
    pub flag: ViewMut<'a>,
}

arguments! {
    NonFinite, "non_finite", |a| { x: Float, flag: I32[1] }
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

arguments! {
    Softmax, "softmax", |a| { x: Float[a.rows * a.columns], y: Float[a.x.len()] }
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

arguments! {
    SoftmaxBackward, "softmax_backward", |a| {
        y: Float[a.rows * a.columns], dy: Float[a.y.len()], dx: Float[a.y.len()]
    }
}

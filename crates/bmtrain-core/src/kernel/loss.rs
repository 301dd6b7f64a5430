//! Arguments of the squared error, of the totals of row losses, and of the scaling of their gradients.

use super::{Arguments, Dest, expect_dtype, expect_float, expect_float_operand, expect_len, expect_operand};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Mean of the squared differences, f32 `[1]`.
#[derive(Debug)]
pub struct SquaredErrorForward<'a> {
    /// Predictions.
    pub x: View<'a>,
    /// Targets, f32, of the same length.
    pub targets: View<'a>,
    /// The mean, f32 `[1]`.
    pub loss: ViewMut<'a>,
}

impl Arguments for SquaredErrorForward<'_> {
    const NAME: &'static str = "squared_error_forward";

    fn check(&self) -> Result<()> {
        expect_float(Self::NAME, "x", self.x.dtype())?;
        expect_operand(Self::NAME, "targets", self.x.len(), DType::F32, &self.targets)?;
        expect_operand(Self::NAME, "loss", 1, DType::F32, &self.loss)
    }

    visits!(x, targets, loss);
}

/// Gradient of [`SquaredErrorForward`]: `dx = dloss * 2 (x - target) / n`.
#[derive(Debug)]
pub struct SquaredErrorBackward<'a> {
    /// Predictions.
    pub x: View<'a>,
    /// Targets.
    pub targets: View<'a>,
    /// Gradient of the mean, f32 `[1]`.
    pub dloss: View<'a>,
    /// Gradient of the predictions.
    pub dx: ViewMut<'a>,
}

impl Arguments for SquaredErrorBackward<'_> {
    const NAME: &'static str = "squared_error_backward";

    fn check(&self) -> Result<()> {
        expect_float(Self::NAME, "x", self.x.dtype())?;
        expect_operand(Self::NAME, "targets", self.x.len(), DType::F32, &self.targets)?;
        expect_operand(Self::NAME, "dloss", 1, DType::F32, &self.dloss)?;
        expect_float_operand(Self::NAME, "dx", self.x.len(), &self.dx)
    }

    visits!(x, targets, dloss, dx);
}

/// Sum of the losses of rows, sum of the row weights, and the mean: the first divided by the second.
///
/// The weight of a row is the class weight of its target, 1 without class weights, and 0 if the row is ignored. A
/// target out of range is an error, never an access; without class weights it is not checked.
///
/// Numerics: f64 sums in a fixed order.
#[derive(Debug)]
pub struct LossTotals<'a> {
    /// Loss of each row, f32.
    pub losses: View<'a>,
    /// Class ids, i64, one per row.
    pub targets: View<'a>,
    /// Rows with this target have no weight.
    pub ignore_index: i64,
    /// Weight of each class, f32.
    pub class_weights: Option<View<'a>>,
    /// Sum, weight sum and mean, f32 `[3]`.
    pub totals: ViewMut<'a>,
}

impl Arguments for LossTotals<'_> {
    const NAME: &'static str = "loss_totals";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        expect_dtype(name, "losses", DType::F32, self.losses.dtype())?;
        expect_operand(name, "targets", self.losses.len(), DType::I64, &self.targets)?;
        if let Some(weights) = &self.class_weights {
            expect_dtype(name, "class weights", DType::F32, weights.dtype())?;
        }
        expect_operand(name, "totals", 3, DType::F32, &self.totals)
    }

    visits!(losses, targets, class_weights, totals);
}

/// `out (+)= factor / divisor * x`, elementwise, with factor and divisor in device memory.
///
/// A divisor of 0 gives a factor of 0: a mean over no rows has no gradient.
///
/// Numerics: the quotient is rounded to f32, the product once to the dtype of `out`.
#[derive(Debug)]
pub struct ScaleBy<'a> {
    /// The factor, f32 `[1]`.
    pub factor: View<'a>,
    /// Divisor of the factor, f32 `[1]`.
    pub divisor: Option<View<'a>>,
    /// Input; `None` scales `out` in place, which excludes `add`.
    pub x: Option<View<'a>>,
    /// Result.
    pub out: Dest<'a>,
}

impl Arguments for ScaleBy<'_> {
    const NAME: &'static str = "scale_by";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        expect_scalar(name, "factor", &self.factor)?;
        if let Some(divisor) = &self.divisor {
            expect_scalar(name, "divisor", divisor)?;
        }
        expect_float(name, "out", self.out.view.dtype())?;
        match &self.x {
            Some(x) => {
                expect_float(name, "x", x.dtype())?;
                expect_len(name, "out", x.len(), self.out.view.len())
            }
            None if self.out.add => Err(Error::argument(name, "an in-place product cannot be added")),
            None => Ok(()),
        }
    }

    visits!(factor, divisor, x, out);
}

/// Require one f32.
pub(super) fn expect_scalar(name: &'static str, what: &str, view: &View<'_>) -> Result<()> {
    expect_operand(name, what, 1, DType::F32, view)
}

//! Arguments of the squared error, of the totals of row losses, and of the scaling of their gradients.

use super::{Dest, expect_replaced};
use crate::buffer::{View, ViewMut};

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

arguments! {
    SquaredErrorForward, "squared_error_forward", |a| { x: Float, targets: F32[a.x.len()], loss: F32[1] }
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

arguments! {
    SquaredErrorBackward, "squared_error_backward", |a| {
        x: Float, targets: F32[a.x.len()], dloss: F32[1], dx: Float[a.x.len()]
    }
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

arguments! {
    LossTotals, "loss_totals", |a| {
        losses: F32, targets: I64[a.losses.len()], class_weights as "class weights": F32, totals: F32[3]
    }
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

arguments! {
    ScaleBy, "scale_by", |a| {
        factor: F32[1], divisor: F32[1], x: Float, out: Float[a.x.map_or(a.out.view.len(), |x| x.len())]
    },
    expect_replaced(Self::NAME, a.x.as_ref(), &a.out, "an in-place product cannot be added")
}

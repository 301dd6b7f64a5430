//! Arguments of the squared error, of functions of single elements that losses are made of, of the totals of row
//! losses, and of the scaling of their gradients.

use super::{Dest, expect_replaced};
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

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

/// A function of an element x and a constant t.
///
/// Source: `torch.nn.functional`, without reduction: `l1_loss`, `huber_loss`, `binary_cross_entropy_with_logits`,
/// `kl_div`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pointwise {
    /// `|x - t|`, with the derivative 0 at t.
    AbsoluteError,
    /// `(x - t)^2 / 2` where the two differ by at most `delta`, and `delta (|x - t| - delta / 2)` elsewhere.
    Huber {
        /// Point at which the parabola becomes a line; above 0.
        delta: f32,
    },
    /// `log(1 + e^x) - t x`: of a logit x and the probability t of the positive class.
    BinaryCrossEntropy,
    /// `t (log t - x)`: of a log-probability x and a probability t; 0 where t is 0.
    KlDivergence,
    /// `x - log(1 - e^x)`: the logarithm of the odds of a log-probability x. `1 - e^x` counts as at least 2^-23, the
    /// distance of 1 from the next number. It has no t.
    LogOdds,
}

impl Pointwise {
    /// One of each, for tests.
    pub const ALL: [Pointwise; 5] = [
        Pointwise::AbsoluteError,
        Pointwise::Huber { delta: 0.75 },
        Pointwise::BinaryCrossEntropy,
        Pointwise::KlDivergence,
        Pointwise::LogOdds,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pointwise::AbsoluteError => "absolute_error",
            Pointwise::Huber { .. } => "huber",
            Pointwise::BinaryCrossEntropy => "binary_cross_entropy",
            Pointwise::KlDivergence => "kl_divergence",
            Pointwise::LogOdds => "log_odds",
        }
    }

    /// Whether there is a t.
    pub fn has_targets(self) -> bool {
        self != Pointwise::LogOdds
    }

    fn expect_targets(self, op: &'static str, targets: Option<&View<'_>>) -> Result<()> {
        match (self.has_targets(), targets.is_some()) {
            (true, false) => Err(Error::argument(op, format!("{} has no targets", self.name()))),
            (false, true) => Err(Error::argument(op, format!("{} takes no targets", self.name()))),
            _ => Ok(()),
        }
    }
}

/// A [`Pointwise`] function of every element.
///
/// Numerics: f32 arithmetic.
#[derive(Debug)]
pub struct PointwiseForward<'a> {
    /// Which.
    pub function: Pointwise,
    /// Elements x.
    pub x: View<'a>,
    /// Constants t, f32, of the same length; `None` of a function without.
    pub targets: Option<View<'a>>,
    /// Results, f32.
    pub y: ViewMut<'a>,
}

arguments! {
    PointwiseForward, "pointwise_forward", |a| { x: Float, targets: F32[a.x.len()], y: F32[a.x.len()] },
    a.function.expect_targets(Self::NAME, a.targets.as_ref())
}

/// Gradient of [`PointwiseForward`]: `dx (+)= dy f'(x)`.
#[derive(Debug)]
pub struct PointwiseBackward<'a> {
    /// Which.
    pub function: Pointwise,
    /// Elements x.
    pub x: View<'a>,
    /// Constants t.
    pub targets: Option<View<'a>>,
    /// Gradient of the results, f32.
    pub dy: View<'a>,
    /// Gradient of x.
    pub dx: Dest<'a>,
}

arguments! {
    PointwiseBackward, "pointwise_backward", |a| {
        x: Float, targets: F32[a.x.len()], dy: F32[a.x.len()], dx: Float[a.x.len()]
    },
    a.function.expect_targets(Self::NAME, a.targets.as_ref())
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

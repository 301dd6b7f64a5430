//! Arguments of layer norm and RMS norm, with fused dropout and residual.

use super::random::Dropout;
use super::{Access, Arguments, Dest, Operand, expect_float_operand, expect_operand};
use crate::buffer::{Ranged, View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Which normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Subtract the mean, divide by the (biased) standard deviation (Ba et al., 2016).
    Layer,
    /// Divide by the root mean square (Zhang and Sennrich, 2019).
    Rms,
}

/// `sum = dropout(x) + residual`, `y = normalise(sum) * weight + bias` along rows of `columns`.
///
/// Numerics: statistics in f32, the variance from the centred values; `epsilon` is added to the variance.
#[derive(Debug)]
pub struct NormForward<'a> {
    /// Which normalisation.
    pub kind: NormKind,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Input `[rows, columns]`.
    pub x: View<'a>,
    /// Applied to `x` before the residual is added.
    pub dropout: Option<Dropout>,
    /// Added to `x`, `[rows, columns]`.
    pub residual: Option<View<'a>>,
    /// Receives what is normalised; needed when there is a dropout or a residual.
    pub sum: Option<ViewMut<'a>>,
    /// Scale `[columns]`.
    pub weight: View<'a>,
    /// Shift `[columns]`.
    pub bias: Option<View<'a>>,
    /// Output `[rows, columns]`.
    pub y: ViewMut<'a>,
    /// Row means, f32 `[rows]`; layer norm only.
    pub mean: Option<ViewMut<'a>>,
    /// Reciprocal standard deviations, f32 `[rows]`.
    pub rstd: ViewMut<'a>,
}

impl Arguments for NormForward<'_> {
    const NAME: &'static str = "norm_forward";

    fn check(&self) -> Result<()> {
        let (name, n) = (Self::NAME, self.rows * self.columns);
        for (what, view) in [("x", Some(&self.x)), ("residual", self.residual.as_ref())] {
            if let Some(view) = view {
                expect_float_operand(name, what, n, view)?;
            }
        }
        for (what, view) in [("weight", Some(&self.weight)), ("bias", self.bias.as_ref())] {
            if let Some(view) = view {
                expect_float_operand(name, what, self.columns, view)?;
            }
        }
        for (what, view) in [("sum", self.sum.as_ref()), ("y", Some(&self.y))] {
            if let Some(view) = view {
                expect_float_operand(name, what, n, view)?;
            }
        }
        if (self.residual.is_some() || self.dropout.is_some()) != self.sum.is_some() {
            return Err(Error::argument(name, "a sum is written exactly when there is a dropout or a residual"));
        }
        if (self.kind == NormKind::Layer) != self.mean.is_some() {
            return Err(Error::argument(name, "means are written by layer norm and only by it"));
        }
        check_statistics(name, self.rows, self.mean.as_ref(), &self.rstd)
    }

    visits!(x, residual, weight, bias, sum, y, mean, rstd);
}

/// Gradients of [`NormForward`].
///
/// Determinism: sums over rows are made in fixed groups of rows, so the bits do not depend on the number of threads.
#[derive(Debug)]
pub struct NormBackward<'a> {
    /// Which normalisation.
    pub kind: NormKind,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// What was normalised: `sum`, or `x` where there was none.
    pub x: View<'a>,
    /// Row means; layer norm only.
    pub mean: Option<View<'a>>,
    /// Reciprocal standard deviations.
    pub rstd: View<'a>,
    /// Scale.
    pub weight: View<'a>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of `x`, which is the gradient of the residual too.
    pub dx: Option<Dest<'a>>,
    /// Gradient of the branch before the dropout, together with that dropout: the masked gradient of this call,
    /// without what `dx` may have held before.
    pub branch: Option<(Dropout, Dest<'a>)>,
    /// Gradient of the scale, `[columns]`.
    pub dweight: Option<Dest<'a>>,
    /// Gradient of the shift, `[columns]`.
    pub dbias: Option<Dest<'a>>,
}

impl Arguments for NormBackward<'_> {
    const NAME: &'static str = "norm_backward";

    fn check(&self) -> Result<()> {
        let (name, n) = (Self::NAME, self.rows * self.columns);
        for (what, view, len) in [("x", &self.x, n), ("dy", &self.dy, n), ("weight", &self.weight, self.columns)] {
            expect_float_operand(name, what, len, view)?;
        }
        let branch = self.branch.as_ref().map(|(_, dest)| dest);
        for (what, dest, len) in [
            ("dx", self.dx.as_ref(), n),
            ("branch", branch, n),
            ("dweight", self.dweight.as_ref(), self.columns),
            ("dbias", self.dbias.as_ref(), self.columns),
        ] {
            if let Some(dest) = dest {
                expect_float_operand(name, what, len, &dest.view)?;
            }
        }
        if (self.kind == NormKind::Layer) != self.mean.is_some() {
            return Err(Error::argument(name, "means belong to layer norm and only to it"));
        }
        check_statistics(name, self.rows, self.mean.as_ref(), &self.rstd)
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        let reads: [&dyn Operand; 5] = [&self.x, &self.mean, &self.rstd, &self.weight, &self.dy];
        reads.into_iter().for_each(|operand| operand.visit(visit));
        self.branch.iter().for_each(|(_, dest)| dest.visit(visit));
        [&self.dx, &self.dweight, &self.dbias].into_iter().for_each(|operand| operand.visit(visit));
    }
}

fn check_statistics<V: Ranged>(name: &'static str, rows: usize, mean: Option<&V>, rstd: &V) -> Result<()> {
    for (what, statistic) in mean.map(|mean| ("mean", mean)).into_iter().chain([("rstd", rstd)]) {
        expect_operand(name, what, rows, DType::F32, statistic)?;
    }
    Ok(())
}

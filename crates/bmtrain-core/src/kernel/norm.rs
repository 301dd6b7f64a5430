//! Arguments of layer norm and RMS norm, with fused dropout and residual.

use super::random::Dropout;
use super::{Dest, Operand};
use crate::error::Error;
use crate::view::{Range, View, ViewMut};

/// Kind of normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Subtract the mean, divide by the (biased) standard deviation (Ba et al., 2016).
    Layer,
    /// Divide by the root mean square (Zhang and Sennrich, 2019).
    Rms,
}

/// `sum = dropout(x) + residual`, `y = normalise(sum) * (weight_offset + weight) + bias` along rows of `columns`.
///
/// Numerics: statistics in f32, the variance from the centred values; `epsilon` is added to the variance.
#[derive(Debug)]
pub struct NormForward<'a> {
    /// Kind of normalization.
    pub kind: NormKind,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Added to the scale: 1 where weights are stored as differences from 1, else 0.
    pub weight_offset: f32,
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

arguments! {
    NormForward, "norm_forward", |a| {
        x: Float[a.rows * a.columns], residual: Float[a.rows * a.columns], weight: Float[a.columns],
        bias: Float[a.columns], sum: Float[a.rows * a.columns], y: Float[a.rows * a.columns], mean: F32[a.rows],
        rstd: F32[a.rows]
    },
    if (a.residual.is_some() || a.dropout.is_some()) != a.sum.is_some() {
        Err(Error::argument(Self::NAME, "a sum is written exactly when there is a dropout or a residual"))
    } else if (a.kind == NormKind::Layer) != a.mean.is_some() {
        Err(Error::argument(Self::NAME, "means are written by layer norm and only by it"))
    } else {
        Ok(())
    }
}

/// Gradients of [`NormForward`].
///
/// Determinism: sums over rows are made in fixed groups of rows, so the bits do not depend on the number of threads.
#[derive(Debug)]
pub struct NormBackward<'a> {
    /// Kind of normalization.
    pub kind: NormKind,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// Input of the normalization: `sum`, or `x` where there was none.
    pub x: View<'a>,
    /// Row means; layer norm only.
    pub mean: Option<View<'a>>,
    /// Reciprocal standard deviations.
    pub rstd: View<'a>,
    /// As in the forward pass.
    pub weight_offset: f32,
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

arguments! {
    NormBackward, "norm_backward", |a| {
        x: Float[a.rows * a.columns], mean: F32[a.rows], rstd: F32[a.rows], weight: Float[a.columns],
        dy: Float[a.rows * a.columns], branch: Float[a.rows * a.columns], dx: Float[a.rows * a.columns],
        dweight: Float[a.columns], dbias: Float[a.columns]
    },
    if (a.kind == NormKind::Layer) == a.mean.is_some() {
        Ok(())
    } else {
        Err(Error::argument(Self::NAME, "means belong to layer norm and only to it"))
    }
}

/// A gradient with the dropout that it is masked by.
impl Operand for (Dropout, Dest<'_>) {
    visits!(1);

    fn range(&self) -> Option<&Range> {
        self.1.range()
    }
}

//! Arguments of the losses.

use super::{Access, Arguments, expect_dtype, expect_float, expect_len};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Softmax and cross-entropy of `rows` rows of `classes` logits against class numbers.
///
/// With smoothing s, class weights w, target t and log-probabilities `lp`, a row that is not ignored has the loss
/// `(1 - s) * w[t] * -lp[t] + s / classes * sum_c w[c] * -lp[c]` and the weight `w[t]`; an ignored row has 0 and 0.
/// The weights are what a mean divides by. Source: `torch.nn.functional.cross_entropy`, whose rules these are.
///
/// Numerics: f32 arithmetic for every type of logits; a target outside the classes is an error, never an access.
#[derive(Debug)]
pub struct CrossEntropyForward<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of classes.
    pub classes: usize,
    /// Logits `[rows, classes]`.
    pub logits: View<'a>,
    /// Class numbers, i64 `[rows]`.
    pub targets: View<'a>,
    /// This target contributes nothing.
    pub ignore_index: i64,
    /// Share of the target probability that is spread over all classes, in `[0, 1)`.
    pub smoothing: f32,
    /// Weight of each class, f32 `[classes]`.
    pub class_weights: Option<View<'a>>,
    /// Loss of each row, f32 `[rows]`.
    pub losses: ViewMut<'a>,
    /// Log of the sum of exponentials of each row, f32 `[rows]`.
    pub lse: ViewMut<'a>,
    /// Sum of the losses over all rows, sum of the weights, and the first divided by the second, f32 `[3]`; sums in row
    /// order.
    pub totals: ViewMut<'a>,
}

impl Arguments for CrossEntropyForward<'_> {
    const NAME: &'static str = "cross_entropy_forward";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        check_logits(
            name,
            (self.rows, self.classes),
            &self.logits,
            &self.targets,
            self.class_weights.as_ref(),
            self.smoothing,
        )?;
        for (what, view, len) in
            [("losses", &self.losses, self.rows), ("lse", &self.lse, self.rows), ("totals", &self.totals, 3)]
        {
            expect_len(name, what, len, view.len())?;
            expect_dtype(name, what, DType::F32, view.dtype())?;
        }
        Ok(())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        super::visit_all(
            visit,
            &[Some(&self.logits), Some(&self.targets), self.class_weights.as_ref()],
            &[Some(&self.losses), Some(&self.lse), Some(&self.totals)],
        );
    }
}

/// Gradient of the logits of [`CrossEntropyForward`]: `dlogits = row_factor * d losses[row] / d logits`.
///
/// The row factor is `dloss[row]` when there is one value per row, `dloss[0]` when there is one, divided by the weight
/// sum `totals[1]` when `mean`.
#[derive(Debug)]
pub struct CrossEntropyBackward<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of classes.
    pub classes: usize,
    /// Logits; `None` when `dlogits` holds them and they are replaced.
    pub logits: Option<View<'a>>,
    /// Class numbers.
    pub targets: View<'a>,
    /// As in the forward pass.
    pub ignore_index: i64,
    /// As in the forward pass.
    pub smoothing: f32,
    /// As in the forward pass.
    pub class_weights: Option<View<'a>>,
    /// Saved by the forward pass.
    pub lse: View<'a>,
    /// Saved by the forward pass.
    pub totals: View<'a>,
    /// Gradient of the loss, f32 `[1]` or `[rows]`.
    pub dloss: View<'a>,
    /// Divide by the sum of the weights.
    pub mean: bool,
    /// Gradient of the logits, `[rows, classes]`.
    pub dlogits: ViewMut<'a>,
}

impl Arguments for CrossEntropyBackward<'_> {
    const NAME: &'static str = "cross_entropy_backward";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        let dlogits = self.dlogits.as_view();
        let logits = self.logits.as_ref().unwrap_or(&dlogits);
        check_logits(
            name,
            (self.rows, self.classes),
            logits,
            &self.targets,
            self.class_weights.as_ref(),
            self.smoothing,
        )?;
        expect_len(name, "dlogits", self.rows * self.classes, self.dlogits.len())?;
        expect_float(name, "dlogits", self.dlogits.dtype())?;
        if self.dloss.len() != 1 {
            expect_len(name, "dloss", self.rows, self.dloss.len())?;
        }
        for (what, view, len) in
            [("lse", &self.lse, self.rows), ("totals", &self.totals, 3), ("dloss", &self.dloss, self.dloss.len())]
        {
            expect_len(name, what, len, view.len())?;
            expect_dtype(name, what, DType::F32, view.dtype())?;
        }
        Ok(())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        super::visit_all(
            visit,
            &[
                self.logits.as_ref(),
                Some(&self.targets),
                self.class_weights.as_ref(),
                Some(&self.lse),
                Some(&self.totals),
                Some(&self.dloss),
            ],
            &[Some(&self.dlogits)],
        );
    }
}

fn check_logits(
    name: &'static str,
    (rows, classes): (usize, usize),
    logits: &View<'_>,
    targets: &View<'_>,
    class_weights: Option<&View<'_>>,
    smoothing: f32,
) -> Result<()> {
    expect_len(name, "logits", rows * classes, logits.len())?;
    expect_float(name, "logits", logits.dtype())?;
    expect_len(name, "targets", rows, targets.len())?;
    expect_dtype(name, "targets", DType::I64, targets.dtype())?;
    if let Some(weights) = class_weights {
        expect_len(name, "class weights", classes, weights.len())?;
        expect_dtype(name, "class weights", DType::F32, weights.dtype())?;
    }
    if !(0.0..1.0).contains(&smoothing) {
        return Err(Error::argument(name, format!("label smoothing {smoothing} is outside [0, 1)")));
    }
    Ok(())
}

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
        expect_len(Self::NAME, "targets", self.x.len(), self.targets.len())?;
        expect_dtype(Self::NAME, "targets", DType::F32, self.targets.dtype())?;
        expect_len(Self::NAME, "loss", 1, self.loss.len())?;
        expect_dtype(Self::NAME, "loss", DType::F32, self.loss.dtype())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        super::visit_all(visit, &[Some(&self.x), Some(&self.targets)], &[Some(&self.loss)]);
    }
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
        expect_len(Self::NAME, "targets", self.x.len(), self.targets.len())?;
        expect_dtype(Self::NAME, "targets", DType::F32, self.targets.dtype())?;
        expect_len(Self::NAME, "dloss", 1, self.dloss.len())?;
        expect_dtype(Self::NAME, "dloss", DType::F32, self.dloss.dtype())?;
        expect_len(Self::NAME, "dx", self.x.len(), self.dx.len())?;
        expect_float(Self::NAME, "dx", self.dx.dtype())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        super::visit_all(visit, &[Some(&self.x), Some(&self.targets), Some(&self.dloss)], &[Some(&self.dx)]);
    }
}

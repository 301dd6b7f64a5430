//! Arguments of cross-entropy: fused for a whole vocabulary, in parts for classes sharded over ranks and for logits
//! computed in chunks.
//!
//! [`CrossEntropyForward`] reads a whole vocabulary once. A shard of the classes contributes four numbers per row,
//! [`CrossEntropyStatistics`], and [`CrossEntropyLoss`] combines the shards. [`CrossEntropyBackward`] computes the
//! gradient of the logits of a shard or of the whole vocabulary, [`CrossEntropyInPlace`] loss and gradient together.

use super::{Arguments, Elements, Operand, expect, expect_soft_cap};
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

/// The classes of the columns of a logits matrix: a shard of a vocabulary, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardClasses {
    /// The class of the first column.
    pub first: usize,
    /// Number of classes in this shard; the columns after them are padding.
    pub count: usize,
    /// Number of classes in all shards.
    pub total: usize,
}

impl ShardClasses {
    /// A whole vocabulary in one shard.
    pub const fn all(total: usize) -> Self {
        ShardClasses { first: 0, count: total, total }
    }
}

/// Weights of the classes.
#[derive(Debug, Clone, Copy)]
pub struct ClassWeights<'a> {
    /// Weight of each class of all shards, f32 `[total]`.
    pub each: View<'a>,
    /// Their sum, f32 `[1]`. The kernels that read a whole vocabulary sum the weights themselves without it.
    pub sum: Option<View<'a>>,
}

/// Targets, class weights, smoothing and soft cap of a cross-entropy.
///
/// With smoothing s, class weights w, target t and log-probabilities `lp`, a row that is not ignored has the loss
/// `(1 - s) * w[t] * -lp[t] + s / total * sum_c w[c] * -lp[c]` and the weight `w[t]`; an ignored row has 0 and 0.
/// A mean divides by the sum of the row weights. Source: `torch.nn.functional.cross_entropy`. With a soft cap, logits
/// `x` are taken as `cap * tanh(x / cap)` wherever they are read, and gradients are of `x`.
#[derive(Debug, Clone, Copy)]
pub struct Criterion<'a> {
    /// The classes of this shard.
    pub classes: ShardClasses,
    /// Class ids among all shards, i64 `[rows]`.
    pub targets: View<'a>,
    /// Rows with this target contribute nothing.
    pub ignore_index: i64,
    /// Share of the target probability that is spread over all classes, in `[0, 1)`.
    pub smoothing: f32,
    /// Weights of the classes; all are 1 without.
    pub weights: Option<ClassWeights<'a>>,
    /// Soft cap of the logits, above 0.
    pub soft_cap: Option<f32>,
}

impl Criterion<'_> {
    fn check(&self, name: &'static str, rows: usize, columns: usize) -> Result<()> {
        let ShardClasses { first, count, total } = self.classes;
        if count > columns {
            return Err(Error::shape(name, "columns", format!("at least {count} classes"), columns));
        }
        if first.checked_add(count).is_none_or(|end| end > total) {
            return Err(Error::shape(name, "classes", format!("inside 0..{total}"), format!("{count} from {first}")));
        }
        expect(name, "targets", &self.targets, Elements::I64, Some(rows))?;
        if let Some(ClassWeights { each, sum }) = &self.weights {
            expect(name, "class weights", each, Elements::F32, Some(total))?;
            expect(name, "sum of the class weights", sum, Elements::F32, Some(1))?;
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(Error::argument(name, format!("label smoothing {} is outside [0, 1)", self.smoothing)));
        }
        expect_soft_cap(name, self.soft_cap)
    }

    /// Require the classes of a whole vocabulary.
    fn check_whole(&self, name: &'static str) -> Result<()> {
        let ShardClasses { count, total, .. } = self.classes;
        match self.classes == ShardClasses::all(total) {
            true => Ok(()),
            false => Err(Error::shape(name, "classes", format!("all {total}"), count)),
        }
    }

    /// Require the sum of class weights, if there are any.
    fn check_sum(&self, name: &'static str) -> Result<()> {
        match self.weights.is_some_and(|weights| weights.sum.is_none()) {
            true => Err(Error::argument(name, "the sum of the class weights is missing")),
            false => Ok(()),
        }
    }
}

impl Operand for ClassWeights<'_> {
    visits!(each, sum);
}

impl Operand for Criterion<'_> {
    visits!(targets, weights);
}

/// Losses of rows of logits over a whole vocabulary, with their totals, in one pass over the logits.
///
/// Numerics: f32 arithmetic for every dtype of logits; a target out of range is an error, never an access.
#[derive(Debug)]
pub struct CrossEntropyForward<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, padding included.
    pub columns: usize,
    /// Logits `[rows, columns]`.
    pub logits: View<'a>,
    /// Targets, class weights and smoothing; the classes are a whole vocabulary.
    pub criterion: Criterion<'a>,
    /// Loss of each row, f32 `[rows]`.
    pub losses: ViewMut<'a>,
    /// Log-sum-exp of each row, f32 `[rows]`.
    pub lse: ViewMut<'a>,
    /// As [`LossTotals::totals`](super::LossTotals::totals), f32 `[3]`, summed in row order.
    pub totals: ViewMut<'a>,
}

impl Arguments for CrossEntropyForward<'_> {
    const NAME: &'static str = "cross_entropy_forward";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        self.criterion.check_whole(name)?;
        self.criterion.check(name, self.rows, self.columns)?;
        expect_matrix(name, "logits", [self.rows, self.columns], &self.logits, Elements::Float)?;
        expect(name, "losses", &self.losses, Elements::F32, Some(self.rows))?;
        expect(name, "lse", &self.lse, Elements::F32, Some(self.rows))?;
        expect(name, "totals", &self.totals, Elements::F32, Some(3))
    }

    visits!(criterion, logits, losses, lse, totals);
}

/// The contribution of a shard of the classes to the loss of each row, in one pass over its logits.
///
/// Four numbers per row: the largest logit, the sum of `exp(x - largest)`, the logit of the target (0 if the target is
/// in another shard), and the weighted sum of the logits (0 without smoothing). A shard without classes, and every
/// shard of an ignored row, gives minus infinity, 0, 0, 0. Padding and ignored rows are not read.
///
/// Numerics: f32 for every dtype of logits; a NaN logit makes the sum NaN. A target out of range is an error, never an
/// access.
#[derive(Debug)]
pub struct CrossEntropyStatistics<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, padding included.
    pub columns: usize,
    /// Logits `[rows, columns]`.
    pub logits: View<'a>,
    /// Targets, class weights and smoothing, and the classes of this shard.
    pub criterion: Criterion<'a>,
    /// Four numbers per row, f32 `[rows, 4]`.
    pub statistics: ViewMut<'a>,
}

impl Arguments for CrossEntropyStatistics<'_> {
    const NAME: &'static str = "cross_entropy_statistics";

    fn check(&self) -> Result<()> {
        self.criterion.check(Self::NAME, self.rows, self.columns)?;
        expect_matrix(Self::NAME, "logits", [self.rows, self.columns], &self.logits, Elements::Float)?;
        expect_matrix(Self::NAME, "statistics", [self.rows, 4], &self.statistics, Elements::F32)
    }

    visits!(criterion, logits, statistics);
}

/// The losses of rows from the [`CrossEntropyStatistics`] of all shards.
///
/// Numerics: shards are added in order, so that every rank computes the same bits.
#[derive(Debug)]
pub struct CrossEntropyLoss<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of shards.
    pub shards: usize,
    /// The statistics of all shards, f32 `[shards, rows, 4]`.
    pub statistics: View<'a>,
    /// As for the statistics; only the total number of classes is used. Class weights need their sum.
    pub criterion: Criterion<'a>,
    /// Loss of each row, f32 `[rows]`; 0 if it is ignored.
    pub losses: ViewMut<'a>,
    /// Log-sum-exp of each row over all classes, f32 `[rows]`; 0 if the row is ignored.
    pub lse: ViewMut<'a>,
}

impl Arguments for CrossEntropyLoss<'_> {
    const NAME: &'static str = "cross_entropy_loss";

    fn check(&self) -> Result<()> {
        self.criterion.check(Self::NAME, self.rows, self.criterion.classes.count)?;
        self.criterion.check_sum(Self::NAME)?;
        let sizes = [self.shards, self.rows.saturating_mul(4)];
        expect_matrix(Self::NAME, "statistics", sizes, &self.statistics, Elements::F32)?;
        expect(Self::NAME, "losses", &self.losses, Elements::F32, Some(self.rows))?;
        expect(Self::NAME, "lse", &self.lse, Elements::F32, Some(self.rows))
    }

    visits!(criterion, statistics, losses, lse);
}

/// Gradient of the logits of a shard: `dlogits = row_factor * d losses[row] / d logits`, 0 in padding and ignored rows.
///
/// The row factor is `dloss[row]`, or `dloss[0]` if `dloss` has one element, divided by `divisor` if there is one.
#[derive(Debug)]
pub struct CrossEntropyBackward<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, padding included.
    pub columns: usize,
    /// Logits `[rows, columns]`; `None` if `dlogits` holds them and they are overwritten.
    pub logits: Option<View<'a>>,
    /// As for the statistics.
    pub criterion: Criterion<'a>,
    /// From [`CrossEntropyForward`] or [`CrossEntropyLoss`].
    pub lse: View<'a>,
    /// Gradient of the loss, f32 `[1]` or `[rows]`.
    pub dloss: View<'a>,
    /// The sum of the row weights if the loss is the mean, f32 `[1]`.
    pub divisor: Option<View<'a>>,
    /// `lse` is from [`CrossEntropyForward`]. Both forward passes compute exponentials in their own way on some
    /// devices, and the gradient follows the one that was run.
    pub fused: bool,
    /// Gradient of the logits, `[rows, columns]`.
    pub dlogits: ViewMut<'a>,
}

impl Arguments for CrossEntropyBackward<'_> {
    const NAME: &'static str = "cross_entropy_backward";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        self.criterion.check(name, self.rows, self.columns)?;
        expect_matrix(name, "logits", [self.rows, self.columns], &self.logits, Elements::Float)?;
        expect_matrix(name, "dlogits", [self.rows, self.columns], &self.dlogits, Elements::Float)?;
        let rows = if self.dloss.len() == 1 { 1 } else { self.rows };
        expect(name, "dloss", &self.dloss, Elements::F32, Some(rows))?;
        expect(name, "lse", &self.lse, Elements::F32, Some(self.rows))?;
        expect(name, "divisor", &self.divisor, Elements::F32, Some(1))
    }

    visits!(criterion, logits, lse, dloss, divisor, dlogits);
}

/// Losses of rows of logits over a whole vocabulary, and the gradient of their sum in the place of the logits: what
/// [`CrossEntropyStatistics`], [`CrossEntropyLoss`] and [`CrossEntropyBackward`] compute one after another for a single
/// shard, row by row, so that a row is in a cache when its gradient is computed.
///
/// Numerics: as theirs. Padding and ignored rows get zeros.
#[derive(Debug)]
pub struct CrossEntropyInPlace<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, padding included.
    pub columns: usize,
    /// Targets, class weights with their sum, and smoothing; the classes are a whole vocabulary.
    pub criterion: Criterion<'a>,
    /// Loss of each row, f32 `[rows]`; 0 if it is ignored.
    pub losses: ViewMut<'a>,
    /// Logits, then their gradient, `[rows, columns]`.
    pub dlogits: ViewMut<'a>,
}

impl Arguments for CrossEntropyInPlace<'_> {
    const NAME: &'static str = "cross_entropy_in_place";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        self.criterion.check_whole(name)?;
        self.criterion.check_sum(name)?;
        self.criterion.check(name, self.rows, self.columns)?;
        expect(name, "losses", &self.losses, Elements::F32, Some(self.rows))?;
        expect_matrix(name, "dlogits", [self.rows, self.columns], &self.dlogits, Elements::Float)
    }

    visits!(criterion, losses, dlogits);
}

/// Require `rows` times `columns` elements, without overflow.
fn expect_matrix(
    name: &'static str,
    what: &str,
    [rows, columns]: [usize; 2],
    operand: &impl Operand,
    elements: Elements,
) -> Result<()> {
    match rows.checked_mul(columns) {
        Some(len) => expect(name, what, operand, elements, Some(len)),
        None => Err(Error::shape(name, what, "below 2^64 elements", format!("{rows} x {columns}"))),
    }
}

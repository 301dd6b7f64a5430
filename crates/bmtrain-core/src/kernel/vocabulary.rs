//! Arguments of cross-entropies whose classes are divided among ranks or whose logits are made in chunks.
//!
//! A row's loss needs four numbers of each part of its classes, [`VocabularyStatistics`]; [`VocabularyLoss`] makes
//! losses of those of all parts, and [`VocabularyGradient`] turns a part's logits into their gradients. [`LossTotals`]
//! and [`ScaleBy`] make one number of the losses and bring its gradient back, without the host.

use super::{Access, Arguments, Dest, expect_dtype, expect_float, expect_len};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Which classes the columns of a matrix of logits are: a part of a vocabulary, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardClasses {
    /// The class of the first column.
    pub first: usize,
    /// How many classes there are here; columns behind them are filling.
    pub count: usize,
    /// How many classes there are altogether.
    pub total: usize,
}

impl ShardClasses {
    /// All classes in one place.
    pub const fn all(total: usize) -> Self {
        ShardClasses { first: 0, count: total, total }
    }
}

/// Weights of the classes.
#[derive(Debug, Clone, Copy)]
pub struct ClassWeights<'a> {
    /// Weight of each of all classes, f32 `[total]`.
    pub each: View<'a>,
    /// Their sum, f32 `[1]`.
    pub sum: View<'a>,
}

/// What the losses of rows are: those of [`CrossEntropyForward`](super::CrossEntropyForward), over all classes
/// together.
#[derive(Debug, Clone, Copy)]
pub struct Criterion<'a> {
    /// Which classes are here.
    pub classes: ShardClasses,
    /// Class numbers among all classes, i64 `[rows]`.
    pub targets: View<'a>,
    /// This target contributes nothing.
    pub ignore_index: i64,
    /// Share of the target probability that is spread over all classes, in `[0, 1)`.
    pub smoothing: f32,
    /// Weights of the classes; all are 1 without.
    pub weights: Option<ClassWeights<'a>>,
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
        expect_len(name, "targets", rows, self.targets.len())?;
        expect_dtype(name, "targets", DType::I64, self.targets.dtype())?;
        if let Some(ClassWeights { each, sum }) = &self.weights {
            for (what, view, len) in [("class weights", each, total), ("sum of the class weights", sum, 1)] {
                expect_len(name, what, len, view.len())?;
                expect_dtype(name, what, DType::F32, view.dtype())?;
            }
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(Error::argument(name, format!("label smoothing {} is outside [0, 1)", self.smoothing)));
        }
        Ok(())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        visit(Access::Read(&self.targets));
        if let Some(ClassWeights { each, sum }) = &self.weights {
            visit(Access::Read(each));
            visit(Access::Read(sum));
        }
    }
}

/// What each row of a part of the logits contributes to its loss, in one pass over them.
///
/// For each row: the largest logit, the sum of `exp(x - largest)`, the logit of the target (0 where the target is in
/// another part), and the weighted sum of the logits (0 without smoothing). A part without classes, and every part of a
/// row that is ignored, gives minus infinity, 0, 0, 0. Filling is not read, nor are rows that are ignored.
///
/// Numerics: f32 for every type of logits; a logit that is not a number makes the sum so. A target outside all classes
/// is an error, never an access.
#[derive(Debug)]
pub struct VocabularyStatistics<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, filling included.
    pub columns: usize,
    /// Logits `[rows, columns]`.
    pub logits: View<'a>,
    /// Targets, and how they count.
    pub criterion: Criterion<'a>,
    /// The four numbers of each row, f32 `[rows, 4]`.
    pub statistics: ViewMut<'a>,
}

impl Arguments for VocabularyStatistics<'_> {
    const NAME: &'static str = "vocabulary_statistics";

    fn check(&self) -> Result<()> {
        self.criterion.check(Self::NAME, self.rows, self.columns)?;
        expect_matrix(Self::NAME, "logits", self.rows, self.columns, self.logits.len())?;
        expect_float(Self::NAME, "logits", self.logits.dtype())?;
        expect_matrix(Self::NAME, "statistics", self.rows, 4, self.statistics.len())?;
        expect_dtype(Self::NAME, "statistics", DType::F32, self.statistics.dtype())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.criterion.visit(visit);
        super::visit_all(visit, &[Some(&self.logits)], &[Some(&self.statistics)]);
    }
}

/// The losses of rows from the [`VocabularyStatistics`] of all parts of their classes.
///
/// Numerics: parts are added in their order, so that every rank that has them gets the same bits.
#[derive(Debug)]
pub struct VocabularyLoss<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of parts.
    pub shards: usize,
    /// The statistics of the parts one behind the other, f32 `[shards, rows, 4]`.
    pub statistics: View<'a>,
    /// As for the statistics; only the number of all classes counts here, not which of them are whose.
    pub criterion: Criterion<'a>,
    /// Loss of each row, f32 `[rows]`; 0 where it is ignored.
    pub losses: ViewMut<'a>,
    /// Log of the sum of the exponentials of all classes, f32 `[rows]`; 0 where the row is ignored.
    pub lse: ViewMut<'a>,
}

impl Arguments for VocabularyLoss<'_> {
    const NAME: &'static str = "vocabulary_loss";

    fn check(&self) -> Result<()> {
        self.criterion.check(Self::NAME, self.rows, self.criterion.classes.count)?;
        expect_matrix(Self::NAME, "statistics", self.shards, self.rows.saturating_mul(4), self.statistics.len())?;
        expect_dtype(Self::NAME, "statistics", DType::F32, self.statistics.dtype())?;
        for (what, view) in [("losses", &self.losses), ("lse", &self.lse)] {
            expect_len(Self::NAME, what, self.rows, view.len())?;
            expect_dtype(Self::NAME, what, DType::F32, view.dtype())?;
        }
        Ok(())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.criterion.visit(visit);
        super::visit_all(visit, &[Some(&self.statistics)], &[Some(&self.losses), Some(&self.lse)]);
    }
}

/// Gradient of a part of the logits: `dlogits = row_factor * d losses[row] / d logits`, 0 in filling and in ignored
/// rows.
///
/// The row factor is `dloss[row]` when there is one value per row, `dloss[0]` when there is one, divided by `divisor`
/// if there is one.
#[derive(Debug)]
pub struct VocabularyGradient<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, filling included.
    pub columns: usize,
    /// Logits `[rows, columns]`; `None` when `dlogits` holds them and they are replaced.
    pub logits: Option<View<'a>>,
    /// As for the statistics.
    pub criterion: Criterion<'a>,
    /// From [`VocabularyLoss`].
    pub lse: View<'a>,
    /// Gradient of the loss, f32 `[1]` or `[rows]`.
    pub dloss: View<'a>,
    /// The sum of the rows' weights where the loss is their mean, f32 `[1]`.
    pub divisor: Option<View<'a>>,
    /// Gradient of the logits, `[rows, columns]`.
    pub dlogits: ViewMut<'a>,
}

impl Arguments for VocabularyGradient<'_> {
    const NAME: &'static str = "vocabulary_gradient";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        self.criterion.check(name, self.rows, self.columns)?;
        let dlogits = self.dlogits.as_view();
        for (what, view) in [("logits", self.logits.as_ref().unwrap_or(&dlogits)), ("dlogits", &dlogits)] {
            expect_matrix(name, what, self.rows, self.columns, view.len())?;
            expect_float(name, what, view.dtype())?;
        }
        if self.dloss.len() != 1 {
            expect_len(name, "dloss", self.rows, self.dloss.len())?;
        }
        expect_dtype(name, "dloss", DType::F32, self.dloss.dtype())?;
        expect_len(name, "lse", self.rows, self.lse.len())?;
        expect_dtype(name, "lse", DType::F32, self.lse.dtype())?;
        self.divisor.as_ref().map_or(Ok(()), |divisor| expect_number(name, "divisor", divisor))
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.criterion.visit(visit);
        super::visit_all(
            visit,
            &[self.logits.as_ref(), Some(&self.lse), Some(&self.dloss), self.divisor.as_ref()],
            &[Some(&self.dlogits)],
        );
    }
}

/// One number from the losses of rows: their sum, the sum of the rows' weights, and the first divided by the second.
///
/// The weight of a row is that of its target, 1 without class weights, and 0 where the row is ignored. A target outside
/// the classes is an error, never an access; without class weights it is not looked at.
///
/// Numerics: sums in double precision, in a fixed order.
#[derive(Debug)]
pub struct LossTotals<'a> {
    /// Loss of each row, f32.
    pub losses: View<'a>,
    /// Class numbers, i64, as many.
    pub targets: View<'a>,
    /// Rows with this target have no weight.
    pub ignore_index: i64,
    /// Weight of each class, f32.
    pub class_weights: Option<View<'a>>,
    /// The three numbers, f32 `[3]`.
    pub totals: ViewMut<'a>,
}

impl Arguments for LossTotals<'_> {
    const NAME: &'static str = "loss_totals";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        expect_dtype(name, "losses", DType::F32, self.losses.dtype())?;
        expect_len(name, "targets", self.losses.len(), self.targets.len())?;
        expect_dtype(name, "targets", DType::I64, self.targets.dtype())?;
        if let Some(weights) = &self.class_weights {
            expect_dtype(name, "class weights", DType::F32, weights.dtype())?;
        }
        expect_len(name, "totals", 3, self.totals.len())?;
        expect_dtype(name, "totals", DType::F32, self.totals.dtype())
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        let reads = [Some(&self.losses), Some(&self.targets), self.class_weights.as_ref()];
        super::visit_all(visit, &reads, &[Some(&self.totals)]);
    }
}

/// `out (+)= factor / divisor * x`, elementwise, with factor and divisor on the device.
///
/// A divisor of 0 makes the factor 0: what is averaged over nothing has no gradient.
///
/// Numerics: the quotient is rounded to f32, the product once to the type of `out`.
#[derive(Debug)]
pub struct ScaleBy<'a> {
    /// The factor, f32 `[1]`.
    pub factor: View<'a>,
    /// What it is divided by, f32 `[1]`.
    pub divisor: Option<View<'a>>,
    /// What is scaled; `None` for the old content of `out`, which then must not be added to.
    pub x: Option<View<'a>>,
    /// Result.
    pub out: Dest<'a>,
}

impl Arguments for ScaleBy<'_> {
    const NAME: &'static str = "scale_by";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        expect_number(name, "factor", &self.factor)?;
        if let Some(divisor) = &self.divisor {
            expect_number(name, "divisor", divisor)?;
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

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        let reads = [Some(&self.factor), self.divisor.as_ref(), self.x.as_ref()];
        super::visit_all(visit, &reads, &[Some(&self.out.view)]);
    }
}

/// One f32.
fn expect_number(name: &'static str, what: &str, view: &View<'_>) -> Result<()> {
    expect_len(name, what, 1, view.len())?;
    expect_dtype(name, what, DType::F32, view.dtype())
}

/// `rows` times `columns` elements, a product that exists.
fn expect_matrix(name: &'static str, what: &str, rows: usize, columns: usize, got: usize) -> Result<()> {
    match rows.checked_mul(columns) {
        Some(expected) => expect_len(name, what, expected, got),
        None => Err(Error::shape(name, what, "below 2^64 elements", format!("{rows} x {columns}"))),
    }
}

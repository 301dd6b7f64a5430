//! Cross-entropy: [`cross_entropy`] over a whole vocabulary in one pass, [`vocabulary_cross_entropy`] over classes that
//! are sharded over tensor-parallel ranks. [`linear_cross_entropy`](super::linear_cross_entropy) shares its parts.

use super::*;
use crate::comm::{Communicator, tensors};
use crate::kernel::{
    ClassWeights, ColumnSum, Criterion, CrossEntropyBackward, CrossEntropyForward, CrossEntropyInPlace,
    CrossEntropyLoss, CrossEntropyStatistics, LossTotals, ShardClasses,
};
use crate::view::ViewMut;
use std::sync::Arc;

/// Reduction of the losses of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reduction {
    /// Sum of the losses divided by the sum of the row weights; NaN if every row is ignored.
    #[default]
    Mean,
    /// Sum of the losses.
    Sum,
    /// One loss per row.
    None,
}

/// Options of a cross-entropy.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Rows with this target contribute nothing.
    pub ignore_index: i64,
    /// Share of the target probability that is spread over all classes, in `[0, 1)`.
    pub label_smoothing: f32,
    /// Weight of each class, f32 `[V]`.
    pub class_weights: Option<Tensor>,
    /// Reduction of the losses of the rows.
    pub reduction: Reduction,
    /// Logits become `cap * tanh(x / cap)` first; above 0.
    pub soft_cap: Option<f32>,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy {
            ignore_index: -100,
            label_smoothing: 0.0,
            class_weights: None,
            reduction: Reduction::Mean,
            soft_cap: None,
        }
    }
}

/// The shard of a vocabulary on one rank: the ranks of a group have the same number of classes each, the last ranks
/// fewer if the division leaves a remainder.
#[derive(Debug, Clone)]
pub struct VocabularyShard {
    ranks: Arc<dyn Communicator>,
    total: usize,
    each: usize,
}

impl VocabularyShard {
    /// Shards `total` classes over a group.
    pub fn new(ranks: Arc<dyn Communicator>, total: usize) -> Self {
        let each = total.div_ceil(ranks.size().max(1));
        VocabularyShard { ranks, total, each }
    }

    /// Shards of `each` classes, e.g. the rows of a padded weight on each rank. An error if `total` does not fit.
    pub fn with_room(self, each: usize) -> Result<Self> {
        if each < self.each {
            return Err(Error::shape("vocabulary", "classes of a rank", format!("at least {}", self.each), each));
        }
        Ok(VocabularyShard { each, ..self })
    }

    /// The classes of this rank.
    pub fn classes(&self) -> ShardClasses {
        let first = self.ranks.rank().saturating_mul(self.each).min(self.total);
        ShardClasses { first, count: self.each.min(self.total - first), total: self.total }
    }

    /// Whether there is no other rank to communicate with: the shard is a vocabulary with padding.
    pub(super) fn is_alone(&self) -> bool {
        self.ranks.size() <= 1
    }

    /// The size of a shard, padding included.
    pub fn each(&self) -> usize {
        self.each
    }

    /// The group of ranks.
    pub fn ranks(&self) -> &Arc<dyn Communicator> {
        &self.ranks
    }
}

/// Softmax and cross-entropy in one.
///
/// Shapes: logits `[.., V]`, targets i64 `[..]` → f32 `[1]`, or f32 of the targets' shape without reduction.
/// Numerics: f32 arithmetic for every dtype of logits. The gradient overwrites logits that have no other owner.
/// Source: `torch.nn.functional.cross_entropy`, with its rules for weights, smoothing and ignored rows.
///
/// # Errors
/// Shapes that do not match, a target out of range, a smoothing outside `[0, 1)`, a soft cap that is not above 0.
pub fn cross_entropy(cx: &Ctx, logits: &Var, targets: &Tensor, options: &CrossEntropy) -> Result<Var> {
    const OP: &str = "cross_entropy";
    if logits.shape().rank() == 0 || logits.shape().last() == 0 {
        return Err(Error::shape(OP, "logits", "at least one class", logits.shape()));
    }
    loss_of(OP, cx, logits, targets, None, options)
}

/// Softmax and cross-entropy over classes that are sharded over ranks.
///
/// Shapes: logits `[.., C]` with the columns of [`VocabularyShard::classes`], then any number of padding columns;
/// targets i64 `[..]`, ids among all classes, equal on all ranks → as [`cross_entropy`], the same bits on every rank.
///
/// All ranks compute the same loss and pass its gradient as the seed: the backward pass does not communicate, unlike
/// the collectives, and each rank gets the gradient of its own logits. Padding gets the gradient 0.
///
/// Numerics: f32 arithmetic for every dtype of logits. Each rank reads its logits once; four numbers per row are
/// gathered from all ranks and added in rank order. The gradient overwrites logits that have no other owner.
pub fn vocabulary_cross_entropy(
    cx: &Ctx,
    logits: &Var,
    targets: &Tensor,
    shard: &VocabularyShard,
    options: &CrossEntropy,
) -> Result<Var> {
    const OP: &str = "vocabulary_cross_entropy";
    if logits.shape().rank() == 0 || shard.total == 0 {
        return Err(Error::shape(OP, "logits", "rows of at least one class", logits.shape()));
    }
    loss_of(OP, cx, logits, targets, Some(shard), options)
}

/// The loss of `logits`: fused without a shard.
fn loss_of(
    op: &'static str,
    cx: &Ctx,
    logits: &Var,
    targets: &Tensor,
    shard: Option<&VocabularyShard>,
    options: &CrossEntropy,
) -> Result<Var> {
    let (rows, columns) = (logits.shape().rows(), logits.shape().last());
    expect_elements(op, "targets", rows, targets.shape())?;
    let terms = match shard {
        Some(shard) => Terms::new(cx.device(), targets, shard.classes(), options)?,
        None => Terms::fused(targets, ShardClasses::all(columns), options),
    };
    let mut losses = empty(cx, targets.shape(), DType::F32)?; // [..]
    let mut lse = empty(cx, [rows], DType::F32)?; // [rows]
    let totals = if shard.is_some() {
        let range = RowRange { first: 0, count: rows, columns };
        terms.losses(shard, range, logits.value().view()?, losses.view_mut()?, lse.view_mut()?)?;
        terms.totals(&losses)?
    } else {
        let mut totals = empty(cx, [3], DType::F32)?; // [3]
        cx.device().launch(CrossEntropyForward {
            rows,
            columns,
            logits: logits.value().view()?,
            criterion: terms.criterion(0, rows)?,
            losses: losses.view_mut()?,
            lse: lse.view_mut()?,
            totals: totals.view_mut()?,
        })?;
        totals
    };
    let value = match options.reduction {
        Reduction::Mean => totals.slice(2..3)?,
        Reduction::Sum => totals.slice(0..1)?,
        Reduction::None => losses,
    };
    let (mean, fused) = (options.reduction == Reduction::Mean, shard.is_none());
    Ok(cx.record(value, &[logits], || {
        Box::new(CrossEntropyNode { op, logits: logits.value().clone(), terms, lse, totals, mean, fused })
    }))
}

#[derive(Debug)]
struct CrossEntropyNode {
    op: &'static str,
    logits: Tensor,
    terms: Terms,
    lse: Tensor,
    totals: Tensor,
    mean: bool,
    fused: bool,
}

impl Backward for CrossEntropyNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let CrossEntropyNode { op, logits, terms, lse, totals, mean, fused } = *self;
        let dloss = in_dtype(only(op, dy)?, DType::F32)?;
        if !cx.needs(0) {
            return Ok(());
        }
        let (rows, columns) = (logits.shape().rows(), logits.shape().last());
        let (kept, mut dlogits) = if logits.may_be_overwritten() {
            (None, logits)
        } else {
            let fresh = Tensor::empty_in(cx.device(), logits.shape(), logits.dtype(), Segment::Activations)?; // [.., C]
            (Some(logits), fresh)
        };
        let divisor = if mean { Some(totals.slice(1..2)?) } else { None };
        cx.device().launch(CrossEntropyBackward {
            rows,
            columns,
            logits: kept.as_ref().map(Tensor::view).transpose()?,
            criterion: terms.criterion(0, rows)?,
            lse: lse.view()?,
            dloss: dloss.view()?,
            divisor: divisor.as_ref().map(Tensor::view).transpose()?,
            fused,
            dlogits: dlogits.view_mut()?,
        })?;
        drop(kept);
        cx.give(0, dlogits)
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.logits, &self.lse, &self.totals])
    }
}

#[derive(Debug)]
pub(super) struct Terms {
    classes: ShardClasses,
    targets: Tensor,
    ignore_index: i64,
    smoothing: f32,
    /// The weight of each class, and their sum where a kernel needs it.
    weights: Option<(Tensor, Option<Tensor>)>,
    soft_cap: Option<f32>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RowRange {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Elements of a row, padding included.
    pub(super) columns: usize,
}

impl Terms {
    fn fused(targets: &Tensor, classes: ShardClasses, options: &CrossEntropy) -> Terms {
        Terms {
            classes,
            targets: targets.clone(),
            ignore_index: options.ignore_index,
            smoothing: options.label_smoothing,
            weights: options.class_weights.as_ref().map(|each| (each.clone(), None)),
            soft_cap: options.soft_cap,
        }
    }

    /// The terms of [`Terms::losses`], for a shard of the classes; adds up the class weights.
    pub(super) fn new(
        device: &Device,
        targets: &Tensor,
        classes: ShardClasses,
        options: &CrossEntropy,
    ) -> Result<Terms> {
        let mut terms = Terms::fused(targets, classes, options);
        if let Some((each, sum)) = &mut terms.weights {
            let mut total = Tensor::empty_in(device, [1], DType::F32, Segment::Activations)?; // [1]
            device.launch(ColumnSum { rows: each.elements(), columns: 1, x: each.view()?, out: total.dest(false)? })?;
            *sum = Some(total);
        }
        Ok(terms)
    }

    pub(super) fn criterion(&self, first: usize, count: usize) -> Result<Criterion<'_>> {
        let weights = match &self.weights {
            Some((each, sum)) => {
                Some(ClassWeights { each: each.view()?, sum: sum.as_ref().map(Tensor::view).transpose()? })
            }
            None => None,
        };
        Ok(Criterion {
            classes: self.classes,
            targets: self.targets.view()?.part(first, count)?,
            ignore_index: self.ignore_index,
            smoothing: self.smoothing,
            weights,
            soft_cap: self.soft_cap,
        })
    }

    /// Losses and log-sum-exps of the rows of `logits`; with a shard, an all-gather over its ranks.
    pub(super) fn losses(
        &self,
        shard: Option<&VocabularyShard>,
        RowRange { first, count, columns }: RowRange,
        logits: View<'_>,
        losses: ViewMut<'_>,
        lse: ViewMut<'_>,
    ) -> Result<()> {
        let device = self.targets.device();
        let criterion = self.criterion(first, count)?;
        let mut own = Tensor::empty_in(device, [count, 4], DType::F32, Segment::Activations)?; // [rows, 4]
        let statistics = own.view_mut()?;
        device.launch(CrossEntropyStatistics { rows: count, columns, logits, criterion, statistics })?;
        let (shards, all) = match shard.filter(|shard| !shard.is_alone()) {
            Some(shard) => (shard.ranks.size(), tensors::all_gather(&*shard.ranks, &own)?), // [T rows, 4]
            None => (1, own),
        };
        device.launch(CrossEntropyLoss { rows: count, shards, statistics: all.view()?, criterion, losses, lse })
    }

    /// Losses of the rows of logits over a whole vocabulary, and the gradient of their sum in the place of the logits.
    pub(super) fn in_place(
        &self,
        RowRange { first, count, columns }: RowRange,
        losses: ViewMut<'_>,
        dlogits: ViewMut<'_>,
    ) -> Result<()> {
        let criterion = self.criterion(first, count)?;
        self.targets.device().launch(CrossEntropyInPlace { rows: count, columns, criterion, losses, dlogits })
    }

    /// Sum of the losses of all rows, sum of the row weights, and the mean.
    pub(super) fn totals(&self, losses: &Tensor) -> Result<Tensor> {
        let mut totals = Tensor::empty_in(losses.device(), [3], DType::F32, Segment::Activations)?; // [3]
        losses.device().launch(LossTotals {
            losses: losses.view()?,
            targets: self.targets.view()?,
            ignore_index: self.ignore_index,
            class_weights: self.weights.as_ref().map(|(each, _)| each.view()).transpose()?,
            totals: totals.view_mut()?,
        })?;
        Ok(totals)
    }
}

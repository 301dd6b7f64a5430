//! Cross-entropy over classes that are divided among ranks: [`vocabulary_cross_entropy`]. Heads whose weight is cut
//! over tensor-parallel ranks call it, and [`linear_cross_entropy`](super::linear_cross_entropy) is made of the same
//! parts.

use super::loss::{CrossEntropy, Reduction};
use super::{bytes_of, empty, expect_elements, in_dtype, only};
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Var};
use crate::buffer::{View, ViewMut};
use crate::comm::{Communicator, tensors};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{
    ClassWeights, ColumnSum, Criterion, Dest, LossTotals, ShardClasses, VocabularyGradient, VocabularyLoss,
    VocabularyStatistics,
};
use crate::pool::Segment;
use crate::tensor::Tensor;
use std::sync::Arc;

/// Which classes of a vocabulary a rank has: the ranks of a group have equally many each, the last ones fewer where it
/// does not come out even.
#[derive(Debug, Clone)]
pub struct VocabularyShard {
    ranks: Arc<dyn Communicator>,
    total: usize,
    each: usize,
}

impl VocabularyShard {
    /// `total` classes over a group.
    pub fn new(ranks: Arc<dyn Communicator>, total: usize) -> Self {
        let each = total.div_ceil(ranks.size().max(1));
        VocabularyShard { ranks, total, each }
    }

    /// The same where each rank has room for `each` classes, e.g. rows of a weight with filling at its end: the first
    /// rank has the first `each` classes, and so on.
    ///
    /// # Errors
    /// Room for fewer classes than there are.
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

    /// How many classes a rank has room for.
    pub fn each(&self) -> usize {
        self.each
    }

    /// The ranks among which the classes are divided.
    pub fn ranks(&self) -> &Arc<dyn Communicator> {
        &self.ranks
    }
}

/// Softmax and cross-entropy over classes that are divided among ranks, each of which has some columns of the logits.
///
/// Shapes: logits `[.., C]` with the columns of [`VocabularyShard::classes`] and, behind them, as many columns of
/// filling as one likes; targets i64 `[..]`, class numbers among all classes and alike on all ranks → as
/// [`cross_entropy`](super::cross_entropy), the same bits on every rank.
///
/// All ranks hold one and the same loss and give its one gradient as the seed: the backward pass is no exchange, unlike
/// those of the collectives, and each rank gets the gradient of its own logits. Filling gets the gradient 0.
///
/// Numerics: f32 arithmetic for every type of logits. Each rank reads its logits once; four numbers of each row are
/// gathered from all ranks and added up in the order of the ranks. The gradient overwrites the logits when nobody else
/// holds them.
///
/// # Errors
/// Shapes that do not fit, a target outside the classes, a smoothing outside `[0, 1)`, as for every collective.
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
    let (rows, columns) = (logits.shape().rows(), logits.shape().last());
    expect_elements(OP, "targets", rows, targets.shape())?;
    let terms = Terms::new(cx.device(), targets, shard.classes(), options)?;
    let mut losses = empty(cx, targets.shape(), DType::F32)?; // [..]
    let mut lse = empty(cx, [rows], DType::F32)?; // [rows]
    let group = Some(shard);
    let block = Rows { first: 0, count: rows, columns };
    terms.losses(group, block, logits.value().view()?, losses.view_mut()?, lse.view_mut()?)?;
    let totals = terms.totals(&losses)?; // [3]
    let value = match options.reduction {
        Reduction::Mean => totals.slice(2..3)?,
        Reduction::Sum => totals.slice(0..1)?,
        Reduction::None => losses,
    };
    let mean = options.reduction == Reduction::Mean;
    Ok(cx.record(value, &[logits], || {
        Box::new(VocabularyBackward { logits: logits.value().clone(), terms, lse, totals, mean })
    }))
}

#[derive(Debug)]
struct VocabularyBackward {
    logits: Tensor,
    terms: Terms,
    lse: Tensor,
    totals: Tensor,
    mean: bool,
}

impl Backward for VocabularyBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let VocabularyBackward { logits, terms, lse, totals, mean } = *self;
        let dloss = in_dtype(only("vocabulary_cross_entropy", dy)?, DType::F32)?;
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
        cx.device().launch(VocabularyGradient {
            rows,
            columns,
            logits: kept.as_ref().map(Tensor::view).transpose()?,
            criterion: terms.criterion(0, rows)?,
            lse: lse.view()?,
            dloss: dloss.view()?,
            divisor: divisor.as_ref().map(Tensor::view).transpose()?,
            dlogits: dlogits.view_mut()?,
        })?;
        drop(kept);
        cx.give(0, dlogits)
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.logits, &self.lse, &self.totals])
    }
}

/// What losses are made of besides logits.
#[derive(Debug)]
pub(super) struct Terms {
    classes: ShardClasses,
    targets: Tensor,
    ignore_index: i64,
    smoothing: f32,
    /// The weight of each class, and their sum.
    weights: Option<(Tensor, Tensor)>,
}

/// Some of the rows of logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Elements of a row, filling included.
    pub(super) columns: usize,
}

impl Terms {
    /// # Errors
    /// Class weights that are not one f32 for each class.
    pub(super) fn new(
        device: &Device,
        targets: &Tensor,
        classes: ShardClasses,
        options: &CrossEntropy,
    ) -> Result<Terms> {
        let sum = |each: &Tensor| {
            let mut sum = Tensor::empty_in(device, [1], DType::F32, Segment::Activations)?; // [1]
            let out = Dest { view: sum.view_mut()?, add: false };
            device.launch(ColumnSum { rows: each.elements(), columns: 1, x: each.view()?, out })?;
            Ok::<_, Error>((each.clone(), sum))
        };
        Ok(Terms {
            classes,
            targets: targets.clone(),
            ignore_index: options.ignore_index,
            smoothing: options.label_smoothing,
            weights: options.class_weights.as_ref().map(sum).transpose()?,
        })
    }

    /// The arguments of kernels for some rows.
    pub(super) fn criterion(&self, first: usize, count: usize) -> Result<Criterion<'_>> {
        let weights = match &self.weights {
            Some((each, sum)) => Some(ClassWeights { each: each.view()?, sum: sum.view()? }),
            None => None,
        };
        Ok(Criterion {
            classes: self.classes,
            targets: self.targets.view()?.part(first, count)?,
            ignore_index: self.ignore_index,
            smoothing: self.smoothing,
            weights,
        })
    }

    /// Losses and log-sum-exps of some rows, whose logits these are; an exchange with the ranks that have the other
    /// classes.
    pub(super) fn losses(
        &self,
        shard: Option<&VocabularyShard>,
        Rows { first, count, columns }: Rows,
        logits: View<'_>,
        losses: ViewMut<'_>,
        lse: ViewMut<'_>,
    ) -> Result<()> {
        let device = self.targets.device();
        let criterion = self.criterion(first, count)?;
        let mut own = Tensor::empty_in(device, [count, 4], DType::F32, Segment::Activations)?; // [rows, 4]
        let statistics = own.view_mut()?;
        device.launch(VocabularyStatistics { rows: count, columns, logits, criterion, statistics })?;
        let (shards, all) = match shard {
            Some(shard) => (shard.ranks.size(), tensors::all_gather(&*shard.ranks, &own)?), // [T rows, 4]
            None => (1, own),
        };
        device.launch(VocabularyLoss { rows: count, shards, statistics: all.view()?, criterion, losses, lse })
    }

    /// Sum of the losses of all rows, sum of their weights, and the mean.
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

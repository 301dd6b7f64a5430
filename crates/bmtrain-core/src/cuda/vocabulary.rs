//! Cross-entropies of divided vocabularies, their totals and the scaling of gradients: the launches of `vocabulary.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, block_each, long, threads_for, typed, whole};
use super::modules::Name;
use crate::buffer::View;
use crate::error::Result;
use crate::kernel::{
    Arguments as _, Criterion, LossTotals, ScaleBy, VocabularyGradient, VocabularyLoss, VocabularyStatistics,
};

/// `kVocabularyThreads`.
const THREADS: usize = 512;
/// `kVocabularyRowThreads`.
const ROW_THREADS: usize = 256;
/// `kTotalsThreads`.
const TOTALS_THREADS: usize = 1024;
/// `kScaleThreads`.
const SCALE_THREADS: usize = 256;

const STATISTICS: Typed = typed!("vocabulary", "vocabulary_statistics");
const LOSS: Name = Name { unit: "vocabulary", kernel: c"vocabulary_loss" };
const GRADIENT: Typed = typed!("vocabulary", "vocabulary_gradient");
const TOTALS: Name = Name { unit: "vocabulary", kernel: c"loss_totals" };
const SCALE_BY: Typed = typed!("vocabulary", "scale_by");

/// `CriterionArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct CriterionArguments {
    targets: u64,
    ignore_index: i64,
    first: i64,
    count: i64,
    total: i64,
    weights: u64,
    weight_sum: u64,
    smoothing: f32,
    unused: i32,
}

impl CriterionArguments {
    fn of(op: &'static str, criterion: &Criterion<'_>) -> Result<Self> {
        let Criterion { classes, targets, ignore_index, smoothing, weights } = criterion;
        Ok(CriterionArguments {
            targets: targets.address(),
            ignore_index: *ignore_index,
            first: long(op, "classes", classes.first)?,
            count: long(op, "classes", classes.count)?,
            total: long(op, "classes", classes.total)?,
            weights: weights.as_ref().map_or(0, |weights| weights.each.address()),
            weight_sum: weights.as_ref().map_or(0, |weights| weights.sum.address()),
            smoothing: *smoothing,
            unused: 0,
        })
    }
}

/// `VocabularyStatisticsArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct StatisticsArguments {
    logits: In,
    criterion: CriterionArguments,
    statistics: u64,
    fault: u64,
    columns: i64,
    aligned: i32,
    unused: i32,
}

/// Queue the statistics of a part.
pub(super) fn statistics(launch: &Launch<'_>, a: VocabularyStatistics<'_>) -> Result<()> {
    const NAME: &str = VocabularyStatistics::NAME;
    let arguments = StatisticsArguments {
        logits: In::of(&a.logits),
        criterion: CriterionArguments::of(NAME, &a.criterion)?,
        statistics: a.statistics.address(),
        fault: launch.fault,
        columns: long(NAME, "columns", a.columns)?,
        aligned: whole([a.logits.address()], &[]),
        unused: 0,
    };
    let threads = threads_for(a.criterion.classes.count.div_ceil(PACK), THREADS);
    let grid = Grid::line(block_each(NAME, "rows", a.rows)?, threads);
    // SAFETY: laid out as in vocabulary.cu. `check` saw that logits hold rows x columns elements, of which `count` of a
    // row are read, that there are `rows` targets and 4 x rows statistics, and `total` class weights with
    // `first + count` within; a target is looked up only if it is a column that is here. The memory stays valid until
    // the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(STATISTICS.of([a.logits.dtype()]), grid, arguments) }
}

/// `VocabularyLossArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LossArguments {
    criterion: CriterionArguments,
    statistics: u64,
    losses: u64,
    lse: u64,
    rows: i64,
    shards: i64,
}

/// Queue the losses from the statistics of all parts.
pub(super) fn loss(launch: &Launch<'_>, a: VocabularyLoss<'_>) -> Result<()> {
    const NAME: &str = VocabularyLoss::NAME;
    let arguments = LossArguments {
        criterion: CriterionArguments::of(NAME, &a.criterion)?,
        statistics: a.statistics.address(),
        losses: a.losses.address(),
        lse: a.lse.address(),
        rows: long(NAME, "rows", a.rows)?,
        shards: long(NAME, "shards", a.shards)?,
    };
    let grid = Grid::line(launch.blocks(a.rows.div_ceil(ROW_THREADS)), ROW_THREADS as u32);
    // SAFETY: laid out as in vocabulary.cu. `check` saw that there are shards x rows x 4 statistics, `rows` targets,
    // losses and log-sum-exps, and `total` class weights, which a target outside of them is not looked up in; nothing
    // written overlaps anything. Memory stays valid as in `statistics`.
    unsafe { launch.run(LOSS, grid, arguments) }
}

/// `VocabularyGradientArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct GradientArguments {
    logits: In,
    dlogits: Out,
    criterion: CriterionArguments,
    lse: u64,
    dloss: u64,
    divisor: u64,
    columns: i64,
    each: i32,
    aligned: i32,
}

/// Queue the gradient of a part.
pub(super) fn gradient(launch: &Launch<'_>, a: VocabularyGradient<'_>) -> Result<()> {
    const NAME: &str = VocabularyGradient::NAME;
    let dlogits = a.dlogits.as_view();
    let logits = a.logits.as_ref().unwrap_or(&dlogits);
    let arguments = GradientArguments {
        logits: In::of(logits),
        dlogits: Out::of(&a.dlogits),
        criterion: CriterionArguments::of(NAME, &a.criterion)?,
        lse: a.lse.address(),
        dloss: a.dloss.address(),
        divisor: a.divisor.as_ref().map_or(0, View::address),
        columns: long(NAME, "columns", a.columns)?,
        each: i32::from(a.dloss.len() != 1),
        aligned: whole([logits.address(), dlogits.address()], &[]),
    };
    let threads = threads_for(a.columns.div_ceil(PACK), THREADS);
    let grid = Grid::line(block_each(NAME, "rows", a.rows)?, threads);
    let name = GRADIENT.of([logits.dtype(), dlogits.dtype()]);
    // SAFETY: laid out as in vocabulary.cu. `check` saw that logits and their gradient hold rows x columns elements,
    // that there are `rows` targets and log-sum-exps, one gradient of the loss or `rows`, and `total` class weights
    // with `first + count` within; what is written overlaps only logits that it replaces, each element by the thread
    // that read it. Memory stays valid as in `statistics`.
    unsafe { launch.run(name, grid, arguments) }
}

/// `LossTotalsArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct TotalsArguments {
    losses: u64,
    targets: u64,
    weights: u64,
    totals: u64,
    fault: u64,
    ignore_index: i64,
    rows: i64,
    classes: i64,
}

/// Queue sum and mean of losses.
pub(super) fn totals(launch: &Launch<'_>, a: LossTotals<'_>) -> Result<()> {
    const NAME: &str = LossTotals::NAME;
    let arguments = TotalsArguments {
        losses: a.losses.address(),
        targets: a.targets.address(),
        weights: a.class_weights.as_ref().map_or(0, View::address),
        totals: a.totals.address(),
        fault: launch.fault,
        ignore_index: a.ignore_index,
        rows: long(NAME, "rows", a.losses.len())?,
        classes: long(NAME, "classes", a.class_weights.as_ref().map_or(0, View::len))?,
    };
    let grid = Grid::line(1, threads_for(a.losses.len(), TOTALS_THREADS));
    // SAFETY: laid out as in vocabulary.cu. `check` saw that there are as many targets as losses, and three totals; a
    // target outside the class weights is not looked up. Memory stays valid as in `statistics`.
    unsafe { launch.run(TOTALS, grid, arguments) }
}

/// `ScaleByArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ScaleArguments {
    x: In,
    out: Out,
    factor: u64,
    divisor: u64,
    count: i64,
    aligned: i32,
    unused: i32,
}

/// Queue a scaling by a number of the device.
pub(super) fn scale_by(launch: &Launch<'_>, a: ScaleBy<'_>) -> Result<()> {
    let out = a.out.view.as_view();
    let x = a.x.as_ref().unwrap_or(&out);
    let count = out.len();
    let arguments = ScaleArguments {
        x: In::of(x),
        out: Out::into(&a.out),
        factor: a.factor.address(),
        divisor: a.divisor.as_ref().map_or(0, View::address),
        count: long(ScaleBy::NAME, "elements", count)?,
        aligned: whole([x.address(), out.address()], &[]),
        unused: 0,
    };
    let grid = Grid::line(launch.blocks(count.div_ceil(PACK * SCALE_THREADS)), SCALE_THREADS as u32);
    // SAFETY: laid out as in vocabulary.cu. `check` saw that x and out have equally many elements, and one factor and
    // divisor; what is written overlaps only an x that it replaces, each element by the thread that read it. Memory
    // stays valid as in `statistics`.
    unsafe { launch.run(SCALE_BY.of([x.dtype(), out.dtype()]), grid, arguments) }
}

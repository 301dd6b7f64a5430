//! Cross-entropy: the launches of `cross_entropy.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, arguments, block_each, long, threads_for, typed, whole};
use super::loss::TotalsArguments;
use super::modules::Name;
use crate::error::Result;
use crate::kernel::{
    Arguments as _, Criterion, CrossEntropyBackward, CrossEntropyForward, CrossEntropyInPlace, CrossEntropyLoss,
    CrossEntropyStatistics,
};
use crate::view::View;

/// `kLossThreads`.
const THREADS: usize = 512;
/// `kLossRowThreads`.
const ROW_THREADS: usize = 256;
/// `kInPlaceThreads`.
const IN_PLACE_THREADS: usize = 1024;

const FORWARD: Typed = typed!("cross_entropy", "cross_entropy_forward");
const STATISTICS: Typed = typed!("cross_entropy", "cross_entropy_statistics");
const LOSS: Name = Name { unit: "cross_entropy", kernel: c"cross_entropy_loss" };
const BACKWARD: Typed = typed!("cross_entropy", "cross_entropy_backward");
const IN_PLACE: Typed = typed!("cross_entropy", "cross_entropy_in_place");

/// `Criterion`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct CriterionArguments {
    targets: u64,
    ignore_index: i64,
    first: i64,
    count: i64,
    total: i64,
    weights: u64,
    weight_sum: u64,
    fault: u64,
    smoothing: f32,
    soft_cap: f32,
    weights_whole: i32,
    unused: i32,
}

impl CriterionArguments {
    fn of(op: &'static str, launch: &Launch<'_>, criterion: &Criterion<'_>) -> Result<Self> {
        let Criterion { classes, targets, ignore_index, smoothing, weights, soft_cap } = criterion;
        let each = weights.as_ref().map_or(0, |weights| weights.each.address());
        Ok(CriterionArguments {
            targets: targets.address(),
            ignore_index: *ignore_index,
            first: long(op, "classes", classes.first)?,
            count: long(op, "classes", classes.count)?,
            total: long(op, "classes", classes.total)?,
            weights: each,
            weight_sum: weights.as_ref().and_then(|weights| weights.sum).map_or(0, |sum| sum.address()),
            fault: launch.fault,
            smoothing: *smoothing,
            soft_cap: soft_cap.unwrap_or(0.0),
            weights_whole: whole([each], &[]),
            unused: 0,
        })
    }
}

/// One block per row, a thread for each of its packs and one for those before the first whole pack.
fn rows_grid(op: &'static str, rows: usize, columns: usize) -> Result<Grid> {
    Ok(Grid::line(block_each(op, "rows", rows)?, threads_for(columns.div_ceil(PACK) + 1, THREADS)))
}

/// Queue [`CrossEntropyForward`]. A target out of range is reported; its row is ignored.
pub(super) fn forward(launch: &Launch<'_>, a: CrossEntropyForward<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyForward::NAME;
    let criterion = CriterionArguments::of(NAME, launch, &a.criterion)?;
    let (losses, lse) = (a.losses.address(), a.lse.address());
    let columns = long(NAME, "columns", a.columns)?;
    let arguments = arguments!(CrossEntropyForwardArguments {
        logits: In = In::of(&a.logits),
        criterion: CriterionArguments = criterion,
        losses: u64 = losses,
        lse: u64 = lse,
        columns: i64 = columns,
    });
    let Criterion { targets, ignore_index, weights, .. } = &a.criterion;
    let totals = TotalsArguments::checked(
        long(NAME, "rows", a.rows)?,
        criterion.total,
        (targets, *ignore_index),
        weights.as_ref().map(|weights| &weights.each),
        [losses, a.totals.address()],
    );
    // SAFETY: laid out as in cross_entropy.cu. `check` saw that there are rows x columns logits, whose first classes
    // columns are read, a target, a loss and a log-sum-exp for each row, a weight for each class, three totals, and
    // that nothing written overlaps anything; a target out of range is not looked up. The memory stays valid until the
    // lane has run the kernels, because the pool gives it out in lane order; the record of faults lives as long as the
    // backend.
    unsafe {
        launch.run(FORWARD.of([a.logits.dtype()]), rows_grid(NAME, a.rows, a.criterion.classes.count)?, arguments)?;
        totals.launch(launch, a.rows)
    }
}

/// Queue [`CrossEntropyStatistics`]. A target out of range is reported; its row is ignored.
pub(super) fn statistics(launch: &Launch<'_>, a: CrossEntropyStatistics<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyStatistics::NAME;
    let arguments = arguments!(CrossEntropyStatisticsArguments {
        logits: In = In::of(&a.logits),
        criterion: CriterionArguments = CriterionArguments::of(NAME, launch, &a.criterion)?,
        statistics: u64 = a.statistics.address(),
        columns: i64 = long(NAME, "columns", a.columns)?,
        aligned: i32 = whole([a.logits.address()], &[]),
        unused: i32 = 0,
    });
    let threads = threads_for(a.criterion.classes.count.div_ceil(PACK), THREADS);
    let grid = Grid::line(block_each(NAME, "rows", a.rows)?, threads);
    // SAFETY: laid out as in cross_entropy.cu. `check` saw that logits hold rows x columns elements, whose first
    // `count` of a row are read, that there are `rows` targets and 4 x rows statistics, and `total` class weights with
    // `first + count` within; a target is looked up only if it is a column that is here. The memory stays valid until
    // the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(STATISTICS.of([a.logits.dtype()]), grid, arguments) }
}

pub(super) fn loss(launch: &Launch<'_>, a: CrossEntropyLoss<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyLoss::NAME;
    let arguments = arguments!(CrossEntropyLossArguments {
        criterion: CriterionArguments = CriterionArguments::of(NAME, launch, &a.criterion)?,
        statistics: u64 = a.statistics.address(),
        losses: u64 = a.losses.address(),
        lse: u64 = a.lse.address(),
        rows: i64 = long(NAME, "rows", a.rows)?,
        shards: i64 = long(NAME, "shards", a.shards)?,
    });
    let grid = Grid::line(launch.blocks(a.rows.div_ceil(ROW_THREADS)), ROW_THREADS as u32);
    // SAFETY: laid out as in cross_entropy.cu. `check` saw that there are shards x rows x 4 statistics, `rows` targets,
    // losses and log-sum-exps, and `total` class weights, which a target outside of them is not looked up in; nothing
    // written overlaps anything. Memory stays valid as in `statistics`.
    unsafe { launch.run(LOSS, grid, arguments) }
}

/// Queue [`CrossEntropyBackward`]. A target out of range is reported; its row gets zeros.
pub(super) fn backward(launch: &Launch<'_>, a: CrossEntropyBackward<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyBackward::NAME;
    let dlogits = a.dlogits.as_view();
    let logits = a.logits.as_ref().unwrap_or(&dlogits);
    let arguments = arguments!(CrossEntropyBackwardArguments {
        logits: In = In::of(logits),
        dlogits: Out = Out::of(&a.dlogits),
        criterion: CriterionArguments = CriterionArguments::of(NAME, launch, &a.criterion)?,
        lse: u64 = a.lse.address(),
        dloss: u64 = a.dloss.address(),
        divisor: u64 = a.divisor.as_ref().map_or(0, View::address),
        columns: i64 = long(NAME, "columns", a.columns)?,
        each: i32 = i32::from(a.dloss.len() != 1),
        aligned: i32 = whole([logits.address(), dlogits.address()], &[]),
        fused: i32 = i32::from(a.fused),
        unused: i32 = 0,
    });
    let grid = rows_grid(NAME, a.rows, a.columns)?;
    let name = BACKWARD.of([logits.dtype(), dlogits.dtype()]);
    // SAFETY: laid out as in cross_entropy.cu. `check` saw that logits and their gradient hold rows x columns elements,
    // that there are `rows` targets and log-sum-exps, one gradient of the loss or `rows`, and `total` class weights
    // with `first + count` within; what is written overlaps only logits that it replaces, each element by the thread
    // that read it. Memory stays valid as in `statistics`.
    unsafe { launch.run(name, grid, arguments) }
}

/// Queue [`CrossEntropyInPlace`]. A target out of range is reported; its row gets zeros.
pub(super) fn in_place(launch: &Launch<'_>, a: CrossEntropyInPlace<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyInPlace::NAME;
    let arguments = arguments!(CrossEntropyInPlaceArguments {
        dlogits: Out = Out::of(&a.dlogits),
        criterion: CriterionArguments = CriterionArguments::of(NAME, launch, &a.criterion)?,
        losses: u64 = a.losses.address(),
        columns: i64 = long(NAME, "columns", a.columns)?,
        aligned: i32 = whole([a.dlogits.address()], &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(block_each(NAME, "rows", a.rows)?, threads_for(a.columns.div_ceil(PACK), IN_PLACE_THREADS));
    // SAFETY: laid out as in cross_entropy.cu. `check` saw that there are rows x columns logits, whose first classes
    // columns are read before they are replaced, each by the thread that read it; a target and a loss for each row, a
    // weight for each class and their sum, and that nothing written overlaps anything else; a target out of range is
    // not looked up. Memory stays valid as in `statistics`.
    unsafe { launch.run(IN_PLACE.of([a.dlogits.dtype()]), grid, arguments) }
}

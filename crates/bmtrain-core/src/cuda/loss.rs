//! Cross-entropy and squared error: the launches of `loss.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, block_each, long, threads_for, typed, whole};
use super::modules::Name;
use crate::buffer::View;
use crate::error::Result;
use crate::kernel::{
    Arguments as _, CrossEntropyBackward, CrossEntropyForward, SquaredErrorBackward, SquaredErrorForward,
};

/// `kLossThreads`.
const THREADS: usize = 512;
/// `kTotalsThreads`.
const TOTALS_THREADS: u32 = 1024;
/// Least elements of a block of squared errors, and most blocks.
const RANGE: usize = 1 << 14;
const MOST_BLOCKS: usize = 512;

const CROSS_ENTROPY_FORWARD: Typed = typed!("loss", "cross_entropy_forward");
const CROSS_ENTROPY_BACKWARD: Typed = typed!("loss", "cross_entropy_backward");
const CROSS_ENTROPY_TOTALS: Name = Name { unit: "loss", kernel: c"cross_entropy_totals" };
const SQUARED_ERROR_FORWARD: Typed = typed!("loss", "squared_error_forward");
const SQUARED_ERROR_BACKWARD: Typed = typed!("loss", "squared_error_backward");
const SQUARED_ERROR_MEAN: Name = Name { unit: "loss", kernel: c"squared_error_mean" };

/// `Classes`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Classes {
    targets: u64,
    weights: u64,
    fault: u64,
    rows: i64,
    count: i64,
    ignored: i64,
    smoothing: f32,
    weights_whole: i32,
}

impl Classes {
    /// Targets and weights, for the arguments of either pass.
    fn new(
        op: &'static str,
        launch: &Launch<'_>,
        (rows, count): (usize, usize),
        (targets, ignored): (&View<'_>, i64),
        (weights, smoothing): (Option<&View<'_>>, f32),
    ) -> Result<Self> {
        let weights = weights.map_or(0, View::address);
        Ok(Classes {
            targets: targets.address(),
            weights,
            fault: launch.fault,
            rows: long(op, "rows", rows)?,
            count: long(op, "classes", count)?,
            ignored,
            smoothing,
            weights_whole: whole([weights], &[]),
        })
    }
}

/// One block for each row, a thread for each of its packs and one for those before the first whole pack.
fn rows_grid(op: &'static str, rows: usize, classes: usize) -> Result<Grid> {
    Ok(Grid::line(block_each(op, "rows", rows)?, threads_for(classes.div_ceil(PACK) + 1, THREADS)))
}

/// `CrossEntropyForwardArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ForwardArguments {
    logits: In,
    classes: Classes,
    losses: u64,
    lse: u64,
}

/// `CrossEntropyTotalsArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct TotalsArguments {
    classes: Classes,
    losses: u64,
    totals: u64,
}

/// Queue [`CrossEntropyForward`]. A target that is neither a class nor ignored is reported; its row counts as ignored.
pub(super) fn cross_entropy_forward(launch: &Launch<'_>, a: CrossEntropyForward<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyForward::NAME;
    let weights = (a.class_weights.as_ref(), a.smoothing);
    let classes = Classes::new(NAME, launch, (a.rows, a.classes), (&a.targets, a.ignore_index), weights)?;
    let (losses, lse, totals) = (a.losses.address(), a.lse.address(), a.totals.address());
    let arguments = ForwardArguments { logits: In::of(&a.logits), classes, losses, lse };
    let name = CROSS_ENTROPY_FORWARD.of([a.logits.dtype()]);
    // SAFETY: laid out as in loss.cu. `check` saw that there are rows x classes logits, a target, a loss and a
    // log-sum-exp for each row, a weight for each class, three totals, and that nothing written overlaps anything;
    // targets are compared with the number of classes before they are used. The memory stays valid until the lane has
    // run the kernels, because the pool gives it out in lane order; the record of faults lives as long as the backend.
    unsafe {
        launch.run(name, rows_grid(NAME, a.rows, a.classes)?, arguments)?;
        let arguments = TotalsArguments { classes, losses, totals };
        launch.run(CROSS_ENTROPY_TOTALS, Grid::line(1, TOTALS_THREADS), arguments)
    }
}

/// `CrossEntropyBackwardArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct BackwardArguments {
    logits: In,
    dlogits: Out,
    classes: Classes,
    lse: u64,
    totals: u64,
    dloss: u64,
    each: i32,
    mean: i32,
    whole: i32,
    unused: i32,
}

/// Whether rows of both can be moved by 16 bytes at the same places: the kernel looks for the first such place in each
/// row of the logits.
fn whole_together(logits: &View<'_>, dlogits: &View<'_>, classes: usize) -> i32 {
    let alike = logits.dtype() == dlogits.dtype() && logits.address() % 16 == dlogits.address() % 16;
    i32::from(alike).max(whole([logits.address(), dlogits.address()], &[classes]))
}

/// Queue [`CrossEntropyBackward`]. A target that is neither a class nor ignored is reported; its row gets zeros.
pub(super) fn cross_entropy_backward(launch: &Launch<'_>, a: CrossEntropyBackward<'_>) -> Result<()> {
    const NAME: &str = CrossEntropyBackward::NAME;
    let weights = (a.class_weights.as_ref(), a.smoothing);
    let dlogits = a.dlogits.as_view();
    let logits = a.logits.unwrap_or(dlogits);
    let arguments = BackwardArguments {
        logits: In::of(&logits),
        dlogits: Out::of(&a.dlogits),
        classes: Classes::new(NAME, launch, (a.rows, a.classes), (&a.targets, a.ignore_index), weights)?,
        lse: a.lse.address(),
        totals: a.totals.address(),
        dloss: a.dloss.address(),
        each: i32::from(a.dloss.len() != 1),
        mean: i32::from(a.mean),
        whole: whole_together(&logits, &dlogits, a.classes),
        unused: 0,
    };
    let name = CROSS_ENTROPY_BACKWARD.of([logits.dtype(), dlogits.dtype()]);
    // SAFETY: as in `cross_entropy_forward`; `check` saw that there are as many gradients as logits and one gradient of
    // the loss or one for each row. Where the logits are replaced, each is read before it is written, by the same
    // thread.
    unsafe { launch.run(name, rows_grid(NAME, a.rows, a.classes)?, arguments) }
}

/// `SquaredErrorForwardArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct SquaredForwardArguments {
    x: In,
    targets: u64,
    partials: u64,
    count: i64,
    range: i64,
    whole: i32,
    unused: i32,
}

/// `SquaredErrorMeanArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct MeanArguments {
    partials: u64,
    loss: u64,
    count: i64,
    blocks: i32,
    unused: i32,
}

/// Queue [`SquaredErrorForward`].
pub(super) fn squared_error_forward(launch: &Launch<'_>, a: SquaredErrorForward<'_>) -> Result<()> {
    const NAME: &str = SquaredErrorForward::NAME;
    let len = a.x.len();
    let count = long(NAME, "x", len)?;
    // By the size alone, so that every device adds in the same order.
    let range = len.div_ceil(MOST_BLOCKS).max(RANGE).next_multiple_of(PACK);
    let blocks = len.div_ceil(range);
    let scratch = launch.scratch.take(launch.stream, blocks.max(1) * size_of::<f64>())?;
    let partials = scratch.address();
    let arguments = SquaredForwardArguments {
        x: In::of(&a.x),
        targets: a.targets.address(),
        partials,
        count,
        range: long(NAME, "x", range)?,
        whole: whole([a.x.address(), a.targets.address()], &[]),
        unused: 0,
    };
    let threads = threads_for(len.div_ceil(PACK), THREADS);
    let mean = MeanArguments { partials, loss: a.loss.address(), count, blocks: blocks as i32, unused: 0 };
    // SAFETY: laid out as in loss.cu. `check` saw that x and targets have `count` elements and the loss one; the
    // scratch memory holds a number for each block. The memory stays valid until the lane has run the kernels, because
    // the pool gives it out in lane order.
    unsafe {
        launch.run(SQUARED_ERROR_FORWARD.of([a.x.dtype()]), Grid::line(blocks as u32, threads), arguments)?;
        launch.run(SQUARED_ERROR_MEAN, Grid::line(1, THREADS as u32), mean)
    }
}

/// `SquaredErrorBackwardArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct SquaredBackwardArguments {
    x: In,
    dx: Out,
    targets: u64,
    dloss: u64,
    count: i64,
    whole: i32,
    unused: i32,
}

/// Queue [`SquaredErrorBackward`].
pub(super) fn squared_error_backward(launch: &Launch<'_>, a: SquaredErrorBackward<'_>) -> Result<()> {
    let len = a.x.len();
    let dx = a.dx.as_view();
    let arguments = SquaredBackwardArguments {
        x: In::of(&a.x),
        dx: Out::of(&a.dx),
        targets: a.targets.address(),
        dloss: a.dloss.address(),
        count: long(SquaredErrorBackward::NAME, "x", len)?,
        whole: whole([a.x.address(), dx.address(), a.targets.address()], &[]),
        unused: 0,
    };
    let threads = threads_for(len.div_ceil(PACK), THREADS);
    let grid = Grid::line(launch.blocks(len.div_ceil(PACK * threads as usize)), threads);
    // SAFETY: as in `squared_error_forward`, with as many gradients as predictions and one gradient of the loss.
    unsafe { launch.run(SQUARED_ERROR_BACKWARD.of([a.x.dtype(), dx.dtype()]), grid, arguments) }
}

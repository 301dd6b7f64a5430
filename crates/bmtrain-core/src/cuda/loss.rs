//! Totals of losses, scaling of gradients, squared error and functions of single elements: the launches of `loss.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, arguments, long, threads_for, typed, whole};
use super::modules::Name;
use crate::error::Result;
use crate::kernel::{
    Arguments as _, LossTotals, Pointwise, PointwiseBackward, PointwiseForward, ScaleBy, SquaredErrorBackward,
    SquaredErrorForward,
};
use crate::view::View;

/// `kLossThreads`.
const THREADS: usize = 512;
/// `kTotalsThreads`.
const TOTALS_THREADS: usize = 1024;
/// `kScaleThreads`.
const SCALE_THREADS: usize = 256;
/// Least elements of a block of squared errors, and most blocks.
const RANGE: usize = 1 << 14;
const MAX_BLOCKS: usize = 512;

const TOTALS: Name = Name { unit: "loss", kernel: c"loss_totals" };
const SCALE_BY: Typed = typed!("loss", "scale_by");
const SQUARED_ERROR_FORWARD: Typed = typed!("loss", "squared_error_forward");
const SQUARED_ERROR_BACKWARD: Typed = typed!("loss", "squared_error_backward");
const POINTWISE_FORWARD: Typed = typed!("loss", "pointwise_forward");
const POINTWISE_BACKWARD: Typed = typed!("loss", "pointwise_backward");
const SQUARED_ERROR_MEAN: Name = Name { unit: "loss", kernel: c"squared_error_mean" };

/// `LossTotalsArguments`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct TotalsArguments {
    losses: u64,
    targets: u64,
    weights: u64,
    totals: u64,
    fault: u64,
    ignore_index: i64,
    rows: i64,
    classes: i64,
}

impl TotalsArguments {
    /// The totals of rows whose targets the launch before has checked against `classes`.
    pub(super) fn checked(
        rows: i64,
        classes: i64,
        targets: (&View<'_>, i64),
        weights: Option<&View<'_>>,
        [losses, totals]: [u64; 2],
    ) -> Self {
        TotalsArguments {
            losses,
            targets: targets.0.address(),
            weights: weights.map_or(0, View::address),
            totals,
            fault: 0,
            ignore_index: targets.1,
            rows,
            classes,
        }
    }

    /// # Safety
    /// The addresses are of `rows` losses and targets, `classes` weights unless there are none, and three totals,
    /// and stay valid until the lane has run the kernel.
    pub(super) unsafe fn launch(self, launch: &Launch<'_>, rows: usize) -> Result<()> {
        // SAFETY: laid out as in loss.cu; a target out of range is not looked up. The caller vouches for the addresses.
        unsafe { launch.run(TOTALS, Grid::line(1, threads_for(rows, TOTALS_THREADS)), self) }
    }
}

pub(super) fn totals(launch: &Launch<'_>, a: LossTotals<'_>) -> Result<()> {
    const NAME: &str = LossTotals::NAME;
    let (rows, addresses) = (a.losses.len(), [a.losses.address(), a.totals.address()]);
    let weights = a.class_weights.as_ref();
    let classes = weights.map_or(Ok(-1), |weights| long(NAME, "classes", weights.len()))?;
    let targets = (&a.targets, a.ignore_index);
    let arguments = TotalsArguments::checked(long(NAME, "rows", rows)?, classes, targets, weights, addresses);
    // SAFETY: `check` saw that there are as many targets as losses, and three totals. The memory stays valid until the
    // lane has run the kernel, because the pool gives it out in lane order; the record of faults lives as long as the
    // backend.
    unsafe { TotalsArguments { fault: launch.fault, ..arguments }.launch(launch, rows) }
}

pub(super) fn scale_by(launch: &Launch<'_>, a: ScaleBy<'_>) -> Result<()> {
    let out = a.out.view.as_view();
    let x = a.x.as_ref().unwrap_or(&out);
    let count = out.len();
    let arguments = arguments!(ScaleByArguments {
        x: In = In::of(x),
        out: Out = Out::into(&a.out),
        factor: u64 = a.factor.address(),
        divisor: u64 = a.divisor.as_ref().map_or(0, View::address),
        count: i64 = long(ScaleBy::NAME, "elements", count)?,
        aligned: i32 = whole([x.address(), out.address()], &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(count.div_ceil(PACK * SCALE_THREADS)), SCALE_THREADS as u32);
    // SAFETY: laid out as in loss.cu. `check` saw that x and out have equally many elements, and one factor and
    // divisor; what is written overlaps only an x that it replaces, each element by the thread that read it. Memory
    // stays valid as in `totals`.
    unsafe { launch.run(SCALE_BY.of([x.dtype(), out.dtype()]), grid, arguments) }
}

pub(super) fn squared_error_forward(launch: &Launch<'_>, a: SquaredErrorForward<'_>) -> Result<()> {
    const NAME: &str = SquaredErrorForward::NAME;
    let len = a.x.len();
    let count = long(NAME, "x", len)?;
    // By the size alone, so that every device adds in the same order.
    let range = len.div_ceil(MAX_BLOCKS).max(RANGE).next_multiple_of(PACK);
    let blocks = len.div_ceil(range);
    let scratch = launch.scratch.take(blocks.max(1) * size_of::<f64>())?;
    let partials = scratch.address();
    let arguments = arguments!(SquaredErrorForwardArguments {
        x: In = In::of(&a.x),
        targets: u64 = a.targets.address(),
        partials: u64 = partials,
        count: i64 = count,
        range: i64 = long(NAME, "x", range)?,
        whole: i32 = whole([a.x.address(), a.targets.address()], &[]),
        unused: i32 = 0,
    });
    let threads = threads_for(len.div_ceil(PACK), THREADS);
    let mean = arguments!(SquaredErrorMeanArguments {
        partials: u64 = partials,
        loss: u64 = a.loss.address(),
        count: i64 = count,
        blocks: i32 = blocks as i32,
        unused: i32 = 0,
    });
    // SAFETY: laid out as in loss.cu. `check` saw that x and targets have `count` elements and the loss one; the
    // scratch memory holds a number for each block. The memory stays valid until the lane has run the kernels, because
    // the pool gives it out in lane order.
    unsafe {
        launch.run(SQUARED_ERROR_FORWARD.of([a.x.dtype()]), Grid::line(blocks as u32, threads), arguments)?;
        launch.run(SQUARED_ERROR_MEAN, Grid::line(1, THREADS as u32), mean)
    }
}

pub(super) fn squared_error_backward(launch: &Launch<'_>, a: SquaredErrorBackward<'_>) -> Result<()> {
    let len = a.x.len();
    let dx = a.dx.as_view();
    let arguments = arguments!(SquaredErrorBackwardArguments {
        x: In = In::of(&a.x),
        dx: Out = Out::of(&a.dx),
        targets: u64 = a.targets.address(),
        dloss: u64 = a.dloss.address(),
        count: i64 = long(SquaredErrorBackward::NAME, "x", len)?,
        whole: i32 = whole([a.x.address(), dx.address(), a.targets.address()], &[]),
        unused: i32 = 0,
    });
    let threads = threads_for(len.div_ceil(PACK), THREADS);
    let grid = Grid::line(launch.blocks(len.div_ceil(PACK * threads as usize)), threads);
    // SAFETY: as in `squared_error_forward`, with as many gradients as predictions and one gradient of the loss.
    unsafe { launch.run(SQUARED_ERROR_BACKWARD.of([a.x.dtype(), dx.dtype()]), grid, arguments) }
}

/// `PointwiseOperands` of loss.cu.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct PointwiseOperands {
    x: In,
    targets: u64,
    count: i64,
    function: i32,
    parameter: f32,
}

impl PointwiseOperands {
    /// Arguments of kernel `op`.
    fn of(op: &'static str, function: Pointwise, x: &View<'_>, targets: Option<&View<'_>>) -> Result<Self> {
        let (function, parameter) = match function {
            Pointwise::AbsoluteError => (0, 0.0),
            Pointwise::Huber { delta } => (1, delta),
            Pointwise::BinaryCrossEntropy => (2, 0.0),
            Pointwise::KlDivergence => (3, 0.0),
            Pointwise::LogOdds => (4, 0.0),
        };
        let (targets, count) = (targets.map_or(0, View::address), long(op, "x", x.len())?);
        Ok(PointwiseOperands { x: In::of(x), targets, count, function, parameter })
    }
}

pub(super) fn pointwise_forward(launch: &Launch<'_>, a: PointwiseForward<'_>) -> Result<()> {
    let operands = PointwiseOperands::of(PointwiseForward::NAME, a.function, &a.x, a.targets.as_ref())?;
    let arguments = arguments!(PointwiseForwardArguments {
        operands: PointwiseOperands = operands,
        y: u64 = a.y.address(),
        whole: i32 = whole([a.x.address(), operands.targets, a.y.address()], &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(a.x.len().div_ceil(PACK * SCALE_THREADS)), SCALE_THREADS as u32);
    // SAFETY: laid out as in loss.cu. `check` saw that x, y and targets, where there are some, have `count` elements,
    // and that there are targets for a function that reads them. Memory stays valid as in `totals`.
    unsafe { launch.run(POINTWISE_FORWARD.of([a.x.dtype()]), grid, arguments) }
}

pub(super) fn pointwise_backward(launch: &Launch<'_>, a: PointwiseBackward<'_>) -> Result<()> {
    let operands = PointwiseOperands::of(PointwiseBackward::NAME, a.function, &a.x, a.targets.as_ref())?;
    let dx = a.dx.view.as_view();
    let arguments = arguments!(PointwiseBackwardArguments {
        operands: PointwiseOperands = operands,
        dx: Out = Out::into(&a.dx),
        dy: u64 = a.dy.address(),
        whole: i32 = whole([a.x.address(), operands.targets, a.dy.address(), dx.address()], &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(a.x.len().div_ceil(PACK * SCALE_THREADS)), SCALE_THREADS as u32);
    // SAFETY: as in `pointwise_forward`, with as many gradients of x and of y.
    unsafe { launch.run(POINTWISE_BACKWARD.of([a.x.dtype(), dx.dtype()]), grid, arguments) }
}

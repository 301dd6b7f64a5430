//! Sums over rows, softmax, norms of gradients: the launches of `reduce.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, WARP, arguments, block_each, long, tag, threads_for, typed, whole};
use super::modules::Name;
use super::runs::{NORM_RUNS, NormRun, RunBlocks, blocks_of};
use crate::error::Result;
use crate::exact::WORDS;
use crate::kernel::{Arguments as _, ColumnSum, GradNorm, NORM_CHUNK, NonFinite, NormOrder, Softmax, SoftmaxBackward};
use crate::view::View;

/// `kSumThreads`.
const SUM_THREADS: usize = 256;
/// Threads of a block of `sum_partials`, which takes a warp's worth of columns.
const PARTIALS_THREADS: u32 = 1024;
/// `kSoftmaxThreads`.
const SOFTMAX_THREADS: usize = 1024;
/// `kNormThreads`.
const NORM_THREADS: usize = 256;
/// `kChunksAtOnce`.
const CHUNKS_AT_ONCE: usize = 16;

const COLUMN_PARTS: Typed = typed!("reduce", "column_parts");
const SUM_PARTIALS: Name = Name { unit: "reduce", kernel: c"sum_partials" };
const SOFTMAX: Typed = typed!("reduce", "softmax");
const SOFTMAX_BACKWARD: Typed = typed!("reduce", "softmax_backward");
const SQUARES_PARTS: Typed = typed!("reduce", "squares_parts");
const LARGEST_PARTS: Typed = typed!("reduce", "largest_parts");
const NORM_TOTAL: Name = Name { unit: "reduce", kernel: c"norm_total" };
const NON_FINITE: Typed = typed!("reduce", "non_finite");

/// Partition of a matrix for sums over its rows. It follows from the sizes alone, and so does the order of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Packs that a block takes side by side, a power of two.
    width: usize,
    /// Blocks side by side.
    tiles: usize,
    /// Rows of a group.
    at_once: usize,
    /// Groups of rows.
    groups: usize,
}

impl Cut {
    fn of(rows: usize, columns: usize) -> Self {
        /// Blocks that fill a large device.
        const BLOCKS: usize = 1024;
        /// Rows that a thread sums at least.
        const ROWS: usize = 8;
        let width = columns.div_ceil(PACK).clamp(1, WARP).next_power_of_two();
        let tiles = columns.div_ceil(width * PACK);
        let most = (BLOCKS / tiles.max(1)).max(1);
        let at_once = (ROWS * SUM_THREADS / width).max(rows.div_ceil(most));
        Cut { width, tiles, at_once, groups: rows.div_ceil(at_once) }
    }
}

/// Queue sums over rows: in groups of rows, then over the groups.
pub(super) fn column_sum(launch: &Launch<'_>, a: ColumnSum<'_>) -> Result<()> {
    const NAME: &str = ColumnSum::NAME;
    let Cut { width, tiles, at_once, groups } = Cut::of(a.rows, a.columns);
    let scratch = launch.scratch.take(groups * a.columns * size_of::<f32>())?;
    let partials = scratch.address();
    let arguments = arguments!(ColumnPartsArguments {
        x: In = In::of(&a.x),
        partials: u64 = partials,
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        at_once: i64 = long(NAME, "rows", at_once)?,
        width: i32 = width as i32,
        whole: i32 = whole([a.x.address()], &[a.columns]),
    });
    let blocks = [block_each(NAME, "columns", tiles)?, block_each(NAME, "rows", groups)?, 1];
    let grid = Grid { blocks, ..Grid::line(1, SUM_THREADS as u32) };
    // SAFETY: laid out as in reduce.cu. `check` saw that x holds rows x columns elements; scratch holds `columns` sums
    // for each group. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane
    // order.
    unsafe { launch.run(COLUMN_PARTS.of([a.x.dtype()]), grid, arguments) }?;
    let (columns, first) = (a.columns, Out::into(&a.out));
    let sums = Partials { address: partials, groups, columns, stride: columns, first, second: Out::NONE };
    // SAFETY: just written there: `groups` rows of `columns`. `check` saw that `out` holds `columns`.
    unsafe { sum_partials(launch, NAME, sums) }
}

/// Sums of groups that are to be added up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Partials {
    /// f32 `[groups, stride]`: the columns of `first`, then of `second`.
    pub(super) address: u64,
    pub(super) groups: usize,
    /// Columns of each destination.
    pub(super) columns: usize,
    /// Columns of both.
    pub(super) stride: usize,
    pub(super) first: Out,
    pub(super) second: Out,
}

/// Queue the sums over groups, for the kernel `op`.
///
/// # Safety
/// The sums are there when the lane comes to it, the destinations hold `columns` elements each.
pub(super) unsafe fn sum_partials(launch: &Launch<'_>, op: &'static str, sums: Partials) -> Result<()> {
    let arguments = arguments!(SumPartialsArguments {
        partials: u64 = sums.address,
        first: Out = sums.first,
        second: Out = sums.second,
        groups: i64 = long(op, "rows", sums.groups)?,
        columns: i64 = long(op, "columns", sums.columns)?,
        stride: i64 = long(op, "columns", sums.stride)?,
    });
    let grid = Grid::line(block_each(op, "columns", sums.stride.div_ceil(WARP))?, PARTIALS_THREADS);
    // SAFETY: laid out as in reduce.cu; the rest is promised by the caller.
    unsafe { launch.run(SUM_PARTIALS, grid, arguments) }
}

pub(super) fn softmax(launch: &Launch<'_>, a: Softmax<'_>) -> Result<()> {
    const NAME: &str = Softmax::NAME;
    let arguments = arguments!(SoftmaxArguments {
        x: In = In::of(&a.x),
        y: Out = Out::of(&a.y),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        log: i32 = i32::from(a.log),
        whole: i32 = whole([a.x.address(), a.y.address()], &[a.columns]),
    });
    let grid = rows_grid(NAME, a.rows, a.columns)?;
    // SAFETY: laid out as in reduce.cu. `check` saw that x and y hold rows x columns elements and do not overlap. The
    // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(SOFTMAX.of([a.x.dtype(), a.y.dtype()]), grid, arguments) }
}

/// A block for each row, a thread for each of its packs.
fn rows_grid(op: &'static str, rows: usize, columns: usize) -> Result<Grid> {
    Ok(Grid::line(block_each(op, "rows", rows)?, threads_for(columns.div_ceil(PACK), SOFTMAX_THREADS)))
}

pub(super) fn softmax_backward(launch: &Launch<'_>, a: SoftmaxBackward<'_>) -> Result<()> {
    const NAME: &str = SoftmaxBackward::NAME;
    let views = [a.y, a.dy, a.dx.view.as_view()];
    let arguments = arguments!(SoftmaxBackwardArguments {
        y: In = In::of(&a.y),
        dy: In = In::of(&a.dy),
        dx: Out = Out::into(&a.dx),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        log: i32 = i32::from(a.log),
        whole: i32 = whole(views.iter().map(View::address), &[a.columns]),
    });
    let grid = rows_grid(NAME, a.rows, a.columns)?;
    // SAFETY: laid out as in reduce.cu. `check` saw that all three hold rows x columns elements and dx overlaps neither
    // other. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(SOFTMAX_BACKWARD.of(views.iter().map(View::dtype)), grid, arguments) }
}

/// Queue a norm: its parts, one for each block, [`NORM_RUNS`] of the ranges in a launch; then their total.
pub(super) fn grad_norm(launch: &Launch<'_>, a: GradNorm<'_>) -> Result<()> {
    const NAME: &str = GradNorm::NAME;
    let (name, at_once, words) = match a.order {
        NormOrder::Two => (SQUARES_PARTS, NORM_CHUNK * CHUNKS_AT_ONCE, WORDS),
        NormOrder::Infinity => (LARGEST_PARTS, PACK * NORM_THREADS, 1),
    };
    // The total does not depend on how many parts there are.
    let share = |xs: &[View<'_>]| {
        let items: Vec<usize> = xs.iter().map(|x| x.len().div_ceil(at_once)).collect();
        RunBlocks::share(&items, launch.blocks(usize::MAX))
    };
    let shares: Vec<Vec<RunBlocks>> = a.xs.chunks(NORM_RUNS).map(share).collect();
    let blocks: u32 = shares.iter().map(|shares| blocks_of(shares)).sum();
    let scratch = launch.scratch.take(blocks as usize * words * size_of::<i64>())?;
    let mut parts = scratch.address();
    for (xs, shares) in a.xs.chunks(NORM_RUNS).zip(&shares) {
        let mut runs = [NormRun { x: 0, count: 0, first_block: 0, blocks: 0 }; NORM_RUNS];
        for ((run, x), share) in runs.iter_mut().zip(xs).zip(shares) {
            let count = long(NAME, "elements", x.len())?;
            *run = NormRun { x: x.address(), count, first_block: share.first, blocks: share.count };
        }
        let arguments = arguments!(NormPartsArguments {
            parts: u64 = parts,
            type_of: i32 = tag(xs[0].dtype()),
            count: i32 = xs.len() as i32,
            runs: [NormRun; NORM_RUNS] = runs,
        });
        let grid = Grid::line(blocks_of(shares), NORM_THREADS as u32);
        // SAFETY: laid out as in reduce.cu. Each x holds `count` elements, scratch the integers of each block. The
        // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
        unsafe { launch.run(name.of([xs[0].dtype()]), grid, arguments) }?;
        parts += u64::from(blocks_of(shares)) * words as u64 * 8;
    }
    let arguments = arguments!(NormTotalArguments {
        parts: u64 = scratch.address(),
        out: u64 = a.out.view.address(),
        count: i64 = i64::from(blocks),
        largest: i32 = i32::from(a.order == NormOrder::Infinity),
        add: i32 = i32::from(a.out.add),
    });
    // SAFETY: as above; `check` saw that `out` holds the integers of a sum.
    unsafe { launch.run(NORM_TOTAL, Grid::line(1, (WORDS * WARP) as u32), arguments) }
}

pub(super) fn non_finite(launch: &Launch<'_>, a: NonFinite<'_>) -> Result<()> {
    let arguments = arguments!(NonFiniteArguments {
        x: In = In::of(&a.x),
        flag: u64 = a.flag.address(),
        count: i64 = long(NonFinite::NAME, "elements", a.x.len())?,
        whole: i32 = whole([a.x.address()], &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(a.x.len().div_ceil(PACK * NORM_THREADS)), NORM_THREADS as u32);
    // SAFETY: laid out as in reduce.cu. x holds `count` elements and `check` saw that the flag is one i32 apart from
    // it. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(NON_FINITE.of([a.x.dtype()]), grid, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_covers_the_matrix_with_a_bounded_number_of_groups() {
        for rows in [0, 1, 7, 64, 700, 8192, 1 << 20, 1 << 33] {
            for columns in [0, 1, 2, 8, 9, 66, 256, 257, 768, 50_257, 1 << 22] {
                let cut = Cut::of(rows, columns);
                assert!(cut.width.is_power_of_two() && cut.width <= WARP, "{cut:?}");
                assert!(cut.tiles * cut.width * PACK >= columns && cut.groups * cut.at_once >= rows, "{cut:?}");
                assert!(cut.groups <= 1024, "{rows}x{columns}: {cut:?}");
            }
        }
    }
}

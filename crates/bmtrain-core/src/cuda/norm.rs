//! Layer norm and RMS norm and their gradients: the launches of `norm.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Mask, Out, PACK, Typed, arguments, block_each, long, threads_for, typed, whole};
use super::rows::zero;
use super::scratch::Taken;
use crate::error::Result;
use crate::kernel::{Arguments as _, NormBackward, NormForward};
use crate::view::{View, ViewMut};

/// `kNormThreads`.
const THREADS: usize = 1024;

/// Fewest rows whose share of the gradients of weight and bias is summed by one block.
const GROUP_ROWS: usize = 4;
/// Most such groups: some blocks for each multiprocessor of a large device, and partial sums that stay a small part of
/// what is read. `kNormCluster` times `kNormClusters`.
const GROUPS: usize = 512;

/// Threads of a block whose rows are so short that it takes several at a time.
const SHORT_THREADS: usize = 256;

const FORWARD: Typed = typed!("norm", "norm_forward");
const BACKWARD: Typed = typed!("norm", "norm_backward");

pub(super) fn forward(launch: &Launch<'_>, a: NormForward<'_>) -> Result<()> {
    const NAME: &str = NormForward::NAME;
    let large = [Some(a.x), a.residual, a.sum.as_ref().map(ViewMut::as_view), Some(a.y.as_view())];
    let small = [Some(a.weight), a.bias];
    let addresses = large.iter().chain(&small).flatten().map(|view| view.address());
    let arguments = arguments!(NormForwardArguments {
        x: In = In::of(&a.x),
        residual: In = In::maybe(a.residual.as_ref()),
        sum: Out = a.sum.as_ref().map_or(Out::NONE, Out::of),
        weight: In = In::of(&a.weight),
        bias: In = In::maybe(a.bias.as_ref()),
        y: Out = Out::of(&a.y),
        mean: u64 = a.mean.as_ref().map_or(0, ViewMut::address),
        rstd: u64 = a.rstd.address(),
        dropout: Mask = Mask::of(a.dropout.as_ref(), a.columns),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        epsilon: f32 = a.epsilon,
        offset: f32 = a.weight_offset,
        whole: i32 = whole(addresses, &[a.columns]),
        unused: i32 = 0,
    });
    let threads = threads_for(a.columns.div_ceil(PACK), THREADS);
    let grid = Grid::line(block_each(NAME, "rows", a.rows)?, threads);
    let name = FORWARD.of(large.iter().flatten().map(|view| view.dtype()));
    // SAFETY: laid out as in norm.cu. `check` saw that x, residual, sum and y hold rows x columns elements, weight and
    // bias `columns`, mean and rstd `rows`; that there is a sum exactly with dropout or residual, and that nothing
    // written overlaps anything. The memory stays valid until the lane has run the kernel, because the pool gives it
    // out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

/// The block of the backward pass: threads of a row, and rows at a time, which divide the rows of a group as evenly as
/// they can.
fn backward_block(columns: usize, at_once: usize) -> [u32; 3] {
    let threads = threads_for(columns.div_ceil(PACK), THREADS);
    let most = (SHORT_THREADS / threads as usize).max(1);
    let rows = at_once.div_ceil(at_once.div_ceil(most));
    [threads, rows as u32, 1]
}

/// Queue the backward pass: the rows in groups, and the sums over the groups by the blocks that come last.
pub(super) fn backward(launch: &Launch<'_>, a: NormBackward<'_>) -> Result<()> {
    const NAME: &str = NormBackward::NAME;
    let at_once = GROUP_ROWS.max(a.rows.div_ceil(GROUPS));
    let groups = a.rows.div_ceil(at_once);
    if groups == 0 {
        // No block comes last, or at all.
        let sums = [&a.dweight, &a.dbias].into_iter().flatten();
        return sums.filter(|dest| !dest.add).try_for_each(|dest| zero(launch, &dest.view));
    }
    let stride = 2 * a.columns;
    let wanted = a.dweight.is_some() || a.dbias.is_some();
    let partial_bytes = groups * stride * size_of::<f32>();
    let scratch = wanted.then(|| launch.scratch.take(partial_bytes)).transpose()?;
    let partials = scratch.as_ref().map_or(0, Taken::address);
    let (dropout, branch) = a.branch.as_ref().map(|(dropout, dest)| (dropout, dest)).unzip();
    let written = [a.dx.as_ref(), branch].map(|dest| dest.map(|dest| dest.view.as_view()));
    let large = || [Some(a.x), Some(a.dy)].into_iter().chain(written).flatten();
    let arguments = arguments!(NormBackwardArguments {
        x: In = In::of(&a.x),
        weight: In = In::of(&a.weight),
        dy: In = In::of(&a.dy),
        dx: Out = Out::maybe(a.dx.as_ref()),
        branch: Out = Out::maybe(branch),
        mean: u64 = a.mean.as_ref().map_or(0, View::address),
        rstd: u64 = a.rstd.address(),
        partials: u64 = partials,
        arrived: u64 = launch.counters,
        dweight: Out = Out::maybe(a.dweight.as_ref()),
        dbias: Out = Out::maybe(a.dbias.as_ref()),
        dropout: Mask = Mask::of(dropout, a.columns),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        at_once: i64 = long(NAME, "rows", at_once)?,
        offset: f32 = a.weight_offset,
        whole: i32 = whole(large().chain([a.weight]).map(|view| view.address()), &[a.columns]),
    });
    let threads = backward_block(a.columns, at_once);
    // A row's sums for weight and bias, which are added up over the rows at a time.
    let shared = if wanted && threads[1] > 1 { threads[0] * threads[1] * 2 * 4 * PACK as u32 } else { 0 };
    let grid = Grid { blocks: [block_each(NAME, "rows", groups)?, 1, 1], threads, shared };
    let name = BACKWARD.of(large().map(|view| view.dtype()));
    // SAFETY: laid out as in norm.cu. `check` saw that x, dy, dx and branch hold rows x columns elements, weight
    // `columns`, dweight and dbias too, mean and rstd `rows`, and that nothing written overlaps anything; scratch holds
    // two rows of sums for each block, and the lane's counters one for each cluster of groups and one more. The memory
    // stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_short_rows_have_several() {
        let of = |columns, at_once| {
            let [threads, rows, _] = backward_block(columns, at_once);
            assert!(threads as usize * PACK >= columns.min(THREADS * PACK), "{columns} columns: {threads} threads");
            assert!(rows as usize <= at_once && threads * rows <= 1024, "{columns} columns: {threads} x {rows}");
            (threads, rows)
        };
        assert_eq!([of(768, 16), of(768, 4), of(64, 4), of(256, 33)], [(96, 2), (96, 2), (32, 4), (32, 7)]);
        assert_eq!(
            [of(1024, 10), of(4096, 16), of(8192, 16), of(20_000, 4)],
            [(128, 2), (512, 1), (1024, 1), (1024, 1)]
        );
        assert_eq!(of(0, 4), (32, 4));
    }
}

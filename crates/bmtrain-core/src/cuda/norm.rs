//! Layer norm and RMS norm and their gradients: the launches of `norm.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Mask, Out, PACK, Typed, block_each, long, threads_for, typed, whole};
use super::reduce::{Partials, sum_partials};
use super::scratch::Taken;
use crate::buffer::{View, ViewMut};
use crate::error::Result;
use crate::kernel::{Arguments as _, NormBackward, NormForward};

/// `kNormThreads`.
const THREADS: usize = 1024;

/// Fewest rows whose share of the gradients of weight and bias is summed by one block.
const GROUP_ROWS: usize = 4;
/// Most such groups: some blocks for each multiprocessor of a large device, and partial sums that stay a small part of what
/// is read.
const GROUPS: usize = 512;

const FORWARD: Typed = typed!("norm", "norm_forward");
const BACKWARD: Typed = typed!("norm", "norm_backward");

/// `NormForwardArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ForwardArguments {
    x: In,
    residual: In,
    sum: Out,
    weight: In,
    bias: In,
    y: Out,
    mean: u64,
    rstd: u64,
    dropout: Mask,
    rows: i64,
    columns: i64,
    epsilon: f32,
    whole: i32,
}

/// Queue the forward pass.
pub(super) fn forward(launch: &Launch<'_>, a: NormForward<'_>) -> Result<()> {
    const NAME: &str = NormForward::NAME;
    let large = [Some(a.x), a.residual, a.sum.as_ref().map(ViewMut::as_view), Some(a.y.as_view())];
    let small = [Some(a.weight), a.bias];
    let addresses = large.iter().chain(&small).flatten().map(|view| view.address());
    let arguments = ForwardArguments {
        x: In::of(&a.x),
        residual: In::maybe(a.residual.as_ref()),
        sum: a.sum.as_ref().map_or(Out::NONE, Out::of),
        weight: In::of(&a.weight),
        bias: In::maybe(a.bias.as_ref()),
        y: Out::of(&a.y),
        mean: a.mean.as_ref().map_or(0, ViewMut::address),
        rstd: a.rstd.address(),
        dropout: Mask::of(a.dropout.as_ref(), a.columns),
        rows: long(NAME, "rows", a.rows)?,
        columns: long(NAME, "columns", a.columns)?,
        epsilon: a.epsilon,
        whole: whole(addresses, &[a.columns]),
    };
    let threads = threads_for(a.columns.div_ceil(PACK), THREADS);
    let grid = Grid::line(block_each(NAME, "rows", a.rows)?, threads);
    let name = FORWARD.of(large.iter().flatten().map(|view| view.dtype()));
    // SAFETY: laid out as in norm.cu. `check` saw that x, residual, sum and y hold rows x columns elements, weight and bias
    // `columns`, mean and rstd `rows`; that there is a sum exactly with dropout or residual, and that nothing written overlaps
    // anything. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

/// `NormBackwardArguments`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct BackwardArguments {
    x: In,
    weight: In,
    dy: In,
    dx: Out,
    branch: Out,
    mean: u64,
    rstd: u64,
    partials: u64,
    dropout: Mask,
    rows: i64,
    columns: i64,
    at_once: i64,
    whole: i32,
    unused: i32,
}

/// Queue the backward pass: the rows in groups, then the sums over the groups.
pub(super) fn backward(launch: &Launch<'_>, a: NormBackward<'_>) -> Result<()> {
    const NAME: &str = NormBackward::NAME;
    let at_once = GROUP_ROWS.max(a.rows.div_ceil(GROUPS));
    let groups = a.rows.div_ceil(at_once);
    let stride = 2 * a.columns;
    let wanted = a.dweight.is_some() || a.dbias.is_some();
    let partial_bytes = groups * stride * size_of::<f32>();
    let scratch = wanted.then(|| launch.scratch.take(launch.stream, partial_bytes)).transpose()?;
    let partials = scratch.as_ref().map_or(0, Taken::address);
    let (dropout, branch) = a.branch.as_ref().map(|(dropout, dest)| (dropout, dest)).unzip();
    let written = [a.dx.as_ref(), branch].map(|dest| dest.map(|dest| dest.view.as_view()));
    let large = || [Some(a.x), Some(a.dy)].into_iter().chain(written).flatten();
    let arguments = BackwardArguments {
        x: In::of(&a.x),
        weight: In::of(&a.weight),
        dy: In::of(&a.dy),
        dx: Out::maybe(a.dx.as_ref()),
        branch: Out::maybe(branch),
        mean: a.mean.as_ref().map_or(0, View::address),
        rstd: a.rstd.address(),
        partials,
        dropout: Mask::of(dropout, a.columns),
        rows: long(NAME, "rows", a.rows)?,
        columns: long(NAME, "columns", a.columns)?,
        at_once: long(NAME, "rows", at_once)?,
        whole: whole(large().chain([a.weight]).map(|view| view.address()), &[a.columns]),
        unused: 0,
    };
    let threads = threads_for(a.columns.div_ceil(PACK), THREADS);
    let grid = Grid::line(block_each(NAME, "rows", groups)?, threads);
    let name = BACKWARD.of(large().map(|view| view.dtype()));
    // SAFETY: laid out as in norm.cu. `check` saw that x, dy, dx and branch hold rows x columns elements, weight `columns`,
    // mean and rstd `rows`, and that nothing written overlaps anything; scratch holds two rows of sums for each block. The
    // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }?;
    if !wanted {
        return Ok(());
    }
    let (first, second) = (Out::maybe(a.dweight.as_ref()), Out::maybe(a.dbias.as_ref()));
    let sums = Partials { address: partials, groups, columns: a.columns, stride, first, second };
    // SAFETY: just written there: `groups` rows of `stride`. `check` saw that both destinations hold `columns`.
    unsafe { sum_partials(launch, NAME, sums) }
}

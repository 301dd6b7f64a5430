//! Layer norm and RMS norm: the launches of `norm.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Mask, Out, PACK, Typed, block_each, long, threads_for, typed, whole};
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Arguments as _, NormForward};

/// `kNormThreads`.
const THREADS: usize = 512;

const FORWARD: Typed = typed!("norm", "norm_forward");

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

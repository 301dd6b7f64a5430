//! Dropout and initial values: the launches of `random.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Mask, Out, PACK, Typed, arguments, long, typed, whole};
use super::modules::Name;
use crate::error::Result;
use crate::kernel::{Arguments as _, Distribution, DropoutApply, FillRandom};
use crate::philox::round_keys;

/// `kRandomThreads`.
const THREADS: usize = 256;

const DROPOUT: Typed = typed!("random", "dropout");
const FILL_RANDOM: Name = Name { unit: "random", kernel: c"fill_random" };

pub(super) fn dropout(launch: &Launch<'_>, a: DropoutApply<'_>) -> Result<()> {
    const NAME: &str = DropoutApply::NAME;
    // Without gaps between rows the whole tensor is one row.
    let gapless = a.dropout.row_stride == 0 || a.dropout.row_stride == a.columns as u64;
    let (rows, columns) = if gapless { (1, a.rows * a.columns) } else { (a.rows, a.columns) };
    let packs = columns.div_ceil(PACK);
    let y = a.y.view.as_view();
    let addresses = [a.x, Some(y)].into_iter().flatten().map(|view| view.address());
    let arguments = arguments!(DropoutArguments {
        x: In = In::maybe(a.x.as_ref()),
        y: Out = Out::into(&a.y),
        dropout: Mask = Mask::of(Some(&a.dropout), columns),
        rows: i64 = long(NAME, "rows", rows)?,
        columns: i64 = long(NAME, "columns", columns)?,
        packs: i64 = long(NAME, "columns", packs)?,
        whole: i32 = whole(addresses, if rows == 1 { &[] } else { std::slice::from_ref(&a.columns) }),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks((rows * packs).div_ceil(THREADS)), THREADS as u32);
    let name = DROPOUT.of([a.x, Some(y)].into_iter().flatten().map(|view| view.dtype()));
    // SAFETY: laid out as in random.cu. `check` saw that x and y hold rows x columns elements and do not overlap. The
    // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

pub(super) fn fill_random(launch: &Launch<'_>, a: FillRandom<'_>) -> Result<()> {
    // `kNormal`, `kUniform` and `kTruncated`.
    let (distribution, first, second) = match a.distribution {
        Distribution::Normal(mean, deviation) => (0, mean, deviation),
        Distribution::Uniform(low, high) => (1, low, high),
        Distribution::TruncatedNormal(mean, deviation) => (2, mean, deviation),
    };
    let count = a.out.len();
    let arguments = arguments!(FillRandomArguments {
        out: Out = Out::of(&a.out),
        keys: [[u32; 2]; 10] = round_keys(a.key),
        offset: u64 = a.offset,
        count: i64 = long(FillRandom::NAME, "elements", count)?,
        first: f32 = first,
        second: f32 = second,
        distribution: i32 = distribution,
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(count.div_ceil(THREADS)), THREADS as u32);
    // SAFETY: laid out as in random.cu; `out` holds `count` elements. The memory stays valid until the lane has run the
    // kernel, because the pool gives it out in lane order.
    unsafe { launch.run(FILL_RANDOM, grid, arguments) }
}

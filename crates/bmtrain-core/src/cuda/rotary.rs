//! Rotary positions: the launch of `rotary.cu`.
#![allow(unsafe_code)]

use super::launch::{In, Launch, Out, PACK, Typed, arguments, long, typed, whole};
use super::rows::grid;
use crate::error::Result;
use crate::kernel::{Arguments as _, RotaryApply, RotaryLayout};

const ROTARY: Typed = typed!("rotary", "rotary");

/// Queue [`RotaryApply`]. A row whose position is outside of the table is not turned and is reported.
pub(super) fn rotary(launch: &Launch<'_>, a: RotaryApply<'_>) -> Result<()> {
    const NAME: &str = RotaryApply::NAME;
    let RotaryApply { rows, columns, heads, head_size, dims, .. } = a;
    let (half, y) = (dims / 2, a.y.view.as_view());
    let x = a.x.unwrap_or(y);
    // In place there is nothing to copy.
    let (rest, tail) = if a.x.is_some() { (head_size - dims, columns - heads * head_size) } else { (0, 0) };
    let (turned_units, rest_units) = (half.div_ceil(PACK), rest.div_ceil(PACK));
    let units = heads * (turned_units + rest_units) + tail.div_ceil(PACK);
    if units == 0 {
        return Ok(());
    }
    let arguments = arguments!(RotaryArguments {
        x: In = In::of(&x),
        y: Out = Out::into(&a.y),
        table: u64 = a.table.address(),
        positions: u64 = a.positions.as_ref().map_or(0, |positions| positions.address()),
        fault: u64 = launch.fault,
        rows: i64 = long(NAME, "rows", rows)?,
        length: i64 = long(NAME, "rows of a sequence", a.length)?,
        columns: i64 = long(NAME, "columns", columns)?,
        heads: i64 = long(NAME, "heads", heads)?,
        head_size: i64 = long(NAME, "head size", head_size)?,
        half: i64 = long(NAME, "turned elements", half)?,
        entries: i64 = long(NAME, "entries", a.entries)?,
        turned_units: i64 = long(NAME, "turned elements", turned_units)?,
        rest_units: i64 = long(NAME, "head size", rest_units)?,
        units: i64 = long(NAME, "columns", units)?,
        sign: f32 = if a.inverse { -1.0 } else { 1.0 },
        pairs: i32 = i32::from(a.layout == RotaryLayout::Pairs),
        whole: i32 = whole([x.address(), y.address(), a.table.address()], &[columns, head_size, half]),
        unused: i32 = 0,
    });
    let name = ROTARY.of([x.dtype(), y.dtype()]);
    // SAFETY: laid out as in rotary.cu. `check` saw that x and y hold rows x columns elements that the heads fit in,
    // that the table holds entries x dims and positions one number for each row, and that nothing overlaps; positions
    // are compared with `entries` before they are used. The memory stays valid until the lane has run the kernel,
    // because the pool gives it out in lane order; the record of faults lives as long as the backend.
    unsafe { launch.run(name, grid(launch, rows, units, 2), arguments) }
}

//! Copies of rows, permutations: the launches of `rows.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, arguments, long, typed, whole};
use super::modules::Name;
use crate::error::Result;
use crate::kernel::{Arguments as _, Dest, Permute, RowCopy};
use crate::shape::MAX_RANK;
use crate::view::{View, ViewMut};

/// `kRowsThreads`.
pub(super) const THREADS: usize = 256;
/// `kMostAxes`.
const MAX_AXES: usize = 5;

const COPY_ROWS: Name = Name { unit: "rows", kernel: c"copy_rows" };
const ADD_ROWS: Typed = typed!("rows", "add_rows");

/// The grid of `each_unit` of units.cuh: threads along a row for `units` of it, two or more to a thread, the others on
/// further rows.
pub(super) fn grid(launch: &Launch<'_>, rows: usize, units: usize, together: usize) -> Grid {
    let along = units.div_ceil(2).next_power_of_two().clamp(1, THREADS);
    let groups = rows.div_ceil(THREADS / along);
    let pieces = units.div_ceil(along * together);
    let blocks = launch.blocks(groups.saturating_mul(pieces));
    Grid { blocks: [blocks, 1, 1], threads: [along as u32, (THREADS / along) as u32, 1], shared: 0 }
}

/// `Axes`: lengths, and distances in input and output, outermost first.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct Axes {
    length: [i64; MAX_AXES],
    from: [i64; MAX_AXES],
    to: [i64; MAX_AXES],
    count: i32,
    unused: i32,
}

/// An axis: its length, and elements from one index to the next in input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    length: usize,
    from: usize,
    to: usize,
}

impl Axes {
    /// At most [`MAX_AXES`]; distances in units of `elements`.
    fn new(op: &'static str, axes: impl IntoIterator<Item = Axis>, elements: usize) -> Result<Self> {
        let mut result = Axes { length: [1; MAX_AXES], from: [0; MAX_AXES], to: [0; MAX_AXES], count: 0, unused: 0 };
        let slots = result.length.iter_mut().zip(&mut result.from).zip(&mut result.to);
        for (axis, ((length, from), to)) in axes.into_iter().zip(slots) {
            *length = long(op, "axis", axis.length)?;
            *from = long(op, "distance", axis.from / elements)?;
            *to = long(op, "distance", axis.to / elements)?;
            result.count += 1;
        }
        Ok(result)
    }
}

/// Rows at distance `from` in the source and `to` in the destination, along axes.
#[derive(Debug)]
struct Runs {
    /// Axes of all rows, outermost first; at least one.
    axes: Vec<Axis>,
    columns: usize,
}

impl Runs {
    fn rows(&self) -> usize {
        self.axes.iter().map(|axis| axis.length).product()
    }

    /// The distances that matter: only of axes with a second index.
    fn distances(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().filter(|axis| axis.length > 1).flat_map(|axis| [axis.from, axis.to])
    }

    /// Elements of the largest unit of 16 bytes or less that divides rows, distances and addresses.
    fn unit(&self, size: usize, addresses: [u64; 2]) -> usize {
        let divides = |elements: usize| {
            let bytes = (elements * size) as u64;
            addresses.iter().all(|address| address.is_multiple_of(bytes))
                && self.columns.is_multiple_of(elements)
                && self.distances().all(|distance| distance.is_multiple_of(elements))
        };
        [16, 8, 4, 2]
            .into_iter()
            .map(|bytes| bytes / size)
            .find(|elements| *elements > 0 && divides(*elements))
            .unwrap_or(1)
    }

    /// Queue the copy or the sum.
    ///
    /// # Safety
    /// The views are checked against their buffers and for this lane; rows and distances stay within them.
    unsafe fn launch(&self, op: &'static str, launch: &Launch<'_>, x: &View<'_>, out: &Dest<'_>) -> Result<()> {
        let rows = self.rows();
        if rows == 0 || self.columns == 0 {
            return Ok(());
        }
        if out.add {
            let strides: Vec<usize> = self.distances().chain([self.columns]).collect();
            let arguments = arguments!(AddRowsArguments {
                x: In = In::of(x),
                out: Out = Out::into(out),
                rows: i64 = long(op, "rows", rows)?,
                columns: i64 = long(op, "columns", self.columns)?,
                axes: Axes = Axes::new(op, self.axes.iter().copied(), 1)?,
                whole: i32 = whole([x.address(), out.view.address()], &strides),
                unused: i32 = 0,
            });
            let grid = grid(launch, rows, self.columns.div_ceil(PACK), 2);
            // SAFETY: laid out as in rows.cu; the rest is promised by the caller.
            return unsafe { launch.run(ADD_ROWS.of([x.dtype()]), grid, arguments) };
        }
        let size = x.dtype().size();
        let unit = self.unit(size, [x.address(), out.view.address()]);
        let units = self.columns / unit;
        let arguments = arguments!(CopyRowsArguments {
            x: u64 = x.address(),
            out: u64 = out.view.address(),
            rows: i64 = long(op, "rows", rows)?,
            units: i64 = long(op, "columns", units)?,
            axes: Axes = Axes::new(op, self.axes.iter().copied(), unit)?,
            unit_bytes: i32 = (unit * size) as i32,
            unused: i32 = 0,
        });
        // SAFETY: as above; every address and distance is a multiple of the unit.
        unsafe { launch.run(COPY_ROWS, grid(launch, rows, units, 4), arguments) }
    }
}

pub(super) fn row_copy(launch: &Launch<'_>, a: RowCopy<'_>) -> Result<()> {
    let (length, from, to) = (a.rows, a.x_ld, a.out_ld);
    // Without gaps all rows are one.
    let runs = if from == a.columns && to == a.columns {
        Runs { axes: vec![Axis { length: 1, from: 0, to: 0 }], columns: a.rows * a.columns }
    } else {
        Runs { axes: vec![Axis { length, from, to }], columns: a.columns }
    };
    // SAFETY: `check` saw that x and out reach from the first to the last of the rows at their distances and do not
    // overlap. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { runs.launch(RowCopy::NAME, launch, &a.x, &a.out) }
}

/// The axes of a permutation's result, outermost first, without axes of length 1, neighbours joined where they are
/// neighbours in the input as well. The last has distance 1 in the output.
fn merged(dims: &[usize], order: &[usize]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::with_capacity(MAX_RANK);
    for &axis in order.iter().filter(|axis| dims[**axis] != 1) {
        let (length, from) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
        match axes.last_mut() {
            Some(last) if last.from == length * from => *last = Axis { length: last.length * length, from, to: 0 },
            _ => axes.push(Axis { length, from, to: 0 }),
        }
    }
    let mut to = 1;
    for axis in axes.iter_mut().rev() {
        axis.to = to;
        to *= axis.length;
    }
    axes
}

/// The kernel for elements of a size, and the side of its tiles.
fn transpose_kernel(size: usize) -> (Name, usize) {
    let (kernel, side) = match size {
        1 => (c"transpose_8", 64),
        2 => (c"transpose_16", 64),
        4 => (c"transpose_32", 32),
        _ => (c"transpose_64", 32),
    };
    (Name { unit: "rows", kernel }, side)
}

pub(super) fn permute(launch: &Launch<'_>, a: Permute<'_>) -> Result<()> {
    const NAME: &str = Permute::NAME;
    if a.x.is_empty() {
        return Ok(());
    }
    let mut axes = merged(&a.dims[..a.rank], &a.axes[..a.rank]);
    let last = axes.pop().unwrap_or(Axis { length: 1, from: 1, to: 1 });
    if last.from == 1 {
        if axes.is_empty() {
            axes.push(Axis { length: 1, from: 0, to: 0 });
        }
        let runs = Runs { axes, columns: last.length };
        // SAFETY: `check` saw that x and out hold the product of the dimensions and do not overlap, and that the axes
        // are each there once. The memory stays valid until the lane has run the kernel, because the pool gives it out
        // in lane order.
        return unsafe { runs.launch(NAME, launch, &a.x, &a.out) };
    }
    // The input's own last axis has distance 1 there, and all dimensions of it are not of length 1.
    let place = axes.iter().position(|axis| axis.from == 1);
    let moved = place.map_or(Axis { length: 1, from: 1, to: 1 }, |place| axes.remove(place));
    if axes.is_empty() {
        axes.push(Axis { length: 1, from: 0, to: 0 });
    }
    let batches: usize = axes.iter().map(|axis| axis.length).product();
    let (name, side) = transpose_kernel(a.x.dtype().size());
    let tiles = moved.length.div_ceil(side) * last.length.div_ceil(side);
    let arguments = arguments!(TransposeArguments {
        x: u64 = a.x.address(),
        out: Out = Out::into(&a.out),
        batches: i64 = long(NAME, "batches", batches)?,
        axes: Axes = Axes::new(NAME, axes, 1)?,
        moved: i64 = long(NAME, "axis", moved.length)?,
        moved_to: i64 = long(NAME, "distance", moved.to)?,
        last: i64 = long(NAME, "axis", last.length)?,
        last_from: i64 = long(NAME, "distance", last.from)?,
    });
    let blocks = launch.blocks(batches.saturating_mul(tiles));
    let grid = Grid { blocks: [blocks, 1, 1], threads: [32, (THREADS / 32) as u32, 1], shared: 0 };
    // SAFETY: laid out as in rows.cu; as above.
    unsafe { launch.run(name, grid, arguments) }
}

/// Zeros everywhere, in any floating-point type.
pub(super) fn zero(launch: &Launch<'_>, out: &ViewMut<'_>) -> Result<()> {
    use super::driver::Pattern;
    let (address, bytes) = (out.address(), out.bytes());
    if bytes == 0 {
        return Ok(());
    }
    let words = address.is_multiple_of(4) && bytes.is_multiple_of(4);
    let (pattern, count) = if words { (Pattern::Word(0), bytes / 4) } else { (Pattern::Byte(0), bytes) };
    // SAFETY: the view was checked against its buffer and is this device's; its memory stays valid until the lane has
    // run the fill, because the pool gives it out in lane order.
    unsafe { launch.stream.fill(address, pattern, count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(length: usize, from: usize, to: usize) -> Axis {
        Axis { length, from, to }
    }

    #[test]
    fn axes_that_stay_together_are_one() {
        assert_eq!(merged(&[2, 3, 4, 5], &[0, 1, 2, 3]), [axis(120, 1, 1)]);
        // Heads before positions.
        let heads = merged(&[2, 7, 4, 8], &[0, 2, 1, 3]);
        assert_eq!(heads, [axis(2, 224, 224), axis(4, 8, 56), axis(7, 32, 8), axis(8, 1, 1)]);
        assert_eq!(merged(&[3, 1, 7, 9], &[0, 1, 3, 2]), [axis(3, 63, 63), axis(9, 1, 7), axis(7, 9, 1)]);
        assert_eq!(merged(&[1, 1], &[1, 0]), []);
    }

    #[test]
    fn units_divide_rows_distances_and_addresses() {
        let runs = |columns, distance| Runs { axes: vec![axis(3, distance, columns)], columns };
        assert_eq!(runs(64, 128).unit(2, [512, 512]), 8);
        assert_eq!(runs(64, 130).unit(2, [512, 512]), 2);
        assert_eq!(runs(64, 128).unit(2, [512, 516]), 2);
        assert_eq!(runs(5, 5).unit(1, [512, 512]), 1);
        assert_eq!(runs(6, 6).unit(8, [512, 512]), 2);
        // The distance of a single row does not matter.
        assert_eq!(Runs { axes: vec![axis(1, 3, 3)], columns: 16 }.unit(4, [512, 512]), 4);
    }
}

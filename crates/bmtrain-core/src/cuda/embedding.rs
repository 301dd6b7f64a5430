//! Rows of an embedding table, and its gradient: rows sorted by their ids, then sums over runs of equal ids, as
//! `embedding.cu` explains.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, arguments, long, threads_for, typed, whole};
use super::modules::Name;
use super::rows::{grid, zero};
use crate::error::{Error, Result};
use crate::kernel::{Arguments as _, EmbeddingBackward, EmbeddingForward};

const NAME: &str = EmbeddingBackward::NAME;

/// `kDigits`: values of a digit, and threads of a block that sorts.
const DIGITS: usize = 256;
/// `kSumThreads`.
const THREADS: usize = 256;
/// Most rows that one block sorts in one launch, a pass over which takes about as long as two launches, and
/// `kSortThreads`, its threads.
const SORTED_BY_ONE: usize = 8192;
const SORT_THREADS: u32 = 1024;
/// Blocks of a sort. Each reads the counts of all.
const MAX_BLOCKS: usize = 128;
/// Least rows of a block that sorts, and of a piece that is summed up.
const SORTED_AT_ONCE: usize = 2048;
const LEAST_PIECE: usize = 32;

const FORWARD: Typed = typed!("embedding", "embedding_forward");
const COUNT: Name = Name { unit: "embedding", kernel: c"embedding_count" };
const PLACE: Name = Name { unit: "embedding", kernel: c"embedding_place" };
const SORT: Name = Name { unit: "embedding", kernel: c"embedding_sort" };
const SUM: Typed = typed!("embedding", "embedding_sum");
const JOIN: Typed = typed!("embedding", "embedding_join");

/// Queue [`EmbeddingForward`]. A row whose id is outside the table counts as zeros and is reported.
pub(super) fn forward(launch: &Launch<'_>, a: EmbeddingForward<'_>) -> Result<()> {
    const NAME: &str = EmbeddingForward::NAME;
    let (rows, out) = (a.ids.len(), a.out.view.as_view());
    let arguments = arguments!(EmbeddingForwardArguments {
        table: In = In::of(&a.table),
        out: Out = Out::into(&a.out),
        ids: u64 = a.ids.address(),
        fault: u64 = launch.fault,
        rows: i64 = long(NAME, "rows", rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        entries: i64 = long(NAME, "entries", a.entries)?,
        whole: i32 = whole([a.table.address(), out.address()], &[a.columns]),
        unused: i32 = 0,
    });
    let name = FORWARD.of([a.table.dtype(), out.dtype()]);
    // SAFETY: laid out as in embedding.cu. `check` saw that the table holds entries x columns elements, out rows x
    // columns, and that nothing overlaps; ids are compared with `entries` before they are used. The memory stays valid
    // until the lane has run the kernel, because the pool gives it out in lane order; the record of faults lives as
    // long as the backend.
    unsafe { launch.run(name, grid(launch, rows, a.columns.div_ceil(PACK), 2), arguments) }
}

/// Division of the work: by the sizes alone, so that every device adds in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    /// Passes of the sort: digits of the largest key, which is the number of entries.
    passes: u32,
    /// Positions of a block that sorts.
    range: usize,
    blocks: usize,
    piece: usize,
    pieces: usize,
}

impl Division {
    fn new(rows: usize, entries: usize, columns: usize) -> Self {
        let passes = (u64::BITS - (entries as u64).leading_zeros()).div_ceil(8).max(1);
        let range = rows.div_ceil(MAX_BLOCKS).max(SORTED_AT_ONCE).next_multiple_of(DIGITS);
        // Fewer pieces of wide tables, whose columns are divided too: their partial sums should not outgrow the cache.
        let most = ((1 << 20) / columns.max(1)).clamp(128, 1024);
        let piece = rows.div_ceil(most).max(LEAST_PIECE);
        Division { passes, range, blocks: rows.div_ceil(range), piece, pieces: rows.div_ceil(piece) }
    }
}

/// Queue [`EmbeddingBackward`]. A row whose id is outside the table gives no gradient and is reported.
pub(super) fn backward(launch: &Launch<'_>, a: EmbeddingBackward<'_>) -> Result<()> {
    let rows = a.ids.len();
    if u32::try_from(rows).is_err() {
        return Err(Error::shape(NAME, "ids", "fewer than 2^32", rows));
    }
    if !a.dtable.add {
        zero(launch, &a.dtable.view)?;
    }
    if rows == 0 {
        return Ok(());
    }
    let division = Division::new(rows, a.entries, a.columns);
    // Two orders, counts, partial sums, each from a multiple of 16 bytes on.
    let order = (rows * size_of::<u32>()).next_multiple_of(16);
    let counts = division.blocks * DIGITS * size_of::<u32>();
    let partials = division.pieces * 2 * a.columns * size_of::<f32>();
    let scratch = launch.scratch.take(2 * order + counts + partials)?;
    let at = |bytes: usize| scratch.address() + bytes as u64;
    let sorted = sort(launch, &a, division, [at(0), at(order)], at(2 * order))?;
    if a.columns == 0 {
        return Ok(());
    }
    sum(launch, a, division, sorted, at(2 * order + counts))
}

/// Queue the sort; returns the address of the order.
fn sort(launch: &Launch<'_>, a: &EmbeddingBackward<'_>, by: Division, orders: [u64; 2], counts: u64) -> Result<u64> {
    let (rows, entries) = (long(NAME, "rows", a.ids.len())?, long(NAME, "entries", a.entries)?);
    let range = long(NAME, "rows", by.range)?;
    let pass = |from: u64, to: u64, counts: u64, fault: u64, shift: u32| {
        arguments!(EmbeddingSortArguments {
            ids: u64 = a.ids.address(),
            from: u64 = from,
            to: u64 = to,
            counts: u64 = counts,
            fault: u64 = fault,
            rows: i64 = rows,
            entries: i64 = entries,
            // A negative id selects no row, so a padding index of -1 changes nothing.
            padding: i64 = a.padding_index.unwrap_or(-1),
            range: i64 = range,
            shift: i32 = shift as i32,
            unused: i32 = 0,
        })
    };
    let [mut to, mut other] = orders;
    if a.ids.len() <= SORTED_BY_ONE {
        let all = pass(0, to, other, launch.fault, 8 * by.passes);
        // SAFETY: laid out as in embedding.cu. Each order holds a number for each row, in scratch memory that no other
        // launch of this lane uses before this one has run.
        unsafe { launch.run(SORT, Grid::line(1, SORT_THREADS), all) }?;
        return Ok(orders[(by.passes as usize - 1) % 2]);
    }
    let grid = Grid::line(by.blocks as u32, DIGITS as u32);
    let mut from = 0;
    for number in 0..by.passes {
        let arguments = pass(from, to, counts, if number == 0 { launch.fault } else { 0 }, 8 * number);
        // SAFETY: laid out as in embedding.cu. Each order holds a number for each row and the counts DIGITS for each
        // block, in scratch memory that no other launch of this lane uses before these have run; what is written was
        // not read by the same launch.
        unsafe {
            launch.run(COUNT, grid, arguments)?;
            launch.run(PLACE, grid, arguments)?;
        }
        from = to;
        std::mem::swap(&mut to, &mut other);
    }
    Ok(from)
}

fn sum(launch: &Launch<'_>, a: EmbeddingBackward<'_>, by: Division, order: u64, partials: u64) -> Result<()> {
    let (dy, table) = (a.dy, a.dtable.view.as_view());
    let arguments = arguments!(EmbeddingSumArguments {
        dy: In = In::of(&dy),
        table: Out = Out::into(&a.dtable),
        ids: u64 = a.ids.address(),
        order: u64 = order,
        partials: u64 = partials,
        rows: i64 = long(NAME, "rows", a.ids.len())?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        entries: i64 = long(NAME, "entries", a.entries)?,
        padding: i64 = a.padding_index.unwrap_or(-1),
        piece: i64 = long(NAME, "rows", by.piece)?,
        whole: i32 = whole([dy.address(), table.address(), partials], &[a.columns]),
        unused: i32 = 0,
    });
    let packs = a.columns.div_ceil(PACK);
    let threads = threads_for(packs, THREADS);
    let across = u32::try_from(packs.div_ceil(threads as usize)).unwrap_or(u32::MAX);
    let grid = Grid { blocks: [by.pieces as u32, across, 1], threads: [threads, 1, 1], shared: 0 };
    let dtypes = [dy.dtype(), table.dtype()];
    // SAFETY: laid out as in embedding.cu. `check` saw that dy holds rows x columns elements and the table entries x
    // columns, and that they do not overlap; ids are compared with `entries` before they are used; the order holds each
    // row once, the partial sums two rows for each piece. The memory stays valid until the lane has run the kernels:
    // the pool gives it out in lane order, and so does the scratch memory.
    unsafe {
        launch.run(SUM.of(dtypes), grid, arguments)?;
        launch.run(JOIN.of(dtypes), grid, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_divided_and_every_key_has_its_digits() {
        for rows in [1, 31, 32, 33, 2048, 2049, 8192, 1 << 20, (1 << 24) + 5, u32::MAX as usize] {
            for (entries, columns) in [(1, 8), (255, 8), (256, 768), (65_535, 4096), (65_536, 1), (1 << 33, 8192)] {
                let by = Division::new(rows, entries, columns);
                assert!(by.range * by.blocks >= rows && by.blocks <= MAX_BLOCKS, "{rows}: {by:?}");
                assert!(by.piece * by.pieces >= rows && by.piece * (by.pieces - 1) < rows, "{rows}: {by:?}");
                assert!(by.pieces <= 1024 && by.range.is_multiple_of(DIGITS), "{rows}: {by:?}");
                assert_eq!((entries as u64) >> (8 * by.passes), 0, "{entries}: {by:?}");
            }
        }
        assert_eq!([2, 255, 256, 50_257, 65_536].map(|entries| Division::new(1, entries, 8).passes), [1, 1, 2, 2, 3]);
    }
}

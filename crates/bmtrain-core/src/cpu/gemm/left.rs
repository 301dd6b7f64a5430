//! A as the tile routines read it: packed tile after tile, or in place where few columns would repay the packing.
//!
//! A tile's rows are interleaved, `to[p * ROWS + i]` for its row i and column p, so that a routine reads A as one
//! stream at offsets that are known when it is compiled; read in place, every row needs an address of its own.

use std::ops::Range;

use super::job::GemmJob;
use super::kernel::Kernel;
use super::operand::{Matrix, Source, widen};
use crate::cpu::scratch::Region;
use crate::cpu::vector::{interleave_6, prefetch};

/// Panels that repay packing rows of A which are adjacent in memory and can be read in place as they are.
const PANELS_WORTH_PACKING: usize = 13;

/// Columns of the result that repay packing rows of a transposed A, where every step of a tile is on another page.
const COLUMNS_WORTH_PACKING: usize = 96;

/// Columns of a transposed A that are packed together: each is a run of memory on a page of its own, and while these
/// are read the next ones are fetched.
const COLUMNS_AT_ONCE: usize = 8;

/// Rows of A over a stretch.
pub(super) struct Left<'s> {
    pub(super) data: &'s [f32],
    /// Index of the first element.
    pub(super) start: usize,
    /// Distance between the first rows of two tiles.
    pub(super) tile: usize,
    /// Distance between rows of a tile.
    pub(super) row: usize,
    /// Distance between columns.
    pub(super) step: usize,
    /// Rows of a tile.
    pub(super) height: usize,
    /// Whether rows are interleaved, tile by tile.
    pub(super) packed: bool,
}

/// Packs rows and columns of A, see the module; rows that fill up the last tile repeat its last one.
pub(super) type PackRoutine = fn(&Matrix<'_>, rows: Range<usize>, k: Range<usize>, lines: &mut Region, to: &mut [f32]);

impl<'s> Left<'s> {
    /// Rows of A that stay where they are, unless they have to be packed: 16-bit numbers are widened on the way, and
    /// many columns repay it.
    pub(super) fn in_place(kernel: &Kernel, job: &GemmJob<'s>, rows: &Range<usize>, k: &Range<usize>) -> Option<Self> {
        let Matrix { data, start, row_stride, col_stride, .. } = job.a;
        let Source::F32(data) = data else { return None };
        let worth = if col_stride == 1 { PANELS_WORTH_PACKING * kernel.columns() } else { COLUMNS_WORTH_PACKING };
        if job.n >= worth && !k.is_empty() {
            return None;
        }
        let start = start + rows.start * row_stride + k.start * col_stride;
        let height = kernel.rows();
        Some(Left { data, start, tile: height * row_stride, row: row_stride, step: col_stride, height, packed: false })
    }

    /// Packed rows of A over a stretch of `k` terms: tiles of `height` rows, with room for `step`.
    pub(super) fn packed(data: &'s [f32], (height, step): (usize, usize), k: usize) -> Self {
        Left { data, start: 0, tile: step * k, row: 1, step, height, packed: true }
    }
}

/// Elements of packed rows of A over a stretch of `k` terms.
pub(super) fn packed_len(kernel: &Kernel, rows: usize, k: usize) -> usize {
    rows.next_multiple_of(kernel.rows()) * k
}

/// See [`PackRoutine`].
pub(super) fn pack<const ROWS: usize>(
    a: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    lines: &mut Region,
    to: &mut [f32],
) {
    if k.is_empty() {
        return;
    }
    if a.col_stride == 1 {
        pack_rows::<ROWS>(a, rows, k, lines, to);
    } else {
        pack_columns::<ROWS>(a, rows, k, lines, to);
    }
}

/// Packs an A whose rows are adjacent in memory.
fn pack_rows<const ROWS: usize>(
    a: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    lines: &mut Region,
    to: &mut [f32],
) {
    for (first, to) in rows.clone().step_by(ROWS).zip(to.chunks_exact_mut(ROWS * k.len())) {
        let start = |i: usize| a.start + (first + i).min(rows.end - 1) * a.row_stride + k.start;
        match a.data {
            Source::F32(data) => interleave(std::array::from_fn::<_, ROWS, _>(|i| &data[start(i)..][..k.len()]), to),
            _ => {
                let wide = lines.take(ROWS * k.len());
                for (i, line) in wide.chunks_exact_mut(k.len()).enumerate() {
                    widen(a.data, start(i), line);
                }
                let wide = &*wide;
                interleave(std::array::from_fn::<_, ROWS, _>(|i| &wide[i * k.len()..][..k.len()]), to);
            }
        }
    }
}

/// `to[p * ROWS + i] = rows[i][p]`, four columns at a time.
fn interleave<const ROWS: usize>(rows: [&[f32]; ROWS], to: &mut [f32]) {
    const WIDTH: usize = 4;
    let blocks = rows.map(|row| row.as_chunks::<WIDTH>());
    let (whole, rest) = to.split_at_mut(blocks[0].0.len() * WIDTH * ROWS);
    for (block, to) in whole.chunks_exact_mut(WIDTH * ROWS).enumerate() {
        let lines: [&[f32; WIDTH]; ROWS] = std::array::from_fn(|i| &blocks[i].0[block]);
        // ROWS is known to the compiler: one of the two branches remains.
        if let (&[a, b, c, d, e, f], Ok(to)) = (&lines[..], <&mut [f32; 24]>::try_from(&mut *to)) {
            interleave_6([a, b, c, d, e, f], to);
        } else {
            for (p, to) in to.chunks_exact_mut(ROWS).enumerate() {
                for (x, line) in to.iter_mut().zip(lines) {
                    *x = line[p];
                }
            }
        }
    }
    for (p, to) in rest.chunks_exact_mut(ROWS).enumerate() {
        for (x, (_, line)) in to.iter_mut().zip(&blocks) {
            *x = line[p];
        }
    }
}

/// Packs an A whose columns are adjacent in memory.
fn pack_columns<const ROWS: usize>(
    a: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    lines: &mut Region,
    to: &mut [f32],
) {
    let start = a.start + rows.start;
    for first in k.clone().step_by(COLUMNS_AT_ONCE) {
        let columns = first..(first + COLUMNS_AT_ONCE).min(k.end);
        let at = (first - k.start) * ROWS..(columns.end - k.start) * ROWS;
        // `ahead`: from an element to the one in its row that is fetched.
        let mut scatter = |data: &[f32], stride: usize, ahead: usize| {
            let mut lines = [&data[..0]; COLUMNS_AT_ONCE];
            for (p, line) in lines[..columns.len()].iter_mut().enumerate() {
                *line = &data[p * stride..][..rows.len()];
            }
            for (tile, to) in to.chunks_exact_mut(ROWS * k.len()).enumerate() {
                let (to, _) = to[at.clone()].as_chunks_mut::<ROWS>();
                let first = tile * ROWS;
                for (to, line) in to.iter_mut().zip(&lines) {
                    prefetch(line, first + ahead);
                    match line.get(first..first + ROWS).and_then(|from| from.as_array()) {
                        Some(from) => *to = *from,
                        None => *to = std::array::from_fn(|i| line[(first + i).min(rows.len() - 1)]),
                    }
                }
            }
        };
        match a.data {
            Source::F32(data) => {
                let ahead = COLUMNS_AT_ONCE * a.col_stride;
                scatter(&data[start + first * a.col_stride..], a.col_stride, ahead);
            }
            _ => {
                let wide = lines.take(rows.len() * columns.len());
                for (line, p) in wide.chunks_exact_mut(rows.len()).zip(columns.clone()) {
                    widen(a.data, start + p * a.col_stride, line);
                }
                scatter(wide, rows.len(), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::gemm::operand::Operand;
    use std::sync::atomic::AtomicUsize;

    static HELD: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn every_element_reaches_its_place_in_a_tile_from_either_layout_and_dtype() {
        const ROWS: usize = 6;
        let (m, k) = (20, 37);
        let value = |i: usize, p: usize| (i * 64 + p) as f32;
        let mut lines = Region::new(&HELD);
        for transposed in [false, true] {
            let (outer, inner) = if transposed { (k, m + 3) } else { (m, k + 3) };
            let stored: Vec<f32> = (0..outer * inner)
                .map(|at| (at / inner, at % inner))
                .map(|(i, j)| if transposed { value(j, i) } else { value(i, j) })
                .collect();
            let narrow: Vec<half::f16> = stored.iter().map(|x| half::f16::from_f32(*x)).collect();
            for data in [Source::F32(&stored), Source::F16(&narrow)] {
                let operand = if transposed { Operand::transposed(data, inner) } else { Operand::rows(data, inner) };
                let a = Matrix::new(operand, (m, k), 0, "test", "A").unwrap();
                for (rows, ks) in [(0..m, 0..k), (6..17, 3..36), (12..13, 5..6)] {
                    let mut to = vec![f32::NAN; rows.len().div_ceil(ROWS) * ROWS * ks.len()];
                    pack::<ROWS>(&a, rows.clone(), ks.clone(), &mut lines, &mut to);
                    for (at, got) in to.iter().enumerate() {
                        let (tile, within) = (at / (ROWS * ks.len()), at % (ROWS * ks.len()));
                        let row = (rows.start + tile * ROWS + within % ROWS).min(rows.end - 1);
                        assert_eq!(*got, value(row, ks.start + within / ROWS), "{transposed} {rows:?} {ks:?} {at}");
                    }
                }
            }
        }
    }
}

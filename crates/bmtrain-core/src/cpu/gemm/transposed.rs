//! Products of bf16 of some rows by a matrix whose columns are in one piece (`y = x·Wᵀ` of some tokens), in tiles
//! ([`crate::cpu::tiles`]): computed as the transpose of the result, W·xᵀ.
//!
//! W is met once, so what counts is how it gets into the registers. As the left operand its rows are packed as they
//! are, by the thread that multiplies them and into the cache next to it; as the right one, in `tiled.rs`, pairs of its
//! terms would be transposed and written to memory that threads share, which takes longer than the products.
//!
//! Every sum is the same chain over k, of the same factors, so the bits are the same as in `tiled.rs`.

use half::bf16;

use super::job::GemmJob;
use super::schedule::Tickets;
use super::scratch::Scratch;
use super::tiled::{GROUP, finish, row_len, source, sums_len};
use crate::cpu::scratch::Region;
use crate::cpu::tiles::{BLOCK, Multiply, STEP, Sums, Unit, pack};
use crate::simd::vectorised;

/// Most rows of such a product: with more of them, the panels of W that `tiled.rs` packs are used often enough.
const MAX_ROWS: usize = 2 * BLOCK;

pub(super) fn takes(job: &GemmJob<'_>) -> bool {
    job.b.row_stride == 1 && job.m <= MAX_ROWS
}

/// A product that some threads compute together, each some groups of columns at a time.
pub(super) struct Transposed<'p, 'a> {
    unit: Unit,
    job: &'p GemmJob<'a>,
    weights: pack::Source<'a>,
    /// The rows of A as columns: panels of [`BLOCK`].
    rows: &'p [bf16],
    next: Tickets,
    workers: usize,
}

impl<'p, 'a> Transposed<'p, 'a> {
    /// A product for `workers` threads with the rows of A packed in `panels`; none of an operand that is not bf16.
    pub(super) fn new(unit: Unit, job: &'p GemmJob<'a>, workers: usize, panels: &'p mut Region) -> Option<Self> {
        let rows = source(&job.a, job.a.row_stride, job.a.col_stride)?;
        let weights = source(&job.b, job.b.col_stride, job.b.row_stride)?;
        let packed = panels.take(job.m.next_multiple_of(BLOCK) * job.k.next_multiple_of(STEP) / 2);
        let packed: &mut [bf16] = bytemuck::cast_slice_mut(packed);
        pack::right(rows, 0..job.m, 0..job.k, packed);
        Some(Transposed { unit, job, weights, rows: packed, next: Tickets::default(), workers })
    }

    /// Work of one thread.
    pub(super) fn work(&self, left: &mut Region, sums: &mut Region) {
        let Transposed { unit, job, workers, .. } = *self;
        let k = job.k.next_multiple_of(STEP);
        let left: &mut [bf16] = bytemuck::cast_slice_mut(left.take(BLOCK * k / 2));
        let mut block = [0.0; BLOCK * BLOCK];
        while let Some(run) = self.next.run(0..job.n.div_ceil(GROUP), |_, left| left.div_ceil(2 * workers)) {
            for first in run.map(|index| index * GROUP) {
                let group = first..job.n.min(first + GROUP);
                let row = row_len(&group);
                let sums = sums.take(sums_len(&(0..job.m), &group));
                let tiles = unit.begin();
                for j in group.clone().step_by(BLOCK) {
                    let columns = j..group.end.min(j + BLOCK);
                    pack::left(self.weights, columns.clone(), 0..job.k, left);
                    for (i, b) in (0..job.m).step_by(BLOCK).zip(self.rows.chunks_exact(BLOCK * k)) {
                        let to = Sums { first: block.as_mut_ptr(), row: BLOCK };
                        let (rows, columns) = (columns.len(), BLOCK.min(job.m - i));
                        // SAFETY: these are the sums of a whole block.
                        #[allow(unsafe_code)]
                        unsafe {
                            tiles.multiply(Multiply { a: left, b, rows, columns, from: None, to, next: b });
                        }
                        transpose(&block, (rows, columns), &mut sums[i * row + (j - first)..], row);
                    }
                }
                drop(tiles);
                finish(unit, job, sums, 0..job.m, group);
            }
        }
    }

    /// As [`Transposed::work`], with the scratch of a thread.
    pub(super) fn work_with(&self, Scratch { left, sums, .. }: &mut Scratch) {
        self.work(left, sums);
    }
}

vectorised! {
    /// The transpose of a block's first rows and columns, to rows that are `row` apart.
    fn transpose<I>(block: &[f32; BLOCK * BLOCK], size: (usize, usize), to: &mut [f32], row: usize) {
        let (rows, columns) = size;
        for (i, to) in to.chunks_mut(row).take(columns).enumerate() {
            for (j, to) in to.iter_mut().take(rows).enumerate() {
                *to = block[j * BLOCK + i];
            }
        }
    }
}

//! Reductions (here) and softmax (`softmax`).
//!
//! Every sum is made in pieces whose size follows from the lengths alone, and the pieces are added in their order.

mod softmax;
pub(super) use softmax::{Logits, RowStatistics, dot, soft_cap, softmax, softmax_backward, total};

use super::access::write;
use super::floats::{Floats, FloatsMut, Spare, tiles};
use crate::error::Result;
use crate::exact::Sum;
use crate::kernel::{ColumnSum, GradNorm, NORM_CHUNK, NonFinite, NormOrder};
use crate::simd::vectorised;
use crate::threads::Threads;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fewest rows that are summed into one partial sum.
const GROUP_ROWS: usize = 32;
/// Most partial sums of a column.
const GROUPS: usize = 64;

/// Number of rows in each partial sum over rows. It bounds the room for partial sums, whatever the number of rows.
pub(super) fn group_rows(rows: usize) -> usize {
    GROUP_ROWS.max(rows.div_ceil(GROUPS))
}

pub(super) fn column_sum(threads: &Threads, a: ColumnSum<'_>) -> Result<()> {
    const NAME: &str = "column_sum";
    let (rows, columns) = (a.rows, a.columns);
    let (x, add, out) = (Floats::of(NAME, a.x)?, a.out.add, FloatsMut::of(NAME, a.out.view)?);
    let at_once = group_rows(rows);
    let groups = rows.div_ceil(at_once);
    threads.with_partials(groups * columns, |partials| {
        threads.for_each_piece(partials, columns, |group, partial| {
            let mut spares = [const { Spare::new() }; 4];
            let (first, end) = (group * at_once, rows.min((group + 1) * at_once));
            partial.fill(0.0);
            for row in (first..end).step_by(4) {
                for (start, len) in tiles(columns) {
                    let mut next = spares.iter_mut().enumerate();
                    let four: [&[f32]; 4] = std::array::from_fn(|_| match next.next() {
                        Some((i, spare)) if row + i < end => x.tile((row + i) * columns + start, len, spare),
                        _ => &[],
                    });
                    add_rows(four, &mut partial[start..start + len]);
                }
            }
        });
        add_partials(threads, partials, columns, 0, add, out);
    });
    Ok(())
}

/// `out (+)=` the sum over the rows of `partials`, `stride` long, of their columns from `column` on, in the order of
/// rows.
pub(super) fn add_partials(
    threads: &Threads,
    partials: &[f32],
    stride: usize,
    column: usize,
    add: bool,
    out: FloatsMut<'_>,
) {
    const PIECE: usize = 256;
    let columns = out.len();
    threads.for_each_part(out.rows(1), columns, PIECE, |first, len, mut out| {
        let (mut sums, mut spare) = ([0.0f32; PIECE], Spare::new());
        let sums = &mut sums[..len];
        for row in partials.chunks_exact(stride) {
            add_rows([&row[column + first..column + first + len], &[], &[], &[]], sums);
        }
        out.data.update(0, len, add, &mut spare, |out| {
            for (out, sum) in out.iter_mut().zip(sums.iter()) {
                *out = if add { *out + sum } else { *sum };
            }
        });
    });
}

vectorised! {
    /// Add four rows, or the first one if there are fewer and each after it, in a fixed order.
    fn add_rows<I>(rows: [&[f32]; 4], out: &mut [f32]) {
        let [a, b, c, d] = rows;
        if !d.is_empty() {
            for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *out += (a + b) + (c + d);
            }
            return;
        }
        for row in [a, b, c] {
            for (out, x) in out.iter_mut().zip(row) {
                *out += x;
            }
        }
    }

    /// Sum of squares in double precision, where no square of an f32 is lost or overflows.
    pub(in crate::cpu) fn squares<I>(x: &[f32]) -> f64 {
        const LANES: usize = 16;
        let mut sums = [0.0f64; LANES];
        let chunks = x.chunks_exact(LANES);
        for (sum, x) in sums.iter_mut().zip(chunks.remainder()) {
            *sum += f64::from(*x) * f64::from(*x);
        }
        for chunk in chunks {
            for i in 0..LANES {
                sums[i] += f64::from(chunk[i]) * f64::from(chunk[i]);
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
            width /= 2;
        }
        sums[0]
    }

    /// Bits of the largest magnitude. As integers, NaN is above infinity and infinity above every number.
    fn largest_bits<I>(x: &[f32]) -> u32 {
        let mut largest = 0;
        for x in x {
            let bits = x.to_bits() & 0x7fff_ffff;
            largest = if bits > largest { bits } else { largest };
        }
        largest
    }
}

/// Most partial results of a reduction to one number; they are on the stack.
const PIECES: usize = 1024;
/// Fewest elements of such a piece.
const PIECE: usize = 1 << 16;

/// Run `reduce` over the tiles of each piece, `fold` over its results, then over the pieces.
fn reduce_all<T: Copy + Send>(
    threads: &Threads,
    x: Floats<'_>,
    len: usize,
    zero: T,
    reduce: impl Fn(&[f32]) -> T + Send + Sync,
    fold: impl Fn(T, T) -> T + Send + Sync,
) -> T {
    let piece = PIECE.max(len.div_ceil(PIECES));
    let mut partials = [zero; PIECES];
    let partials = &mut partials[..len.div_ceil(piece)];
    threads.for_each_piece(partials, 1, |index, partial| {
        let (first, mut spare) = (index * piece, Spare::new());
        for (start, len) in tiles(piece.min(len - first)) {
            partial[0] = fold(partial[0], reduce(x.tile(first + start, len, &mut spare)));
        }
    });
    partials.iter().copied().fold(zero, fold)
}

pub(super) fn grad_norm(threads: &Threads, a: GradNorm<'_>) -> Result<()> {
    const NAME: &str = "grad_norm";
    let (add, out) = (a.out.add, write::<i64>(NAME, a.out.view)?);
    if !add {
        out.fill(0);
    }
    let mut sum = Sum::from_words(std::array::from_fn(|i| out[i]));
    for x in a.xs {
        let (len, x) = (x.len(), Floats::of(NAME, x)?);
        match a.order {
            NormOrder::Two => sum.merge(sum_of_squares(threads, x, len)),
            NormOrder::Infinity => {
                let largest = reduce_all(threads, x, len, 0, largest_bits, u32::max);
                out[0] = out[0].max(i64::from(largest));
            }
        }
    }
    if a.order == NormOrder::Two {
        out.copy_from_slice(&sum.words());
    }
    Ok(())
}

/// Pieces of work of a norm; their sums are on the stack.
const NORM_PIECES: usize = 64;

fn sum_of_squares(threads: &Threads, x: Floats<'_>, len: usize) -> Sum {
    let piece = PIECE.max(len.div_ceil(NORM_PIECES)).next_multiple_of(NORM_CHUNK);
    let mut sums = [Sum::ZERO; NORM_PIECES];
    let sums = &mut sums[..len.div_ceil(piece)];
    threads.for_each_piece(sums, 1, |index, sum| {
        let (first, mut spare) = (index * piece, Spare::new());
        for (start, len) in tiles(piece.min(len - first)) {
            for chunk in x.tile(first + start, len, &mut spare).chunks(NORM_CHUNK) {
                sum[0].add(squares(chunk));
            }
        }
    });
    sums.iter().fold(Sum::ZERO, |mut all, sum| {
        all.merge(*sum);
        all
    })
}

pub(super) fn non_finite(threads: &Threads, a: NonFinite<'_>) -> Result<()> {
    const NAME: &str = "non_finite";
    let (len, x, flag) = (a.x.len(), Floats::of(NAME, a.x)?, write::<i32>(NAME, a.flag)?);
    let found = AtomicBool::new(false);
    threads.for_each(len.div_ceil(PIECE), |index| {
        let (first, mut spare) = (index * PIECE, Spare::new());
        for (start, len) in tiles(PIECE.min(len - first)) {
            if found.load(Ordering::Relaxed) {
                return;
            }
            if largest_bits(x.tile(first + start, len, &mut spare)) >= f32::INFINITY.to_bits() {
                found.store(true, Ordering::Relaxed);
            }
        }
    });
    if found.into_inner() {
        flag[0] = 1;
    }
    Ok(())
}

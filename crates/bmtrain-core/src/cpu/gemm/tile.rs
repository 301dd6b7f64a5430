//! The innermost routines, written once for vectors of any instruction set, and the table of them for one.
#![allow(unsafe_code)]

use std::ops::Range;

use half::{bf16, f16};

use super::kernel::{Dots, RowStrip, Rows, Strip};
use crate::cpu::vector::{LINE, NEAREST, SECOND, Vector, fetch};
use crate::simd::Isa;

/// Prefetch distance in rows of B, where they are read in place: they are on different pages, where the hardware does
/// not look ahead.
const ROWS_AHEAD: usize = 8;

/// Steps of k between two updates of the addresses.
const UNROLL: usize = 4;

/// Distance of the prefetch of A from the second-level cache, in updates of the addresses.
const AHEAD: usize = 4;

/// Numbers of terms of a sum for which C is not prefetched, where it is only written: stores wait for their cache lines
/// without a register, and a prefetch takes the place of one of A or B. Shorter sums would fill the store buffer.
const UNFETCHED: Range<usize> = 16..65;

/// Enough to hide the latency of two units (4 to 5 steps each), few enough that the compiler keeps all in registers.
pub(super) const SPIN_VECTORS: usize = 12;

/// `for $i in 0..$count` for a constant count of at most 8, without a loop. Where the compiler has to find out that a
/// loop over sums can be unrolled, it sometimes does not, and then keeps the sums in memory.
macro_rules! unrolled {
    ($i:ident < $count:expr => $body:block) => {
        unrolled!($i < $count => $body; 0 1 2 3 4 5 6 7)
    };
    ($i:ident < $count:expr => $body:block; $($at:literal)+) => {
        $(if $at < $count {
            let $i = $at;
            $body
        })+
    };
}

/// Operations that the routines need besides [`Vector`].
pub(super) trait Wide<const LANES: usize>: Vector {
    /// Instruction set in which single numbers are multiplied and added.
    type Set: Isa;
    /// Whether `load_first` exists.
    const MASKS: bool = false;
    unsafe fn multiply(self, other: Self) -> Self;
    /// The sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// [`Wide::sum`] of each of four, with the same bits.
    #[inline(always)]
    unsafe fn sums(of: [Self; 4]) -> [f32; 4] {
        // SAFETY: by the caller.
        of.map(|vector| unsafe { vector.sum() })
    }
    unsafe fn load_bf16(from: *const bf16) -> Self;
    unsafe fn load_f16(from: *const f16) -> Self;
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES];

    /// `count` elements, and zeros in the other lanes.
    unsafe fn load_first(_from: *const f32, _count: usize) -> Self {
        unreachable!("it has no masks")
    }
    unsafe fn load_first_bf16(_from: *const bf16, _count: usize) -> Self {
        unreachable!("it has no masks")
    }
    unsafe fn load_first_f16(_from: *const f16, _count: usize) -> Self {
        unreachable!("it has no masks")
    }
}

/// An element as memory holds it; vectors of them are widened on the way into registers.
pub(super) trait Stored: Copy {
    unsafe fn load<V: Wide<LANES>, const LANES: usize>(from: *const Self) -> V;
    unsafe fn load_first<V: Wide<LANES>, const LANES: usize>(from: *const Self, count: usize) -> V;
    fn widen(self) -> f32;
}

macro_rules! stored {
    ($type:ty, $load:ident, $load_first:ident, $widen:expr) => {
        impl Stored for $type {
            #[inline(always)]
            unsafe fn load<V: Wide<LANES>, const LANES: usize>(from: *const Self) -> V {
                // SAFETY: by the caller.
                unsafe { V::$load(from) }
            }

            #[inline(always)]
            unsafe fn load_first<V: Wide<LANES>, const LANES: usize>(from: *const Self, count: usize) -> V {
                // SAFETY: by the caller.
                unsafe { V::$load_first(from, count) }
            }

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }
        }
    };
}
stored!(f32, load, load_first, |x: f32| x);
stored!(bf16, load_bf16, load_first_bf16, |x: bf16| f32::from_bits(u32::from(x.to_bits()) << 16));
stored!(f16, load_f16, load_first_f16, |x: f16| crate::simd::f16_to_f32(x.to_bits()));

/// See [`super::kernel::StripRoutine`].
///
/// STEP is the distance between columns of a packed A, or 0 if A is read in place. Of a packed A all offsets are known,
/// so several steps of k share one update of the addresses, which a chain of additions would otherwise make the limit.
#[inline(always)]
pub(super) unsafe fn strip<V, const LANES: usize, const ROWS: usize, const VECTORS: usize, const STEP: usize>(t: &Strip)
where
    V: Wide<LANES>,
{
    // SAFETY: the caller vouches for every address that follows from the strides of `t` and from ROWS and VECTORS;
    // prefetches have no effect on validity.
    unsafe {
        let (a_row, a_step) = if STEP > 0 { (1, STEP) } else { (t.a_row, t.a_step) };
        let unroll = if STEP > 0 { UNROLL } else { 1 };
        let fetches = t.beta != 0.0 || !UNFETCHED.contains(&t.k);
        let fetch_sums = |c: *mut f32| {
            for i in 0..if fetches { ROWS } else { 0 } {
                for j in (0..VECTORS * LANES).step_by(LINE) {
                    fetch::<NEAREST>(c.wrapping_add(i * t.c_row + j));
                }
            }
        };
        let mut next = t.next;
        let last = next.wrapping_add(t.lines * LINE);
        let share = t.lines.div_ceil(t.tiles.max(1)) * LINE;
        fetch_sums(t.c);
        for index in 0..t.tiles {
            let (mut a, mut b, mut left) = (t.a.wrapping_add(index * t.a_tile), t.b, t.k);
            let c = t.c.add(index * ROWS * t.c_row);
            fetch_sums(c.wrapping_add(ROWS * t.c_row));
            let end = next.wrapping_add(share).min(last);
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            while left >= unroll {
                if next < end {
                    fetch::<SECOND>(next);
                    next = next.wrapping_add(LINE);
                }
                if STEP > 0 {
                    fetch::<NEAREST>(a.wrapping_add(AHEAD * UNROLL * STEP));
                    fetch::<NEAREST>(a.wrapping_add(AHEAD * UNROLL * STEP + LINE));
                } else if a_step == 1 && left.is_multiple_of(LINE) {
                    // The rows of the next tile: each is too short for the hardware to see where it goes.
                    for i in 0..ROWS {
                        fetch::<NEAREST>(a.wrapping_add(t.a_tile + i * a_row));
                    }
                }
                for p in 0..unroll {
                    step(&mut sums, (a.add(p * a_step), a_row), b.add(p * VECTORS * LANES));
                }
                a = a.wrapping_add(unroll * a_step);
                b = b.wrapping_add(unroll * VECTORS * LANES);
                left -= unroll;
            }
            for p in 0..left {
                step(&mut sums, (a.add(p * a_step), a_row), b.add(p * VECTORS * LANES));
            }
            store(t, &sums, c);
        }
    }
}

/// `C = alpha * sums + beta * C + bias` for a tile.
#[inline(always)]
unsafe fn store<V, const LANES: usize, const ROWS: usize, const VECTORS: usize>(
    t: &Strip,
    sums: &[[V; VECTORS]; ROWS],
    c: *mut f32,
) where
    V: Wide<LANES>,
{
    // SAFETY: the caller vouches for the elements of C.
    unsafe {
        let (alpha, beta, one) = (V::splat(t.alpha), V::splat(t.beta), V::splat(1.0));
        // Most sums of few terms are stored as they are: then two comparisons for each vector would take as long.
        if t.beta == 0.0 && t.bias.is_null() {
            unrolled!(i < ROWS => {
                unrolled!(v < VECTORS => { alpha.multiply(sums[i][v]).store(c.add(i * t.c_row + v * LANES)) });
            });
            return;
        }
        unrolled!(i < ROWS => {
            unrolled!(v < VECTORS => {
                let c = c.add(i * t.c_row + v * LANES);
                let value = alpha.multiply(sums[i][v]);
                let value = if t.beta == 0.0 { value } else { value.multiply_add(beta, V::load(c)) };
                // A product with one is exact.
                let bias = t.bias.wrapping_add(v * LANES);
                if t.bias.is_null() { value } else { value.multiply_add(one, V::load(bias)) }.store(c);
            });
        });
    }
}

/// One step of k: a column of a packed A times a row of B in place; another row is fetched.
#[inline(always)]
unsafe fn row_step<V, T, const LANES: usize, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    a: *const f32,
    b: *const T,
    ahead: usize,
) where
    V: Wide<LANES>,
    T: Stored,
{
    // SAFETY: the caller vouches for ROWS elements of A and VECTORS vectors of B; a prefetch has no effect on validity.
    unsafe {
        for j in (0..VECTORS * LANES).step_by(LINE * size_of::<f32>() / size_of::<T>()) {
            fetch::<NEAREST>(b.wrapping_add(ahead + j).cast());
        }
        step(sums, (a, 1), b);
    }
}

/// One step of k: a column of A times a row of B.
#[inline(always)]
unsafe fn step<V, T, const LANES: usize, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    (a, a_row): (*const f32, usize),
    b: *const T,
) where
    V: Wide<LANES>,
    T: Stored,
{
    // SAFETY: the caller vouches for ROWS elements of A and VECTORS vectors of B.
    unsafe {
        let mut columns = [V::splat(0.0); VECTORS];
        unrolled!(v < VECTORS => { columns[v] = T::load(b.add(v * LANES)) });
        unrolled!(i < ROWS => {
            let x = V::splat(*a.add(i * a_row));
            unrolled!(v < VECTORS => { sums[i][v] = sums[i][v].multiply_add(x, columns[v]) });
        });
    }
}

/// See [`super::kernel::TransposeRoutine`]; square blocks in registers.
#[inline(always)]
pub(super) unsafe fn transpose<V: Wide<LANES>, const LANES: usize>(
    from: *const f32,
    stride: usize,
    k: usize,
    to: *mut f32,
    width: usize,
) {
    // SAFETY: p + LANES <= k, so the loads stay inside the k elements of each of the LANES rows and the stores inside
    // the k rows of `to`; the caller vouches for both.
    unsafe {
        let mut p = 0;
        while p + LANES <= k {
            let mut rows = [V::splat(0.0); LANES];
            for (j, row) in rows.iter_mut().enumerate() {
                *row = V::load(from.add(j * stride + p));
            }
            for (j, row) in V::transpose(rows).into_iter().enumerate() {
                row.store(to.add((p + j) * width));
            }
            p += LANES;
        }
        while p < k {
            for j in 0..LANES {
                *to.add(p * width + j) = *from.add(j * stride + p);
            }
            p += 1;
        }
    }
}

/// See [`super::kernel::CopyRoutine`].
#[inline(always)]
pub(super) unsafe fn copy<V: Vector, const COLUMNS: usize>(
    from: *const f32,
    stride: usize,
    k: usize,
    to: *mut f32,
    panels: usize,
) {
    for p in 0..k {
        for panel in 0..panels {
            let (from, to) =
                (from.wrapping_add(p * stride + panel * COLUMNS), to.wrapping_add((panel * k + p) * COLUMNS));
            for j in (0..COLUMNS).step_by(V::LANES) {
                // SAFETY: the caller vouches for the rows and the panels; a prefetch beyond them has no effect.
                unsafe {
                    fetch::<NEAREST>(from.wrapping_add(ROWS_AHEAD * stride + j));
                    V::load(from.add(j)).store(to.add(j));
                }
            }
        }
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = LINE * size_of::<f32>();

/// Fetches rows line by line.
struct Cursor {
    rest: Rows,
    column: usize,
}

impl Cursor {
    #[inline(always)]
    fn fetch_next(&mut self) {
        if self.rest.rows == 0 {
            return;
        }
        fetch::<SECOND>(self.rest.at.wrapping_add(self.column).cast());
        self.column += LINE_BYTES;
        if self.column >= self.rest.len {
            let Rows { at, stride, len, rows } = self.rest;
            *self = Cursor { rest: Rows { at: at.wrapping_add(stride), stride, len, rows: rows - 1 }, column: 0 };
        }
    }
}

/// See [`super::kernel::RowStripRoutine`].
///
/// The rows after these are fetched evenly over all tiles, so that memory is read while they compute.
#[inline(always)]
pub(super) unsafe fn row_strip<V, T, const LANES: usize, const ROWS: usize, const VECTORS: usize, const STEP: usize>(
    t: &RowStrip,
) where
    V: Wide<LANES>,
    T: Stored,
{
    // SAFETY: the caller vouches for every address that follows from the strides of `t` and from ROWS and VECTORS;
    // prefetches have no effect on validity.
    unsafe {
        let RowStrip { strip, b_row, panels, .. } = t;
        let (width, ahead) = (VECTORS * LANES, ROWS_AHEAD * b_row);
        let mut next = Cursor { rest: t.next, column: 0 };
        let lines = t.next.rows * t.next.len.div_ceil(LINE_BYTES);
        let share = lines.div_ceil((strip.tiles * panels * (strip.k / UNROLL)).max(1));
        for (index, panel) in (0..strip.tiles).flat_map(|i| (0..*panels).map(move |j| (i, j))) {
            let mut a = strip.a.wrapping_add(index * strip.a_tile);
            let mut b = t.b.cast::<T>().wrapping_add(panel * width);
            // There may be none, where all terms are here.
            let kept = t.sums.wrapping_add((index * panels + panel) * ROWS * width);
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            if !t.begins {
                unrolled!(i < ROWS => {
                    unrolled!(v < VECTORS => { sums[i][v] = V::load(kept.add((i * VECTORS + v) * LANES)) });
                });
            }
            let mut left = strip.k;
            while left >= UNROLL {
                for _ in 0..share {
                    next.fetch_next();
                }
                for p in 0..UNROLL {
                    row_step::<V, T, LANES, ROWS, VECTORS>(&mut sums, a.add(p * STEP), b, ahead);
                    b = b.wrapping_add(*b_row);
                }
                a = a.wrapping_add(UNROLL * STEP);
                left -= UNROLL;
            }
            for p in 0..left {
                row_step::<V, T, LANES, ROWS, VECTORS>(&mut sums, a.add(p * STEP), b, ahead);
                b = b.wrapping_add(*b_row);
            }
            if t.ends {
                store(strip, &sums, strip.c.add(index * ROWS * strip.c_row + panel * width));
            } else {
                unrolled!(i < ROWS => {
                    unrolled!(v < VECTORS => { sums[i][v].store(kept.add((i * VECTORS + v) * LANES)) });
                });
            }
        }
    }
}

/// See [`super::kernel::DotsRoutine`].
#[inline(always)]
pub(super) unsafe fn dots<V, T, const LANES: usize, const ROWS: usize, const COLUMNS: usize>(d: &Dots)
where
    V: Wide<LANES>,
    T: Stored,
{
    // SAFETY: the caller vouches for k elements of each row; whole vectors are loaded only where LANES of them are
    // left, a part of a vector under a mask; a prefetch beyond them has no effect.
    unsafe {
        let mut sums = [[V::splat(0.0); COLUMNS]; ROWS];
        let y_rows = d.y.cast::<T>();
        let mut p = 0;
        while p + LANES <= d.k {
            // Once for each cache line.
            if d.fetched != 0 && (p * size_of::<T>()).is_multiple_of(LINE * size_of::<f32>()) {
                for j in (0..COLUMNS).filter(|j| d.fetched >> j & 1 == 1) {
                    fetch::<NEAREST>(y_rows.wrapping_add(j * d.y_row + p + d.ahead).cast());
                }
            }
            let mut y = [V::splat(0.0); COLUMNS];
            for (j, y) in y.iter_mut().enumerate() {
                *y = T::load(y_rows.add(j * d.y_row + p));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = V::load(d.x.add(i * d.x_row + p));
                for j in 0..COLUMNS {
                    row[j] = row[j].multiply_add(x, y[j]);
                }
            }
            p += LANES;
        }
        if V::MASKS && p < d.k {
            for (i, row) in sums.iter_mut().enumerate() {
                let x = V::load_first(d.x.add(i * d.x_row + p), d.k - p);
                for (j, sum) in row.iter_mut().enumerate() {
                    *sum = sum.multiply_add(x, T::load_first(y_rows.add(j * d.y_row + p), d.k - p));
                }
            }
            p = d.k;
        }
        let (mut totals, flat) = ([[0.0; COLUMNS]; ROWS], sums.as_flattened());
        let (fours, rest) = flat.as_chunks::<4>();
        let (whole, last) = totals.as_flattened_mut().as_chunks_mut::<4>();
        for (totals, four) in whole.iter_mut().zip(fours) {
            *totals = V::sums(*four);
        }
        for (total, sum) in last.iter_mut().zip(rest) {
            *total = sum.sum();
        }
        for (i, row) in totals.iter_mut().enumerate() {
            for (j, total) in row.iter_mut().enumerate() {
                for q in p..d.k {
                    *total = V::Set::mul_add(*d.x.add(i * d.x_row + q), (*y_rows.add(j * d.y_row + q)).widen(), *total);
                }
                *d.out.add(i * d.out_row + j) = *total;
            }
        }
    }
}

/// See [`super::kernel::Kernel::spin`].
#[inline(always)]
pub(super) unsafe fn spin<V: Wide<LANES>, const LANES: usize>(rounds: usize) -> f32 {
    // SAFETY: the caller has the instructions.
    unsafe {
        let mut sums = [V::splat(0.0); SPIN_VECTORS];
        let (x, y) = (V::splat(std::hint::black_box(0.999)), V::splat(std::hint::black_box(0.001)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = y.multiply_add(*sum, x);
            }
        }
        sums.into_iter().map(|sum| sum.sum()).sum()
    }
}

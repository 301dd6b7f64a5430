//! Softmax along rows, its gradient, and the statistics of a row that the losses need as well.

use crate::cpu::floats::{Floats, FloatsMut, Spare, tiles};
use crate::cpu::math::{self, exp};
use crate::error::Result;
use crate::kernel::{Softmax, SoftmaxBackward};
use crate::simd::{LANES, add_lanes, vectorised};
use crate::threads::Threads;

/// Elements of a piece of work.
const PIECE: usize = 1 << 14;

/// Numbers that are read as they are, or with a soft cap as `cap * tanh(x / cap)`.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Logits<'a> {
    pub(in crate::cpu) floats: Floats<'a>,
    pub(in crate::cpu) soft_cap: Option<f32>,
}

impl<'a> Logits<'a> {
    /// As [`Floats::tile`].
    pub(in crate::cpu) fn tile<'t>(&self, start: usize, len: usize, spare: &'t mut Spare) -> &'t [f32]
    where
        'a: 't,
    {
        let Some(cap) = self.soft_cap else { return self.floats.tile(start, len, spare) };
        let wide = &mut spare.0[..len];
        self.floats.widen(start, wide);
        soft_cap(wide, cap);
        wide
    }
}

/// The largest value of a row and the sum of `exp(x - largest)`.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct RowStatistics {
    pub(in crate::cpu) largest: f32,
    pub(in crate::cpu) sum: f32,
}

impl RowStatistics {
    /// Read a row once, tile by tile; the sum so far is scaled down whenever a larger value turns up (Milakov and
    /// Gimelshein, 2018). A row without any number above minus infinity has the sum 0; NaN gives NaN.
    pub(in crate::cpu) fn of(x: Logits<'_>, start: usize, len: usize, spare: &mut Spare) -> Self {
        let mut row = RowStatistics { largest: f32::NEG_INFINITY, sum: 0.0 };
        for (offset, len) in tiles(len) {
            let tile = x.tile(start + offset, len, spare);
            let largest = row.largest.max(largest(tile));
            if largest == f32::NEG_INFINITY && row.sum == 0.0 && !tile.iter().any(|x| x.is_nan()) {
                continue;
            }
            let scale = if row.sum == 0.0 { 0.0 } else { (row.largest - largest).exp() };
            row = RowStatistics { largest, sum: row.sum * scale + sum_of_exponentials(tile, largest) };
        }
        row
    }

    pub(in crate::cpu) fn lse(&self) -> f32 {
        self.largest + self.sum.ln()
    }
}

pub(in crate::cpu) fn softmax(threads: &Threads, a: Softmax<'_>) -> Result<()> {
    const NAME: &str = "softmax";
    let (columns, log) = (a.columns, a.log);
    let (x, y) = (Floats::of(NAME, a.x)?, FloatsMut::of(NAME, a.y)?);
    threads.for_each_part(y.rows(columns), a.rows, (PIECE / columns.max(1)).max(1), |first, rows, mut y| {
        let (mut x_spare, mut y_spare) = (Spare::new(), Spare::new());
        for row in 0..rows {
            let begin = (first + row) * columns;
            let as_they_are = Logits { floats: x, soft_cap: None };
            let statistics = RowStatistics::of(as_they_are, begin, columns, &mut x_spare);
            for (start, len) in tiles(columns) {
                let x = x.tile(begin + start, len, &mut x_spare);
                y.data.update(row * columns + start, len, false, &mut y_spare, |y| {
                    if log {
                        shifted(x, statistics.largest, statistics.sum.ln(), y);
                    } else {
                        probabilities(x, statistics.largest, 1.0 / statistics.sum, y);
                    }
                });
            }
        }
    });
    Ok(())
}

pub(in crate::cpu) fn softmax_backward(threads: &Threads, a: SoftmaxBackward<'_>) -> Result<()> {
    const NAME: &str = "softmax_backward";
    let (columns, log, add) = (a.columns, a.log, a.dx.add);
    let (y, dy, dx) = (Floats::of(NAME, a.y)?, Floats::of(NAME, a.dy)?, FloatsMut::of(NAME, a.dx.view)?);
    threads.for_each_part(dx.rows(columns), a.rows, (PIECE / columns.max(1)).max(1), |first, rows, mut dx| {
        let [mut y_spare, mut dy_spare, mut dx_spare] = [const { Spare::new() }; 3];
        for row in 0..rows {
            let begin = (first + row) * columns;
            let mut sum = 0.0;
            for (start, len) in tiles(columns) {
                let dy = dy.tile(begin + start, len, &mut dy_spare);
                sum += if log { total(dy) } else { dot(y.tile(begin + start, len, &mut y_spare), dy) };
            }
            for (start, len) in tiles(columns) {
                let y = y.tile(begin + start, len, &mut y_spare);
                let dy = dy.tile(begin + start, len, &mut dy_spare);
                dx.data.update(row * columns + start, len, add, &mut dx_spare, |dx| {
                    if log { log_gradient(y, dy, sum, add, dx) } else { gradient(y, dy, sum, add, dx) }
                });
            }
        }
    });
    Ok(())
}

vectorised! {
    pub(in crate::cpu) fn largest<I>(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let chunks = x.chunks_exact(LANES);
        for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = if *x > *lane { *x } else { *lane };
        }
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            }
        }
        let mut largest = f32::NEG_INFINITY;
        for lane in lanes {
            largest = if lane > largest { lane } else { largest };
        }
        largest
    }

    pub(in crate::cpu) fn soft_cap<I>(x: &mut [f32], cap: f32) {
        let reciprocal = 1.0 / cap;
        for x in x.iter_mut() {
            *x = math::soft_cap::<I>(*x, cap, reciprocal);
        }
    }

    fn sum_of_exponentials<I>(x: &[f32], shift: f32) -> f32 {
        let mut lanes = [0.0; LANES];
        let chunks = x.chunks_exact(LANES);
        for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane += exp::<I>(x - shift);
        }
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += exp::<I>(chunk[i] - shift);
            }
        }
        add_lanes(lanes)
    }

    fn probabilities<I>(x: &[f32], shift: f32, factor: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = exp::<I>(x - shift) * factor;
        }
    }

    fn shifted<I>(x: &[f32], first: f32, second: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (x - first) - second;
        }
    }

    pub(in crate::cpu) fn total<I>(x: &[f32]) -> f32 {
        let mut lanes = [0.0; LANES];
        let chunks = x.chunks_exact(LANES);
        for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane += x;
        }
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += chunk[i];
            }
        }
        add_lanes(lanes)
    }

    pub(in crate::cpu) fn dot<I>(x: &[f32], y: &[f32]) -> f32 {
        let mut lanes = [0.0; LANES];
        let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
        for (lane, (x, y)) in lanes.iter_mut().zip(xs.remainder().iter().zip(ys.remainder())) {
            *lane = x * y;
        }
        for (x, y) in xs.zip(ys) {
            for i in 0..LANES {
                lanes[i] = I::mul_add(x[i], y[i], lanes[i]);
            }
        }
        add_lanes(lanes)
    }

    fn gradient<I>(y: &[f32], dy: &[f32], sum: f32, add: bool, dx: &mut [f32]) {
        for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
            let old = if add { *dx } else { 0.0 };
            *dx = I::mul_add(*y, dy - sum, old);
        }
    }

    fn log_gradient<I>(y: &[f32], dy: &[f32], sum: f32, add: bool, dx: &mut [f32]) {
        for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
            let old = if add { *dx } else { 0.0 };
            *dx = I::mul_add(-exp::<I>(*y), sum, dy + old);
        }
    }
}

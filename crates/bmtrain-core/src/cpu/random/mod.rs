//! Random numbers by address: dropout masks and initial values.
//!
//! `mask` makes dropout multipliers (called by the norm and attention kernels too), `sample` makes initial values.

mod mask;
mod sample;
#[cfg(test)]
mod tests;

pub(super) use mask::dropout_multipliers;

use super::floats::{Floats, FloatsMut, Spare, TILE, tiles};
use crate::error::Result;
use crate::kernel::{DropoutApply, FillRandom};
use crate::simd::vectorised;
use crate::threads::Threads;

/// Elements of a piece of work.
const PIECE: usize = 1 << 15;

pub(super) fn dropout(threads: &Threads, a: DropoutApply<'_>) -> Result<()> {
    const NAME: &str = "dropout";
    let (dropout, columns) = (a.dropout, a.columns);
    let x = Floats::maybe(NAME, a.x)?;
    let (add, y) = (a.y.add, FloatsMut::of(NAME, a.y.view)?);
    // Without gaps between rows the whole tensor is one row.
    let gapless = dropout.row_stride == 0 || dropout.row_stride == columns as u64;
    let columns = if gapless { a.rows * columns } else { columns };
    if columns == 0 {
        return Ok(());
    }
    threads.for_each_part(y.rows(1), a.rows * a.columns, PIECE, |first, len, mut y| {
        let (mut factors, mut x_spare, mut y_spare) = ([0.0; TILE], Spare::new(), Spare::new());
        let mut done = 0;
        while done < len {
            let (row, column) = ((first + done) / columns, (first + done) % columns);
            let run = (columns - column).min(len - done);
            for (start, len) in tiles(run) {
                let address = dropout.row(row as u64, columns as u64) + (column + start) as u64;
                let factors = &mut factors[..len];
                dropout_multipliers(&dropout, address, factors);
                let x = x.map(|x| x.tile(first + done + start, len, &mut x_spare));
                y.data.update(done + start, len, add || x.is_none(), &mut y_spare, |y| match x {
                    Some(x) if add => multiply_add(x, factors, y),
                    Some(x) => multiply(x, factors, y),
                    None => scale(factors, y),
                });
            }
            done += run;
        }
    });
    Ok(())
}

vectorised! {
    fn multiply<I>(x: &[f32], factors: &[f32], y: &mut [f32]) {
        for ((y, x), factor) in y.iter_mut().zip(x).zip(factors) {
            *y = x * factor;
        }
    }

    fn multiply_add<I>(x: &[f32], factors: &[f32], y: &mut [f32]) {
        for ((y, x), factor) in y.iter_mut().zip(x).zip(factors) {
            *y = I::mul_add(*x, *factor, *y);
        }
    }

    fn scale<I>(factors: &[f32], y: &mut [f32]) {
        for (y, factor) in y.iter_mut().zip(factors) {
            *y *= factor;
        }
    }
}

pub(super) fn fill_random(threads: &Threads, a: FillRandom<'_>) -> Result<()> {
    let out = FloatsMut::of("fill_random", a.out)?;
    let len = out.len();
    threads.for_each_part(out.rows(1), len, PIECE, |first, len, mut out| {
        let mut spare = Spare::new();
        for (start, len) in tiles(len) {
            let element = a.offset + (first + start) as u64;
            out.data.update(start, len, false, &mut spare, |out| sample::sample(a.distribution, a.key, element, out));
        }
    });
    Ok(())
}

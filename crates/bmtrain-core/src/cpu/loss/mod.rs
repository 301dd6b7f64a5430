//! Losses: cross-entropy (`cross_entropy`), squared error (here).

mod cross_entropy;
#[cfg(test)]
mod tests;

pub(super) use cross_entropy::{
    cross_entropy_backward, cross_entropy_forward, probabilities, subtract, subtract_weighted,
};

use super::access::{read, write};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use super::simd::vectorised;
use super::threads::Threads;
use crate::error::Result;
use crate::kernel::{SquaredErrorBackward, SquaredErrorForward};

/// Elements of a piece of work.
const PIECE: usize = 1 << 14;

/// Predictions are few (one for each sequence), so this one runs on the calling thread.
pub(super) fn squared_error_forward(_threads: &Threads, a: SquaredErrorForward<'_>) -> Result<()> {
    const NAME: &str = "squared_error_forward";
    let count = a.x.len();
    let (x, targets) = (Floats::of(NAME, a.x)?, read::<f32>(NAME, a.targets)?);
    let loss = write::<f32>(NAME, a.loss)?;
    let (mut sum, mut spare) = (0.0f64, Spare::new());
    for (start, len) in tiles(count) {
        for (x, target) in x.tile(start, len, &mut spare).iter().zip(&targets[start..start + len]) {
            let difference = f64::from(*x) - f64::from(*target);
            sum += difference * difference;
        }
    }
    loss[0] = (sum / count as f64) as f32;
    Ok(())
}

pub(super) fn squared_error_backward(threads: &Threads, a: SquaredErrorBackward<'_>) -> Result<()> {
    const NAME: &str = "squared_error_backward";
    let count = a.x.len();
    let (x, targets) = (Floats::of(NAME, a.x)?, read::<f32>(NAME, a.targets)?);
    let (dloss, dx) = (read::<f32>(NAME, a.dloss)?[0], FloatsMut::of(NAME, a.dx)?);
    let factor = 2.0 * dloss / count as f32;
    threads.for_each_part(dx.rows(1), count, PIECE, |first, len, mut dx| {
        let (mut x_spare, mut dx_spare) = (Spare::new(), Spare::new());
        for (start, len) in tiles(len) {
            let from = first + start;
            let (x, targets) = (x.tile(from, len, &mut x_spare), &targets[from..from + len]);
            dx.data.update(start, len, false, &mut dx_spare, |dx| difference(x, targets, factor, dx));
        }
    });
    Ok(())
}

vectorised! {
    fn difference<I>(x: &[f32], targets: &[f32], factor: f32, dx: &mut [f32]) {
        for ((dx, x), target) in dx.iter_mut().zip(x).zip(targets) {
            *dx = factor * (x - target);
        }
    }
}

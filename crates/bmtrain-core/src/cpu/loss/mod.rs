//! Losses: squared error, functions of single elements (`pointwise`), totals of row losses and scaling of gradients.
//! Cross-entropy is in `cross_entropy`.

mod pointwise;
pub(super) use pointwise::{pointwise_backward, pointwise_forward};

use super::access::{read, write};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use crate::error::{Error, Result};
use crate::kernel::{LossTotals, ScaleBy, SquaredErrorBackward, SquaredErrorForward};
use crate::simd::vectorised;
use crate::threads::Threads;

/// Elements of one unit of work.
pub(super) const PIECE: usize = 1 << 14;

/// Predictions are few (one per sequence), so this runs on the calling thread.
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

/// Rows are few compared with their logits, so this runs on the calling thread.
pub(super) fn totals(_threads: &Threads, a: LossTotals<'_>) -> Result<()> {
    const NAME: &str = "loss_totals";
    let (losses, targets) = (read::<f32>(NAME, a.losses)?, read::<i64>(NAME, a.targets)?);
    let weights = a.class_weights.map(|weights| read::<f32>(NAME, weights)).transpose()?;
    let totals = write::<f32>(NAME, a.totals)?;
    let (mut loss, mut weight) = (0.0f64, 0.0f64);
    for (position, (row_loss, &index)) in losses.iter().zip(targets).enumerate() {
        loss += f64::from(*row_loss);
        weight += match weights {
            _ if index == a.ignore_index => 0.0,
            None => 1.0,
            Some(weights) => match usize::try_from(index).ok().and_then(|class| weights.get(class)) {
                Some(weight) => f64::from(*weight),
                None => return Err(Error::Index { op: NAME, position, index, bound: weights.len() }),
            },
        };
    }
    totals.copy_from_slice(&[loss as f32, weight as f32, (loss / weight) as f32]);
    Ok(())
}

pub(super) fn scale_by(threads: &Threads, a: ScaleBy<'_>) -> Result<()> {
    const NAME: &str = "scale_by";
    let divisor = a.divisor.map(|divisor| read::<f32>(NAME, divisor)).transpose()?.map(|divisor| divisor[0]);
    let factor = match (read::<f32>(NAME, a.factor)?[0], divisor) {
        (_, Some(0.0)) => 0.0,
        (factor, Some(divisor)) => factor / divisor,
        (factor, None) => factor,
    };
    let (add, x, out) = (a.out.add, Floats::maybe(NAME, a.x)?, FloatsMut::of(NAME, a.out.view)?);
    let len = out.len();
    threads.for_each_part(out.rows(1), len, PIECE, |first, len, mut out| {
        let (mut x_spare, mut out_spare) = (Spare::new(), Spare::new());
        for (start, len) in tiles(len) {
            let x = x.map(|x| x.tile(first + start, len, &mut x_spare));
            out.data.update(start, len, add || x.is_none(), &mut out_spare, |out| match x {
                Some(x) if add => scaled_added(factor, x, out),
                Some(x) => scaled(factor, x, out),
                None => scaled_in_place(factor, out),
            });
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

    fn scaled<I>(factor: f32, x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = factor * x;
        }
    }

    fn scaled_added<I>(factor: f32, x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = I::mul_add(factor, *x, *out);
        }
    }

    fn scaled_in_place<I>(factor: f32, out: &mut [f32]) {
        for out in out.iter_mut() {
            *out *= factor;
        }
    }
}

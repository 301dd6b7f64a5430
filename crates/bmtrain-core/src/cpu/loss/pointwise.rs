//! Functions of single elements that losses are made of, and their gradients.

use crate::cpu::elementwise::each;
use crate::cpu::floats::{Floats, FloatsMut};
use crate::error::Result;
use crate::kernel::{Pointwise, PointwiseBackward, PointwiseForward};
use crate::threads::Threads;

pub(in crate::cpu) fn pointwise_forward(threads: &Threads, a: PointwiseForward<'_>) -> Result<()> {
    const NAME: &str = "pointwise_forward";
    let (x, targets) = (Floats::of(NAME, a.x)?, Floats::maybe(NAME, a.targets)?);
    let (function, y) = (a.function, FloatsMut::of(NAME, a.y)?);
    // A function without targets does not look at them.
    each(threads, [x, targets.unwrap_or(x)], y, false, |[x, targets], y| {
        for ((y, x), target) in y.iter_mut().zip(x).zip(targets) {
            *y = value(function, *x, *target);
        }
    });
    Ok(())
}

pub(in crate::cpu) fn pointwise_backward(threads: &Threads, a: PointwiseBackward<'_>) -> Result<()> {
    const NAME: &str = "pointwise_backward";
    let (x, targets, dy) = (Floats::of(NAME, a.x)?, Floats::maybe(NAME, a.targets)?, Floats::of(NAME, a.dy)?);
    let (function, add, dx) = (a.function, a.dx.add, FloatsMut::of(NAME, a.dx.view)?);
    each(threads, [x, targets.unwrap_or(x), dy], dx, add, |[x, targets, dy], dx| {
        for (((dx, x), target), dy) in dx.iter_mut().zip(x).zip(targets).zip(dy) {
            let old = if add { *dx } else { 0.0 };
            *dx = old + slope(function, *x, *target) * dy;
        }
    });
    Ok(())
}

fn value(function: Pointwise, x: f32, target: f32) -> f32 {
    match function {
        Pointwise::AbsoluteError => (x - target).abs(),
        Pointwise::Huber { delta } => {
            let size = (x - target).abs();
            // Not `<=`, so that what is not a number stays so.
            if size > delta { delta * (size - 0.5 * delta) } else { 0.5 * size * size }
        }
        Pointwise::BinaryCrossEntropy => {
            let positive = if x < 0.0 { 0.0 } else { x };
            positive - x * target + (-x.abs()).exp().ln_1p()
        }
        Pointwise::KlDivergence if target == 0.0 => 0.0,
        Pointwise::KlDivergence => target * (target.ln() - x),
        Pointwise::LogOdds => x - rest(x).ln(),
    }
}

fn slope(function: Pointwise, x: f32, target: f32) -> f32 {
    match function {
        Pointwise::AbsoluteError if x == target => 0.0,
        Pointwise::AbsoluteError => (x - target).signum(),
        Pointwise::Huber { delta } => {
            let difference = x - target;
            if difference.abs() > delta { delta.copysign(difference) } else { difference }
        }
        Pointwise::BinaryCrossEntropy => {
            // The smaller of the two exponentials, so that neither end loses its digits.
            let small = (-x.abs()).exp();
            (if x < 0.0 { small } else { 1.0 }) / (1.0 + small) - target
        }
        Pointwise::KlDivergence => -target,
        Pointwise::LogOdds => 1.0 / rest(x),
    }
}

/// The probability of everything else, of a log-probability.
fn rest(log_prob: f32) -> f32 {
    let rest = -log_prob.exp_m1();
    if rest < f32::EPSILON { f32::EPSILON } else { rest }
}

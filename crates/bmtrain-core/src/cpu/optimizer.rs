//! The optimizer step and the clipping factor.

use super::access::{read, write};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use super::simd::vectorised;
use super::threads::Threads;
use crate::error::Result;
use crate::kernel::{Adam, ClipFactor, NormOrder};

/// Elements of a piece of work.
const PIECE: usize = 1 << 15;

pub(super) fn clip_factor(a: ClipFactor<'_>) -> Result<()> {
    const NAME: &str = "clip_factor";
    let accumulated = read::<f32>(NAME, a.accumulated)?[0];
    let (norm, factor) = (write::<f32>(NAME, a.norm)?, write::<f32>(NAME, a.factor)?);
    let root = match a.order {
        NormOrder::Two => accumulated.sqrt(),
        NormOrder::Infinity => accumulated,
    };
    norm[0] = root / a.scale;
    factor[0] = if norm[0].is_finite() { (a.max_norm / (norm[0] + 1e-6)).min(1.0) / a.scale } else { f32::NAN };
    Ok(())
}

/// The numbers of one step, the same for all elements.
#[derive(Clone, Copy)]
struct Step {
    /// Multiplied into the gradient; negative to climb.
    factor: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// `lr / (1 - beta1^t)`.
    rate: f32,
    /// `1 / (1 - beta2^t)`.
    correction: f32,
    /// Added to the gradient, times the parameter.
    coupled: f32,
    /// `1 - lr * decay` when decoupled.
    keep: f32,
}

impl Step {
    fn new(a: &Adam<'_>, factor: f32) -> Self {
        // In doubles: 1 - beta^t loses most of an f32's digits in the first steps.
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(a.step as f64);
        Step {
            factor: if a.maximize { -factor } else { factor },
            beta1: a.beta1,
            beta2: a.beta2,
            epsilon: a.epsilon,
            rate: (f64::from(a.lr) / correction(a.beta1)) as f32,
            correction: (1.0 / correction(a.beta2)) as f32,
            coupled: if a.decoupled { 0.0 } else { a.decay },
            keep: if a.decoupled { (1.0 - f64::from(a.lr) * f64::from(a.decay)) as f32 } else { 1.0 },
        }
    }
}

pub(super) fn adam(threads: &Threads, a: Adam<'_>) -> Result<()> {
    const NAME: &str = "adam";
    let factor = read::<f32>(NAME, a.factor)?[0];
    if !factor.is_finite() {
        return Ok(());
    }
    let (step, len) = (Step::new(&a, factor), a.parameter.len());
    let (grad, parameter) = (Floats::of(NAME, a.grad)?, FloatsMut::of(NAME, a.parameter)?);
    let master = a.master.map(|master| FloatsMut::of(NAME, master)).transpose()?;
    let (m, v) = (write::<f32>(NAME, a.m)?, write::<f32>(NAME, a.v)?);
    let written = (parameter.rows(1), master.map(|master| master.rows(1)), m, v);
    threads.for_each_part(written, len, PIECE, |first, len, (mut parameter, mut master, m, v)| {
        let mut spares = [const { Spare::new() }; 3];
        let [grad_spare, master_spare, spare] = &mut spares;
        for (start, len) in tiles(len) {
            let grad = grad.tile(first + start, len, grad_spare);
            let (m, v) = (&mut m[start..start + len], &mut v[start..start + len]);
            match &mut master {
                Some(master) => master.data.update(start, len, true, master_spare, |master| {
                    update(step, grad, master, m, v);
                    parameter.data.narrow(start, master);
                }),
                None => parameter.data.update(start, len, true, spare, |parameter| update(step, grad, parameter, m, v)),
            }
        }
    });
    Ok(())
}

vectorised! {
    fn update<I>(step: Step, grad: &[f32], parameter: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let (rest1, rest2) = (1.0 - step.beta1, 1.0 - step.beta2);
        for (((p, g), m), v) in parameter.iter_mut().zip(grad).zip(m).zip(v) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *m = I::mul_add(step.beta1, *m, rest1 * g);
            *v = I::mul_add(step.beta2, *v, rest2 * g * g);
            let change = *m / ((*v * step.correction).sqrt() + step.epsilon);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }
}

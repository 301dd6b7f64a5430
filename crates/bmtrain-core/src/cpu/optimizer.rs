//! The optimizer step and the clipping factor. [`step`] serves the kernels of Adam and of `update.rs`, and
//! `crate::offload`.

use super::access::{read, write};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use super::reduce::squares;
use crate::error::Result;
use crate::exact::Sum;
use crate::kernel::{Adam, AdamNumbers, AdamRun, ClipFactor, NORM_CHUNK, NormOrder};
use crate::simd::vectorised;
use crate::threads::Threads;
use std::sync::{Mutex, PoisonError};

/// Elements of a piece of work.
const PIECE: usize = 1 << 15;

pub(super) fn clip_factor(a: ClipFactor<'_>) -> Result<()> {
    const NAME: &str = "clip_factor";
    let accumulated = read::<i64>(NAME, a.accumulated)?;
    let (norm, factor) = (write::<f32>(NAME, a.norm)?, write::<f32>(NAME, a.factor)?);
    let root = match a.order {
        NormOrder::Two => Sum::from_words(std::array::from_fn(|i| accumulated[i])).to_f64().sqrt(),
        NormOrder::Infinity => f64::from(f32::from_bits(accumulated[0] as u32)),
    };
    norm[0] = (root / f64::from(a.scale)) as f32;
    factor[0] = if norm[0].is_finite() { (a.max_norm / (norm[0] + 1e-6)).min(1.0) / a.scale } else { f32::NAN };
    Ok(())
}

pub(super) fn adam(threads: &Threads, a: Adam<'_>) -> Result<()> {
    const NAME: &str = "adam";
    let factor = read::<f32>(NAME, a.factor)?[0];
    for AdamRun { parameter, master, m, v, grad, settings } in a.runs {
        let master = master.map(|master| write::<f32>(NAME, master)).transpose()?;
        let states = [Some(write::<f32>(NAME, m)?), Some(write::<f32>(NAME, v)?), None];
        let (parameter, grad) = (FloatsMut::of(NAME, parameter)?, Floats::of(NAME, grad)?);
        step(threads, settings.numbers(factor), factor, Elements { parameter, master, states, grad }, None);
    }
    Ok(())
}

/// Optimizer state of each element, in the order of its kernel's arguments.
pub(super) type States<'a> = [Option<&'a mut [f32]>; 3];

/// Update of f32 values by one step.
pub(super) trait TileUpdate: Copy + Send + Sync {
    /// The step, over slices of one length.
    fn update(self, grad: &[f32], parameter: &mut [f32], states: States<'_>);
}

impl TileUpdate for AdamNumbers {
    fn update(self, grad: &[f32], parameter: &mut [f32], states: States<'_>) {
        if let [Some(m), Some(v), _] = states {
            update(self, grad, parameter, m, v);
        }
    }
}

/// Operands of a step: ranges of one length.
pub(super) struct Elements<'a> {
    pub(super) parameter: FloatsMut<'a>,
    pub(super) master: Option<&'a mut [f32]>,
    pub(super) states: States<'a>,
    pub(super) grad: Floats<'a>,
}

/// One step, or none if `factor` is not finite. With `moved` the squares of what each f32 value changed by are added
/// there, in the pieces of a [`GradNorm`](crate::kernel::GradNorm), so that the sum has its bits.
pub(super) fn step(
    threads: &Threads,
    step: impl TileUpdate,
    factor: f32,
    elements: Elements<'_>,
    moved: Option<&Mutex<Sum>>,
) {
    if !factor.is_finite() {
        return;
    }
    let Elements { parameter, master, states: [a, b, c], grad } = elements;
    let (len, written) = (parameter.len(), (parameter.rows(1), master, (a, b, c)));
    threads.for_each_part(written, len, PIECE, |first, len, (parameter, master, (a, b, c))| {
        let (states, grad) = ([a, b, c], grad.part(first, len));
        let elements = Elements { parameter: parameter.data, master, states, grad };
        match moved {
            None => piece(step, elements),
            Some(moved) => {
                let sum = piece_measured(step, elements);
                moved.lock().unwrap_or_else(PoisonError::into_inner).merge(sum);
            }
        }
    });
}

/// A range of all states.
fn part<'s>(states: &'s mut States<'_>, start: usize, len: usize) -> States<'s> {
    states.each_mut().map(|state| state.as_mut().map(|state| &mut state[start..start + len]))
}

pub(super) fn piece(step: impl TileUpdate, elements: Elements<'_>) {
    let Elements { mut parameter, mut master, mut states, grad } = elements;
    if let (FloatsMut::F32(parameter), None, Floats::F32(grad)) = (&mut parameter, &master, grad) {
        // Nothing to widen: one loop, and no room on the stack that would have to be cleared.
        return step.update(grad, parameter, states);
    }
    let mut spares = [const { Spare::new() }; 2];
    let [grad_spare, spare] = &mut spares;
    for (start, len) in tiles(parameter.len()) {
        let grad = grad.tile(start, len, grad_spare);
        let states = part(&mut states, start, len);
        match &mut master {
            Some(master) => {
                let master = &mut master[start..start + len];
                step.update(grad, master, states);
                parameter.narrow(start, master);
            }
            None => parameter.update(start, len, true, spare, |parameter| step.update(grad, parameter, states)),
        }
    }
}

/// The same, and the sum of the squares of the changes.
fn piece_measured(step: impl TileUpdate, elements: Elements<'_>) -> Sum {
    let Elements { mut parameter, mut master, mut states, grad } = elements;
    let (mut sum, mut before) = (Sum::ZERO, Spare::new());
    for (start, len) in tiles(parameter.len()) {
        let place = |values: &[f32], before: &mut Spare| before.0[..len].copy_from_slice(&values[start..start + len]);
        match (&master, &parameter) {
            (Some(master), _) => place(master, &mut before),
            (None, FloatsMut::F32(parameter)) => place(parameter, &mut before),
            (None, _) => parameter.read().widen(start, &mut before.0[..len]),
        }
        let master_tile = master.as_mut().map(|master| &mut master[start..start + len]);
        let (states, grad) = (part(&mut states, start, len), grad.part(start, len));
        piece(step, Elements { parameter: parameter.part(start, len), master: master_tile, states, grad });
        let mut spare = Spare::new();
        let after: &[f32] = match &master {
            Some(master) => &master[start..start + len],
            None => parameter.read().tile(start, len, &mut spare),
        };
        for (before, after) in before.0.iter_mut().zip(after) {
            *before = after - *before;
        }
        before.0[..len].chunks(NORM_CHUNK).for_each(|chunk| sum.add(squares(chunk)));
    }
    sum
}

vectorised! {
    fn update<I>(step: AdamNumbers, grad: &[f32], parameter: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, g), m), v) in parameter.iter_mut().zip(grad).zip(m).zip(v) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *m = I::mul_add(step.beta1, *m, step.rest1 * g);
            *v = I::mul_add(step.beta2, *v, step.rest2 * g * g);
            let change = *m / ((*v * step.correction).sqrt() + step.epsilon);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }
}

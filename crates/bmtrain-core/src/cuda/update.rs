//! The optimizers that update each element by itself, Adam apart: the launch of `update.cu`.
#![allow(unsafe_code)]

use super::launch::{Launch, Typed, typed};
use super::runs::{StepElements, steps};
use crate::error::Result;
use crate::kernel::{Arguments as _, Update, UpdateNumbers};

const UPDATE: Typed = typed!("update", "update");

pub(super) fn update(launch: &Launch<'_>, a: Update<'_>) -> Result<()> {
    let Update { parameter, master, first, second, third, grad, factor, settings } = a;
    // The factor of the gradient is on the device; here is its sign.
    let (states, numbers) = ([first, second, third], settings.numbers(1.0));
    let run: StepElements<'_, UpdateNumbers, 3> = StepElements { parameter, master, states, grad, numbers };
    // SAFETY: numbers and states are laid out as in update.cu. `check` saw that all ranges hold as many elements, that
    // the form has these states, f32 as the master is, that a parameter without a master is f32, and that nothing
    // written overlaps anything.
    unsafe { steps(launch, (Update::NAME, UPDATE), &factor, &[run]) }
}

//! Clipping and Adam: the launches of `optimizer.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{Launch, Typed, WARP, arguments, typed};
use super::modules::Name;
use super::runs::{StepElements, steps};
use crate::error::Result;
use crate::kernel::{Adam, AdamNumbers, AdamRun, Arguments as _, ClipFactor, NormOrder};

const CLIP_FACTOR: Name = Name { unit: "optimizer", kernel: c"clip_factor" };
const ADAM: Typed = typed!("optimizer", "adam");

pub(super) fn clip_factor(launch: &Launch<'_>, a: ClipFactor<'_>) -> Result<()> {
    let arguments = arguments!(ClipFactorArguments {
        accumulated: u64 = a.accumulated.address(),
        norm: u64 = a.norm.address(),
        factor: u64 = a.factor.address(),
        max_norm: f32 = a.max_norm,
        scale: f32 = a.scale,
        largest: i32 = i32::from(a.order == NormOrder::Infinity),
        unused: i32 = 0,
    });
    // SAFETY: laid out as in optimizer.cu. `check` saw that there are the integers of a sum and two single numbers. The
    // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(CLIP_FACTOR, Grid::line(1, WARP as u32), arguments) }
}

pub(super) fn adam(launch: &Launch<'_>, a: Adam<'_>) -> Result<()> {
    let elements = |AdamRun { parameter, master, m, v, grad, settings }| {
        // The factor of the gradient is on the device; here is its sign.
        StepElements { parameter, master, states: [Some(m), Some(v)], grad, numbers: settings.numbers(1.0) }
    };
    let runs: Vec<StepElements<'_, AdamNumbers, 2>> = a.runs.into_iter().map(elements).collect();
    // SAFETY: numbers and states are laid out as in optimizer.cu. `check` saw that all ranges of a run hold as many
    // elements, that moments and master are f32 and that a parameter without a master is, and that nothing written
    // overlaps anything.
    unsafe { steps(launch, (Adam::NAME, ADAM), &a.factor, &runs) }
}

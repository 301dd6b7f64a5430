//! Clipping and Adam: the launches of `optimizer.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{Launch, PACK, STEP_THREADS, StepOperands, Typed, WARP, arguments, typed, whole};
use super::modules::Name;
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Adam, AdamNumbers, Arguments as _, ClipFactor, NormOrder};

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
    let written = [Some(&a.parameter), a.master.as_ref(), Some(&a.m), Some(&a.v)];
    let addresses = written.into_iter().flatten().map(ViewMut::address).chain([a.grad.address()]);
    let arguments = arguments!(AdamArguments {
        operands: StepOperands = StepOperands::of(Adam::NAME, [&a.grad, &a.factor], &a.parameter, a.master.as_ref())?,
        // The factor of the gradient is on the device; here is its sign.
        numbers: AdamNumbers = a.settings.numbers(1.0),
        m: u64 = a.m.address(),
        v: u64 = a.v.address(),
        whole: i32 = whole(addresses, &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(a.parameter.len().div_ceil(PACK * STEP_THREADS)), STEP_THREADS as u32);
    let name = ADAM.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in optimizer.cu. `check` saw that all ranges hold as many elements, that moments and master
    // are f32 and that a parameter without a master is, and that nothing written overlaps anything. The memory stays
    // valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

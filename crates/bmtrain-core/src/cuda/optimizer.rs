//! Clipping and Adam: the launches of `optimizer.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, WARP, arguments, long, typed, whole};
use super::modules::Name;
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Adam, Arguments as _, ClipFactor, NormOrder};

/// `kAdamThreads`.
const THREADS: usize = 256;

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
    // The factor of the gradient is on the device; here is its sign.
    let numbers = a.settings.numbers(1.0);
    let written = [Some(&a.parameter), a.master.as_ref(), Some(&a.m), Some(&a.v)];
    let addresses = written.into_iter().flatten().map(ViewMut::address).chain([a.grad.address()]);
    let count = a.parameter.len();
    let arguments = arguments!(AdamArguments {
        grad: In = In::of(&a.grad),
        parameter: Out = Out::of(&a.parameter),
        master: u64 = a.master.as_ref().map_or(0, ViewMut::address),
        m: u64 = a.m.address(),
        v: u64 = a.v.address(),
        factor: u64 = a.factor.address(),
        count: i64 = long(Adam::NAME, "elements", count)?,
        sign: f32 = numbers.factor,
        beta1: f32 = numbers.beta1,
        beta2: f32 = numbers.beta2,
        rest1: f32 = 1.0 - numbers.beta1,
        rest2: f32 = 1.0 - numbers.beta2,
        epsilon: f32 = numbers.epsilon,
        rate: f32 = numbers.rate,
        correction: f32 = numbers.correction,
        coupled: f32 = numbers.coupled,
        keep: f32 = numbers.keep,
        whole: i32 = whole(addresses, &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(count.div_ceil(PACK * THREADS)), THREADS as u32);
    let name = ADAM.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in optimizer.cu. `check` saw that all ranges hold `count` elements, that moments and master
    // are f32 and that a parameter without a master is, and that nothing written overlaps anything. The memory stays
    // valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

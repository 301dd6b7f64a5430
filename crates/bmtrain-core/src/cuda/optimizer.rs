//! Clipping and Adam: the launches of `optimizer.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, WARP, long, typed, whole};
use super::modules::Name;
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Adam, Arguments as _, ClipFactor, NormOrder};

/// `kAdamThreads`.
const THREADS: usize = 256;

const CLIP_FACTOR: Name = Name { unit: "optimizer", kernel: c"clip_factor" };
const ADAM: Typed = typed!("optimizer", "adam");

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ClipFactorArguments {
    accumulated: u64,
    norm: u64,
    factor: u64,
    max_norm: f32,
    scale: f32,
    largest: i32,
    unused: i32,
}

pub(super) fn clip_factor(launch: &Launch<'_>, a: ClipFactor<'_>) -> Result<()> {
    let arguments = ClipFactorArguments {
        accumulated: a.accumulated.address(),
        norm: a.norm.address(),
        factor: a.factor.address(),
        max_norm: a.max_norm,
        scale: a.scale,
        largest: i32::from(a.order == NormOrder::Infinity),
        unused: 0,
    };
    // SAFETY: laid out as in optimizer.cu. `check` saw that there are the integers of a sum and two single numbers. The
    // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(CLIP_FACTOR, Grid::line(1, WARP as u32), arguments) }
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct AdamArguments {
    grad: In,
    parameter: Out,
    master: u64,
    m: u64,
    v: u64,
    factor: u64,
    count: i64,
    sign: f32,
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    epsilon: f32,
    rate: f32,
    correction: f32,
    coupled: f32,
    keep: f32,
    whole: i32,
    unused: i32,
}

pub(super) fn adam(launch: &Launch<'_>, a: Adam<'_>) -> Result<()> {
    // The factor of the gradient is on the device; here is its sign.
    let numbers = a.settings().numbers(1.0);
    let written = [Some(&a.parameter), a.master.as_ref(), Some(&a.m), Some(&a.v)];
    let addresses = written.into_iter().flatten().map(ViewMut::address).chain([a.grad.address()]);
    let count = a.parameter.len();
    let arguments = AdamArguments {
        grad: In::of(&a.grad),
        parameter: Out::of(&a.parameter),
        master: a.master.as_ref().map_or(0, ViewMut::address),
        m: a.m.address(),
        v: a.v.address(),
        factor: a.factor.address(),
        count: long(Adam::NAME, "elements", count)?,
        sign: numbers.factor,
        beta1: numbers.beta1,
        beta2: numbers.beta2,
        rest1: 1.0 - numbers.beta1,
        rest2: 1.0 - numbers.beta2,
        epsilon: numbers.epsilon,
        rate: numbers.rate,
        correction: numbers.correction,
        coupled: numbers.coupled,
        keep: numbers.keep,
        whole: whole(addresses, &[]),
        unused: 0,
    };
    let grid = Grid::line(launch.blocks(count.div_ceil(PACK * THREADS)), THREADS as u32);
    let name = ADAM.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in optimizer.cu. `check` saw that all ranges hold `count` elements, that moments and master
    // are f32 and that a parameter without a master is, and that nothing written overlaps anything. The memory stays
    // valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

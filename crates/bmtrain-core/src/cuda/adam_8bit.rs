//! Adam with moments in 8 bits: the launch of `adam_8bit.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, Typed, arguments, long, typed};
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Adam8bit, Arguments as _, STATE_BLOCK};

const ADAM: Typed = typed!("adam_8bit", "adam_8bit");

pub(super) fn adam_8bit(launch: &Launch<'_>, a: Adam8bit<'_>) -> Result<()> {
    // The factor of the gradient is on the device; here is its sign.
    let numbers = a.settings.numbers(1.0);
    let count = a.parameter.len();
    let arguments = arguments!(Adam8bitArguments {
        grad: In = In::of(&a.grad),
        parameter: Out = Out::of(&a.parameter),
        master: u64 = a.master.as_ref().map_or(0, ViewMut::address),
        m: u64 = a.m.address(),
        v: u64 = a.v.address(),
        m_scale: u64 = a.m_scale.address(),
        v_scale: u64 = a.v_scale.address(),
        factor: u64 = a.factor.address(),
        count: i64 = long(Adam8bit::NAME, "elements", count)?,
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
    });
    let grid = Grid::line(launch.blocks(count.div_ceil(STATE_BLOCK)), STATE_BLOCK as u32);
    let name = ADAM.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in adam_8bit.cu. `check` saw that all ranges hold `count` elements or a number for each of
    // their blocks, that codes are bytes and scales and master f32, that a parameter without a master is, and that
    // nothing written overlaps anything. The memory stays valid until the lane has run the kernel, because the pool
    // gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

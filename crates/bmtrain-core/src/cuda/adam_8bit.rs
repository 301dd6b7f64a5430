//! Adam with moments in 8 bits: the launch of `adam_8bit.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, Typed, arguments, long, typed};
use crate::error::Result;
use crate::kernel::{Adam8bit, AdamNumbers, Arguments as _, STATE_BLOCK};
use crate::quantised::{SIGNED, UNSIGNED};
use crate::view::ViewMut;

const ADAM: Typed = typed!("adam_8bit", "adam_8bit");

pub(super) fn adam_8bit(launch: &Launch<'_>, a: Adam8bit<'_>) -> Result<()> {
    let arguments = arguments!(Adam8bitArguments {
        grad: In = In::of(&a.grad),
        parameter: Out = Out::of(&a.parameter),
        master: u64 = a.master.as_ref().map_or(0, ViewMut::address),
        factor: u64 = a.factor.address(),
        count: i64 = long(Adam8bit::NAME, "elements", a.parameter.len())?,
        // The factor of the gradient is on the device; here is its sign.
        numbers: AdamNumbers = a.settings.numbers(1.0),
        m: u64 = a.m.address(),
        v: u64 = a.v.address(),
        m_scale: u64 = a.m_scale.address(),
        v_scale: u64 = a.v_scale.address(),
        of_m: [f32; 256] = SIGNED.values,
        of_v: [f32; 256] = UNSIGNED.values,
    });
    let grid = Grid::line(launch.blocks(a.parameter.len().div_ceil(STATE_BLOCK)), STATE_BLOCK as u32);
    let name = ADAM.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in adam_8bit.cu. `check` saw that all ranges hold as many elements or a number for each of
    // their blocks, that codes are bytes and scales and master f32, that a parameter without a master is, and that
    // nothing written overlaps anything. The memory stays valid until the lane has run the kernel, because the pool
    // gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

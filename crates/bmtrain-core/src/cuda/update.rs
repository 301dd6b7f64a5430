//! The optimizers that update each element by itself, Adam apart: the launch of `update.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{Launch, PACK, STEP_THREADS, StepOperands, Typed, arguments, typed, whole};
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Arguments as _, Update, UpdateNumbers};

const UPDATE: Typed = typed!("update", "update");

pub(super) fn update(launch: &Launch<'_>, a: Update<'_>) -> Result<()> {
    let states = [&a.first, &a.second, &a.third].map(Option::as_ref);
    let written = [Some(&a.parameter), a.master.as_ref()].into_iter().chain(states).flatten();
    let addresses = written.map(ViewMut::address).chain([a.grad.address()]);
    let [first, second, third] = states.map(|state| state.map_or(0, ViewMut::address));
    let arguments = arguments!(UpdateArguments {
        operands: StepOperands = StepOperands::of(Update::NAME, [&a.grad, &a.factor], &a.parameter, a.master.as_ref())?,
        // The factor of the gradient is on the device; here is its sign.
        numbers: UpdateNumbers = a.settings.numbers(1.0),
        first: u64 = first,
        second: u64 = second,
        third: u64 = third,
        whole: i32 = whole(addresses, &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(a.parameter.len().div_ceil(PACK * STEP_THREADS)), STEP_THREADS as u32);
    let name = UPDATE.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in update.cu. `check` saw that all ranges hold as many elements, that the form has these
    // states, f32 as the master is, that a parameter without a master is f32, and that nothing written overlaps
    // anything. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

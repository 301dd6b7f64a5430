//! The optimizers that update each element by itself, Adam apart: the launch of `update.cu`.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{In, Launch, Out, PACK, Typed, arguments, long, typed, whole};
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::kernel::{Arguments as _, Update, UpdateForm};

/// `kUpdateThreads`.
const THREADS: usize = 256;

const UPDATE: Typed = typed!("update", "update");

/// The tag of a form in `update.cu`.
fn tag(form: UpdateForm) -> i32 {
    match form {
        UpdateForm::Sgd => 0,
        UpdateForm::Adagrad => 1,
        UpdateForm::RmsProp => 2,
        UpdateForm::Adadelta => 3,
        UpdateForm::Adamax => 4,
        UpdateForm::NAdam => 5,
        UpdateForm::RAdam => 6,
        UpdateForm::Lion => 7,
    }
}

pub(super) fn update(launch: &Launch<'_>, a: Update<'_>) -> Result<()> {
    // The factor of the gradient is on the device; here is its sign.
    let numbers = a.settings.numbers(1.0);
    let states = [&a.first, &a.second, &a.third].map(Option::as_ref);
    let written = [Some(&a.parameter), a.master.as_ref()].into_iter().chain(states).flatten();
    let addresses = written.map(ViewMut::address).chain([a.grad.address()]);
    let count = a.parameter.len();
    let [first, second, third] = states.map(|state| state.map_or(0, ViewMut::address));
    let arguments = arguments!(UpdateArguments {
        grad: In = In::of(&a.grad),
        parameter: Out = Out::of(&a.parameter),
        master: u64 = a.master.as_ref().map_or(0, ViewMut::address),
        first: u64 = first,
        second: u64 = second,
        third: u64 = third,
        factor: u64 = a.factor.address(),
        count: i64 = long(Update::NAME, "elements", count)?,
        form: i32 = tag(numbers.form),
        sign: f32 = numbers.factor,
        coupled: f32 = numbers.coupled,
        keep: f32 = numbers.keep,
        beta1: f32 = numbers.beta1,
        rest1: f32 = numbers.rest1,
        beta2: f32 = numbers.beta2,
        rest2: f32 = numbers.rest2,
        epsilon: f32 = numbers.epsilon,
        rate: f32 = numbers.rate,
        moment_rate: f32 = numbers.moment_rate,
        correction: f32 = numbers.correction,
        whole: i32 = whole(addresses, &[]),
        unused: i32 = 0,
    });
    let grid = Grid::line(launch.blocks(count.div_ceil(PACK * THREADS)), THREADS as u32);
    let name = UPDATE.of([a.grad.dtype(), a.parameter.dtype()]);
    // SAFETY: laid out as in update.cu. `check` saw that all ranges hold `count` elements, that the form has these
    // states, f32 as the master is, that a parameter without a master is f32, and that nothing written overlaps
    // anything. The memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

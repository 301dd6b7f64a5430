//! The optimizer step as work of the host, on plain slices. Public as [`crate::offload::HostUpdate`] and
//! [`crate::offload::widen`].

use super::floats::{Floats, FloatsMut};
use super::optimizer::{Elements, step};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exact::Sum;
use crate::kernel::{AdamSettings, UpdateSettings, check_step};
use crate::threads::Threads;
use std::sync::{Mutex, PoisonError};

/// The formulas of a [`HostUpdate`] and the numbers of its step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HostSettings {
    /// As in [`kernel::Adam`](crate::kernel::Adam), with the states `m` and `v`.
    Adam(AdamSettings),
    /// As in [`kernel::Update`](crate::kernel::Update), with the states `first`, `second` and `third`.
    Update(UpdateSettings),
}

impl HostSettings {
    fn step(&self) -> u64 {
        match self {
            HostSettings::Adam(settings) => settings.step,
            HostSettings::Update(settings) => settings.step,
        }
    }

    /// The names of the states, in the order of the kernel's arguments; `None` of those that the formulas do not have.
    pub fn states(&self) -> [Option<&'static str>; 3] {
        match self {
            HostSettings::Adam(_) => [Some("m"), Some("v"), None],
            HostSettings::Update(settings) => settings.rule.states(),
        }
    }
}

/// One step of an optimizer over a run of elements in the host's memory; the formulas and the bits are the same as in
/// the kernel of its settings on the CPU backend.
#[derive(Debug)]
pub struct HostUpdate<'a> {
    /// The parameter, of type `dtype`.
    pub parameter: &'a mut [u8],
    /// Type of the parameter.
    pub dtype: DType,
    /// f32 copy of a parameter of another type; none of an f32 one.
    pub master: Option<&'a mut [f32]>,
    /// The states that [`HostSettings::states`] names.
    pub states: [Option<&'a mut [f32]>; 3],
    /// The gradient, of type `grad_dtype`.
    pub grad: &'a [u8],
    /// Type of the gradient.
    pub grad_dtype: DType,
    /// Multiplied into the gradient; if it is not finite nothing is changed.
    pub factor: f32,
    /// The formulas and the numbers of the step.
    pub settings: HostSettings,
}

impl HostUpdate<'_> {
    /// Take the step, divided among `threads`. With `moved`, the sum of the squares of what every f32 value changed by
    /// is added to it.
    pub fn run(self, threads: &Threads, moved: Option<&mut Sum>) -> Result<()> {
        const NAME: &str = "host update";
        let parameter = FloatsMut::of_bytes(NAME, self.parameter, self.dtype)?;
        let grad = Floats::of_bytes(NAME, self.grad, self.grad_dtype)?;
        let len = parameter.len();
        for (name, state) in self.settings.states().into_iter().zip(&self.states) {
            let (expected, got) = (name.map_or(0, |_| len), state.as_ref().map_or(0, |state| state.len()));
            if expected != got {
                return Err(Error::shape(NAME, name.unwrap_or("a state of other formulas"), expected, got));
            }
        }
        let master = self.master.as_ref().map_or(len, |master| master.len());
        for (what, got) in [("grad", grad.len()), ("master", master)] {
            if got != len {
                return Err(Error::shape(NAME, what, len, got));
            }
        }
        check_step(NAME, self.dtype, self.master.is_some(), self.settings.step())?;
        let elements = Elements { parameter, master: self.master, states: self.states, grad };
        let (sum, factor) = (moved.as_ref().map(|_| Mutex::new(Sum::ZERO)), self.factor);
        let within = threads.instruction_set();
        match self.settings {
            HostSettings::Adam(settings) => {
                within.within(|| step(threads, settings.numbers(factor), factor, elements, sum.as_ref()));
            }
            HostSettings::Update(settings) => {
                within.within(|| step(threads, settings.numbers(factor), factor, elements, sum.as_ref()));
            }
        }
        if let (Some(moved), Some(sum)) = (moved, sum) {
            moved.merge(sum.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }
}

/// Floating-point elements of type `dtype` as f32, which is exact.
pub fn widen(from: &[u8], dtype: DType, to: &mut [f32]) -> Result<()> {
    const NAME: &str = "widen";
    let from = Floats::of_bytes(NAME, from, dtype)?;
    if from.len() != to.len() {
        return Err(Error::shape(NAME, "elements", to.len(), from.len()));
    }
    from.widen(0, to);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: AdamSettings = AdamSettings {
        lr: 0.5,
        beta1: 0.0,
        beta2: 0.0,
        epsilon: 0.0,
        decay: 0.0,
        decoupled: true,
        maximize: false,
        step: 1,
    };

    fn run(parameter: &mut [f32], factor: f32, moved: Option<&mut Sum>) -> Result<()> {
        let len = parameter.len();
        let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
        let grad: Vec<f32> = (0..len).map(|i| if i % 2 == 0 { 2.0 } else { -3.0 }).collect();
        let adam = HostUpdate {
            parameter: bytemuck::cast_slice_mut(parameter),
            dtype: DType::F32,
            master: None,
            states: [Some(&mut m), Some(&mut v), None],
            grad: bytemuck::cast_slice(&grad),
            grad_dtype: DType::F32,
            factor,
            settings: HostSettings::Adam(SETTINGS),
        };
        adam.run(&Threads::new(2)?, moved)
    }

    #[test]
    fn the_sum_of_squared_changes_is_exact_over_pieces_and_threads() {
        // Without memory of former steps every element moves by exactly the learning rate, against its gradient.
        let mut values = vec![1.0; 100_000];
        let mut moved = Sum::ZERO;
        run(&mut values, 1.0, Some(&mut moved)).unwrap();
        assert!(values.iter().enumerate().all(|(i, x)| *x == if i % 2 == 0 { 0.5 } else { 1.5 }));
        assert_eq!(moved.to_f64(), 25_000.0);
        run(&mut values, f32::NAN, Some(&mut moved)).unwrap();
        assert_eq!((values[0], moved.to_f64()), (0.5, 25_000.0), "a lost step moves nothing");
    }

    #[test]
    fn ranges_that_do_not_fit_are_refused() {
        let (mut values, grad, mut m, mut v) = ([0.0f32; 3], [0.0f32; 3], [0.0; 3], [0.0; 2]);
        let adam = HostUpdate {
            parameter: bytemuck::cast_slice_mut(&mut values),
            dtype: DType::F32,
            master: None,
            states: [Some(&mut m), Some(&mut v), None],
            grad: bytemuck::cast_slice(&grad),
            grad_dtype: DType::F32,
            factor: 1.0,
            settings: HostSettings::Adam(SETTINGS),
        };
        let error = adam.run(&Threads::new(1).unwrap(), None).unwrap_err().to_string();
        assert!(error.contains("v: expected 3, got 2"), "{error}");
    }
}

//! The optimizer step as work of the host, on plain slices. Public as [`crate::offload::HostAdam`] and
//! [`crate::offload::widen`].

use super::floats::{Floats, FloatsMut};
use super::optimizer::{Elements, step};
use super::threads::Threads;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exact::Sum;
use crate::kernel::AdamSettings;
use std::sync::{Mutex, PoisonError};

/// One Adam step over a run of elements in the host's memory; the formulas and the bits are the same as in
/// [`kernel::Adam`](crate::kernel::Adam) on the CPU backend.
#[derive(Debug)]
pub struct HostAdam<'a> {
    /// The parameter, of type `dtype`.
    pub parameter: &'a mut [u8],
    /// Type of the parameter.
    pub dtype: DType,
    /// f32 copy of a parameter of another type; none of an f32 one.
    pub master: Option<&'a mut [f32]>,
    /// First moment.
    pub m: &'a mut [f32],
    /// Second moment.
    pub v: &'a mut [f32],
    /// The gradient, of type `grad_dtype`.
    pub grad: &'a [u8],
    /// Type of the gradient.
    pub grad_dtype: DType,
    /// Multiplied into the gradient; if it is not finite nothing is changed.
    pub factor: f32,
    /// The numbers of the step.
    pub settings: AdamSettings,
}

impl HostAdam<'_> {
    /// Take the step, divided among `threads`. With `moved`, the sum of the squares of what every f32 value changed by
    /// is added to it.
    pub fn run(self, threads: &Threads, moved: Option<&mut Sum>) -> Result<()> {
        const NAME: &str = "host adam";
        let parameter = FloatsMut::of_bytes(NAME, self.parameter, self.dtype)?;
        let grad = Floats::of_bytes(NAME, self.grad, self.grad_dtype)?;
        let len = parameter.len();
        let master = self.master.as_ref().map_or(len, |master| master.len());
        for (what, got) in [("grad", grad.len()), ("m", self.m.len()), ("v", self.v.len()), ("master", master)] {
            if got != len {
                return Err(Error::shape(NAME, what, len, got));
            }
        }
        if (self.dtype == DType::F32) == self.master.is_some() {
            let reason = "a master copy belongs to parameters that are not f32, and only to them";
            return Err(Error::argument(NAME, reason));
        }
        if self.settings.step == 0 {
            return Err(Error::argument(NAME, "steps are counted from 1"));
        }
        let elements = Elements { parameter, master: self.master, states: [Some(self.m), Some(self.v), None], grad };
        let sum = moved.as_ref().map(|_| Mutex::new(Sum::ZERO));
        let numbers = self.settings.numbers(self.factor);
        let take = || step(threads, numbers, self.factor, elements, sum.as_ref());
        threads.instruction_set().within(take);
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
        let adam = HostAdam {
            parameter: bytemuck::cast_slice_mut(parameter),
            dtype: DType::F32,
            master: None,
            m: &mut m,
            v: &mut v,
            grad: bytemuck::cast_slice(&grad),
            grad_dtype: DType::F32,
            factor,
            settings: SETTINGS,
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
        let adam = HostAdam {
            parameter: bytemuck::cast_slice_mut(&mut values),
            dtype: DType::F32,
            master: None,
            m: &mut m,
            v: &mut v,
            grad: bytemuck::cast_slice(&grad),
            grad_dtype: DType::F32,
            factor: 1.0,
            settings: SETTINGS,
        };
        let error = adam.run(&Threads::new(1).unwrap(), None).unwrap_err().to_string();
        assert!(error.contains("v: expected 3, got 2"), "{error}");
    }
}

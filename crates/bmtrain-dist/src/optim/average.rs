//! Averages of the weights over the steps: exponential, or of the last steps.
//!
//! [`WeightAverage`] wraps an optimizer and keeps one more f32 tensor for each parameter, `average`, sharded, saved and
//! restored like the others; [`OptimManager::use_averages`] puts the averages in the place of the parameters for an
//! evaluation or an export.

use super::directions::one_of;
use super::muon::move_average;
use super::state::stretches_of;
use super::{
    Delta, Kept, KeptForm, KeptSpec, KeptTensor, OptimManager, Optimizer, ParamGroup, ReadKept, StateStretch, StepArgs,
};
use crate::error::{Error, Result};
use crate::param::{Flat, Param};
use bmtrain_core::kernel::{Cast, Dest};
use bmtrain_core::{DType, Lane, Segment, Storage};
use std::ops::Range;
use std::rc::Rc;

/// The name of the tensor in states and checkpoints.
pub const AVERAGE: &str = "average";

const SPEC: KeptSpec = KeptSpec { name: AVERAGE, form: KeptForm::Elements };

/// Form of an average of the weights. At its first step a parameter's average is the parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AverageForm {
    /// `average = decay average + (1 - decay) p` after each step: an exponential moving average (EMA).
    Exponential {
        /// Weight of the earlier average.
        decay: f64,
    },
    /// The mean of `p` after the step `from`, counted from 1, and after each later one; before, the average is `p`:
    /// stochastic weight averaging (SWA; Izmailov et al., 2018).
    Uniform {
        /// The first step whose weights count.
        from: u64,
    },
}

impl AverageForm {
    /// The weight of the parameter after its step of this number, from 1.
    fn share(self, step: u64) -> f64 {
        match self {
            AverageForm::Exponential { decay } => {
                if step <= 1 {
                    1.0
                } else {
                    1.0 - decay
                }
            }
            AverageForm::Uniform { from } => 1.0 / (step.saturating_sub(from.max(1)) + 1) as f64,
        }
    }
}

/// An optimizer that averages its parameters, as `torch.optim.swa_utils.AveragedModel` does.
///
/// The average is of the values that the model computes with: of 16-bit parameters, of their rounded values. A step
/// that is skipped because of its gradients changes no average, and steps in which a parameter is frozen do not count.
/// Parameters at rest in the host's memory are refused.
pub struct WeightAverage {
    inner: Box<dyn Optimizer>,
    form: AverageForm,
    states: Vec<(Rc<Flat>, Storage)>,
}

impl std::fmt::Debug for WeightAverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WeightAverage({:?}, {} storages)", self.form, self.states.len())
    }
}

impl WeightAverage {
    /// Average the parameters of an optimizer.
    ///
    /// # Errors
    /// A decay that is not in [0, 1).
    pub fn new(inner: Box<dyn Optimizer>, form: AverageForm) -> Result<Self> {
        match form {
            AverageForm::Exponential { decay } if !(0.0..1.0).contains(&decay) => {
                Err(Error::setting("weight average", format!("decay {decay} is not in [0, 1)")))
            }
            _ => Ok(WeightAverage { inner, form, states: Vec::new() }),
        }
    }

    fn of(&self, flat: &Rc<Flat>) -> Option<&Storage> {
        self.states.iter().find(|(known, _)| Rc::ptr_eq(known, flat)).map(|(_, average)| average)
    }

    /// The averages of a storage, which are made at the first call.
    fn made(&mut self, flat: &Rc<Flat>) -> Result<Storage> {
        if let Some(average) = self.of(flat) {
            return Ok(average.clone());
        }
        let average = Storage::zeros(flat.device(), flat.state_len(), DType::F32, Segment::Optimizer)?;
        self.states.push((Rc::clone(flat), average.clone()));
        Ok(average)
    }
}

impl Optimizer for WeightAverage {
    fn groups(&self) -> &[ParamGroup] {
        self.inner.groups()
    }

    fn step(&mut self, args: StepArgs<'_>) -> Result<()> {
        let mut due = Vec::new();
        for param in self.inner.groups().iter().flat_map(|group| &group.params) {
            let (flat, index) = param.place()?;
            if param.is_trainable() && flat.reduced().is_some() && flat.has_grad(index) {
                due.push(param.clone());
            }
        }
        self.inner.step(args)?;
        let one = one_of(args.factor)?;
        for param in due {
            let (flat, index) = param.place()?;
            let (average, part) = (self.made(flat)?, flat.owned(index));
            let steps = self.inner.steps_of(&param)?.unwrap_or(1);
            if !part.of_param.is_empty() {
                flat.settle()?;
                let values = flat.values()?.view(part.in_values)?;
                move_average((&average, part.in_state), self.form.share(steps), values, &one)?;
            }
        }
        Ok(())
    }

    fn undo_count(&mut self) {
        self.inner.undo_count();
    }

    fn visit_stretches(&self, visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>) -> Result<()> {
        self.inner.visit_stretches(visit)?;
        for (flat, average) in &self.states {
            let whole = flat.gather_state(average)?;
            for param in self.inner.groups().iter().flat_map(|group| &group.params) {
                let (of_param, index) = param.place()?;
                if let (true, Some(steps)) = (Rc::ptr_eq(flat, of_param), self.inner.steps_of(param)?) {
                    let range = flat.layout().spans()[index].range();
                    stretches_of(&whole, range, param, steps, AVERAGE, visit)?;
                }
            }
        }
        Ok(())
    }

    fn kept(&self, param: &Param) -> Result<Option<Kept>> {
        let Some(mut kept) = self.inner.kept(param)? else { return Ok(None) };
        if let Some(average) = self.of(param.place()?.0) {
            kept.tensors.push((SPEC, KeptTensor::Device(average.clone())));
        }
        Ok(Some(kept))
    }

    fn kept_specs(&self, param: &Param) -> Vec<KeptSpec> {
        let mut specs = self.inner.kept_specs(param);
        specs.push(SPEC);
        specs
    }

    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()> {
        self.inner.load_kept(param, steps, read)?;
        let (flat, index) = param.place()?;
        let (average, part) = (self.made(flat)?, flat.owned(index));
        let values = read(&SPEC, part.of_param)?;
        let view = average.view_mut(part.in_state)?;
        Ok(flat.device().backend().upload(bytemuck::cast_slice(&values), view, Lane::Compute)?)
    }

    fn deltas(&self) -> Result<Vec<Delta>> {
        self.inner.deltas()
    }
}

/// Parameters whose values are averages for a while, until [`UsedAverages::restore`].
#[derive(Debug, Default)]
#[must_use = "the parameters have to be restored before the next step"]
pub struct UsedAverages {
    /// This rank's own values of the parameters.
    own: Vec<(Rc<Flat>, Range<usize>, Storage)>,
    flats: Vec<Rc<Flat>>,
}

impl OptimManager {
    /// Put the averages that [`WeightAverage`] keeps in the place of the parameters, rounded to their dtype, of frozen
    /// ones too; parameters without one keep their values. Data-parallel ranks have to do the same. The device holds
    /// another copy of what this rank owns of the parameters meanwhile.
    pub fn use_averages(&self) -> Result<UsedAverages> {
        let mut used = UsedAverages::default();
        for (optimizer, _) in self.parts() {
            for param in optimizer.groups().iter().flat_map(|group| &group.params) {
                let tensors = optimizer.kept(param)?.map(|kept| kept.tensors).unwrap_or_default();
                let average = tensors.into_iter().find(|(spec, _)| *spec == SPEC);
                if let Some((_, KeptTensor::Device(average))) = average {
                    used.replace(param, &average)?;
                }
            }
        }
        used.share()?;
        Ok(used)
    }
}

impl UsedAverages {
    /// Whether no parameter was replaced.
    pub fn is_empty(&self) -> bool {
        self.flats.is_empty()
    }

    fn replace(&mut self, param: &Param, average: &Storage) -> Result<()> {
        let (flat, index) = param.place()?;
        let (part, backend) = (flat.owned(index), flat.device().backend());
        if !self.flats.iter().any(|known| Rc::ptr_eq(known, flat)) {
            flat.settle()?;
            // A snapshot may still be reading the values.
            backend.wait(Lane::Compute, backend.mark(Lane::Copy)?)?;
            self.flats.push(Rc::clone(flat));
        }
        if part.of_param.is_empty() {
            return Ok(());
        }
        let (values, len) = (flat.values()?, part.of_param.len());
        let own = Storage::empty(flat.device(), len, flat.dtype(), Segment::Workspace)?;
        backend.copy(values.view(part.in_values.clone())?, own.view_mut(0..len)?, Lane::Compute)?;
        let out = Dest { view: values.view_mut(part.in_values.clone())?, add: false };
        flat.device().launch(Cast { x: average.view(part.in_state)?, out })?;
        self.own.push((Rc::clone(flat), part.in_values, own));
        Ok(())
    }

    /// Parameters that are frozen by now have averages too.
    fn share(&self) -> Result<()> {
        self.flats.iter().try_for_each(|flat| flat.share_values())
    }

    /// Give the parameters their own values back. Data-parallel ranks have to do the same.
    pub fn restore(self) -> Result<()> {
        for (flat, range, own) in &self.own {
            let view = flat.values()?.view_mut(range.clone())?;
            flat.device().backend().copy(own.view(0..own.len())?, view, Lane::Compute)?;
        }
        self.share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_step_follows_the_form() {
        let ema = AverageForm::Exponential { decay: 0.75 };
        assert_eq!([1, 2, 9].map(|step| ema.share(step)), [1.0, 0.25, 0.25]);
        let last = AverageForm::Uniform { from: 3 };
        assert_eq!([1, 2, 3, 4, 5, 6].map(|step| last.share(step)), [1.0, 1.0, 1.0, 0.5, 1.0 / 3.0, 0.25]);
    }
}

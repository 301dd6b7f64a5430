//! Adam on the device, for f32 parameters and for 16-bit parameters with an f32 master.

use super::delta::{Before, Delta, norms};
use super::state::{by_storage, check_groups, stretches_of};
use super::{Kept, KeptTensor, Optimizer, ParamGroup, ParamState, ReadKept, StateStretch, StepArgs};
use crate::error::Result;
use crate::param::{Flat, Param};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{Adam as AdamKernel, Cast, Dest, Fill};
use bmtrain_core::{DType, Lane, Segment, Storage};
use std::rc::Rc;

/// How weight decay acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DecayForm {
    /// On the weights themselves: AdamW. The default for every dtype, where the predecessor's depended on it.
    #[default]
    Decoupled,
    /// Added to the gradient: Adam with L2.
    Coupled,
}

/// Settings of [`Adam`] and [`AdamOffload`](super::AdamOffload).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// How weight decay acts.
    pub decay_form: DecayForm,
    /// Climb instead of descend.
    pub maximize: bool,
    /// The learning rate is 0 for this many first steps of a parameter, while moments build up.
    pub hold_steps: u64,
    /// Keep how far the last step moved each parameter, for [`Optimizer::deltas`].
    pub record_delta: bool,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay_form: DecayForm::default(),
            maximize: false,
            hold_steps: 0,
            record_delta: false,
        }
    }
}

/// Moments and master of one flat storage, laid out like it.
#[derive(Debug)]
struct State {
    flat: Rc<Flat>,
    m: Storage,
    v: Storage,
    master: Option<Storage>,
    /// Steps taken by each parameter of the storage; with the step in hand, if it took part.
    steps: Vec<u64>,
    stepped: Vec<bool>,
    /// The squares of what each parameter moved by in the last step, i64 [parameters, limbs of an exact sum], if that
    /// is recorded.
    moved: Option<Storage>,
}

/// Adam and AdamW; see [`bmtrain_core::kernel::Adam`] for the formulas.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    groups: Vec<ParamGroup>,
    states: Vec<State>,
}

impl Adam {
    /// An optimizer over these groups.
    ///
    /// # Errors
    /// Settings out of range; a parameter in two groups.
    pub fn new(groups: Vec<ParamGroup>, options: AdamOptions) -> Result<Self> {
        check_groups(&groups, &options)?;
        Ok(Adam { options, groups, states: Vec::new() })
    }

    fn state_of(states: &mut Vec<State>, flat: &Rc<Flat>, options: &AdamOptions) -> Result<usize> {
        if let Some(index) = states.iter().position(|state| Rc::ptr_eq(&state.flat, flat)) {
            return Ok(index);
        }
        flat.settle()?;
        let (values, len) = (flat.values(), flat.state_len());
        let zeros = || Storage::zeros(values.device(), len, DType::F32, Segment::Optimizer);
        let master = match flat.dtype() {
            DType::F32 => None,
            _ => {
                let master = Storage::zeros(values.device(), len, DType::F32, Segment::Optimizer)?;
                for index in 0..flat.layout().spans().len() {
                    let part = flat.owned(index);
                    let out = Dest { view: master.view_mut(part.in_state)?, add: false };
                    values.device().launch(Cast { x: values.view(part.in_values)?, out })?;
                }
                Some(master)
            }
        };
        let count = flat.layout().spans().len();
        let moved = match options.record_delta {
            true => Some(Storage::zeros(values.device(), count * WORDS, DType::I64, Segment::Optimizer)?),
            false => None,
        };
        let state = State {
            flat: Rc::clone(flat),
            m: zeros()?,
            v: zeros()?,
            master,
            steps: vec![0; count],
            stepped: vec![false; count],
            moved,
        };
        states.push(state);
        Ok(states.len() - 1)
    }

    fn find(&self, param: &Param) -> Result<Option<(&State, usize)>> {
        let (flat, index) = param.place()?;
        Ok(self.states.iter().find(|state| Rc::ptr_eq(&state.flat, flat)).map(|state| (state, index)))
    }
}

impl Optimizer for Adam {
    fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    fn step(&mut self, args: StepArgs<'_>) -> Result<()> {
        let options = self.options;
        for state in &mut self.states {
            state.stepped.fill(false);
            if let Some(moved) = &state.moved {
                moved.device().launch(Fill { value: 0.0, out: moved.view_mut(0..moved.len())? })?;
            }
        }
        for group in &self.groups {
            for param in group.params.iter().filter(|param| param.is_trainable()) {
                let (flat, index) = param.place()?;
                let Some(grads) = flat.reduced().filter(|_| flat.has_grad(index)) else { continue };
                let at = Self::state_of(&mut self.states, flat, &self.options)?;
                let state = &mut self.states[at];
                state.steps[index] += 1;
                state.stepped[index] = true;
                let (step, part) = (state.steps[index], flat.owned(index));
                if part.of_param.is_empty() {
                    continue;
                }
                let counted = flat.counted(index);
                let before = match (&state.moved, &state.master) {
                    (Some(_), Some(master)) => Some(Before::keep(master, counted.in_state)?),
                    (Some(_), None) => Some(Before::keep(flat.values(), counted.in_values)?),
                    (None, _) => None,
                };
                let (held, range) = (step <= options.hold_steps, part.in_state);
                let kernel = AdamKernel {
                    parameter: flat.values().view_mut(part.in_values)?,
                    master: state.master.as_ref().map(|master| master.view_mut(range.clone())).transpose()?,
                    m: state.m.view_mut(range.clone())?,
                    v: state.v.view_mut(range.clone())?,
                    grad: grads.view(range)?,
                    factor: args.factor.view()?,
                    lr: if held { 0.0 } else { args.lr as f32 },
                    beta1: options.beta1,
                    beta2: options.beta2,
                    epsilon: options.epsilon,
                    decay: group.weight_decay,
                    decoupled: options.decay_form == DecayForm::Decoupled,
                    maximize: options.maximize,
                    step,
                };
                flat.values().device().launch(kernel)?;
                if let (Some(before), Some(moved)) = (before, &state.moved) {
                    before.measure(moved, index)?;
                }
            }
        }
        Ok(())
    }

    fn undo_count(&mut self) {
        for state in &mut self.states {
            for (steps, stepped) in state.steps.iter_mut().zip(&mut state.stepped) {
                *steps -= u64::from(std::mem::take(stepped));
            }
        }
    }

    fn visit_state(&self, visit: &mut dyn FnMut(ParamState) -> Result<()>) -> Result<()> {
        for (flat, params) in by_storage(&self.groups)? {
            let Some(state) = self.states.iter().find(|state| Rc::ptr_eq(&state.flat, flat)) else { continue };
            if params.iter().all(|(_, index)| state.steps[*index] == 0) {
                continue;
            }
            // One tensor at a time is whole on the device, which has no room planned for more.
            let read = |storage: &Storage| -> Result<Vec<f32>> {
                let whole = flat.gather_state(storage)?;
                Ok(whole.tensor(0, [whole.len()])?.to_vec()?)
            };
            let mut whole = vec![("m", read(&state.m)?), ("v", read(&state.v)?)];
            if let Some(master) = &state.master {
                whole.push(("master", read(master)?));
            }
            for (param, index) in params.into_iter().filter(|(_, index)| state.steps[*index] > 0) {
                let range = flat.layout().spans()[index].range();
                let values = |values: &[f32]| values.get(range.clone()).map(<[f32]>::to_vec).unwrap_or_default();
                let tensors = whole.iter().map(|(name, whole)| (*name, values(whole))).collect();
                visit(ParamState { name: param.name().into(), steps: state.steps[index], tensors })?;
            }
        }
        Ok(())
    }

    fn visit_stretches(&self, visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>) -> Result<()> {
        for (flat, params) in by_storage(&self.groups)? {
            let Some(state) = self.states.iter().find(|state| Rc::ptr_eq(&state.flat, flat)) else { continue };
            let mut stepped = params;
            stepped.retain(|(_, index)| state.steps[*index] > 0);
            if stepped.is_empty() {
                continue;
            }
            let tensors = [("m", Some(&state.m)), ("v", Some(&state.v)), ("master", state.master.as_ref())];
            for (tensor, storage) in tensors.into_iter().filter_map(|(name, storage)| Some((name, storage?))) {
                // One tensor at a time is whole on the device, which has no room planned for more.
                let whole = flat.gather_state(storage)?;
                for (param, index) in &stepped {
                    let at = (param.name(), state.steps[*index], tensor);
                    stretches_of(&whole, flat.layout().spans()[*index].range(), at, visit)?;
                }
            }
        }
        Ok(())
    }

    fn kept(&self, param: &Param) -> Result<Option<Kept>> {
        let Some((state, index)) = self.find(param)?.filter(|(state, index)| state.steps[*index] > 0) else {
            return Ok(None);
        };
        let mut tensors = vec![("m", state.m.clone()), ("v", state.v.clone())];
        tensors.extend(state.master.clone().map(|master| ("master", master)));
        let tensors = tensors.into_iter().map(|(name, storage)| (name, KeptTensor::Device(storage))).collect();
        Ok(Some(Kept { steps: state.steps[index], tensors }))
    }

    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()> {
        let (flat, index) = param.place()?;
        let at = Self::state_of(&mut self.states, flat, &self.options)?;
        let (state, part) = (&mut self.states[at], flat.owned(index));
        let mut expected = vec![("m", &state.m), ("v", &state.v)];
        expected.extend(state.master.as_ref().map(|master| ("master", master)));
        for (name, storage) in expected {
            let values = read(name, part.of_param.clone())?;
            let view = storage.view_mut(part.in_state.clone())?;
            storage.device().backend().upload(bytemuck::cast_slice(&values), view, Lane::Compute)?;
        }
        state.steps[index] = steps;
        Ok(())
    }

    fn deltas(&self) -> Result<Vec<Delta>> {
        let recorded = |state: &State| -> Result<Option<Vec<f64>>> {
            let Some(moved) = &state.moved else { return Ok(None) };
            norms(&state.flat, &moved.tensor(0, [moved.len()])?.to_vec::<i64>()?).map(Some)
        };
        let all = self.states.iter().map(recorded).collect::<Result<Vec<_>>>()?;
        let mut deltas = Vec::new();
        for param in self.groups.iter().flat_map(|group| &group.params) {
            let (flat, index) = param.place()?;
            let at = self.states.iter().position(|state| Rc::ptr_eq(&state.flat, flat));
            let norms = at.and_then(|at| all.get(at)).and_then(Option::as_ref);
            if let Some(norm) = norms.and_then(|norms| norms.get(index)) {
                deltas.push(Delta { name: param.name().into(), norm: *norm });
            }
        }
        Ok(deltas)
    }
}

//! The common part of [`DeviceOptimizer`](super::DeviceOptimizer) and [`AdamOffload`](super::AdamOffload): step counts
//! by storage, the walk over their states, which have one form so that each continues where the other stopped, and the
//! checks of groups and states, which come before anything is changed.

use super::delta::{Delta, norms};
use super::on_device::{Rule, StepNumbers};
use super::{KeptSpec, ParamGroup, ParamState, StateStretch};
use crate::error::{Error, Result};
use crate::param::{Flat, FusedTensor, OwnedPart, Param, visit_whole};
use bmtrain_core::Storage;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

/// State of one flat storage, whose moments are `M`.
#[derive(Debug)]
pub(super) struct FlatState<M> {
    pub(super) flat: Rc<Flat>,
    /// Steps taken by each parameter of the storage; with the step in hand, if it took part.
    pub(super) steps: Vec<u64>,
    stepped: Vec<bool>,
    pub(super) moments: M,
}

impl<M> FlatState<M> {
    /// Count a step of a parameter: its number, from 1.
    pub(super) fn count_step(&mut self, index: usize) -> u64 {
        self.stepped[index] = true;
        self.steps[index] += 1;
        self.steps[index]
    }
}

/// A parameter that takes part in a step, with its gradient.
pub(super) struct DueUpdate {
    pub(super) flat: Rc<Flat>,
    pub(super) index: usize,
    pub(super) grads: Storage,
    /// Original tensors that are fused in the parameter; of the full parameter.
    pub(super) tensors: Vec<FusedTensor>,
    pub(super) decay: f32,
    /// Factor of the learning rate.
    pub(super) lr_factor: f64,
    /// The elements whose change this rank measures, in order, if that is recorded.
    pub(super) recorded: Vec<OwnedPart>,
}

impl DueUpdate {
    /// The numbers of step number `step` of the parameter.
    pub(super) fn numbers(&self, lr: f64, step: u64) -> StepNumbers {
        StepNumbers { lr: lr * self.lr_factor, decay: self.decay, step }
    }
}

/// The groups of an optimizer and the states of their storages.
#[derive(Debug)]
pub(super) struct States<R, M> {
    pub(super) options: R,
    pub(super) groups: Vec<ParamGroup>,
    pub(super) states: Vec<FlatState<M>>,
}

impl<R: Rule, M> States<R, M> {
    pub(super) fn new(groups: Vec<ParamGroup>, options: R) -> Result<Self> {
        options.check()?;
        check_groups(&groups)?;
        Ok(States { options, groups, states: Vec::new() })
    }

    /// The state of a storage, whose moments are made at the first call, and the settings.
    pub(super) fn of_flat(
        &mut self,
        flat: &Rc<Flat>,
        make: impl FnOnce(&R) -> Result<M>,
    ) -> Result<(&mut FlatState<M>, &R)> {
        let known = self.states.iter().position(|state| Rc::ptr_eq(&state.flat, flat));
        let at = match known {
            Some(at) => at,
            None => {
                let (moments, count) = (make(&self.options)?, flat.layout().spans().len());
                let (steps, stepped) = (vec![0; count], vec![false; count]);
                self.states.push(FlatState { flat: Rc::clone(flat), steps, stepped, moments });
                self.states.len() - 1
            }
        };
        Ok((&mut self.states[at], &self.options))
    }

    /// The state of a parameter that was updated before, and its number there.
    pub(super) fn of_param(&self, param: &Param) -> Result<Option<(&FlatState<M>, usize)>> {
        let (flat, index) = param.place()?;
        Ok(self.states.iter().find(|s| Rc::ptr_eq(&s.flat, flat) && s.steps[index] > 0).map(|state| (state, index)))
    }

    /// Begin a step: the trainable parameters that have a gradient, in the order of the groups.
    pub(super) fn begin_step(&mut self) -> Result<Vec<DueUpdate>> {
        self.states.iter_mut().for_each(|state| state.stepped.fill(false));
        let mut due = Vec::new();
        for group in &self.groups {
            for param in group.params.iter().filter(|param| param.is_trainable()) {
                let (flat, index) = param.place()?;
                if let Some(grads) = flat.reduced().filter(|_| flat.has_grad(index)) {
                    let recorded = if self.options.records_delta() { param.counted()? } else { Vec::new() };
                    let (flat, decay, lr_factor) = (Rc::clone(flat), group.weight_decay, group.lr_factor);
                    if !self.states.iter().any(|state| Rc::ptr_eq(&state.flat, &flat) && state.steps[index] > 0) {
                        self.options.check_param(param)?;
                    }
                    let tensors = param.spec().tensors();
                    due.push(DueUpdate { flat, index, grads, tensors, decay, lr_factor, recorded });
                }
            }
        }
        Ok(due)
    }

    /// Take back the counts of the last step.
    pub(super) fn undo_count(&mut self) {
        for state in &mut self.states {
            for (steps, stepped) in state.steps.iter_mut().zip(&mut state.stepped) {
                *steps -= u64::from(std::mem::take(stepped));
            }
        }
    }

    /// The storages that have state, in the order in which the groups first name them, each with its updated parameters
    /// and their numbers there, in the order of the groups.
    pub(super) fn updated(&self) -> Result<Vec<UpdatedParams<'_, M>>> {
        let (mut all, mut places) = (Vec::<UpdatedParams<'_, M>>::new(), HashMap::new());
        for param in self.groups.iter().flat_map(|group| &group.params) {
            let (flat, index) = param.place()?;
            let Some(state) = self.states.iter().find(|state| Rc::ptr_eq(&state.flat, flat)) else { continue };
            let place = *places.entry(Rc::as_ptr(flat)).or_insert(all.len());
            if place == all.len() {
                all.push((state, Vec::new()));
            }
            if state.steps[index] > 0 {
                all[place].1.push((param, index));
            }
        }
        all.retain(|(_, params)| !params.is_empty());
        Ok(all)
    }

    /// Size of the last update of each parameter; `sums` reads the exact sums of squares of a storage.
    pub(super) fn deltas(&self, sums: impl Fn(&M) -> Result<Option<Vec<i64>>>) -> Result<Vec<Delta>> {
        let norms = |state: &FlatState<M>| sums(&state.moments)?.map(|sums| norms(&state.flat, &sums)).transpose();
        let all = self.states.iter().map(norms).collect::<Result<Vec<_>>>()?;
        let mut deltas = Vec::new();
        for param in self.groups.iter().flat_map(|group| &group.params) {
            let (flat, index) = param.place()?;
            let at = self.states.iter().position(|state| Rc::ptr_eq(&state.flat, flat));
            if let Some(norm) = at.and_then(|at| all[at].as_ref()).and_then(|norms| norms.get(index)) {
                deltas.push(Delta { name: param.name().into(), norm: *norm });
            }
        }
        Ok(deltas)
    }
}

/// A storage's state and parameters that are in it, with their numbers.
pub(super) type UpdatedParams<'g, M> = (&'g FlatState<M>, Vec<(&'g Param, usize)>);

fn check_groups(groups: &[ParamGroup]) -> Result<()> {
    let mut names = HashSet::new();
    for group in groups {
        if !(group.weight_decay >= 0.0 && group.weight_decay.is_finite()) {
            return Err(Error::setting(
                "optimizer",
                format!("weight decay {} is not at or above 0", group.weight_decay),
            ));
        }
        if !(group.lr_factor >= 0.0 && group.lr_factor.is_finite()) {
            let reason = format!("factor {} of the learning rate is not at or above 0", group.lr_factor);
            return Err(Error::setting("optimizer", reason));
        }
        for param in &group.params {
            if !names.insert(param.name()) {
                return Err(Error::parameter(param.name(), "is in two groups of an optimizer"));
            }
        }
    }
    Ok(())
}

/// The parameter of every entry of a state that fits as a whole; `kept_specs` are the tensors of a parameter.
pub(super) fn check_state<'s>(
    groups: &[ParamGroup],
    kept_specs: impl Fn(&Param) -> Vec<KeptSpec>,
    loaded: &'s [ParamState],
) -> Result<Vec<(Param, &'s ParamState)>> {
    let params: HashMap<&str, &Param> =
        groups.iter().flat_map(|group| &group.params).map(|param| (param.name(), param)).collect();
    let mut seen = HashSet::new();
    let mut found = Vec::with_capacity(loaded.len());
    for entry in loaded {
        let Some(param) = params.get(entry.name.as_str()) else {
            return Err(Error::parameter(entry.name.clone(), "has optimizer state but is in no group"));
        };
        if !seen.insert(entry.name.as_str()) {
            return Err(Error::parameter(entry.name.clone(), "has optimizer state twice"));
        }
        if entry.steps == 0 {
            let reason = "has optimizer state of 0 steps; a parameter that was never updated has none";
            return Err(Error::parameter(entry.name.clone(), reason));
        }
        check_tensors(entry, &kept_specs(param), param)?;
        found.push(((*param).clone(), entry));
    }
    Ok(found)
}

fn check_tensors(entry: &ParamState, expected: &[KeptSpec], param: &Param) -> Result<()> {
    let (dtype, shape) = (param.place()?.0.dtype(), param.spec().shape);
    let refuse = |reason: String| Err(Error::parameter(entry.name.clone(), format!("optimizer state {reason}")));
    for KeptSpec { name, form } in expected {
        let (values, len) = (tensor(entry, name), form.shape(&shape).iter().product::<usize>());
        if values.is_none_or(|values| values.len() != len) {
            let got = values.map_or("nothing".into(), |values| format!("{} values", values.len()));
            return refuse(format!("{name}: expected {len} values, got {got}"));
        }
    }
    for (position, (name, _)) in entry.tensors.iter().enumerate() {
        if entry.tensors.iter().take(position).any(|(before, _)| before == name) {
            return refuse(format!("{name}: comes twice"));
        }
        if !expected.iter().any(|spec| spec.name == *name) {
            let names: Vec<&str> = expected.iter().map(|spec| spec.name).collect();
            return refuse(format!("{name}: a parameter of type {dtype} has {} alone", names.join(", ")));
        }
    }
    Ok(())
}

pub(super) fn tensor<'s>(entry: &'s ParamState, name: &str) -> Option<&'s [f32]> {
    entry.tensors.iter().find(|(known, _)| *known == name).map(|(_, values)| values.as_slice())
}

/// Show a tensor of a parameter's state in stretches, from an f32 storage that is laid out like the parameter's: the
/// tensor `tensor` of `param` after `steps` steps. `range` is this rank's part. Collective over tensor-parallel ranks.
/// Waits for the device.
pub(super) fn stretches_of(
    storage: &Storage,
    range: Range<usize>,
    param: &Param,
    steps: u64,
    tensor: &'static str,
    visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>,
) -> Result<()> {
    let (name, len) = (param.name(), param.spec().shape.elements());
    visit_whole(param, storage, range, &mut |start, values| {
        visit(StateStretch { param: name, steps, tensor, len, start, values })
    })
}

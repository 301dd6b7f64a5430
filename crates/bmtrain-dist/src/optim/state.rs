//! What an optimizer asks of its groups and of a state before it takes them: strict, and before anything is changed.
//!
//! Called by [`Optimizer::load_state`](super::Optimizer::load_state): [`Adam`](super::Adam) and
//! [`AdamOffload`](super::AdamOffload) have states of the same form, so that each continues where the other stopped.

use super::{AdamOptions, ParamGroup, ParamState, STRETCH, StateStretch};
use crate::error::{Error, Result};
use crate::param::{Flat, Param};
use bmtrain_core::{DType, Lane, Storage};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

pub(super) fn check_groups(groups: &[ParamGroup], options: &AdamOptions) -> Result<()> {
    let AdamOptions { beta1, beta2, epsilon, .. } = *options;
    if !((0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2) && epsilon >= 0.0) {
        let reason = format!("betas {beta1}, {beta2} must be in [0, 1) and epsilon {epsilon} at or above 0");
        return Err(Error::setting("adam", reason));
    }
    let mut names = HashSet::new();
    for group in groups {
        if !(group.weight_decay >= 0.0 && group.weight_decay.is_finite()) {
            return Err(Error::setting("adam", format!("weight decay {} is not at or above 0", group.weight_decay)));
        }
        for param in &group.params {
            if !names.insert(param.name()) {
                return Err(Error::parameter(param.name(), "is in two groups of an optimizer"));
            }
        }
    }
    Ok(())
}

/// The parameter of every entry of a state that fits as a whole.
///
/// # Errors
/// A parameter that is in no group or comes twice; a step count of 0; a tensor that is missing, too many or of another
/// length.
pub(super) fn check_state<'s>(groups: &[ParamGroup], loaded: &'s [ParamState]) -> Result<Vec<(Param, &'s ParamState)>> {
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
        let (flat, index) = param.place()?;
        let len = flat.layout().spans().get(index).map_or(0, |span| span.len);
        check_tensors(entry, flat.dtype(), len)?;
        found.push(((*param).clone(), entry));
    }
    Ok(found)
}

fn check_tensors(entry: &ParamState, dtype: DType, len: usize) -> Result<()> {
    let expected: &[&str] = if dtype == DType::F32 { &["m", "v"] } else { &["m", "v", "master"] };
    let refuse = |reason: String| Err(Error::parameter(entry.name.clone(), format!("optimizer state {reason}")));
    for name in expected {
        let values = tensor(entry, name);
        if values.is_none_or(|values| values.len() != len) {
            let got = values.map_or("nothing".into(), |values| format!("{} values", values.len()));
            return refuse(format!("{name}: expected {len} values, got {got}"));
        }
    }
    for (position, (name, _)) in entry.tensors.iter().enumerate() {
        if entry.tensors.iter().take(position).any(|(before, _)| before == name) {
            return refuse(format!("{name}: comes twice"));
        }
        if !expected.contains(name) {
            return refuse(format!("{name}: a parameter of type {dtype} has {} alone", expected.join(", ")));
        }
    }
    Ok(())
}

pub(super) fn tensor<'s>(entry: &'s ParamState, name: &str) -> Option<&'s [f32]> {
    entry.tensors.iter().find(|(known, _)| *known == name).map(|(_, values)| values.as_slice())
}

/// The parameters of all groups by the storages they are in, each with its number there: storages in the order in which
/// the groups first name them, and in each its parameters in the order of the groups.
pub(super) fn by_storage(groups: &[ParamGroup]) -> Result<Vec<StorageParams<'_>>> {
    let mut all: Vec<StorageParams<'_>> = Vec::new();
    let mut places: HashMap<*const Flat, usize> = HashMap::new();
    for param in groups.iter().flat_map(|group| &group.params) {
        let (flat, index) = param.place()?;
        let place = *places.entry(Rc::as_ptr(flat)).or_insert(all.len());
        match all.get_mut(place) {
            Some((_, params)) => params.push((param, index)),
            None => all.push((flat, vec![(param, index)])),
        }
    }
    Ok(all)
}

/// A storage and parameters that are in it, with their numbers.
pub(super) type StorageParams<'g> = (&'g Rc<Flat>, Vec<(&'g Param, usize)>);

/// Show the elements `range` of an f32 storage in stretches: the tensor `tensor` of the parameter `param`
/// after `steps` steps. Waits for the device.
pub(super) fn stretches_of(
    storage: &Storage,
    range: Range<usize>,
    (param, steps, tensor): (&str, u64, &'static str),
    visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>,
) -> Result<()> {
    let (len, backend) = (range.len(), storage.device().backend());
    let mut buffer = vec![0.0f32; len.min(STRETCH)];
    // An empty tensor is visited once too.
    for start in (0..len.max(1)).step_by(STRETCH) {
        let values = &mut buffer[..(len - start).min(STRETCH)];
        let from = range.start + start;
        backend.download(storage.view(from..from + values.len())?, bytemuck::cast_slice_mut(values), Lane::Compute)?;
        visit(StateStretch { param, steps, tensor, len, start, values })?;
    }
    Ok(())
}

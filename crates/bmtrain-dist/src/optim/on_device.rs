//! [`DeviceOptimizer`]: an optimizer that updates each element by itself, with its state in the device's memory, for
//! f32 parameters and for 16-bit parameters with an f32 master.
//!
//! What it computes is the [`Rule`] of its settings: [`Adam`](super::Adam) and [`Elementwise`](super::Elementwise) are
//! two of them. Since no element depends on another one, a rank updates what it owns, and the bits are the same however
//! the parameters are sharded. A [`MatrixRule`], such as [`Muon`](super::Muon)'s, sees whole matrices: a storage's
//! directions are gathered, in the place of the parameters, which are not needed then.

use super::delta::{Before, Delta};
use super::state::{DueUpdate, States, stretches_of};
use super::{Kept, KeptTensor, Optimizer, ParamGroup, ReadKept, StateStretch, StepArgs};
use crate::error::Result;
use crate::param::{Flat, OwnedPart, Param};
use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{AddScaled, Cast, Dest, Fill};
use bmtrain_core::{DType, Device, Lane, Segment, Storage, Tensor};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// Elements of one parameter and what belongs to them, ranges of one length.
#[derive(Debug)]
pub struct StepElements<'a> {
    /// The parameter.
    pub parameter: ViewMut<'a>,
    /// f32 copy of a 16-bit parameter.
    pub master: Option<ViewMut<'a>>,
    /// f32, in the order of [`Rule::states`].
    pub states: Vec<ViewMut<'a>>,
    /// The gradient.
    pub grad: View<'a>,
    /// f32 `[1]`: multiplied into the gradient; if it is not finite nothing is changed.
    pub factor: View<'a>,
}

/// The numbers of a step of one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepNumbers {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: f32,
    /// Number of the step, from 1.
    pub step: u64,
}

/// Settings of an optimizer that updates each element by itself.
pub trait Rule: fmt::Debug {
    /// Whether the settings are in range.
    fn check(&self) -> Result<()>;

    /// Whether it can update a parameter; asked before its first step.
    fn check_param(&self, _param: &Param) -> Result<()> {
        Ok(())
    }

    /// Names of the f32 tensors that are kept for a parameter, beside `master`: lower-case letters, digits and hyphens.
    fn states(&self) -> Vec<&'static str>;

    /// What a tensor begins with.
    fn initial(&self, _state: &str) -> f32 {
        0.0
    }

    /// Whether to keep how far the last step moved each parameter, for [`Optimizer::deltas`].
    fn records_delta(&self) -> bool;

    /// The names of all tensors that are kept for a parameter of this type.
    fn kept_names(&self, dtype: DType) -> Vec<&'static str> {
        let master = (dtype != DType::F32).then_some("master");
        self.states().into_iter().chain(master).collect()
    }
}

/// A [`Rule`] whose step is a kernel.
pub trait DeviceRule: Rule {
    /// Launch the step of a run of elements.
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()>;

    /// For an optimizer of matrices: how their directions come about, which then are the gradients of
    /// [`DeviceRule::launch`], without states and with a factor of 1 in place of one that is finite.
    fn of_matrices(&self) -> Option<&dyn MatrixRule> {
        None
    }
}

/// Elements of one matrix, in storages that are laid out alike.
#[derive(Debug)]
pub struct DirectionElements<'a> {
    /// f32, in the order of [`Rule::states`].
    pub states: Vec<&'a Storage>,
    /// Gradients.
    pub grads: &'a Storage,
    /// f32 `[1]`: multiplied into the gradient; if it is not finite no state is changed.
    pub factor: &'a Tensor,
    /// The elements.
    pub range: Range<usize>,
    /// Receives the direction, f32.
    pub direction: &'a Storage,
}

/// What a matrix moves by, where that depends on all of its elements.
pub trait MatrixRule {
    /// Update the states, and make what is transformed of them and the gradients, of the elements that this rank owns.
    fn direct(&self, elements: DirectionElements<'_>) -> Result<()>;

    /// Transform a whole matrix in place: the elements of this range, row by row, of this shape.
    fn transform(&self, matrix: &Storage, range: Range<usize>, shape: [usize; 2]) -> Result<()>;
}

/// State of one flat storage, laid out like it.
#[derive(Debug)]
struct Moments {
    states: Vec<(&'static str, Storage)>,
    master: Option<Storage>,
    /// The squares of what each parameter moved by in the last step, i64 [parameters, limbs of an exact sum], if that
    /// is recorded.
    moved: Option<Storage>,
}

impl Moments {
    fn new(flat: &Flat, rule: &impl Rule) -> Result<Self> {
        flat.settle()?;
        let (values, len, count) = (flat.values()?, flat.state_len(), flat.layout().spans().len());
        let zeros = || Storage::zeros(values.device(), len, DType::F32, Segment::Optimizer);
        let master = (flat.dtype() != DType::F32).then(zeros).transpose()?;
        if let Some(master) = &master {
            for part in (0..count).map(|index| flat.owned(index)) {
                let out = Dest { view: master.view_mut(part.in_state)?, add: false };
                values.device().launch(Cast { x: values.view(part.in_values)?, out })?;
            }
        }
        let words = || Storage::zeros(values.device(), count * WORDS, DType::I64, Segment::Optimizer);
        let moved = rule.records_delta().then(words).transpose()?;
        let mut states = Vec::new();
        for name in rule.states() {
            let (state, value) = (zeros()?, rule.initial(name));
            if value != 0.0 {
                values.device().launch(Fill { value, out: state.view_mut(0..len)? })?;
            }
            states.push((name, state));
        }
        Ok(Moments { states, master, moved })
    }

    /// The tensors by the names they have in a state.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Storage)> {
        let states = self.states.iter().map(|(name, state)| (*name, state));
        states.chain(self.master.as_ref().map(|master| ("master", master)))
    }
}

/// An optimizer of the settings `R`, with its state in the device's memory.
#[derive(Debug)]
pub struct DeviceOptimizer<R> {
    inner: States<R, Moments>,
}

impl<R: DeviceRule> DeviceOptimizer<R> {
    /// An optimizer over these groups.
    ///
    /// # Errors
    /// Settings out of range, a parameter that is in two groups.
    pub fn new(groups: Vec<ParamGroup>, options: R) -> Result<Self> {
        Ok(DeviceOptimizer { inner: States::new(groups, options)? })
    }

    /// Update the parameters of one storage.
    fn update(&mut self, flat: &Rc<Flat>, due: Vec<DueUpdate>, args: StepArgs<'_>) -> Result<()> {
        let (state, options) = self.inner.of_flat(flat, |options| Moments::new(flat, options))?;
        let directions = match options.of_matrices() {
            Some(rule) => Some(directions(rule, &state.moments, &due, args.factor)?),
            None => None,
        };
        for DueUpdate { index, grads, decay, lr_factor, recorded, .. } in due {
            let (step, part) = (state.count_step(index), flat.owned(index));
            if part.of_param.is_empty() {
                continue;
            }
            let Moments { states, master, moved } = &state.moments;
            let keep = |part: OwnedPart| match master {
                Some(master) => Before::keep(master, part.in_state),
                None => Before::keep(flat.values()?, part.in_values),
            };
            let before = recorded.into_iter().map(keep).collect::<Result<Vec<_>>>()?;
            let range = part.in_state;
            let mut views = Vec::new();
            let (grad, factor) = match &directions {
                None => {
                    for (_, state) in states {
                        views.push(state.view_mut(range.clone())?);
                    }
                    (grads.view(range.clone())?, args.factor.view()?)
                }
                Some((whole, factor)) => {
                    let start = flat.layout().spans()[index].range().start;
                    (whole.view(start + part.of_param.start..start + part.of_param.end)?, factor.view()?)
                }
            };
            let elements = StepElements {
                parameter: flat.values()?.view_mut(part.in_values)?,
                master: master.as_ref().map(|master| master.view_mut(range.clone())).transpose()?,
                states: views,
                grad,
                factor,
            };
            options.launch(flat.device(), elements, StepNumbers { lr: args.lr * lr_factor, decay, step })?;
            if let Some(moved) = moved {
                before.into_iter().try_for_each(|before| before.measure(moved, index))?;
            }
        }
        Ok(())
    }
}

/// The directions of a storage's matrices, whole, each transformed if this rank owns a part of it, and the factor of
/// their step. Data-parallel ranks that share the storage have to do the same.
fn directions(
    rule: &dyn MatrixRule,
    moments: &Moments,
    due: &[DueUpdate],
    factor: &Tensor,
) -> Result<(Storage, Tensor)> {
    let device = factor.device();
    // 0 times what is not finite is not a number.
    let mut one = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Workspace)?;
    device.launch(AddScaled { alpha: 0.0, a: factor.view()?, beta: 1.0, b: None, out: one.view_mut()? })?;
    let Some(DueUpdate { flat, .. }) = due.first() else {
        return Ok((Storage::zeros(device, 0, DType::F32, Segment::Workspace)?, one));
    };
    let direction = Storage::zeros(device, flat.state_len(), DType::F32, Segment::Workspace)?;
    let owned = || due.iter().map(|due| (due, flat.owned(due.index))).filter(|(_, part)| !part.of_param.is_empty());
    for (DueUpdate { grads, .. }, OwnedPart { in_state: range, .. }) in owned() {
        let states = moments.states.iter().map(|(_, state)| state).collect();
        rule.direct(DirectionElements { states, grads, factor, range, direction: &direction })?;
    }
    let whole = flat.gather_state(&direction)?;
    for (DueUpdate { index, shape, .. }, _) in owned() {
        let [rows, columns] = *shape.dims() else { continue };
        rule.transform(&whole, flat.layout().spans()[*index].range(), [rows, columns])?;
    }
    Ok((whole, one))
}

impl<R: DeviceRule> Optimizer for DeviceOptimizer<R> {
    fn groups(&self) -> &[ParamGroup] {
        &self.inner.groups
    }

    fn step(&mut self, args: StepArgs<'_>) -> Result<()> {
        for moved in self.inner.states.iter().filter_map(|state| state.moments.moved.as_ref()) {
            moved.device().launch(Fill { value: 0.0, out: moved.view_mut(0..moved.len())? })?;
        }
        let mut by_flat: Vec<(Rc<Flat>, Vec<DueUpdate>)> = Vec::new();
        for due in self.inner.begin_step()? {
            match by_flat.iter_mut().find(|(flat, _)| Rc::ptr_eq(flat, &due.flat)) {
                Some((_, all)) => all.push(due),
                None => by_flat.push((Rc::clone(&due.flat), vec![due])),
            }
        }
        by_flat.into_iter().try_for_each(|(flat, due)| self.update(&flat, due, args))
    }

    fn undo_count(&mut self) {
        self.inner.undo_count();
    }

    fn visit_stretches(&self, visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>) -> Result<()> {
        for (state, params) in self.inner.updated()? {
            for (tensor, storage) in state.moments.named() {
                // One tensor at a time is whole on the device, which has no room planned for more.
                let whole = state.flat.gather_state(storage)?;
                for (param, index) in &params {
                    let at = (*param, state.steps[*index], tensor);
                    stretches_of(&whole, state.flat.layout().spans()[*index].range(), at, visit)?;
                }
            }
        }
        Ok(())
    }

    fn kept(&self, param: &Param) -> Result<Option<Kept>> {
        let Some((state, index)) = self.inner.of_param(param)? else { return Ok(None) };
        let tensors = state.moments.named();
        let tensors = tensors.map(|(name, storage)| (name, KeptTensor::Device(storage.clone()))).collect();
        Ok(Some(Kept { steps: state.steps[index], tensors }))
    }

    fn kept_names(&self, param: &Param) -> Vec<&'static str> {
        self.inner.options.kept_names(param.spec().dtype)
    }

    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()> {
        let (flat, index) = param.place()?;
        let (state, _) = self.inner.of_flat(flat, |options| Moments::new(flat, options))?;
        let part = flat.owned(index);
        for (name, storage) in state.moments.named() {
            let values = read(name, part.of_param.clone())?;
            let view = storage.view_mut(part.in_state.clone())?;
            storage.device().backend().upload(bytemuck::cast_slice(&values), view, Lane::Compute)?;
        }
        state.steps[index] = steps;
        Ok(())
    }

    fn deltas(&self) -> Result<Vec<Delta>> {
        self.inner.deltas(|moments| match &moments.moved {
            Some(moved) => Ok(Some(moved.tensor(0, [moved.len()])?.to_vec::<i64>()?)),
            None => Ok(None),
        })
    }
}

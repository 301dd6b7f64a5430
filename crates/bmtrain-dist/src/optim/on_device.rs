//! [`DeviceOptimizer`]: an optimizer that updates each element by itself, with its state in the device's memory, for
//! f32 parameters and for 16-bit parameters with an f32 master.
//!
//! What it computes is the [`Rule`] of its settings: [`Adam`](super::Adam) and [`Elementwise`](super::Elementwise) are
//! two of them. Since no element depends on another one, a rank updates what it owns, and the bits are the same however
//! the parameters are sharded. A [`WholeRule`], such as [`Muon`](super::Muon)'s, sees whole tensors, several in a
//! fused parameter ([`crate::param::fusion`]): a storage's directions are gathered, in the place of the
//! parameters, which are not needed then. `moments.rs` has the state, `directions.rs` the directions.

use super::delta::{Before, Delta};
use super::directions::{Directions, directions};
use super::moments::{Moments, share_part_scales};
use super::state::{DueUpdate, States};
use super::{Kept, KeptForm, KeptSpec, MASTER, Optimizer, ParamGroup, ReadKept, StateStretch, StepArgs};
use crate::error::Result;
use crate::param::{Flat, FusedTensor, OwnedPart, Param, TensorRun, runs_of_tensors};
use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::kernel::Fill;
use bmtrain_core::{DType, Device, Storage, Tensor};
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
    /// Their states, in the order of [`Rule::states`], each with the values of its [`Rule::form`].
    pub states: Vec<ViewMut<'a>>,
    /// The gradient.
    pub grad: View<'a>,
    /// f32 `[1]`: multiplied into the gradient; if it is not finite nothing is changed.
    pub factor: View<'a>,
    /// Factor of the learning rate of a [`WholeRule`] that has one, f32 `[1]`.
    pub rate: Option<View<'a>>,
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

    /// Names of the tensors that are kept for a parameter and sharded like it, beside [`MASTER`]: lower-case letters,
    /// digits and hyphens.
    fn states(&self) -> Vec<&'static str>;

    /// The form of one of them; not [`KeptForm::Whole`].
    fn form(&self, _state: &str) -> KeptForm {
        KeptForm::Elements
    }

    /// Names and shapes of the f32 tensors that are kept whole for a parameter of these tensors, zeros at first. Of a
    /// rule with states in [`KeptForm::Blocks`] they are [`part_scales`](super::part_scales), one for each of these.
    fn statistics(&self, _tensors: &[FusedTensor]) -> Vec<(&'static str, Vec<usize>)> {
        Vec::new()
    }

    /// Initial value of a state's elements.
    fn initial(&self, _state: &str) -> f32 {
        0.0
    }

    /// Whether to keep how far the last step moved each parameter, for [`Optimizer::deltas`].
    fn records_delta(&self) -> bool;

    /// The tensors that are kept for parameters of this dtype and sharded like them, with what each begins with: the
    /// states and, of a 16-bit dtype, the master, which gets the values of the parameters.
    fn sharded(&self, dtype: DType) -> Vec<(KeptSpec, f32)> {
        let state = |name| (KeptSpec { name, form: self.form(name) }, self.initial(name));
        let master = (dtype != DType::F32).then_some((KeptSpec { name: MASTER, form: KeptForm::Elements }, 0.0));
        self.states().into_iter().map(state).chain(master).collect()
    }

    /// The tensors that are kept whole for a parameter: the [`Rule::statistics`].
    fn whole(&self, tensors: &[FusedTensor]) -> Vec<KeptSpec> {
        let spec = |(name, shape)| KeptSpec { name, form: KeptForm::Whole(shape) };
        self.statistics(tensors).into_iter().map(spec).collect()
    }

    /// All tensors that are kept for a parameter of these tensors and this dtype.
    fn kept_specs(&self, tensors: &[FusedTensor], dtype: DType) -> Vec<KeptSpec> {
        self.sharded(dtype).into_iter().map(|(spec, _)| spec).chain(self.whole(tensors)).collect()
    }
}

/// Most runs that are given to [`DeviceRule::launch_all`] at once: a multiple of what a launch takes on a device, and
/// few enough that a step makes no large allocation on the host.
const MAX_RUNS: usize = 128;

/// A [`Rule`] whose step is a kernel.
pub trait DeviceRule: Rule {
    /// Launch the step of a run of elements.
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()>;

    /// Launch the steps of runs of elements, which all have the same factor: one after another unless a kernel takes
    /// several.
    fn launch_all(&self, device: &Device, runs: Vec<(StepElements<'_>, StepNumbers)>) -> Result<()> {
        runs.into_iter().try_for_each(|(elements, numbers)| self.launch(device, elements, numbers))
    }

    /// For an optimizer that sees whole tensors: how their directions come about, which then are the gradients of
    /// [`DeviceRule::launch`], without states and with a factor of 1 in place of one that is finite.
    fn of_whole(&self) -> Option<&dyn WholeRule> {
        None
    }
}

/// Elements of one parameter, in storages that are laid out alike.
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

/// The gathered direction of one tensor of a parameter.
#[derive(Debug)]
pub struct WholeDirection<'a> {
    /// f32, of all parameters of a storage.
    pub storage: &'a Storage,
    /// The elements of this tensor there.
    pub range: Range<usize>,
    /// Its shape, and which of the parameter's tensors it is.
    pub tensor: &'a FusedTensor,
    /// Statistics of the parameter, in the order of [`Rule::statistics`].
    pub statistics: Vec<&'a Storage>,
    /// The sum of the squares of the tensor before the step, [`exact::Sum`](bmtrain_core::exact::Sum), if
    /// [`WholeRule::measures_parameters`].
    pub squares: Option<View<'a>>,
    /// f32 `[1]`: 1, or NaN in a step that is to change nothing.
    pub one: &'a Tensor,
    /// Number of the step, from 1.
    pub step: u64,
}

/// Direction in which a tensor moves, where it depends on all of its elements.
pub trait WholeRule {
    /// Whether the step depends on the norm of the tensor.
    fn measures_parameters(&self) -> bool {
        false
    }

    /// Update the states, and make what is transformed of them and the gradients, of the elements that this rank owns.
    fn direct(&self, elements: DirectionElements<'_>) -> Result<()>;

    /// Update the statistics and transform a whole tensor in place. The result is multiplied into the learning rate of
    /// the step, f32 `[1]`.
    fn transform(&self, direction: WholeDirection<'_>) -> Result<Option<Tensor>>;
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

    /// Update all parameters that are due, with as few launches as the rule has for them.
    fn update_all(&mut self, due: Vec<DueUpdate>, args: StepArgs<'_>) -> Result<()> {
        let mut steps = Vec::with_capacity(due.len());
        for DueUpdate { flat, index, tensors, .. } in &due {
            let (state, options) = self.inner.of_flat(flat, |options| Moments::new(flat, options))?;
            state.moments.statistics_of(options, (flat, *index, tensors))?;
            steps.push(state.count_step(*index));
        }
        let mut runs = Vec::with_capacity(due.len().min(MAX_RUNS));
        for (due, step) in due.iter().zip(steps) {
            let Some(state) = self.inner.states.iter().find(|state| Rc::ptr_eq(&state.flat, &due.flat)) else {
                continue;
            };
            let elements = elements_of(&state.moments, due, None, args.factor)?;
            runs.extend(elements.into_iter().map(|elements| (elements, due.numbers(args.lr, step))));
            if runs.len() >= MAX_RUNS {
                self.inner.options.launch_all(args.factor.device(), std::mem::take(&mut runs))?;
            }
        }
        self.inner.options.launch_all(args.factor.device(), runs)?;
        self.inner.states.iter().try_for_each(|state| share_part_scales(state, &due))
    }

    /// Update the parameters of one storage, one after another: with directions of whole tensors, or with a record of
    /// how far each parameter moves.
    fn update_flat(&mut self, flat: &Rc<Flat>, due: &[DueUpdate], args: StepArgs<'_>) -> Result<()> {
        let (state, options) = self.inner.of_flat(flat, |options| Moments::new(flat, options))?;
        let directions = match options.of_whole() {
            Some(rule) => Some(directions((rule, options), state, due, args.factor)?),
            None => {
                for DueUpdate { index, tensors, .. } in due {
                    state.moments.statistics_of(options, (flat, *index, tensors))?;
                }
                None
            }
        };
        for due in due {
            let step = state.count_step(due.index);
            let moments = &state.moments;
            let elements = elements_of(moments, due, directions.as_ref(), args.factor)?;
            let keep = |part: &OwnedPart| match moments.master() {
                Some(master) => Before::keep(master, part.in_state.clone()),
                None => Before::keep(flat.values()?, part.in_values.clone()),
            };
            let before = due.recorded.iter().map(keep).collect::<Result<Vec<_>>>()?;
            let numbers = due.numbers(args.lr, step);
            elements.into_iter().try_for_each(|elements| options.launch(flat.device(), elements, numbers))?;
            if let Some(moved) = &moments.moved {
                before.into_iter().try_for_each(|before| before.measure(moved, due.index))?;
            }
        }
        share_part_scales(state, due)
    }
}

/// The elements of a parameter that this rank updates, by its gradient or by its direction: all at once, or tensor by
/// tensor where these have learning rates or 8-bit blocks of their own.
fn elements_of<'a>(
    moments: &'a Moments,
    DueUpdate { flat, index, grads, tensors, .. }: &'a DueUpdate,
    directions: Option<&'a Directions>,
    factor: &'a Tensor,
) -> Result<Vec<StepElements<'a>>> {
    let owned = flat.owned(*index);
    if owned.of_param.is_empty() {
        return Ok(Vec::new());
    }
    let rates = directions.and_then(|directions| directions.rates.get(index));
    let runs = match rates.is_some() || moments.has_part_scales(*index) {
        true => runs_of_tensors(tensors, &owned),
        false => Vec::from([TensorRun { tensor: 0, elements: owned.of_param.clone() }]),
    };
    let values = flat.values()?;
    let elements = |run: TensorRun| -> Result<StepElements<'a>> {
        let part = owned.part(run.elements.clone());
        let range = part.in_state;
        let (states, grad, factor) = match directions {
            None => (moments.states_of(*index, &run, &range)?, grads.view(range.clone())?, factor.view()?),
            Some(Directions { whole, one, .. }) => {
                let start = flat.layout().spans()[*index].range().start;
                let direction = whole.view(start + part.of_param.start..start + part.of_param.end)?;
                (Vec::new(), direction, one.view()?)
            }
        };
        let rate = rates.and_then(|rates| rates.get(&run.tensor));
        Ok(StepElements {
            parameter: values.view_mut(part.in_values)?,
            master: moments.master().map(|master| master.view_mut(range)).transpose()?,
            states,
            grad,
            factor,
            rate: rate.map(Tensor::view).transpose()?,
        })
    };
    runs.into_iter().map(elements).collect()
}

impl<R: DeviceRule> Optimizer for DeviceOptimizer<R> {
    fn groups(&self) -> &[ParamGroup] {
        &self.inner.groups
    }

    fn step(&mut self, args: StepArgs<'_>) -> Result<()> {
        for moved in self.inner.states.iter().filter_map(|state| state.moments.moved.as_ref()) {
            moved.device().launch(Fill { value: 0.0, out: moved.view_mut(0..moved.len())? })?;
        }
        let due = self.inner.begin_step()?;
        if self.inner.options.of_whole().is_none() && !self.inner.options.records_delta() {
            return self.update_all(due, args);
        }
        let mut by_flat: Vec<(Rc<Flat>, Vec<DueUpdate>)> = Vec::new();
        for due in due {
            match by_flat.iter_mut().find(|(flat, _)| Rc::ptr_eq(flat, &due.flat)) {
                Some((_, all)) => all.push(due),
                None => by_flat.push((Rc::clone(&due.flat), vec![due])),
            }
        }
        by_flat.into_iter().try_for_each(|(flat, due)| self.update_flat(&flat, &due, args))
    }

    fn undo_count(&mut self) {
        self.inner.undo_count();
    }

    fn visit_stretches(&self, visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>) -> Result<()> {
        for (state, params) in self.inner.updated()? {
            state.moments.visit(&self.inner.options, (state, &params), visit)?;
        }
        Ok(())
    }

    fn kept(&self, param: &Param) -> Result<Option<Kept>> {
        let Some((state, index)) = self.inner.of_param(param)? else { return Ok(None) };
        let tensors = state.moments.kept(&self.inner.options, index, &param.spec().tensors());
        Ok(Some(Kept { steps: state.steps[index], tensors }))
    }

    fn kept_specs(&self, param: &Param) -> Vec<KeptSpec> {
        self.inner.options.kept_specs(&param.spec().tensors(), param.spec().dtype)
    }

    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()> {
        let (flat, index) = param.place()?;
        let (state, options) = self.inner.of_flat(flat, |options| Moments::new(flat, options))?;
        state.moments.load(options, (flat, index, &param.spec().tensors()), read)?;
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

//! Adam on the device, for f32 parameters and for 16-bit parameters with an f32 master.

use super::delta::{Before, Delta};
use super::state::{AdamStates, DueUpdate, stretches_of};
use super::{Kept, KeptTensor, Optimizer, ParamGroup, ReadKept, StateStretch, StepArgs};
use crate::error::Result;
use crate::param::{Flat, OwnedPart, Param};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{Adam as AdamKernel, AdamSettings, Cast, Dest, Fill};
use bmtrain_core::{DType, Lane, Segment, Storage};

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

impl AdamOptions {
    /// The learning rate of a parameter's step of this number.
    pub(super) fn lr_of_step(&self, step: u64, lr: f64) -> f32 {
        if step <= self.hold_steps { 0.0 } else { lr as f32 }
    }
}

/// Moments and master of one flat storage, laid out like it.
#[derive(Debug)]
struct Moments {
    m: Storage,
    v: Storage,
    master: Option<Storage>,
    /// The squares of what each parameter moved by in the last step, i64 [parameters, limbs of an exact sum], if that
    /// is recorded.
    moved: Option<Storage>,
}

impl Moments {
    fn new(flat: &Flat, options: &AdamOptions) -> Result<Self> {
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
        let moved = options.record_delta.then(words).transpose()?;
        Ok(Moments { m: zeros()?, v: zeros()?, master, moved })
    }

    /// The tensors by the names they have in a state.
    fn named(&self) -> Vec<(&'static str, &Storage)> {
        let mut all = vec![("m", &self.m), ("v", &self.v)];
        all.extend(self.master.as_ref().map(|master| ("master", master)));
        all
    }
}

/// Adam and AdamW; see [`bmtrain_core::kernel::Adam`] for the formulas.
#[derive(Debug)]
pub struct Adam {
    inner: AdamStates<Moments>,
}

impl Adam {
    /// An optimizer over these groups.
    pub fn new(groups: Vec<ParamGroup>, options: AdamOptions) -> Result<Self> {
        Ok(Adam { inner: AdamStates::new(groups, options)? })
    }
}

impl Optimizer for Adam {
    fn groups(&self) -> &[ParamGroup] {
        &self.inner.groups
    }

    fn step(&mut self, args: StepArgs<'_>) -> Result<()> {
        let options = self.inner.options;
        for moved in self.inner.states.iter().filter_map(|state| state.moments.moved.as_ref()) {
            moved.device().launch(Fill { value: 0.0, out: moved.view_mut(0..moved.len())? })?;
        }
        for DueUpdate { flat, index, grads, decay, recorded } in self.inner.begin_step()? {
            let state = self.inner.of_flat(&flat, || Moments::new(&flat, &options))?;
            let (step, part) = (state.count_step(index), flat.owned(index));
            if part.of_param.is_empty() {
                continue;
            }
            let Moments { m, v, master, moved } = &state.moments;
            let keep = |part: OwnedPart| match master {
                Some(master) => Before::keep(master, part.in_state),
                None => Before::keep(flat.values()?, part.in_values),
            };
            let before = recorded.into_iter().map(keep).collect::<Result<Vec<_>>>()?;
            let range = part.in_state;
            flat.device().launch(AdamKernel {
                parameter: flat.values()?.view_mut(part.in_values)?,
                master: master.as_ref().map(|master| master.view_mut(range.clone())).transpose()?,
                m: m.view_mut(range.clone())?,
                v: v.view_mut(range.clone())?,
                grad: grads.view(range)?,
                factor: args.factor.view()?,
                settings: AdamSettings {
                    lr: options.lr_of_step(step, args.lr),
                    beta1: options.beta1,
                    beta2: options.beta2,
                    epsilon: options.epsilon,
                    decay,
                    decoupled: options.decay_form == DecayForm::Decoupled,
                    maximize: options.maximize,
                    step,
                },
            })?;
            if let Some(moved) = moved {
                before.into_iter().try_for_each(|before| before.measure(moved, index))?;
            }
        }
        Ok(())
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
        let tensors = state.moments.named().into_iter();
        let tensors = tensors.map(|(name, storage)| (name, KeptTensor::Device(storage.clone()))).collect();
        Ok(Some(Kept { steps: state.steps[index], tensors }))
    }

    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()> {
        let ((flat, index), options) = (param.place()?, self.inner.options);
        let (state, part) = (self.inner.of_flat(flat, || Moments::new(flat, &options))?, flat.owned(index));
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

//! Optimizers, learning-rate schedules, loss scaling, and the manager that scales, clips and steps them together.

pub mod adafactor;
pub mod adam;
pub mod adam_8bit;
pub mod average;
mod broken;
mod clip;
pub mod delta;
mod directions;
pub mod elementwise;
pub mod fingerprint;
mod kept;
pub mod manager;
pub mod manager_state;
mod moments;
pub mod muon;
pub mod offload;
pub mod on_device;
pub mod scale;
pub mod schedule;
mod state;
pub(crate) mod tensor_terms;

pub use adafactor::{Adafactor, AdafactorOptions};
pub use adam::{Adam, AdamOptions, DecayForm};
pub use adam_8bit::{Adam8bit, Adam8bitOptions, part_scales};
pub use average::{AverageForm, UsedAverages, WeightAverage};
pub use clip::Clip;
pub use delta::Delta;
pub use elementwise::{Elementwise, ElementwiseOptions};
pub use fingerprint::Fingerprint;
pub use kept::{Kept, KeptForm, KeptSpec, KeptTensor, MASTER};
pub use manager::{OptimManager, StepInfo};
pub use manager_state::ManagerState;
pub use muon::{Muon, MuonOptions, MuonScale};
pub use offload::{AdamOffload, ElementwiseOffload, HostOptimizer, HostRule, HostTensor};
pub use on_device::{
    DeviceOptimizer, DeviceRule, DirectionElements, Rule, StepElements, StepNumbers, WholeDirection, WholeRule,
};
pub use scale::{LossScaler, Outcome, ScalePolicy, ScaleState};
pub use schedule::{DecayShape, DecaySpan, Schedule, ScheduleKind, Scheduler, Warmup};

use crate::error::{Error, Result};
use crate::param::Param;
use bmtrain_core::Tensor;
use state::{check_state, tensor};
use std::collections::HashMap;
use std::ops::Range;

/// Gives values of a tensor of an optimizer's state, widened to f32. The range is of elements of this rank's
/// tensor-parallel part of the parameter if [`KeptForm::is_by_element`], else of the tensor's own.
pub type ReadKept<'a> = dyn FnMut(&KeptSpec, Range<usize>) -> Result<Vec<f32>> + 'a;

/// Parameters that share their settings.
#[derive(Debug, Clone)]
pub struct ParamGroup {
    /// The parameters.
    pub params: Vec<Param>,
    /// Their weight decay.
    pub weight_decay: f32,
    /// Their factor of the optimizer's learning rate.
    pub lr_factor: f64,
}

impl ParamGroup {
    /// The usual two groups: weights that decay; norms and biases, which do not. Matrices in quantised blocks, which
    /// are never trained, are in neither.
    pub fn by_decay<'p>(params: impl IntoIterator<Item = &'p Param>, weight_decay: f32) -> Vec<ParamGroup> {
        let values = params.into_iter().filter(|param| !param.is_in_blocks()).cloned();
        let (decay, keep) = values.partition(|param: &Param| param.spec().decay);
        let group = |params, weight_decay| ParamGroup { params, weight_decay, lr_factor: 1.0 };
        vec![group(decay, weight_decay), group(keep, 0.0)]
    }

    /// One group for all but matrices in quantised blocks.
    pub fn all<'p>(params: impl IntoIterator<Item = &'p Param>, weight_decay: f32) -> Vec<ParamGroup> {
        let params = params.into_iter().filter(|param| !param.is_in_blocks()).cloned().collect();
        vec![ParamGroup { params, weight_decay, lr_factor: 1.0 }]
    }
}

/// Arguments of an optimizer for one step.
#[derive(Debug, Clone, Copy)]
pub struct StepArgs<'a> {
    /// Learning rate.
    pub lr: f64,
    /// f32 `[1]` on the device: multiplied into every gradient. If it is not finite, the step changes nothing.
    pub factor: &'a Tensor,
}

/// State of one parameter in an optimizer, widened to f32.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamState {
    /// Full name of the parameter.
    pub name: String,
    /// Steps taken.
    pub steps: u64,
    /// Named tensors, whole, over all tensor-parallel ranks too: of Adam `m` and `v`, and `master` for 16-bit
    /// parameters. Codes are whole numbers.
    pub tensors: Vec<(&'static str, Vec<f32>)>,
}

/// Elements of one tensor of a parameter's state, widened to f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateStretch<'a> {
    /// Full name of the parameter.
    pub param: &'a str,
    /// Steps taken.
    pub steps: u64,
    /// Name of the tensor: of Adam `m`, `v`, or `master`.
    pub tensor: &'static str,
    /// Elements of the whole tensor.
    pub len: usize,
    /// Index of the first of these elements in the tensor.
    pub start: usize,
    /// The elements.
    pub values: &'a [f32],
}

/// Something that updates parameters from their gradients.
pub trait Optimizer {
    /// The groups it updates.
    fn groups(&self) -> &[ParamGroup];

    /// Update every trainable parameter that has a gradient: now, or on a lane that users of the values wait for
    /// ([`Flat::updates_until`](crate::param::Flat::updates_until)).
    fn step(&mut self, args: StepArgs<'_>) -> Result<()>;

    /// Take back the step counts of the last step, which changed nothing.
    fn undo_count(&mut self);

    /// Show the state of every parameter that has one, gathered from all data-parallel and tensor-parallel ranks, which
    /// have to do the same, in stretches of a bounded number of elements. Storages come in the order in which the
    /// groups first name them, each gathered once, and the parameters of one in the order of the groups; they may
    /// alternate. The stretches of a tensor come in order and without other tensors of the parameter between them, the
    /// tensors in the order of [`Optimizer::kept_specs`]. Waits for the device.
    fn visit_stretches(&self, visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>) -> Result<()>;

    /// All of it at once: as much host memory as the state has.
    fn state(&self) -> Result<Vec<ParamState>> {
        let (mut all, mut places) = (Vec::<ParamState>::new(), HashMap::new());
        self.visit_stretches(&mut |StateStretch { param, steps, tensor, len, start, values }| {
            let place = *places.entry(param.to_owned()).or_insert(all.len());
            if place == all.len() {
                all.push(ParamState { name: param.to_owned(), steps, tensors: Vec::new() });
            }
            let tensors = &mut all[place].tensors;
            if start == 0 {
                tensors.push((tensor, Vec::with_capacity(len)));
            }
            if let Some((_, whole)) = tensors.last_mut() {
                whole.extend_from_slice(values);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Optimizer state of a parameter; `None` before its first step. Later steps write into the same places.
    fn kept(&self, param: &Param) -> Result<Option<Kept>>;

    /// Steps taken on a parameter; `None` before the first one.
    fn steps_of(&self, param: &Param) -> Result<Option<u64>> {
        Ok(self.kept(param)?.map(|kept| kept.steps))
    }

    /// The tensors that it keeps for a parameter after its first step.
    fn kept_specs(&self, param: &Param) -> Vec<KeptSpec>;

    /// Continue for one of its parameters after `steps` steps. `read` gives those values of a tensor that this rank is
    /// to hold. The values of the parameter were loaded before.
    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()>;

    /// Continue from a state, of this optimizer or of another one of the same form, on any number of ranks and at any
    /// ZeRO level. Parameters it does not name keep what they have. The parameters themselves are not part of it: they
    /// are loaded as well, and before.
    ///
    /// # Errors
    /// A name that is in no group or comes twice, a tensor that is missing, too many or of another length; then nothing
    /// is changed.
    fn load_state(&mut self, state: &[ParamState]) -> Result<()> {
        for (param, entry) in check_state(self.groups(), |param| self.kept_specs(param), state)? {
            self.load_kept(&param, entry.steps, &mut |spec, part| {
                let mut values = vec![0.0; part.len()];
                let runs = match spec.form.is_by_element() {
                    true => param.runs_of(&part),
                    false => vec![(part.start, 0, part.len())],
                };
                for (start, at, len) in runs {
                    let run = tensor(entry, spec.name).and_then(|whole| whole.get(start..start + len));
                    let missing = || {
                        let reason = format!("optimizer state {} has no {len} values from {start} on", spec.name);
                        Error::parameter(entry.name.clone(), reason)
                    };
                    values[at..at + len].copy_from_slice(run.ok_or_else(missing)?);
                }
                Ok(values)
            })?;
        }
        Ok(())
    }

    /// Size of the last update of each parameter that has ever been updated, if that is recorded. All ranks have to
    /// ask. Waits for the device.
    fn deltas(&self) -> Result<Vec<Delta>> {
        Ok(Vec::new())
    }
}

//! The settings of Adam, on the device and on the host.

use super::on_device::{DeviceOptimizer, DeviceRule, Rule, StepElements, StepNumbers};
use crate::error::{Error, Result};
use bmtrain_core::buffer::ViewMut;
use bmtrain_core::kernel::{Adam as AdamKernel, AdamRun, AdamSettings};
use bmtrain_core::{DType, Device};

/// Form of weight decay.
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
    /// Form of weight decay.
    pub decay_form: DecayForm,
    /// Climb instead of descend.
    pub maximize: bool,
    /// The learning rate is 0 for this many first steps of a parameter, while moments build up.
    pub hold_steps: u64,
    /// Keep how far the last step moved each parameter, for [`Optimizer::deltas`](super::Optimizer::deltas).
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
    /// The numbers of a parameter's step.
    pub(super) fn settings(&self, StepNumbers { lr, decay, step }: StepNumbers) -> AdamSettings {
        AdamSettings {
            lr: if step <= self.hold_steps { 0.0 } else { lr as f32 },
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            decay,
            decoupled: self.decay_form == DecayForm::Decoupled,
            maximize: self.maximize,
            step,
        }
    }
}

impl Rule for AdamOptions {
    fn check(&self) -> Result<()> {
        let AdamOptions { beta1, beta2, epsilon, .. } = *self;
        if !((0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2) && epsilon >= 0.0) {
            let reason = format!("betas {beta1}, {beta2} must be in [0, 1) and epsilon {epsilon} at or above 0");
            return Err(Error::setting("adam", reason));
        }
        Ok(())
    }

    fn states(&self) -> Vec<&'static str> {
        vec!["m", "v"]
    }

    fn records_delta(&self) -> bool {
        self.record_delta
    }
}

impl DeviceRule for AdamOptions {
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()> {
        self.launch_all(device, vec![(elements, numbers)])
    }

    fn launch_all(&self, device: &Device, runs: Vec<(StepElements<'_>, StepNumbers)>) -> Result<()> {
        let mut steps: Vec<([DType; 2], AdamKernel<'_>)> = Vec::new();
        for (elements, numbers) in runs {
            let StepElements { parameter, master, states, grad, factor, .. } = elements;
            let Ok([m, v]) = <[ViewMut<'_>; 2]>::try_from(states) else {
                return Err(Error::setting("adam", "a step takes two moments"));
            };
            let dtypes = [parameter.dtype(), grad.dtype()];
            let run = AdamRun { parameter, master, m, v, grad, settings: self.settings(numbers) };
            match steps.iter_mut().find(|(known, _)| *known == dtypes) {
                Some((_, step)) => step.runs.push(run),
                None => steps.push((dtypes, AdamKernel { runs: vec![run], factor })),
            }
        }
        steps.into_iter().try_for_each(|(_, step)| Ok(device.launch(step)?))
    }
}

/// Adam and AdamW; see [`bmtrain_core::kernel::Adam`] for the formulas.
pub type Adam = DeviceOptimizer<AdamOptions>;

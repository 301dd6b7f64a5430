//! The optimizers beside Adam that update each element by itself: SGD, Adagrad, RMSprop, Adadelta, Adamax, NAdam, RAdam
//! and Lion.

use super::DecayForm;
use super::on_device::{DeviceOptimizer, DeviceRule, Rule, StepElements, StepNumbers};
use crate::error::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::kernel::{Update, UpdateRule, UpdateSettings};

/// Settings of [`Elementwise`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElementwiseOptions {
    /// The formulas and their numbers.
    pub rule: UpdateRule,
    /// Form of weight decay. PyTorch's optimizers of these rules add it to the gradient by default, Lion's decouples
    /// it.
    pub decay_form: DecayForm,
    /// Initial value of the states, at or above 0: the first sum of Adagrad.
    pub initial: f32,
    /// Climb instead of descend.
    pub maximize: bool,
    /// Keep how far the last step moved each parameter, for [`Optimizer::deltas`](super::Optimizer::deltas).
    pub record_delta: bool,
}

impl ElementwiseOptions {
    /// The settings that the rule's own library has by default: decoupled decay of Lion, coupled decay of the others.
    pub fn new(rule: UpdateRule) -> Self {
        let decay_form = match rule {
            UpdateRule::Lion { .. } => DecayForm::Decoupled,
            _ => DecayForm::Coupled,
        };
        ElementwiseOptions { rule, decay_form, initial: 0.0, maximize: false, record_delta: false }
    }
}

impl ElementwiseOptions {
    /// The numbers of a parameter's step.
    pub(super) fn settings(&self, StepNumbers { lr, decay, step }: StepNumbers) -> UpdateSettings {
        UpdateSettings {
            rule: self.rule,
            lr,
            decay: f64::from(decay),
            decoupled: self.decay_form == DecayForm::Decoupled,
            maximize: self.maximize,
            step,
        }
    }
}

impl Rule for ElementwiseOptions {
    fn check(&self) -> Result<()> {
        self.rule.check()?;
        let is_adagrad = matches!(self.rule, UpdateRule::Adagrad { .. });
        if !(self.initial == 0.0 || (is_adagrad && self.initial > 0.0 && self.initial.is_finite())) {
            let reason = format!("initial state {}: Adagrad's is at or above 0, others have 0", self.initial);
            return Err(Error::setting("optimizer", reason));
        }
        Ok(())
    }

    fn states(&self) -> Vec<&'static str> {
        self.rule.states().into_iter().flatten().collect()
    }

    fn initial(&self, _state: &str) -> f32 {
        self.initial
    }

    fn records_delta(&self) -> bool {
        self.record_delta
    }
}

impl DeviceRule for ElementwiseOptions {
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()> {
        let StepElements { parameter, master, states, grad, factor, .. } = elements;
        let mut states = states.into_iter();
        let [first, second, third] = self.rule.states().map(|state| state.and_then(|_| states.next()));
        let settings = self.settings(numbers);
        Ok(device.launch(Update { parameter, master, first, second, third, grad, factor, settings })?)
    }
}

/// An optimizer that updates each element by itself; see [`UpdateRule`] for the formulas. Its state is on the device.
pub type Elementwise = DeviceOptimizer<ElementwiseOptions>;

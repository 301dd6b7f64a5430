//! The average of the weights: its keys.

use super::train::RECIPE;
use super::{MAX_STEPS, Settings};
use crate::recipe::engine::kinds::Range::Below;
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use bmtrain_dist::optim::AverageForm;

const NONE: &str = "not set: no average";

settings! {
    #[derive(Debug)]
    pub(super) struct AverageKeys in "train" (r) {
        /// Decay of an exponential moving average of the weights (EMA). Evaluations and the models that are written
        /// have the averages, checkpoints both.
        ema: Option<f64> = optional_float(NONE, Below(0.0, 1.0), 0.999), "0.2", not_of_step(RECIPE);
        /// The step from which on the weights after each step are averaged (SWA); evaluations, models and checkpoints
        /// as with `train.ema`.
        average_from: Option<u64> = optional_integer(NONE, 1..=MAX_STEPS, 800), "0.2", not_of_step(RECIPE);
    }
}

/// Reads which average is kept, if any.
pub(super) fn read(r: &mut Reader) -> Option<AverageForm> {
    let AverageKeys { ema: decay, average_from: from } = AverageKeys::read(r);
    if decay.is_some() && from.is_some() {
        let reason = "one average is kept: an exponential one, or one of the last steps";
        r.contradiction(&["train.ema", "train.average_from"], reason, "remove one of the two");
    }
    let last = from.map(|from| AverageForm::Uniform { from });
    decay.map(|decay| AverageForm::Exponential { decay }).or(last)
}

/// Adds what contradicts itself.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    let key = match s.train.average {
        Some(AverageForm::Exponential { .. }) => "train.ema",
        Some(AverageForm::Uniform { .. }) => "train.average_from",
        None => return,
    };
    if s.train.offload_parameters {
        let reason = "averages are of parameters on the device, and `train.offload_parameters` keeps them on the host";
        r.contradiction(&[key, "train.offload_parameters"], reason, "remove one of the two");
    }
    if !s.checkpoint.optimizer_state {
        let reason =
            "averages are saved with the state of the optimizer, which `checkpoint.optimizer_state` leaves out";
        r.contradiction(&[key, "checkpoint.optimizer_state"], reason, "set checkpoint.optimizer_state = true");
    }
    if let (Some(AverageForm::Uniform { from }), Some(steps)) = (s.train.average, s.train.steps)
        && from > steps
    {
        let reason = format!("the average begins after the last step, `train.steps` = {steps}");
        r.contradiction(&[key, "train.steps"], &reason, "begin it earlier");
    }
}

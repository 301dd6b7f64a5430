//! The average of the weights: its keys.

use super::keys::MOST_STEPS;
use super::kinds::Range;
use super::reader::Reader;
use super::settings::Settings;
use bmtrain_dist::optim::AverageForm;

/// Reads which average is kept, if any.
pub(super) fn read(r: &mut Reader) -> Option<AverageForm> {
    let absent = "not set: no average";
    let decay = r.optional_float("train.ema", absent, Range::Below(0.0, 1.0), 0.999);
    let from = r.optional_integer("train.average_from", absent, 1..=MOST_STEPS, 800);
    if decay.is_some() && from.is_some() {
        let reason = "one average is kept: an exponential one, or one of the last steps";
        r.contradiction(&["train.ema", "train.average_from"], reason, "remove one of the two");
    }
    let last = from.map(|from| AverageForm::Uniform { from });
    decay.map(|decay| AverageForm::Exponential { decay }).or(last)
}

/// Adds what contradicts itself.
pub(super) fn check(r: &mut Reader, s: &Settings) {
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

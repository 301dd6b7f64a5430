//! Whether the loss of a run has left its course: spikes, or losses above the first ones, for many steps in a row.
//!
//! Defines [`DivergenceGuard`], which the trainer asks after each step. All ranks have the same losses, so all end the
//! run with the same error.

use crate::{Error, Result};
use model_center_recipe::DivergenceSettings;
use model_center_recipe::run::Exact;
use serde::{Deserialize, Serialize};

/// Steps whose mean loss is where the run began, and over which the recent mean is taken.
const WINDOW: u64 = 20;

/// Watches the loss of each step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DivergenceGuard {
    settings: DivergenceSettings,
    state: GuardState,
}

/// State of a guard, kept with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuardState {
    /// Steps seen.
    steps: u64,
    /// Mean loss of the first steps.
    begin: Exact,
    /// Mean loss of recent steps.
    recent: Exact,
    /// Steps in a row whose loss is too high.
    high: u64,
}

impl DivergenceGuard {
    pub(super) fn new(settings: DivergenceSettings) -> Self {
        let state = GuardState { steps: 0, begin: Exact(0.0), recent: Exact(0.0), high: 0 };
        DivergenceGuard { settings, state }
    }

    pub(super) fn state(&self) -> GuardState {
        self.state
    }

    pub(super) fn load(&mut self, state: GuardState) {
        self.state = state;
    }

    /// Note the loss of step `step`, counted from 1.
    ///
    /// # Errors
    /// [`Error::Diverged`] where as many losses in a row as the recipe allows were too high.
    pub(super) fn observe(&mut self, step: u64, loss: f32) -> Result<()> {
        let loss = f64::from(loss);
        let GuardState { steps, begin, recent, high } = self.state;
        let is_first = steps < WINDOW;
        let spike = self.settings.spike * recent.0;
        let is_high = !loss.is_finite() || (steps > 0 && loss > spike) || (!is_first && loss > begin.0);
        self.state.high = if is_high { high + 1 } else { 0 };
        if self.state.high >= self.settings.patience {
            let reason = format!(
                "the loss was too high for {} steps in a row: {loss:.4}, after {:.4} at the beginning and {:.4} before",
                self.state.high, begin.0, recent.0
            );
            let fix = "lower train.lr or lengthen train.warmup, and resume an earlier checkpoint with --accept-change";
            return Err(Error::diverged(format!("step {step}"), reason, fix));
        }
        if is_high {
            // A mean that spikes are part of would soon call them normal.
            return Ok(());
        }
        let share = 1.0 / (steps + 1).min(WINDOW) as f64;
        self.state.recent = Exact(recent.0 + share * (loss - recent.0));
        if is_first {
            self.state.begin = self.state.recent;
        }
        self.state.steps = steps + 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> DivergenceGuard {
        DivergenceGuard::new(DivergenceSettings { spike: 2.0, patience: 3 })
    }

    /// The step at which a course of losses is ended.
    fn ends(losses: impl IntoIterator<Item = f32>) -> Option<u64> {
        let mut guard = guard();
        let mut numbered = (1..).zip(losses);
        numbered.find(|(step, loss)| guard.observe(*step, *loss).is_err()).map(|(step, _)| step)
    }

    #[test]
    fn a_course_that_falls_with_single_spikes_continues() {
        let falling = |step: u32| 10.0 / (1.0 + step as f32 / 50.0) + if step % 10 == 9 { 9.0 } else { 0.0 };
        assert_eq!(ends((0..400).map(falling)), None);
        // Two in a row are not three.
        let pairs = |step: u32| if step > 30 && step % 10 < 2 { 50.0 } else { 5.0 };
        assert_eq!(ends((0..400).map(pairs)), None);
    }

    #[test]
    fn spikes_losses_above_the_first_and_numbers_that_are_not_finite_end_it() {
        let then = |before: f32, after: f32| (0..100).map(move |step| if step < 50 { before } else { after });
        assert_eq!(ends(then(5.0, 5.5)), Some(53), "above where it began");
        let fallen = (0..100).map(|step| if step < 20 { 9.0 } else { 2.0 } + if step >= 60 { 6.0 } else { 0.0 });
        assert_eq!(ends(fallen), Some(63), "spikes below where it began");
        assert_eq!(ends(then(5.0, f32::NAN)), Some(53));
        assert_eq!(ends([f32::INFINITY; 5]), Some(3));
        assert_eq!(ends([4.6, 4183.0, 8936.0, 11125.0]), Some(4), "from the second step on");
    }

    #[test]
    fn a_resumed_guard_continues_where_it_was() {
        let mut whole = guard();
        let mut resumed = guard();
        for step in 1..60 {
            let loss = if step > 40 { 7.0 } else { 6.0 - step as f32 / 100.0 };
            let found = whole.observe(step, loss).is_err();
            let mut next = guard();
            let text = serde_json::to_string(&resumed.state()).unwrap();
            next.load(serde_json::from_str(&text).unwrap());
            assert_eq!(next.observe(step, loss).is_err(), found, "{step}");
            resumed = next;
            if found {
                assert_eq!(step, 43);
                return;
            }
        }
        panic!("no end");
    }
}

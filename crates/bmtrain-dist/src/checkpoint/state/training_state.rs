//! The training state without its tensors.

use crate::error::{Error, Result};
use crate::optim::{OptimManager, ScaleState};
use crate::param::{FreezeMask, Parameters};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Loss scale, positions in the schedules, step counts, and which parameters are frozen. Equal on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingState {
    /// State of loss scaling.
    pub scaler: ScaleState,
    /// State of each optimizer, in their order.
    pub optimizers: Vec<OptimizerState>,
    /// The frozen parameters.
    pub frozen: FreezeMask,
}

/// State of one optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerState {
    /// Iterations of its schedule; absent without one.
    pub iteration: Option<u64>,
    /// Steps taken on each parameter that has state.
    pub steps: BTreeMap<String, u64>,
}

impl TrainingState {
    /// The present state.
    pub fn of(optim: &OptimManager, params: &Parameters) -> Result<Self> {
        let mut optimizers = Vec::new();
        for (optimizer, scheduler) in optim.parts() {
            let mut steps = BTreeMap::new();
            for param in optimizer.groups().iter().flat_map(|group| &group.params) {
                if let Some(kept) = optimizer.kept(param)? {
                    steps.insert(param.name().to_owned(), kept.steps);
                }
            }
            optimizers.push(OptimizerState { iteration: scheduler.map(|scheduler| scheduler.iteration()), steps });
        }
        Ok(TrainingState { scaler: optim.scaler().state(), optimizers, frozen: params.freeze_mask() })
    }

    pub(super) fn apply(&self, optim: &mut OptimManager, params: &Parameters) -> Result<()> {
        params.set_freeze_mask(&self.frozen)?;
        let count = optim.parts().count();
        if count != self.optimizers.len() {
            let reason = format!("{count} optimizers, saved were {}", self.optimizers.len());
            return Err(Error::setting("resume", reason));
        }
        let mut scaler = *optim.scaler();
        scaler.load_state(self.scaler)?;
        optim.set_scaler(scaler);
        for ((_, scheduler), saved) in optim.parts_mut().zip(&self.optimizers) {
            match (scheduler, saved.iteration) {
                (Some(scheduler), Some(iteration)) => scheduler.seek(iteration),
                (None, None) => {}
                _ => return Err(Error::setting("resume", "an optimizer had a schedule, or has one now, but not both")),
            }
        }
        Ok(())
    }
}

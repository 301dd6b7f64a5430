//! What a training has come to beside its tensors.

use crate::error::{Error, Result};
use crate::optim::{OptimManager, ScaleState};
use crate::param::Param;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Loss scale, places in the schedules, step counts, and which parameters are frozen. Equal on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingState {
    /// Of loss scaling.
    pub scaler: ScaleState,
    /// Of each optimizer, in their order.
    pub optimizers: Vec<OptimizerState>,
    /// Full names of the parameters that were not trained, sorted.
    pub frozen: Vec<String>,
}

/// Of one optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerState {
    /// Iterations of its schedule; absent without one.
    pub iteration: Option<u64>,
    /// Steps taken on each parameter that has state.
    pub steps: BTreeMap<String, u64>,
}

impl TrainingState {
    /// What it is now. `params` are all parameters of the model, trained or not.
    ///
    /// # Errors
    /// A parameter whose block is not complete.
    pub fn of<'p>(optim: &OptimManager, params: impl IntoIterator<Item = &'p Param>) -> Result<Self> {
        let mut frozen: Vec<String> =
            params.into_iter().filter(|param| !param.is_trainable()).map(|param| param.name().to_owned()).collect();
        frozen.sort_unstable();
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
        Ok(TrainingState { scaler: optim.scaler().state(), optimizers, frozen })
    }

    /// Put schedules, loss scale and frozen parameters where they were.
    pub(super) fn apply<'p>(
        &self,
        optim: &mut OptimManager,
        params: impl IntoIterator<Item = &'p Param>,
    ) -> Result<()> {
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
        for param in params {
            param.set_trainable(self.frozen.binary_search_by(|name| name.as_str().cmp(param.name())).is_err());
        }
        Ok(())
    }
}

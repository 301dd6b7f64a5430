//! The training state without its tensors.

use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::optim::{OptimManager, ScaleState, Scheduler};
use crate::param::{FreezeMask, Parameters};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// Whether moments, master weights and step counts are saved with it; what earlier versions wrote has them.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub has_optimizer_state: bool,
}

fn complete() -> bool {
    true
}

fn is_complete(has_optimizer_state: &bool) -> bool {
    *has_optimizer_state
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
    /// The present state. Collective over pipeline stages, whose parameters it has together.
    pub fn of(optim: &OptimManager, params: &Parameters) -> Result<Self> {
        let mut optimizers = Vec::new();
        for (optimizer, scheduler) in optim.parts() {
            let mut steps = BTreeMap::new();
            for param in optimizer.groups().iter().flat_map(|group| &group.params) {
                if let Some(taken) = optimizer.steps_of(param)? {
                    steps.insert(param.name().to_owned(), taken);
                }
            }
            optimizers.push(OptimizerState { iteration: scheduler.map(|scheduler| scheduler.iteration()), steps });
        }
        join_stages(&mut optimizers, optim, params)?;
        let (scaler, frozen) = (optim.scaler().state(), params.freeze_mask());
        Ok(TrainingState { scaler, optimizers, frozen, has_optimizer_state: true })
    }

    /// This state for a checkpoint whose [`Saver`](super::Saver) leaves the state of the optimizers out.
    #[must_use]
    pub fn without_optimizer_state(mut self) -> Self {
        self.optimizers.iter_mut().for_each(|optimizer| optimizer.steps.clear());
        TrainingState { has_optimizer_state: false, ..self }
    }

    /// Whether [`TrainingState::apply`] would accept these. All ranks come to the same.
    pub(super) fn check(&self, optim: &OptimManager, params: &Parameters) -> Result<()> {
        if let Some(name) = self.frozen.frozen.iter().find(|name| params.find_declared(name).is_none()) {
            return Err(Error::parameter(name.clone(), "was frozen, and the model has no parameter of this name"));
        }
        let count = optim.parts().count();
        if count != self.optimizers.len() {
            let reason = format!("{count} optimizers, saved were {}", self.optimizers.len());
            return Err(Error::setting("resume", reason));
        }
        let mut scaler = *optim.scaler();
        scaler.load_state(self.scaler)?;
        let has_other = |((_, scheduler), saved): ((_, Option<&Scheduler>), &OptimizerState)| {
            scheduler.is_some() != saved.iteration.is_some()
        };
        if optim.parts().zip(&self.optimizers).any(has_other) {
            return Err(Error::setting("resume", "an optimizer had a schedule, or has one now, but not both"));
        }
        Ok(())
    }

    pub(super) fn apply(&self, optim: &mut OptimManager, params: &Parameters) -> Result<()> {
        params.set_freeze_mask(&self.frozen)?;
        let mut scaler = *optim.scaler();
        scaler.load_state(self.scaler)?;
        optim.set_scaler(scaler);
        for ((_, scheduler), saved) in optim.parts_mut().zip(&self.optimizers) {
            if let (Some(scheduler), Some(iteration)) = (scheduler, saved.iteration) {
                scheduler.seek(iteration);
            }
        }
        Ok(())
    }
}

/// Add the step counts of all other stages' parameters.
fn join_stages(optimizers: &mut [OptimizerState], optim: &OptimManager, params: &Parameters) -> Result<()> {
    let ranks = params.stages().ranks();
    if ranks.size() == 1 {
        return Ok(());
    }
    let unreadable = |error: serde_json::Error| Error::setting("training state", error.to_string());
    let own: Vec<_> = optimizers.iter().map(|optimizer| &optimizer.steps).collect();
    let text = serde_json::to_string(&own).map_err(unreadable)?;
    for text in ControlGroup::new(Arc::clone(ranks), optim.device()).gather_texts(&text)? {
        let of_stage: Vec<BTreeMap<String, u64>> = serde_json::from_str(&text).map_err(unreadable)?;
        optimizers.iter_mut().zip(of_stage).for_each(|(optimizer, steps)| optimizer.steps.extend(steps));
    }
    Ok(())
}

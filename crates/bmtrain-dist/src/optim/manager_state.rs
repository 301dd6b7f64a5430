//! All that a manager remembers between steps, as one value: for moving a run between optimizers, ranks and levels.
//!
//! A state knows parameters by name and not by optimizer, so that a run may continue with its parameters divided among
//! optimizers in another way, on the host or on the device. Checkpoints of large models go parameter by parameter
//! instead ([`Optimizer::kept`](super::Optimizer::kept)).

use super::scale::ScaleState;
use super::{OptimManager, ParamState};
use crate::error::{Error, Result};
use std::collections::HashMap;

/// State from which an [`OptimManager`] continues, besides the parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerState {
    /// States of the parameters of all optimizers, whole and in f32.
    pub params: Vec<ParamState>,
    /// Iterations of the schedules, one for each optimizer in the order they were added; `None` for a constant rate.
    pub schedules: Vec<Option<u64>>,
    /// Loss scaling.
    pub scale: ScaleState,
}

impl OptimManager {
    /// Everything, gathered from all ranks, which have to do the same: as much host memory as the state has. Of several
    /// pipeline stages, the state of this stage's parameters. Waits for the device.
    pub fn state(&self) -> Result<ManagerState> {
        self.flats()?;
        let (mut params, mut schedules) = (Vec::new(), Vec::new());
        for (optimizer, scheduler) in self.parts() {
            params.extend(optimizer.state()?);
            schedules.push(scheduler.map(|scheduler| scheduler.iteration()));
        }
        Ok(ManagerState { params, schedules, scale: self.scaler().state() })
    }

    /// Continue from a state. The parameters have to be loaded before.
    ///
    /// # Errors
    /// A parameter that no optimizer has, schedules or a loss scale of another kind, and what
    /// [`Optimizer::load_state`](super::Optimizer::load_state) refuses. Schedules and loss scale are checked before
    /// anything is changed, parameters optimizer by optimizer.
    pub fn load_state(&mut self, state: &ManagerState) -> Result<()> {
        self.flats()?;
        let mut scaler = self.scaler;
        scaler.load_state(state.scale)?;
        let described = |has: bool| if has { "a schedule" } else { "a constant rate" };
        let here: Vec<bool> = self.parts().map(|(_, scheduler)| scheduler.is_some()).collect();
        if here.len() != state.schedules.len() {
            let reason = format!("a state of {} optimizers, expected {}", state.schedules.len(), here.len());
            return Err(Error::setting("optimizer state", reason));
        }
        for (number, (has, saved)) in here.iter().zip(&state.schedules).enumerate() {
            if *has != saved.is_some() {
                let (has, saved) = (described(*has), described(saved.is_some()));
                let reason = format!("optimizer {number} has {has} and {saved} in the state");
                return Err(Error::setting("optimizer state", reason));
            }
        }
        for (optimizer, params) in self.divided(&state.params)?.into_iter().enumerate() {
            if let Some((optimizer, _)) = self.parts_mut().nth(optimizer) {
                optimizer.load_state(&params)?;
            }
        }
        for ((_, scheduler), iteration) in self.parts_mut().zip(&state.schedules) {
            if let (Some(scheduler), Some(iteration)) = (scheduler, iteration) {
                scheduler.seek(*iteration);
            }
        }
        self.scaler = scaler;
        Ok(())
    }

    fn divided(&self, params: &[ParamState]) -> Result<Vec<Vec<ParamState>>> {
        let mut owners = HashMap::new();
        for (number, (optimizer, _)) in self.parts().enumerate() {
            for param in optimizer.groups().iter().flat_map(|group| &group.params) {
                owners.insert(param.name(), number);
            }
        }
        let mut divided = vec![Vec::new(); self.parts().count()];
        for entry in params {
            let Some(mine) = owners.get(entry.name.as_str()).and_then(|number| divided.get_mut(*number)) else {
                return Err(Error::parameter(entry.name.clone(), "has optimizer state but is in no optimizer"));
            };
            mine.push(entry.clone());
        }
        Ok(divided)
    }
}

//! The gradient that kept a step from happening: the same on all ranks. Called by
//! [`OptimManager::step`](super::OptimManager::step) after a skipped step.

use super::OptimManager;
use crate::control::ControlGroup;
use crate::error::Result;
use bmtrain_core::comm::{Reduction, tensors};
use bmtrain_core::kernel::NonFinite;
use bmtrain_core::{DType, Segment, Storage, Tensor};
use std::sync::Arc;

impl OptimManager {
    /// Look for the first gradient that is not finite, of all ranks.
    pub(super) fn find_broken(&self) -> Result<Option<String>> {
        let none = self.params().count();
        let mut first = self.first_broken()?.unwrap_or(none);
        let flats = self.flats()?;
        // Where state is cut, each rank sees the gradients that it owns.
        let sharding = flats.iter().map(|flat| flat.sharding()).find(|sharding| sharding.shards_state());
        let tensor_ranks = flats.iter().map(|flat| flat.tensor_ranks()).find(|ranks| ranks.size() > 1);
        for ranks in sharding.map(|sharding| &sharding.ranks).into_iter().chain(tensor_ranks) {
            let own = Tensor::from_slice_in(&self.device, [1], &[first as i64], Segment::Activations)?;
            let least = tensors::all_reduce(&**ranks, own, Reduction::Min)?.to_vec::<i64>()?;
            first = least.first().and_then(|least| usize::try_from(*least).ok()).unwrap_or(none);
        }
        let name = self.params().nth(first).map(|param| param.name().to_owned());
        // Each pipeline stage has other parameters: the first stage with one names it.
        match flats.iter().map(|flat| flat.stage_ranks()).find(|ranks| ranks.size() > 1) {
            None => Ok(name),
            Some(ranks) => {
                let names =
                    ControlGroup::new(Arc::clone(ranks), &self.device).gather_texts(&name.unwrap_or_default())?;
                Ok(names.into_iter().find(|name| !name.is_empty()))
            }
        }
    }

    /// The number of this rank's first gradient that is not finite. Waits once.
    fn first_broken(&self) -> Result<Option<usize>> {
        let flags = Storage::zeros(&self.device, self.params().count(), DType::I32, Segment::Activations)?;
        for (number, param) in self.params().enumerate() {
            let (flat, index) = param.place()?;
            let Some(grads) = flat.reduced().filter(|_| flat.has_grad(index) && param.is_trainable()) else { continue };
            let part = flat.owned(index);
            let flag = flags.view_mut(number..number + 1)?;
            self.device.launch(NonFinite { x: grads.view(part.in_state)?, flag })?;
        }
        let flags = flags.tensor(0, [flags.len()])?.to_vec::<i32>()?;
        Ok(flags.iter().position(|flag| *flag != 0))
    }
}

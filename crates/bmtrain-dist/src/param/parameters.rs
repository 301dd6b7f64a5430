//! The parameters of a model as one: counting, initializing, releasing. Defines [`Parameters`].

use super::census::Census;
use super::deferred::DeferredValue;
use super::{Flat, Param};
use crate::error::Result;
use crate::param::LinearLayer;
use crate::stages::StageGroup;
use bmtrain_core::comm::Communicator;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// The parameters of a model, in the order of their declaration.
#[derive(Debug, Clone)]
pub struct Parameters {
    pub(super) census: Rc<Census>,
    pub(super) seed: u64,
    pub(super) stages: StageGroup,
    pub(super) tensor: Arc<dyn Communicator>,
    pub(super) declared: Vec<Param>,
    pub(super) params: Vec<Param>,
    pub(super) linears: Vec<LinearLayer>,
    /// Initial values of low-rank updates, which are the weights'.
    pub(super) deferred: Vec<DeferredValue>,
    /// Whether the model is frozen but for its adapters.
    pub(super) is_adapted: bool,
    /// Whether low-rank updates are left out of forward passes.
    pub(super) updates_left_out: Rc<Cell<bool>>,
    pub(super) flats: Vec<Rc<Flat>>,
}

impl Parameters {
    /// Every parameter that this rank's pipeline stage holds.
    pub fn iter(&self) -> std::slice::Iter<'_, Param> {
        self.params.iter()
    }

    /// Every parameter of the model; the parameters of other pipeline stages have no values here.
    pub fn declared(&self) -> &[Param] {
        &self.declared
    }

    /// Whether a checkpoint has this parameter: not where the model is frozen under adapters
    /// ([`BuilderOptions::adapters`](super::BuilderOptions::adapters)) and the parameter with it.
    pub fn is_saved(&self, param: &Param) -> bool {
        !self.is_adapted || param.spec().trainable
    }

    /// Every linear layer of the model, in the order of declaration.
    pub fn linear_layers(&self) -> &[LinearLayer] {
        &self.linears
    }

    /// The pipeline stages, and what each holds.
    pub fn stages(&self) -> &StageGroup {
        &self.stages
    }

    /// The tensor-parallel ranks, which hold parts of the same parameters.
    pub(crate) fn tensor_ranks(&self) -> &dyn Communicator {
        &*self.tensor
    }

    /// Their storages.
    pub fn flats(&self) -> &[Rc<Flat>] {
        &self.flats
    }

    /// With ZeRO-3, the largest number of blocks that were gathered at once on this rank so far, by the memory in use.
    pub fn most_gathered_blocks(&self) -> usize {
        self.census.most()
    }

    /// The parameter of this full name, if this rank's pipeline stage holds it.
    pub fn get(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.name() == name)
    }

    /// The parameter of this full name, of the whole model.
    pub fn find_declared(&self, name: &str) -> Option<&Param> {
        self.declared.iter().find(|param| param.name() == name)
    }

    /// Number of values, over all tensor-parallel ranks and pipeline stages.
    pub fn count(&self) -> usize {
        self.declared.iter().map(|param| param.spec().shape.elements()).sum()
    }

    /// Initialize what no loader has set, and return the names.
    pub fn initialize_missing(&self) -> Result<Vec<String>> {
        let missing: Vec<&Param> = self.params.iter().filter(|param| !param.is_initialized()).collect();
        missing.iter().try_for_each(|param| param.initialize(self.seed))?;
        let is_missing = |name: &str| missing.iter().any(|param| param.name() == name);
        self.deferred.iter().filter(|deferred| is_missing(&deferred.name)).try_for_each(DeferredValue::initialize)?;
        Ok(missing.iter().map(|param| param.name().to_owned()).collect())
    }

    /// Runs forward passes of the model without its low-rank updates and learned factors: as it was before these.
    /// Nothing is copied, and values that are trained as a whole stay what they are. A backward pass belongs in `work`
    /// with its forward pass.
    pub fn without_updates<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.updates_left_out.replace(true);
        let result = work();
        self.updates_left_out.set(before);
        result
    }

    /// Release the gathered values of parameters outside of blocks, which a forward pass without a backward pass leaves
    /// gathered.
    pub fn release(&self) {
        self.flats.iter().for_each(|flat| flat.release_on_demand());
    }

    /// Free all gradients.
    pub fn clear_grads(&self) {
        self.flats.iter().for_each(|flat| flat.clear_grads());
    }
}

impl<'a> IntoIterator for &'a Parameters {
    type Item = &'a Param;
    type IntoIter = std::slice::Iter<'a, Param>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

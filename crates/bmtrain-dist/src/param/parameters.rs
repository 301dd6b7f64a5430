//! The parameters of a model as one: counting, initializing, reading. Defines [`Parameters`] and [`WholeReader`].

use super::census::Census;
use super::{Flat, Param, widen};
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::pipeline::StageGroup;
use std::rc::Rc;
use std::sync::Arc;

/// The parameters of a model, in the order of their declaration.
#[derive(Debug, Clone)]
pub struct Parameters {
    pub(super) census: Rc<Census>,
    pub(super) seed: u64,
    pub(super) stages: StageGroup,
    pub(super) declared: Vec<Param>,
    pub(super) params: Vec<Param>,
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

    /// The pipeline stages, and what each holds.
    pub fn stages(&self) -> &StageGroup {
        &self.stages
    }

    /// Refuse to write the parameters of one of several pipeline stages as if they were the model.
    pub fn require_one_stage(&self) -> Result<()> {
        match self.stages.stages() {
            1 => Ok(()),
            stages => {
                let reason = format!("its parts on {stages} pipeline stages cannot be written yet: use one stage");
                Err(Error::setting("model", reason))
            }
        }
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

    /// Number of values, over all tensor-parallel ranks and pipeline stages.
    pub fn count(&self) -> usize {
        self.declared.iter().map(|param| param.spec().shape.elements()).sum()
    }

    /// Initialize what no loader has set, and return the names.
    pub fn initialize_missing(&self) -> Result<Vec<String>> {
        let missing: Vec<&Param> = self.params.iter().filter(|param| !param.is_initialized()).collect();
        missing.iter().try_for_each(|param| param.initialize(self.seed))?;
        Ok(missing.iter().map(|param| param.name().to_owned()).collect())
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

/// Reads full parameters one after the other with one storage gathered at a time: a block is gathered once for all its
/// parameters. Collective: every rank reads the same parameters in the same order.
#[derive(Debug, Default)]
pub struct WholeReader {
    held: Option<Rc<Flat>>,
}

impl WholeReader {
    /// The full values, widened. Waits for the device.
    pub fn read(&mut self, param: &Param) -> Result<Vec<f32>> {
        self.pass(param)?;
        widen(&param.value()?)
    }

    /// Take part in another rank's [`WholeReader::read`] of a parameter.
    ///
    /// # Errors
    /// A parameter of a model over several tensor-parallel ranks: this reader gathers over data-parallel ranks alone.
    pub fn pass(&mut self, param: &Param) -> Result<()> {
        let flat = param.place()?.0;
        refuse_tensor_ranks(flat, param)?;
        if !self.held.as_ref().is_some_and(|held| Rc::ptr_eq(held, flat)) {
            self.release();
            flat.gather()?;
            if !flat.sharding().shards_values() {
                // Without a gather to wait for, the others would run far ahead of a rank that writes to a slow disk.
                ControlGroup::new(Arc::clone(&flat.sharding().ranks), flat.values().device()).gather(&[0.0])?;
            }
            self.held = Some(Rc::clone(flat));
        }
        Ok(())
    }

    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            held.release();
        }
    }
}

/// An error where a rank would write its part of a parameter as if it were all of it.
pub(crate) fn refuse_tensor_ranks(flat: &Flat, param: &Param) -> Result<()> {
    match flat.tensor_ranks().size() {
        1 => Ok(()),
        ranks => {
            let reason =
                format!("its parts on {ranks} tensor-parallel ranks cannot be written yet: use one tensor rank");
            Err(Error::parameter(param.name(), reason))
        }
    }
}

impl Drop for WholeReader {
    fn drop(&mut self) {
        self.release();
    }
}

impl<'a> IntoIterator for &'a Parameters {
    type Item = &'a Param;
    type IntoIter = std::slice::Iter<'a, Param>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

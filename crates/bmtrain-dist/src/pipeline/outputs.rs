//! Forward passes over the stages of a pipeline whose outputs every stage gets: evaluation, which compares logits, and
//! programs that print outputs.
//!
//! Defines [`Pipeline::forward_outputs`]. The shapes of outputs are known to the last stage alone, so it describes them
//! in one text before it broadcasts them.

use super::executor::{MicroBatch, Pipeline};
use super::step::Step;
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::model::Model;
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::tensors;
use bmtrain_core::{DType, Segment, Shape, Tensor};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Outputs of one batch, each with its name.
pub type NamedTensors = Vec<(String, Tensor)>;

/// An output as the last stage describes it.
#[derive(Debug, Serialize, Deserialize)]
struct OutputTensor {
    name: String,
    dims: Vec<usize>,
    dtype: String,
}

impl Pipeline {
    /// Forward passes alone, without dropout: of each micro-batch the tensors that `keep` takes from the output of the
    /// head, under the names that it gives them, on every stage. Waits for the device.
    ///
    /// Memory: every stage holds the outputs of all micro-batches, so a caller with large ones passes a few at a time.
    ///
    /// # Errors
    /// As [`Pipeline::forward_backward`].
    pub fn forward_outputs<M: Model, E: From<Error>>(
        &self,
        model: &M,
        micro_batches: usize,
        mut load: impl FnMut(usize) -> Result<M::Batch, E>,
        keep: impl Fn(M::Output) -> Result<NamedTensors>,
    ) -> Result<Vec<NamedTensors>, E> {
        let (schedule, kept) = (self.schedule.forward_only(micro_batches)?, RefCell::new(BTreeMap::new()));
        let mut load = |number| {
            // Without a tape nothing is dropped out, and no loss is weighted.
            let randomness = Randomness { seed: 0, step: 0, micro_batch: 0 };
            Ok::<_, E>(MicroBatch { batch: load(number)?, randomness, weight: 1.0 })
        };
        let output = |number, output| {
            kept.borrow_mut().insert(number, keep(output)?);
            Ok(None)
        };
        Step::new(self, &schedule, model, None).run(&mut load, &output)?;
        Ok(self.of_last_stage(kept.into_inner().into_values().collect())?)
    }

    /// The outputs of the last stage, on all stages.
    fn of_last_stage(&self, own: Vec<NamedTensors>) -> Result<Vec<NamedTensors>> {
        let ranks = self.stages.ranks();
        if ranks.size() == 1 {
            return Ok(own);
        }
        let root = self.stages.holders().last().copied().unwrap_or(0);
        let unreadable = |error: serde_json::Error| Error::setting("pipeline outputs", error.to_string());
        let described: Vec<Vec<OutputTensor>> = own.iter().map(|outputs| describe(outputs)).collect();
        let text = serde_json::to_string(&described).map_err(unreadable)?;
        let texts = ControlGroup::new(Arc::clone(ranks), &self.device).gather_texts(&text)?;
        let text = texts.get(root).map_or("[]", String::as_str);
        let described: Vec<Vec<OutputTensor>> = serde_json::from_str(text).map_err(unreadable)?;
        let mut own = own.into_iter().flatten().map(|(_, tensor)| tensor);
        let mut all = Vec::with_capacity(described.len());
        for outputs in described {
            let mut of_batch = Vec::new();
            for OutputTensor { name, dims, dtype } in outputs {
                let tensor = match own.next() {
                    Some(tensor) => tensor,
                    None => {
                        let shape = Shape::new(&dims)?;
                        Tensor::empty_in(&self.device, shape, of_name(&dtype)?, Segment::Activations)?
                    }
                };
                of_batch.push((name, tensors::broadcast(&**ranks, tensor, root)?));
            }
            all.push(of_batch);
        }
        Ok(all)
    }
}

fn describe(outputs: &[(String, Tensor)]) -> Vec<OutputTensor> {
    let describe = |(name, tensor): &(String, Tensor)| OutputTensor {
        name: name.clone(),
        dims: tensor.shape().dims().to_vec(),
        dtype: tensor.dtype().name().to_owned(),
    };
    outputs.iter().map(describe).collect()
}

fn of_name(name: &str) -> Result<DType> {
    let known = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8];
    let unknown = || Error::setting("pipeline outputs", format!("dtype {name} cannot be an output of a model"));
    known.into_iter().find(|dtype| dtype.name() == name).ok_or_else(unknown)
}

//! Adam with its moments in codes of 8 bits and a scale for each block of 256 elements.
//!
//! A fused parameter ([`crate::param::fusion`]) has blocks of each of its tensors: where a tensor begins inside a block
//! of the parameter, the block is cut, and its part of the tensor has a scale of its own ([`part_scales`]).

use super::on_device::{DeviceOptimizer, DeviceRule, Rule, StepElements, StepNumbers};
use super::{AdamOptions, KeptForm};
use crate::error::{Error, Result};
use crate::param::{FusedTensor, Param};
use bmtrain_core::Device;
use bmtrain_core::buffer::ViewMut;
use bmtrain_core::kernel::Adam8bit as Adam8bitKernel;

/// Settings of [`Adam8bit`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Adam8bitOptions {
    /// The settings of the same optimizer with f32 moments.
    pub adam: AdamOptions,
}

/// Adam and AdamW with 2.03 bytes of moments for each element in place of 8; see
/// [`bmtrain_core::kernel::Adam8bit`] for the codes. A block is 256 elements of a parameter in row-major order, counted
/// from its first: shards are cut at multiples of it, so that no block is shared and a state fits any number of
/// data-parallel ranks. A block ends with a tensor of a fused parameter, too: where tensors are multiples of 256
/// elements, blocks are the same as of separate parameters.
///
/// Source: bitsandbytes' `AdamW8bit`, which leaves parameters of less than 4096 elements in f32; here all are coded.
pub type Adam8bit = DeviceOptimizer<Adam8bitOptions>;

const STATES: [&str; 4] = ["m-codes", "v-codes", "m-scales", "v-scales"];
/// States with the scales of the blocks in which tensors of a parameter begin.
const PART_SCALES: [&str; 2] = ["m-part-scales", "v-part-scales"];

/// The statistics of a rule with states in [`KeptForm::Blocks`], by their names, one for each of these states: where
/// tensors of a parameter begin inside its blocks, a scale for each tensor but the first, of its elements up to the
/// next block. The parameter's own blocks keep the scales of the elements before.
pub fn part_scales(names: &[&'static str], tensors: &[FusedTensor]) -> Vec<(&'static str, Vec<usize>)> {
    match tensors.iter().any(FusedTensor::begins_in_block) {
        true => names.iter().map(|name| (*name, vec![tensors.len() - 1])).collect(),
        false => Vec::new(),
    }
}

impl Rule for Adam8bitOptions {
    fn check(&self) -> Result<()> {
        self.adam.check()
    }

    fn check_param(&self, param: &Param) -> Result<()> {
        if param.local_shape() != param.spec().shape {
            let reason = "blocks of 8-bit moments are counted in the full parameter, and tensor-parallel ranks hold \
                          parts of it, or it is padded";
            return Err(Error::parameter(param.name(), reason));
        }
        Ok(())
    }

    fn states(&self) -> Vec<&'static str> {
        STATES.to_vec()
    }

    fn form(&self, state: &str) -> KeptForm {
        if state.ends_with("codes") { KeptForm::Codes } else { KeptForm::Blocks }
    }

    fn statistics(&self, tensors: &[FusedTensor]) -> Vec<(&'static str, Vec<usize>)> {
        part_scales(&PART_SCALES, tensors)
    }

    fn records_delta(&self) -> bool {
        self.adam.record_delta
    }
}

impl DeviceRule for Adam8bitOptions {
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()> {
        let StepElements { parameter, master, states, grad, factor, .. } = elements;
        let Ok([m, v, m_scale, v_scale]) = <[ViewMut<'_>; 4]>::try_from(states) else {
            return Err(Error::setting("adam 8-bit", "a step takes the codes and scales of two moments"));
        };
        let settings = self.adam.settings(numbers);
        let step = Adam8bitKernel { parameter, master, m, v, m_scale, v_scale, grad, factor, settings };
        Ok(device.launch(step)?)
    }
}

//! Optimizer state of a parameter: its tensors, their layouts and where they are.

use super::HostTensor;
use bmtrain_core::kernel::STATE_BLOCK;
use bmtrain_core::{DType, Shape, Storage};
use std::ops::Range;

/// The name of f32 copies of 16-bit parameters in states and checkpoints.
pub const MASTER: &str = "master";

/// A tensor that an optimizer keeps for a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSpec {
    /// Its name in states and checkpoints.
    pub name: &'static str,
    /// Its dtype, its shape, and how ranks share it.
    pub form: KeptForm,
}

/// Layout of a kept tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptForm {
    /// f32, one value for each element of the parameter, sharded like it.
    Elements,
    /// u8, one code for each element of the parameter, sharded like it.
    Codes,
    /// f32, one value for each [`STATE_BLOCK`] elements of the parameter in row-major order, sharded like it: shards
    /// are cut at multiples of a block. Blocks in which a tensor of a fused parameter begins have several values
    /// ([`part_scales`](super::part_scales)). For parameters that tensor-parallel ranks do not split.
    Blocks,
    /// f32 of this shape, whole on every rank that owns a part of the parameter. For parameters that tensor-parallel
    /// ranks do not split.
    Whole(Vec<usize>),
}

impl KeptForm {
    /// Dtype of the values.
    pub fn dtype(&self) -> DType {
        match self {
            KeptForm::Codes => DType::U8,
            KeptForm::Elements | KeptForm::Blocks | KeptForm::Whole(_) => DType::F32,
        }
    }

    /// The shape of the whole tensor for a parameter of this shape.
    pub fn shape(&self, of_param: &Shape) -> Vec<usize> {
        match self {
            KeptForm::Elements | KeptForm::Codes => of_param.dims().to_vec(),
            KeptForm::Blocks => vec![of_param.elements().div_ceil(STATE_BLOCK)],
            KeptForm::Whole(shape) => shape.clone(),
        }
    }

    /// Whether there is one value for each element of the parameter.
    pub fn is_by_element(&self) -> bool {
        matches!(self, KeptForm::Elements | KeptForm::Codes)
    }

    /// The values that belong to these elements, which begin at a block, of a tensor sharded like the parameter.
    pub(crate) fn range_of(&self, elements: &Range<usize>) -> Range<usize> {
        match self {
            KeptForm::Blocks if elements.is_empty() => 0..0,
            KeptForm::Blocks => blocks_of(elements),
            _ => elements.clone(),
        }
    }
}

/// The blocks of elements that begin at a block.
fn blocks_of(elements: &Range<usize>) -> Range<usize> {
    let start = elements.start / STATE_BLOCK;
    start..start + elements.len().div_ceil(STATE_BLOCK)
}

/// Optimizer state of one parameter on this rank.
#[derive(Debug)]
pub struct Kept {
    /// Steps taken.
    pub steps: u64,
    /// The tensors, in the order of [`Optimizer::kept_specs`](super::Optimizer::kept_specs).
    pub tensors: Vec<(KeptSpec, KeptTensor)>,
}

/// Memory of a tensor of the optimizer state.
#[derive(Debug, Clone)]
pub enum KeptTensor {
    /// In the device's memory, updated on the compute lane, laid out by
    /// [`OwnedPart::in_state`](crate::param::OwnedPart::in_state).
    Device(Storage),
    /// In the host's memory, updated on the copy lane, laid out likewise.
    Host(HostTensor),
    /// Tensor of [`KeptForm::Whole`], all of a storage in the device's memory, updated on the compute lane. `None` on a
    /// rank that owns no part of the parameter.
    Whole(Option<Storage>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_value_and_the_last_one_may_be_short() {
        let shape = Shape::from([3, 200]);
        assert_eq!(KeptForm::Blocks.shape(&shape), [3]);
        assert_eq!(KeptForm::Codes.shape(&shape), [3, 200]);
        assert_eq!(KeptForm::Blocks.range_of(&(256..600)), 1..3);
        assert_eq!(KeptForm::Blocks.range_of(&(700..700)), 0..0);
        assert_eq!(KeptForm::Elements.range_of(&(256..600)), 256..600);
    }
}

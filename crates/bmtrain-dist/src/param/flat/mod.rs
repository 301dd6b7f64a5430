//! The flat storage of parameters that are gathered together: one block's parameters of one dtype and group.
//!
//! `values.rs` is how values are gathered and released, `gradients.rs` how gradients are accumulated and reduced.

mod gradients;
mod tied;
mod values;

use super::Param;
use super::census::Census;
use crate::error::{Error, Result};
use crate::shard::{ShardLayout, Sharding, Span, ZeroLevel, collectives::ShardCollectives, host::HostValues};
use crate::stages::{ModelPart, StageGroup};
use bmtrain_core::comm::Communicator;
use bmtrain_core::{DType, Device, Segment, Storage};
pub(super) use gradients::GradientUse;
use gradients::Gradients;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use values::ValueState;

/// A flat storage with its gradients, possibly sharded over data-parallel ranks.
///
/// Where values are sharded, the full values exist only between [`Flat::gather`] and [`Flat::release`]. Full gradients
/// exist from the first contribution of a backward pass until [`Flat::finish_batch`] reduces them, or
/// [`Flat::finish_step`] where they are reduced once a step. The memory that the activations of a block free is reused
/// for its gradients.
#[derive(Debug)]
pub struct Flat {
    device: Device,
    layout: ShardLayout,
    dtype: DType,
    grad_dtype: DType,
    sharding: Sharding,
    tensor_ranks: Arc<dyn Communicator>,
    stage_ranks: Arc<dyn Communicator>,
    /// The first and the last pipeline stage, in this order, where both hold a tied parameter.
    ends: Option<Arc<dyn Communicator>>,
    /// The number of the block that gathers it; parameters outside of blocks are gathered on demand.
    block: Option<(usize, Rc<Census>)>,
    /// Parameters that are trained now.
    trainable: Vec<Rc<Cell<bool>>>,
    /// This rank's shard where values are sharded, else all.
    at_rest: AtRest,
    state: RefCell<ValueState>,
    gradients: RefCell<Gradients>,
    /// Recorded passes through the block whose backward pass is still to come.
    recorded_passes: Cell<usize>,
    /// Whether an optimizer updates parameters of this storage.
    claimed: Cell<bool>,
    siblings: Siblings,
}

/// All storages of a model, which hold each other no longer than the parameters do.
pub(super) type Siblings = Rc<RefCell<Vec<Weak<Flat>>>>;

/// Memory of values at rest.
#[derive(Debug)]
pub(crate) enum AtRest {
    /// On the device.
    Device(Storage),
    /// In the host's memory, where an optimizer on the host updates them.
    Host(HostValues),
}

/// The ranks that a storage is shared or split with, and whether its values are at rest on the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlatRanks<'a> {
    pub(super) sharding: &'a Sharding,
    pub(super) tensor: &'a Arc<dyn Communicator>,
    pub(super) stages: &'a StageGroup,
    pub(super) offload: bool,
}

/// A parameter's elements that this rank updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPart {
    /// Elements of the parameter.
    pub of_param: Range<usize>,
    /// Range of these elements in [`Flat::values`].
    pub in_values: Range<usize>,
    /// Range of these elements in optimizer state and in [`Flat::reduced`].
    pub in_state: Range<usize>,
}

impl Flat {
    pub(super) fn new(
        device: &Device,
        FlatRanks { sharding, tensor, stages, offload }: FlatRanks<'_>,
        (dtype, grad_dtype): (DType, DType),
        block: Option<(usize, Rc<Census>)>,
        members: &[Param],
        siblings: &Siblings,
    ) -> Result<Rc<Self>> {
        let lengths: Vec<usize> = members.iter().map(|param| param.local_shape().elements()).collect();
        let layout = ShardLayout::new(dtype, &lengths, sharding.ranks.size());
        let len = if sharding.shards_values() { layout.shard_len() } else { layout.gathered_len() };
        if offload && sharding.level != ZeroLevel::Three {
            let level = sharding.level.number();
            let reason = format!("parameters are offloaded under ZeRO-3 alone, and the level is {level}");
            return Err(Error::setting("offload", reason));
        }
        let is_offloaded = offload && !device.backend().memory_is_host();
        // Zeros, so that the gaps between parameters are numbers too.
        let at_rest = match is_offloaded {
            true => AtRest::Host(HostValues::zeros(device, len, dtype)?),
            false => AtRest::Device(Storage::zeros(device, len, dtype, Segment::Parameters)?),
        };
        let is_tied = members.iter().any(|param| param.part() == ModelPart::Tied);
        let flat = Rc::new(Flat {
            device: device.clone(),
            layout,
            dtype,
            grad_dtype,
            sharding: sharding.clone(),
            tensor_ranks: Arc::clone(tensor),
            stage_ranks: Arc::clone(stages.ranks()),
            ends: stages.ends().filter(|_| is_tied).cloned(),
            block,
            trainable: members.iter().map(|param| Rc::clone(&param.inner.trainable)).collect(),
            at_rest,
            state: RefCell::new(ValueState::new(is_offloaded || sharding.shards_values())),
            gradients: RefCell::new(Gradients::new(members.len())),
            recorded_passes: Cell::new(0),
            claimed: Cell::new(false),
            siblings: Rc::clone(siblings),
        });
        siblings.borrow_mut().push(Rc::downgrade(&flat));
        Ok(flat)
    }

    /// An optimizer updates parameters of this storage: their gradients are kept until its step.
    pub(crate) fn claim(&self) {
        self.claimed.set(true);
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.get()
    }

    pub(crate) fn siblings(&self) -> Vec<Rc<Flat>> {
        self.siblings.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The ranges of the parameters in the full storage, and its shards.
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Dtype of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sharding of the storage.
    pub fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// The tensor-parallel ranks, each with its own part of the parameters.
    pub fn tensor_ranks(&self) -> &Arc<dyn Communicator> {
        &self.tensor_ranks
    }

    /// One rank of each pipeline stage, each with other parameters.
    pub fn stage_ranks(&self) -> &Arc<dyn Communicator> {
        &self.stage_ranks
    }

    /// Whether the first pipeline stage has the same parameter, and counts its gradient in the norm.
    pub(crate) fn is_copy(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.rank() > 0)
    }

    /// Elements of optimizer state for this storage on this rank.
    pub fn state_len(&self) -> usize {
        if self.sharding.shards_state() { self.layout.shard_len() } else { self.layout.gathered_len() }
    }

    /// The part of parameter `index` that this rank updates; empty when it owns none.
    pub fn owned(&self, index: usize) -> OwnedPart {
        let (span, rank) = (self.span(index), self.sharding.ranks.rank());
        let of_param = if self.sharding.shards_state() { self.layout.owned_part(index, rank) } else { 0..span.len };
        self.locate(index, of_param)
    }

    /// The part of parameter `index` whose values this rank stores at rest, and its range in [`Flat::values`].
    pub fn at_rest(&self, index: usize) -> (Range<usize>, Range<usize>) {
        if self.sharding.shards_values() {
            let part = self.owned(index);
            return (part.of_param, part.in_values);
        }
        let span = self.span(index);
        (0..span.len, span.range())
    }

    /// The part of parameter `index` that this rank counts in the norm of all gradients: no element is counted twice.
    pub fn counted(&self, index: usize) -> OwnedPart {
        self.locate(index, self.layout.owned_part(index, self.sharding.ranks.rank()))
    }

    fn locate(&self, index: usize, of_param: Range<usize>) -> OwnedPart {
        let start = self.span(index).start + of_param.start;
        let shard_start = self.layout.owned(self.sharding.ranks.rank()).start;
        let at = |is_sharded: bool| {
            let start = if is_sharded && !of_param.is_empty() { start - shard_start } else { start };
            if of_param.is_empty() { 0..0 } else { start..start + of_param.len() }
        };
        OwnedPart { in_values: at(self.sharding.shards_values()), in_state: at(self.sharding.shards_state()), of_param }
    }

    pub(super) fn span(&self, index: usize) -> Span {
        self.layout.spans().get(index).copied().unwrap_or(Span { start: 0, len: 0 })
    }

    fn collectives(&self, dtype: DType) -> ShardCollectives<'_> {
        ShardCollectives { device: &self.device, sharding: &self.sharding, layout: &self.layout, dtype }
    }
}

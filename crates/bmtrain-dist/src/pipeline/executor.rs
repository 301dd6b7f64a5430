//! Runs a batch over the stages of a pipeline, action by action as a [`Schedule`] lists them.
//!
//! Defines [`Pipeline`], which training loops call in place of a forward pass and
//! [`OptimManager::backward`](crate::OptimManager::backward) for each micro-batch. `step.rs` is one step of this rank,
//! `agree.rs` the comparison of neighbours before the first one.

use super::step::Step;
use crate::control::join;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optim::OptimManager;
use crate::param::Flat;
use crate::schedule::Schedule;
use crate::stages::StageGroup;
use bmtrain_core::autograd::{Observer, Randomness};
use bmtrain_core::comm::Collective;
use bmtrain_core::{DType, Device, Lane, Segment, Tensor, Var};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One of the micro-batches of a step, on the device.
#[derive(Debug, Clone)]
pub struct MicroBatch<B> {
    /// The model's input. Every stage needs it: masks and positions do not cross edges.
    pub batch: B,
    /// The address of its random numbers.
    pub randomness: Randomness,
    /// Its share of the whole batch in the loss.
    pub weight: f32,
}

/// The pipeline of a model: this rank runs the chunks of its stage.
///
/// ```
/// use bmtrain_dist::pipeline::{MicroBatch, Pipeline};
/// use bmtrain_dist::{Model, OptimManager, Result, bmtrain_core::Var};
///
/// fn step<M: Model<Output = Var>>(
///     (pipeline, model, optim): (&Pipeline, &M, &mut OptimManager),
///     load: impl FnMut(usize) -> Result<MicroBatch<M::Batch>>,
/// ) -> Result<f32> {
///     let losses = pipeline.forward_backward(model, optim, load, Ok)?; // [micro-batches]
///     Ok(optim.step_and_read(&[&losses])?.1.iter().sum())
/// }
/// ```
#[derive(Debug)]
pub struct Pipeline {
    pub(super) device: Device,
    pub(super) stages: StageGroup,
    pub(super) schedule: Schedule,
    /// The neighbours have agreed on what crosses their edges.
    pub(super) has_agreed: Cell<bool>,
    observers: RefCell<Vec<Rc<dyn Observer>>>,
}

impl Pipeline {
    /// A pipeline over the stages that a model was built with
    /// ([`BuilderOptions::stages`](crate::param::BuilderOptions::stages)).
    ///
    /// # Errors
    /// A schedule that has other stages, or holds chunks at other stages.
    pub fn new(device: &Device, stages: &StageGroup, schedule: Schedule) -> Result<Self> {
        let holders: Vec<usize> = (0..schedule.places()).map(|place| schedule.holder(place).0).collect();
        if schedule.stages() != stages.stages() || holders != stages.holders() {
            let reason = format!(
                "the schedule has its chunks on stages {holders:?}, the model was built with them on {:?}; use the \
                 schedule that the stages were made for",
                stages.holders()
            );
            return Err(Error::setting("pipeline", reason));
        }
        let (device, stages, has_agreed) = (device.clone(), stages.clone(), Cell::new(false));
        Ok(Pipeline { device, stages, schedule, has_agreed, observers: RefCell::default() })
    }

    /// Show what the forward passes of this stage name to these observers, one for each of its chunks, until others are
    /// set; to none with an empty list.
    pub fn set_observers(&self, of_chunks: Vec<Rc<dyn Observer>>) {
        *self.observers.borrow_mut() = of_chunks;
    }

    pub(super) fn observer(&self, chunk: usize) -> Option<Rc<dyn Observer>> {
        self.observers.borrow().get(chunk).cloned()
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The stages and what they hold.
    pub fn stages(&self) -> &StageGroup {
        &self.stages
    }

    /// The forward and backward passes of a step. `load` gives a micro-batch by its number, once on each stage; `loss`
    /// takes the loss of one element from the output of the head. Returns the losses, f32 `[micro-batches]`, on every
    /// stage; the host does not wait. The optimizer step is the caller's.
    ///
    /// Numerics: every gradient is summed over the micro-batches in ascending order, so that losses, gradients and norm
    /// have the bits of the same micro-batches on one stage, under every schedule.
    ///
    /// # Errors
    /// Neighbours that disagree on what crosses the edge between them; a flow with other tensors than the model
    /// declares ([`Model::receive`]); errors of the model, of `load` and of communication.
    pub fn forward_backward<M: Model, E: From<Error>>(
        &self,
        model: &M,
        optim: &OptimManager,
        mut load: impl FnMut(usize) -> Result<MicroBatch<M::Batch>, E>,
        loss: impl Fn(M::Output) -> Result<Var>,
    ) -> Result<Tensor, E> {
        self.check_reduction(model)?;
        let mut step = Step::new(self, &self.schedule, model, Some(optim));
        let losses = step.run(&mut load, &|_, output| loss(output).map(Some))?;
        Ok(self.gather_losses(losses, self.schedule.micro_batches())?)
    }

    /// Forward passes alone, without dropout: the losses of `micro_batches` micro-batches on every stage, as
    /// [`Pipeline::forward_backward`] returns them.
    ///
    /// # Errors
    /// As [`Pipeline::forward_backward`].
    pub fn forward<M: Model, E: From<Error>>(
        &self,
        model: &M,
        micro_batches: usize,
        mut load: impl FnMut(usize) -> Result<MicroBatch<M::Batch>, E>,
        loss: impl Fn(M::Output) -> Result<Var>,
    ) -> Result<Tensor, E> {
        let schedule = self.schedule.forward_only(micro_batches)?;
        let mut step = Step::new(self, &schedule, model, None);
        let losses = step.run(&mut load, &|_, output| loss(output).map(Some))?;
        Ok(self.gather_losses(losses, micro_batches)?)
    }

    /// Weight gradients that wait cannot be reduced with their micro-batch.
    fn check_reduction<M: Model>(&self, model: &M) -> Result<()> {
        let reduces_each_batch = |flat: &Rc<Flat>| flat.sharding().reduces_each_batch();
        if !self.schedule.kind().splits_backward() || !model.parameters().flats().iter().any(reduces_each_batch) {
            return Ok(());
        }
        let reason = format!(
            "{} computes weight gradients apart from their micro-batch, and ZeRO-2, ZeRO-3 and elastic gradient sums \
             reduce them with it; use 1f1b or interleaved, or ZeRO-0 or ZeRO-1 with fast sums",
            self.schedule.kind()
        );
        Err(Error::setting("pipeline", reason))
    }

    /// The losses of the last stage, on all stages.
    fn gather_losses(&self, losses: Vec<Tensor>, micro_batches: usize) -> Result<Tensor> {
        let root = self.stages.holders().last().copied().unwrap_or(0);
        let ranks = self.stages.ranks();
        let mut all = match ranks.rank() == root {
            true => join(&self.device, &losses.iter().collect::<Vec<_>>())?,
            false => Tensor::empty_in(&self.device, [micro_batches], DType::F32, Segment::Workspace)?,
        };
        if ranks.size() > 1 {
            let collective = Collective::Broadcast { data: all.view_mut()?, root };
            ranks.launch(self.device.backend(), collective, Lane::Compute)?;
        }
        Ok(all)
    }
}

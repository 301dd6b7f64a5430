//! One step of this rank: its actions in order, the activations that wait for their backward pass, and what has arrived
//! from other stages before it is needed.

use super::crossing::Crossing;
use super::executor::{MicroBatch, Pipeline};
use crate::block::Bundle;
use crate::edge::{Edge, EdgeTensor};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optim::OptimManager;
use crate::schedule::{Action, Message, Schedule, Work};
use bmtrain_core::autograd::{Tape, VarKey, WeightGradients};
use bmtrain_core::{Ctx, DType, Segment, Tensor, Var};
use std::collections::BTreeMap;
use std::ops::Range;

/// A step in progress.
pub(super) struct Step<'a, M: Model> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) schedule: &'a Schedule,
    pub(super) model: &'a M,
    /// None where there is no backward pass.
    optim: Option<&'a OptimManager>,
    /// By place, whether something before it is trained: then gradients go back over the edge before it.
    trained_before: Vec<bool>,
    /// Micro-batches that forward passes of this stage still need, and how many.
    batches: BTreeMap<usize, (MicroBatch<M::Batch>, usize)>,
    /// Forward passes whose backward pass is to come, by place and micro-batch.
    recorded: BTreeMap<(usize, usize), Recorded>,
    /// Weight gradients that wait, by place and micro-batch.
    waiting: BTreeMap<(usize, usize), WeightGradients>,
    /// Values by the action that needs them.
    arrived: BTreeMap<Action, Vec<Tensor>>,
    /// By stage, the messages that it sends to this one, and how many have been taken.
    messages: Vec<(Vec<Message>, usize)>,
    /// By micro-batch, at the last place.
    losses: BTreeMap<usize, Tensor>,
}

/// A variable that has crossed an edge, with gradient.
type Crossed = (EdgeTensor, VarKey);

/// Recorded chunk for the backward pass, without the values of inputs and outputs: what is sent can be freed.
struct Recorded {
    tape: Tape,
    inputs: Vec<Crossed>,
    outputs: Outputs,
}

enum Outputs {
    /// The tensors that have gone over the edge, with gradient.
    Sent(Vec<Crossed>),
    /// The loss and its weight.
    Loss(VarKey, DType, f32),
}

impl<'a, M: Model> Step<'a, M> {
    pub(super) fn new(
        pipeline: &'a Pipeline,
        schedule: &'a Schedule,
        model: &'a M,
        optim: Option<&'a OptimManager>,
    ) -> Self {
        let stages = &pipeline.stages;
        let own = stages.ranks().rank();
        let trained = model.parameters().declared().iter().filter(|param| optim.is_some() && param.is_trainable());
        let first = trained.map(|param| stages.place_of(param.part())).min();
        Step {
            pipeline,
            schedule,
            model,
            optim,
            trained_before: (0..schedule.places()).map(|place| first.is_some_and(|first| first < place)).collect(),
            batches: BTreeMap::new(),
            recorded: BTreeMap::new(),
            waiting: BTreeMap::new(),
            arrived: BTreeMap::new(),
            messages: (0..schedule.stages()).map(|from| (schedule.messages(from, own), 0)).collect(),
            losses: BTreeMap::new(),
        }
    }

    /// This stage's number.
    pub(super) fn stage(&self) -> usize {
        self.pipeline.stages.ranks().rank()
    }

    /// The blocks of a place, counted through all stacks.
    fn blocks(&self, place: usize) -> Range<usize> {
        self.pipeline.stages.partition().map_or(0..self.model.blocks(), |partition| partition.range(place))
    }

    /// Run all actions. At the last place `loss` gets each micro-batch's number and output, and returns its loss of one
    /// element, without which there is no backward pass. Returns these losses, in the order of the micro-batches.
    pub(super) fn run<E: From<Error>>(
        &mut self,
        load: &mut impl FnMut(usize) -> Result<MicroBatch<M::Batch>, E>,
        loss: &impl Fn(usize, M::Output) -> Result<Option<Var>>,
    ) -> Result<Vec<Tensor>, E> {
        if !self.pipeline.has_agreed.get() {
            self.load(0, load)?;
            self.agree()?;
        }
        for &action in self.schedule.actions(self.stage()) {
            self.load_for(action, load)?;
            match action.work {
                Work::Forward => self.forward(action, loss)?,
                Work::Backward | Work::InputGradient => self.backward(action)?,
                Work::WeightGradient => self.weight_gradient(action)?,
            }
        }
        Ok(std::mem::take(&mut self.losses).into_values().collect())
    }

    /// Load the micro-batch of a forward pass, and of each message that comes before what an action needs.
    fn load_for<E: From<Error>>(
        &mut self,
        action: Action,
        load: &mut impl FnMut(usize) -> Result<MicroBatch<M::Batch>, E>,
    ) -> Result<(), E> {
        if action.work == Work::Forward {
            self.load(action.micro_batch, load)?;
        }
        let Some((from, _)) = self.schedule.source(self.stage(), action) else { return Ok(()) };
        let Some((messages, taken)) = self.messages.get(from) else { return Ok(()) };
        let needed =
            messages[*taken..].iter().position(|message| message.needed_by == action).map_or(0, |last| last + 1);
        let ahead: Vec<usize> = messages[*taken..*taken + needed]
            .iter()
            .filter(|message| message.needed_by.work == Work::Forward)
            .map(|message| message.needed_by.micro_batch)
            .collect();
        ahead.into_iter().try_for_each(|micro_batch| self.load(micro_batch, load))
    }

    fn load<E: From<Error>>(
        &mut self,
        micro_batch: usize,
        load: &mut impl FnMut(usize) -> Result<MicroBatch<M::Batch>, E>,
    ) -> Result<(), E> {
        if !self.batches.contains_key(&micro_batch) {
            self.batches.insert(micro_batch, (load(micro_batch)?, self.schedule.chunks()));
        }
        Ok(())
    }

    fn forward(&mut self, action: Action, loss: &impl Fn(usize, M::Output) -> Result<Option<Var>>) -> Result<()> {
        let _forward =
            tracing::debug_span!("forward", micro_batch = action.micro_batch, chunk = action.chunk).entered();
        let place = self.schedule.place(self.stage(), action.chunk);
        let arrived = match place {
            0 => None,
            _ => Some((self.edge(place, action.micro_batch)?, self.receive(action)?)),
        };
        let (micro_batch, uses) = match self.batches.remove(&action.micro_batch) {
            Some((micro_batch, uses)) => (micro_batch, uses - 1),
            None => return Err(out_of_order(action)),
        };
        let mut cx = match self.optim {
            Some(_) => Ctx::training(&self.pipeline.device, micro_batch.randomness),
            None => Ctx::inference(&self.pipeline.device),
        };
        if let Some(observer) = self.pipeline.observer(action.chunk) {
            cx.set_observer(observer);
        }
        let (mut flow, inputs) = match arrived {
            None => (self.model.embed(&micro_batch.batch, &mut cx)?, Vec::new()),
            Some((edge, values)) => self.enter(place, &micro_batch.batch, (edge, values), &cx)?,
        };
        let blocks = self.blocks(place);
        flow = self.model.run_blocks(blocks, flow, &micro_batch.batch, &mut cx)?;
        let outputs = match place + 1 == self.schedule.places() {
            true => {
                let output = self.model.head(flow, &micro_batch.batch, &mut cx)?;
                match loss(action.micro_batch, output)? {
                    Some(loss) => {
                        self.keep_loss(action, &loss)?;
                        Outputs::Loss(loss.key(), loss.dtype(), micro_batch.weight)
                    }
                    None => Outputs::Sent(Vec::new()),
                }
            }
            false => Outputs::Sent(self.leave(action, &micro_batch.batch, flow)?),
        };
        self.model.release(&cx);
        if let Some(tape) = cx.take_tape() {
            self.recorded.insert((place, action.micro_batch), Recorded { tape, inputs, outputs });
        }
        if uses > 0 {
            self.batches.insert(action.micro_batch, (micro_batch, uses));
        }
        Ok(())
    }

    fn keep_loss(&mut self, action: Action, loss: &Var) -> Result<()> {
        if loss.value().elements() != 1 || loss.dtype() != DType::F32 {
            let reason = format!("a loss is one f32 element, got {} {}", loss.dtype(), loss.shape());
            return Err(Error::setting("pipeline", reason));
        }
        self.losses.insert(action.micro_batch, loss.value().clone());
        Ok(())
    }

    fn backward(&mut self, action: Action) -> Result<()> {
        let _backward =
            tracing::debug_span!("backward", micro_batch = action.micro_batch, chunk = action.chunk).entered();
        let place = self.schedule.place(self.stage(), action.chunk);
        let arrived = if place + 1 == self.schedule.places() { Vec::new() } else { self.receive(action)? };
        let recorded = self.recorded.remove(&(place, action.micro_batch));
        let (Some(Recorded { tape, inputs, outputs }), Some(optim)) = (recorded, self.optim) else {
            return Err(out_of_order(action));
        };
        let device = &self.pipeline.device;
        let seeds = match outputs {
            Outputs::Sent(outputs) => outputs.into_iter().map(|(_, key)| key).zip(arrived).collect(),
            Outputs::Loss(key, dtype, weight) => {
                let scale = weight * optim.loss_scale();
                vec![(key, Tensor::full_in(device, [1], dtype, scale, Segment::Activations)?)]
            }
        };
        let (edge, keys): (Vec<EdgeTensor>, Vec<VarKey>) = inputs.into_iter().unzip();
        let queue = (action.work == Work::InputGradient).then(WeightGradients::default);
        let gradients = tape.backward_keys(device, seeds, &keys, queue.as_ref())?;
        let back = edge.iter().zip(gradients).map(|(tensor, gradient)| self.gradient_of(tensor, gradient));
        let back = back.collect::<Result<Vec<_>>>()?;
        self.send(action, &edge, back)?;
        match queue {
            Some(queue) => self.waiting.insert((place, action.micro_batch), queue),
            None => return optim.finish_micro_batch(),
        };
        Ok(())
    }

    /// The gradient that goes back over an edge: zeros where nothing after it uses the variable.
    fn gradient_of(&self, tensor: &EdgeTensor, gradient: Option<Tensor>) -> Result<Tensor> {
        let dtype = tensor.gradient.unwrap_or(tensor.dtype);
        match gradient {
            None => Ok(Tensor::full_in(&self.pipeline.device, tensor.shape, dtype, 0.0, Segment::Activations)?),
            Some(gradient) if gradient.dtype() == dtype => Ok(gradient),
            Some(gradient) => {
                let reason = format!("the gradient of {tensor} is {}; correct Model::receive", gradient.dtype());
                Err(Error::setting("pipeline", reason))
            }
        }
    }

    fn weight_gradient(&mut self, action: Action) -> Result<()> {
        let _weights = tracing::debug_span!("weight_gradient", chunk = action.chunk).entered();
        let place = self.schedule.place(self.stage(), action.chunk);
        let waiting = self.waiting.remove(&(place, action.micro_batch));
        let (Some(waiting), Some(optim)) = (waiting, self.optim) else { return Err(out_of_order(action)) };
        waiting.run(&self.pipeline.device)?;
        optim.finish_micro_batch()
    }

    /// Tensors that cross the edge before a place, as the model declares them.
    pub(super) fn edge(&self, place: usize, micro_batch: usize) -> Result<Vec<EdgeTensor>> {
        let missing = || Error::setting("pipeline", format!("micro-batch {micro_batch} is not loaded"));
        let (MicroBatch { batch, .. }, _) = self.batches.get(&micro_batch).ok_or_else(missing)?;
        self.edge_of(place, batch)
    }

    fn edge_of(&self, place: usize, batch: &M::Batch) -> Result<Vec<EdgeTensor>> {
        // The value is not read.
        let nothing = Tensor::full_in(&self.pipeline.device, [1], DType::F32, 0.0, Segment::Workspace)?;
        let mut declared = Vec::new();
        let mut take = |tensor: EdgeTensor| {
            let gradient = tensor.gradient.filter(|_| self.trained_before.get(place) == Some(&true));
            declared.push(EdgeTensor { gradient, ..tensor });
            Ok(Var::constant(nothing.clone()))
        };
        self.model.receive(self.blocks(place).start, batch, &mut Edge::new(&mut take))?;
        Ok(declared)
    }

    /// The flow that enters a place, and its variables with gradient.
    fn enter(
        &self,
        place: usize,
        batch: &M::Batch,
        (edge, values): (Vec<EdgeTensor>, Vec<Tensor>),
        cx: &Ctx,
    ) -> Result<(M::Flow, Vec<Crossed>)> {
        let (mut arrived, mut inputs) = (edge.into_iter().zip(values), Vec::new());
        let mut take = |_| {
            let other = || Error::setting("pipeline", "the model declares other variables for the same batch");
            let (tensor, value) = arrived.next().ok_or_else(other)?;
            Ok(match cx.tape().filter(|_| tensor.gradient.is_some()) {
                Some(tape) => {
                    let var = tape.input(value);
                    inputs.push((tensor, var.key()));
                    var
                }
                None => Var::constant(value),
            })
        };
        let flow = self.model.receive(self.blocks(place).start, batch, &mut Edge::new(&mut take))?;
        Ok((flow, inputs))
    }

    /// Send the flow that leaves a chunk; the variables with gradient.
    fn leave(&mut self, action: Action, batch: &M::Batch, flow: M::Flow) -> Result<Vec<Crossed>> {
        let place = self.schedule.place(self.stage(), action.chunk) + 1;
        let (edge, vars) = (self.edge_of(place, batch)?, flow.vars());
        self.check_flow(place, &edge, &vars)?;
        let keys: Vec<VarKey> = vars.iter().map(Var::key).collect();
        drop(flow);
        self.send(action, &edge, vars.into_iter().map(Var::into_value).collect())?;
        Ok(edge.into_iter().zip(keys).filter(|(tensor, _)| tensor.gradient.is_some()).collect())
    }

    /// The flow is what the model declares.
    fn check_flow(&self, place: usize, edge: &[EdgeTensor], vars: &[Var]) -> Result<()> {
        let refuse = |reason: String| {
            let block = self.blocks(place).start;
            Err(Error::setting("pipeline", format!("the flow before block {block}: {reason}; correct Model::receive")))
        };
        if edge.len() != vars.len() {
            return refuse(format!("{} variables are declared, got {}", edge.len(), vars.len()));
        }
        for (tensor, var) in edge.iter().zip(vars) {
            if (tensor.shape, tensor.dtype) != (var.shape(), var.dtype()) {
                return refuse(format!("{tensor} is declared, got {} {}", var.dtype(), var.shape()));
            }
            if var.is_leaf() {
                // Its gradient would be summed in another order than on one stage.
                return refuse(format!("{tensor} is a parameter: let the flow have the result of an op on it"));
            }
        }
        Ok(())
    }

    /// The ranks that the result of a chunk's work goes over.
    fn crossing(&self, work: Work) -> Crossing<'_> {
        Crossing { stages: &**self.pipeline.stages.ranks_for(work), tensor: self.model.parameters().tensor_ranks() }
    }

    /// Give values, as the edge declares them, to the stage and chunk that need them.
    fn send(&mut self, action: Action, edge: &[EdgeTensor], values: Vec<Tensor>) -> Result<()> {
        let own = self.stage();
        let Some((to, chunk)) = self.schedule.destination(own, action) else { return Ok(()) };
        if to == own {
            self.arrived.insert(Action { chunk, ..action }, values);
            return Ok(());
        }
        let crossing = self.crossing(action.work);
        edge.iter().zip(&values).try_for_each(|(tensor, value)| crossing.send(tensor, value, to))
    }

    /// Tensors that an action needs of another stage. Messages that were sent before it are taken before it.
    fn receive(&mut self, action: Action) -> Result<Vec<Tensor>> {
        loop {
            if let Some(values) = self.arrived.remove(&action) {
                return Ok(values);
            }
            let from = self.schedule.source(self.stage(), action).map(|(from, _)| from);
            let next = from.and_then(|from| {
                let (messages, taken) = self.messages.get_mut(from)?;
                *taken += 1;
                Some((from, messages.get(*taken - 1)?.needed_by))
            });
            let Some((from, needed_by)) = next else { return Err(out_of_order(action)) };
            let place = self.schedule.place(self.stage(), needed_by.chunk);
            let device = &self.pipeline.device;
            let crossing = self.crossing(needed_by.work);
            let take = |tensor: &EdgeTensor, dtype| crossing.receive(device, tensor, dtype, from);
            let values: bmtrain_core::Result<Vec<Tensor>> =
                match (needed_by.work, self.recorded.get(&(place, needed_by.micro_batch))) {
                    (Work::Forward, _) => {
                        let edge = self.edge(place, needed_by.micro_batch)?;
                        edge.iter().map(|tensor| take(tensor, tensor.dtype)).collect()
                    }
                    (_, Some(Recorded { outputs: Outputs::Sent(outputs), .. })) => {
                        let dtype = |tensor: &EdgeTensor| tensor.gradient.unwrap_or(tensor.dtype);
                        outputs.iter().map(|(tensor, _)| take(tensor, dtype(tensor))).collect()
                    }
                    _ => return Err(out_of_order(needed_by)),
                };
            let values = values?;
            self.arrived.insert(needed_by, values);
        }
    }
}

/// Not reached with a schedule that passes [`Schedule::check`].
fn out_of_order(Action { work, chunk, micro_batch }: Action) -> Error {
    let reason = format!("{work:?} of chunk {chunk} on micro-batch {micro_batch} comes before what it needs");
    Error::setting("pipeline schedule", reason)
}

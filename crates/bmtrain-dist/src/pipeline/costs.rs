//! Measured cost of each block of a model on its device, for a partition by time.
//!
//! [`BlockCosts::measure`] runs forward and backward passes of each block that a rank holds, one block at a time, on a
//! flow of the declared shapes; no message between stages is sent. The gradients that this leaves in the parameters
//! belong to no step: measure on a model that is dropped afterwards.

use crate::block::Bundle;
use crate::control::ControlGroup;
use crate::edge::{Edge, EdgeTensor};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::stages::ModelPart;
use bmtrain_core::autograd::{Randomness, VarKey};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};
use std::time::Instant;

/// Passes of a block that are timed; the shortest counts.
const TIMED: usize = 3;
/// Passes before them, in which the pool and the caches fill.
const WARM_UP: usize = 1;
/// Elements of the flow: neither zeros, which some kernels leave out, nor large.
const VALUE: f32 = 0.125;

/// Times of the blocks of a model and of its head, in nanoseconds of a forward and a backward pass. Costs in any other
/// unit give the same partition: it depends on their ratios alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockCosts {
    /// Cost of each block, counted through all stacks.
    pub blocks: Vec<u64>,
    /// Cost of the head with the loss.
    pub head: u64,
}

impl BlockCosts {
    /// Measure the blocks that this rank holds of `model`, and the head where it holds it; 0 for the others.
    /// [`BlockCosts::agree`] joins the ranks. Tensor-parallel and data-parallel ranks call it together, since blocks
    /// communicate. `loss` takes the loss of one element from the output of the head.
    ///
    /// # Errors
    /// Errors of the model; a flow with other variables than [`Model::receive`] declares.
    pub fn measure<M: Model>(
        device: &Device,
        model: &M,
        batch: &M::Batch,
        loss: impl Fn(M::Output) -> Result<Var>,
    ) -> Result<Self> {
        let stages = model.parameters().stages();
        let count = model.blocks();
        let shortest = |pass: &dyn Fn() -> Result<()>| -> Result<u64> {
            let mut shortest = u64::MAX;
            for number in 0..WARM_UP + TIMED {
                let begin = Instant::now();
                pass()?;
                device.sync()?;
                if number >= WARM_UP {
                    shortest = shortest.min(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
            }
            Ok(shortest)
        };
        let mut costs = BlockCosts { blocks: vec![0; count], head: 0 };
        for (block, cost) in costs.blocks.iter_mut().enumerate() {
            if stages.holds(ModelPart::Block(block)) {
                *cost = shortest(&|| block_pass(device, model, block, batch))?;
            }
        }
        if stages.holds(ModelPart::Head) {
            costs.head = shortest(&|| head_pass(device, model, batch, &loss))?;
        }
        Ok(costs)
    }

    /// The largest time that any rank of a group has of each block. Collective: all ranks get the same. Called for the
    /// tensor-parallel, the data-parallel and the pipeline group in turn, it covers all ranks.
    ///
    /// # Errors
    /// A failure of the ranks.
    pub fn agree(self, ranks: &ControlGroup) -> Result<Self> {
        if ranks.size() == 1 {
            return Ok(self);
        }
        // Nanoseconds as f32 are exact to seven digits; every rank computes from the same numbers.
        let own: Vec<f32> = self.blocks.iter().chain([&self.head]).map(|cost| *cost as f32).collect();
        let all = ranks.gather(&own)?;
        let largest = |at: usize| all.iter().filter_map(|costs| costs.get(at)).fold(0.0f32, |a, b| a.max(*b)) as u64;
        let blocks = self.blocks.len();
        Ok(BlockCosts { blocks: (0..blocks).map(largest).collect(), head: largest(blocks) })
    }
}

/// A forward and a backward pass of one block.
fn block_pass<M: Model>(device: &Device, model: &M, block: usize, batch: &M::Batch) -> Result<()> {
    let mut cx = Ctx::training(device, Randomness::default());
    let (flow, inputs) = flow_before(device, model, block, batch, &cx)?;
    let flow = model.run_blocks(block..block + 1, flow, batch, &mut cx)?;
    let edge = declared(device, model, block + 1, batch)?;
    let vars = flow.vars();
    if edge.len() != vars.len() {
        let reason = format!("block {block} gives {} variables, {} are declared", vars.len(), edge.len());
        return Err(Error::setting("measured blocks", format!("{reason}; correct Model::receive")));
    }
    let mut seeds = Vec::new();
    for (tensor, var) in edge.iter().zip(&vars) {
        if let Some(dtype) = tensor.gradient {
            // The last block of a classifier leaves out what the head does not read.
            let own = EdgeTensor { shape: var.shape(), ..tensor.clone() };
            seeds.push((var.key(), filled(device, &own, dtype)?));
        }
    }
    drop(vars);
    finish(device, model, cx, (seeds, inputs))
}

/// Cost of the head and its loss.
fn head_pass<M: Model>(
    device: &Device,
    model: &M,
    batch: &M::Batch,
    loss: &impl Fn(M::Output) -> Result<Var>,
) -> Result<()> {
    let mut cx = Ctx::training(device, Randomness::default());
    let (flow, inputs) = flow_before(device, model, model.blocks(), batch, &cx)?;
    let loss = loss(model.head(flow, batch, &mut cx)?)?;
    let seed = Tensor::full_in(device, [1], loss.dtype(), 1.0, Segment::Activations)?;
    let seeds = vec![(loss.key(), seed)];
    drop(loss);
    finish(device, model, cx, (seeds, inputs))
}

fn finish<M: Model>(
    device: &Device,
    model: &M,
    mut cx: Ctx,
    (seeds, inputs): (Vec<(VarKey, Tensor)>, Vec<VarKey>),
) -> Result<()> {
    model.release(&cx);
    if let Some(tape) = cx.take_tape() {
        tape.backward_keys(device, seeds, &inputs, None)?;
    }
    Ok(())
}

/// A flow that enters a block, of the declared shapes, and its variables with gradient.
fn flow_before<M: Model>(
    device: &Device,
    model: &M,
    block: usize,
    batch: &M::Batch,
    cx: &Ctx,
) -> Result<(M::Flow, Vec<VarKey>)> {
    let mut inputs = Vec::new();
    let mut take = |tensor: EdgeTensor| {
        let value = filled(device, &tensor, tensor.dtype)?;
        Ok(match cx.tape().filter(|_| tensor.gradient.is_some()) {
            Some(tape) => {
                let var = tape.input(value);
                inputs.push(var.key());
                var
            }
            None => Var::constant(value),
        })
    };
    let flow = model.receive(block, batch, &mut Edge::new(&mut take))?;
    Ok((flow, inputs))
}

/// The variables that a flow before a block has.
fn declared<M: Model>(device: &Device, model: &M, block: usize, batch: &M::Batch) -> Result<Vec<EdgeTensor>> {
    // The value is not read.
    let nothing = Tensor::full_in(device, [1], DType::F32, 0.0, Segment::Workspace)?;
    let mut declared = Vec::new();
    let mut take = |tensor: EdgeTensor| {
        declared.push(tensor);
        Ok(Var::constant(nothing.clone()))
    };
    model.receive(block, batch, &mut Edge::new(&mut take))?;
    Ok(declared)
}

fn filled(device: &Device, tensor: &EdgeTensor, dtype: DType) -> Result<Tensor> {
    let value = if dtype.is_float() { VALUE } else { 0.0 };
    Ok(Tensor::full_in(device, tensor.shape, dtype, value, Segment::Activations)?)
}

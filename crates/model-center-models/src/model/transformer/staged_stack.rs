//! One pass through a stack whose blocks are on several pipeline stages, without a tape: for incremental decoding,
//! where each stage keeps the KV cache of its blocks.
//!
//! Called by [`crate::model::decode::incremental`]. Training and evaluation run several micro-batches at a time
//! ([`Pipeline`](bmtrain_dist::pipeline::Pipeline)); the tokens of a decoding step follow each other, and nothing
//! overlaps. With one stage nothing is sent.

use super::modules::{Modules, StackBlock};
use crate::layer::{BlockCache, Memory};
use crate::model::batch::Sequences;
use bmtrain_core::comm::tensors;
use bmtrain_core::{Ctx, Segment, Shape, Tensor, Var};
use bmtrain_dist::pipeline::ModelPart;
use bmtrain_dist::{Error, Result};
use std::ops::Range;

/// The output of a stack, on the stage of its last block.
pub(in crate::model) struct StackOutput {
    /// That stage.
    pub stage: usize,
    /// `[R, L, output_size]`; `None` on other stages.
    pub hidden: Option<Var>,
}

impl<B: StackBlock> Modules<B> {
    /// Embeds the tokens of a stack and runs all of its blocks, each on its stage. Collective over the stages. `caches`
    /// has one for each block; a stage uses the caches of its own.
    pub(in crate::model) fn run_staged_stack(
        &self,
        stack: usize,
        (sequences, memory): (&Sequences, Option<&Memory>),
        mut caches: Option<&mut [BlockCache]>,
        cx: &mut Ctx,
    ) -> Result<StackOutput> {
        let stages = self.parameters.stages();
        let own = stages.ranks().rank();
        let mut at = stages.stage_of(ModelPart::Embed);
        // [R, L, D], and the learned position bias.
        let mut flow = match at == own {
            true => Some((self.embed_stack(stack, sequences, cx)?, None)),
            false => None,
        };
        for (holder, range) in self.staged_blocks(stack) {
            flow = self.cross(flow, (at, holder), (stack, range.start, sequences), cx)?;
            at = holder;
            if let Some((hidden, mut bias)) = flow.take() {
                let caches = caches.as_deref_mut().and_then(|caches| caches.get_mut(range.clone()));
                let input = (sequences, memory.cloned());
                let hidden = self.run_blocks_of((stack, range), (hidden, &mut bias), input, caches, cx)?; // [R, L, D]
                flow = Some((hidden, bias));
            }
        }
        Ok(StackOutput { stage: at, hidden: flow.map(|(hidden, _)| hidden) })
    }

    /// The runs of blocks of a stack that are on one stage, in order, with that stage.
    fn staged_blocks(&self, stack: usize) -> Vec<(usize, Range<usize>)> {
        let before: usize = self.stacks[..stack].iter().map(|stack| stack.layers.len()).sum();
        let stages = self.parameters.stages();
        let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
        for block in 0..self.stacks[stack].layers.len() {
            let holder = stages.stage_of(ModelPart::Block(before + block));
            match runs.last_mut() {
                Some((last, range)) if *last == holder => range.end = block + 1,
                _ => runs.push((holder, block..block + 1)),
            }
        }
        runs
    }

    /// Sends the input of block `block` of a stack from the stage that has it to the one that needs it.
    fn cross(
        &self,
        flow: Option<(Var, Option<Var>)>,
        (from, to): (usize, usize),
        (stack, block, sequences): (usize, usize, &Sequences),
        cx: &Ctx,
    ) -> Result<Option<(Var, Option<Var>)>> {
        if from == to {
            return Ok(flow);
        }
        let (hidden, bias) = flow.map_or((None, None), |(hidden, bias)| (Some(hidden), bias));
        let [rows, length] = sequences.ids.dims("stages")?;
        let hidden = self.send(hidden, (from, to), [rows, length, self.spec.dim_model], cx)?; // [R, L, D]
        let heads = self.stacks[stack].positions.bias_heads().filter(|_| block > 0);
        let bias = match heads {
            Some(heads) => self.send(bias, (from, to), [1, heads, length, sequences.reach], cx)?, // [1, N, L, S]
            None => None,
        };
        Ok(hidden.map(|hidden| (hidden, bias)))
    }

    /// A value of this shape from the stage that has it to another: `Some` there alone.
    pub(in crate::model) fn send(
        &self,
        value: Option<Var>,
        (from, to): (usize, usize),
        shape: impl Into<Shape>,
        cx: &Ctx,
    ) -> Result<Option<Var>> {
        let ranks = self.parameters.stages().ranks();
        let shape = shape.into();
        match (from == to, value) {
            (true, value) => Ok(value),
            (false, Some(value)) => {
                check_shape(&value, shape)?;
                tensors::send(&**ranks, value.value(), to)?;
                Ok(None)
            }
            (false, None) if ranks.rank() == to => {
                Ok(Some(Var::constant(tensors::recv(&**ranks, cx.device(), shape, self.dtype, from)?)))
            }
            (false, None) => Ok(None),
        }
    }

    /// A value of this shape from the stage that has it to all stages.
    pub(in crate::model) fn on_all_stages(
        &self,
        value: Option<Var>,
        from: usize,
        shape: impl Into<Shape>,
        cx: &Ctx,
    ) -> Result<Var> {
        let (ranks, shape) = (self.parameters.stages().ranks(), shape.into());
        let value = match value {
            Some(value) if ranks.size() == 1 => return Ok(value),
            Some(value) => {
                check_shape(&value, shape)?;
                value.into_value()
            }
            None => Tensor::empty_in(cx.device(), shape, self.dtype, Segment::Activations)?,
        };
        Ok(Var::constant(tensors::broadcast(&**ranks, value, from)?))
    }
}

/// The other stages wait for values of this shape.
fn check_shape(value: &Var, shape: Shape) -> Result<()> {
    if value.shape() == shape {
        return Ok(());
    }
    Err(Error::setting("pipeline stages", format!("a value of shape {shape} is declared, got {}", value.shape())))
}

//! The backward pass through a run of blocks: the loop in reverse. Each block is gathered, recomputed if it is
//! checkpointed, and its gradients are reduced while the block before it computes. Defines [`ListBackward`], the one
//! node of a run on the outer tape.

use super::bundle::{Bundle, Detached};
use super::list::ListOutput;
use super::ring::GatherRing;
use super::run::{BlockTape, RecordedBlock, SavedBlock};
use super::{Block, TransformerBlockList};
use crate::error::{Error, Result};
use bmtrain_core::autograd::{Backward, BackwardCtx, Grads, WeightGradients};
use bmtrain_core::kernel::AddScaled;
use bmtrain_core::{Ctx, Device, Tensor, Var};
use std::fmt;
use std::ops::Range;

/// A run on the outer tape. Inputs: the variables of the carry, then the shared ones. Results: the variables of the
/// last carry, then, if `return_hidden`, the variables of the carry that entered each block.
pub(super) struct ListBackward<B: Block> {
    pub(super) list: TransformerBlockList<B>,
    pub(super) range: Range<usize>,
    /// The blocks that a gradient can reach, in their order.
    pub(super) steps: Vec<RecordedBlock<B>>,
    pub(super) shared: Detached<B::Shared>,
    /// Number of variables of a carry.
    pub(super) width: usize,
    pub(super) carry_inputs: usize,
    pub(super) return_hidden: bool,
    pub(super) cx: Ctx,
}

impl<B: Block> fmt::Debug for ListBackward<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListBackward({} blocks)", self.range.len())
    }
}

impl<B: Block + 'static> Backward for ListBackward<B> {
    fn backward(mut self: Box<Self>, mut dy: Grads, cx: &mut BackwardCtx<'_>) -> bmtrain_core::Result<()> {
        let (device, queue) = (cx.device().clone(), cx.weight_gradients());
        let mut hidden = dy.split_off(self.width);
        let mut carry_grads = dy;
        let mut ring = GatherRing::default();
        for place in self.range.clone().rev() {
            let step = self.steps.pop_if(|step| step.place == place);
            let (carry, shared) = match step.filter(|_| carry_grads.iter().any(Option::is_some)) {
                Some(step) => self.backward_block(step, carry_grads, (&device, queue), &mut ring)?,
                None => ((0..self.width).map(|_| None).collect(), Vec::new()),
            };
            carry_grads = carry;
            // Term by term onto the outer sum, in the order of the blocks wherever pipeline stages begin.
            for (index, term) in shared.into_iter().enumerate() {
                if let Some(term) = term {
                    cx.give(self.carry_inputs + index, term)?;
                }
            }
            if self.return_hidden {
                let entering = hidden.split_off(hidden.len().saturating_sub(self.width));
                for (sum, term) in carry_grads.iter_mut().zip(entering) {
                    accumulate(&device, sum, term)?;
                }
            }
        }
        for (index, grad) in carry_grads.into_iter().enumerate() {
            if let Some(grad) = grad {
                cx.give(index, grad)?;
            }
        }
        Ok(())
    }

    fn saved_bytes(&self) -> usize {
        let step_bytes = |step: &RecordedBlock<B>| match &step.saved {
            SavedBlock::Tape(tape) | SavedBlock::Either(tape, _) => tape.tape.saved_bytes(),
            SavedBlock::Inputs(inputs) => inputs.bytes(),
            SavedBlock::Following => 0,
        };
        self.steps.iter().map(step_bytes).sum()
    }
}

impl<B: Block + 'static> ListBackward<B> {
    /// Put the node of a run on the outer tape: the run's results, as variables of that tape.
    pub(super) fn record(
        self,
        carry: Detached<B::Carry>,
        hidden: Vec<Detached<B::Carry>>,
        inputs: &[Var],
        cx: &Ctx,
    ) -> ListOutput<B::Carry> {
        let values = std::iter::once(&carry).chain(&hidden).flat_map(|output| output.bundle.vars());
        let values: Vec<Tensor> = values.map(Var::into_value).collect();
        let inputs: Vec<&Var> = inputs.iter().collect();
        let mut vars = cx.record_node(values, &inputs, Box::new(self)).into_iter();
        ListOutput { carry: carry.attach(&mut vars), hidden: hidden.iter().map(|h| h.attach(&mut vars)).collect() }
    }

    /// The backward pass of one block: gradients of its carry and of what is shared.
    fn backward_block(
        &mut self,
        block: RecordedBlock<B>,
        dy: Grads,
        (device, queue): (&Device, Option<&WeightGradients>),
        ring: &mut GatherRing,
    ) -> bmtrain_core::Result<(Grads, Grads)> {
        let RecordedBlock { place, mut saved, in_use } = block;
        if matches!(saved, SavedBlock::Following) {
            saved = SavedBlock::Tape(self.replay_segment(place, ring).map_err(core_error)?);
        }
        ring.gather(place, || self.list.flats(place)).map_err(core_error)?;
        self.prefetch_next(place, ring).map_err(core_error)?;
        let tape = match saved {
            SavedBlock::Tape(tape) => tape,
            SavedBlock::Either(tape, inputs) => {
                // Named, so that they are dropped before the tape runs.
                drop(inputs);
                tape
            }
            SavedBlock::Inputs(inputs) => {
                let carry = inputs.bring().map_err(core_error)?;
                BlockTape::record(&self.list, place, &carry, &self.shared, &self.cx).map_err(core_error)?.1
            }
            SavedBlock::Following => return Err(core_error(no_segment(place))),
        };
        let grads = tape.backward(device, dy, queue)?;
        ring.release(place);
        drop(in_use);
        // Gradients that wait are reduced by the caller, after they have run.
        if queue.is_none() {
            self.reduce_gradients(place).map_err(core_error)?;
        }
        Ok(grads)
    }

    /// Run the segment again that ends with the block at `place`, from the inputs of its first block: the tape of this
    /// block, which stays gathered. The others get their tapes.
    fn replay_segment(&mut self, place: usize, ring: &mut GatherRing) -> Result<BlockTape> {
        let head = self.steps.iter().rposition(|step| !matches!(step.saved, SavedBlock::Following));
        let head = head.ok_or_else(|| no_segment(place))?;
        let SavedBlock::Inputs(inputs) = std::mem::replace(&mut self.steps[head].saved, SavedBlock::Following) else {
            return Err(no_segment(place));
        };
        let mut carry = inputs.bring()?;
        for at in head..self.steps.len() {
            let (now, next) = (self.steps[at].place, self.steps.get(at + 1).map_or(place, |step| step.place));
            ring.gather(now, || self.list.flats(now))?;
            ring.prefetch(now, next, || self.list.flats(next))?;
            let (output, tape) = BlockTape::record(&self.list, now, &carry, &self.shared, &self.cx)?;
            self.steps[at].saved = SavedBlock::Tape(tape);
            carry = output;
            ring.release(now);
        }
        ring.gather(place, || self.list.flats(place))?;
        Ok(BlockTape::record(&self.list, place, &carry, &self.shared, &self.cx)?.1)
    }

    /// Begin to gather the block that computes after the one at `place`, and to bring its inputs back.
    fn prefetch_next(&mut self, place: usize, ring: &mut GatherRing) -> Result<()> {
        let Some(at) = self.steps.iter().rposition(|step| !matches!(step.saved, SavedBlock::Following)) else {
            return Ok(());
        };
        let RecordedBlock { place: next, saved, .. } = &mut self.steps[at];
        if let SavedBlock::Inputs(inputs) = saved {
            inputs.prefetch()?;
        }
        let next = *next;
        ring.prefetch(place, next, || self.list.flats(next))
    }

    /// Reduce the gradients of a block while the next one computes. A block at several places waits for the last of
    /// them.
    fn reduce_gradients(&self, place: usize) -> Result<()> {
        self.list.flats(place).iter().filter(|flat| !flat.has_recorded_pass()).try_for_each(|flat| flat.finish_batch())
    }
}

fn accumulate(device: &Device, sum: &mut Option<Tensor>, term: Option<Tensor>) -> bmtrain_core::Result<()> {
    let Some(term) = term else { return Ok(()) };
    *sum = Some(match sum.take() {
        None => term,
        Some(mut sum) if sum.may_be_overwritten() => {
            device.launch(AddScaled { alpha: 1.0, a: term.view()?, beta: 1.0, b: None, out: sum.view_mut()? })?;
            sum
        }
        Some(sum) => {
            let mut fresh = Tensor::empty_in(device, sum.shape(), sum.dtype(), bmtrain_core::Segment::Activations)?;
            device.launch(AddScaled {
                alpha: 1.0,
                a: term.view()?,
                beta: 1.0,
                b: Some(sum.view()?),
                out: fresh.view_mut()?,
            })?;
            fresh
        }
    });
    Ok(())
}

fn no_segment(place: usize) -> Error {
    Error::setting("block list", format!("block {place} is to run again, and the inputs of its segment are gone"))
}

pub(super) fn core_error(error: Error) -> bmtrain_core::Error {
    match error {
        Error::Core(error) => error,
        other => bmtrain_core::Error::argument("block backward", other.to_string()),
    }
}

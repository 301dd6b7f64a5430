//! The backward pass through a run of blocks: the loop in reverse. Each block is gathered, runs again if it kept its
//! inputs only, and hands its gradients to their owners while the block before it computes. Defines [`ListBackward`],
//! the one node that a run is on the outer tape.

use super::record::{Replay, SavedBlock, Step};
use super::ring::Ring;
use super::{Block, Bundle, TransformerBlockList};
use crate::error::{Error, Result};
use bmtrain_core::autograd::{Backward, BackwardCtx, Grads};
use bmtrain_core::kernel::AddScaled;
use bmtrain_core::{Ctx, Device, Tensor};
use std::fmt;
use std::ops::Range;

/// The list on the outer tape. Inputs: the carry's variables, then the shared ones. Results: the last carry's
/// variables, then, if asked for, those of the carry that entered each block.
pub(super) struct ListBackward<B: Block> {
    pub(super) list: TransformerBlockList<B>,
    pub(super) range: Range<usize>,
    /// Of the blocks that a gradient can reach, in their order.
    pub(super) steps: Vec<Step<B>>,
    pub(super) shared: B::Shared,
    pub(super) shared_needs: Vec<bool>,
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
        let device = cx.device().clone();
        let mut hidden = dy.split_off(self.width);
        let mut carry_grads = dy;
        let mut ring = Ring::default();
        for place in self.range.clone().rev() {
            let step = self.steps.pop_if(|step| step.place == place);
            let (carry, shared) = match step.filter(|_| carry_grads.iter().any(Option::is_some)) {
                Some(step) => self.walk(step, carry_grads, &device, &mut ring)?,
                None => ((0..self.width).map(|_| None).collect(), Vec::new()),
            };
            carry_grads = carry;
            // Term by term onto the outer sum: its order is then that of the blocks alone, wherever stages are cut.
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
        let step_bytes = |step: &Step<B>| match &step.saved {
            SavedBlock::Kept(replay) => replay.tape.saved_bytes(),
            SavedBlock::Inputs(carry, _) => carry.vars().iter().map(|var| var.value().bytes()).sum(),
        };
        self.steps.iter().map(step_bytes).sum()
    }
}

impl<B: Block + 'static> ListBackward<B> {
    /// The backward pass of one block: gradients of its carry and of what is shared.
    fn walk(&self, step: Step<B>, dy: Grads, device: &Device, ring: &mut Ring) -> bmtrain_core::Result<(Grads, Grads)> {
        let Step { place, saved, in_use } = step;
        let before = self.steps.last().map(|step| step.place);
        ring.enter(place, before, |place| self.list.flats(place)).map_err(core_error)?;
        let replay = match saved {
            SavedBlock::Kept(replay) => replay,
            SavedBlock::Inputs(carry, needs) => {
                Replay::run(&self.list, place, &carry, &self.shared, (&needs, &self.shared_needs), &self.cx)
                    .map_err(core_error)?
            }
        };
        let grads = replay.backward(device, dy)?;
        ring.leave(place);
        drop(in_use);
        self.hand_over(place).map_err(core_error)?;
        Ok(grads)
    }

    /// A block's backward pass is done: its gradients go to their owners while the next one computes. Where the block
    /// stands in other places too, they wait until the last of these is done.
    fn hand_over(&self, place: usize) -> Result<()> {
        self.list.flats(place).iter().filter(|flat| flat.is_unused()).try_for_each(|flat| flat.finish_batch())
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

/// Errors of a block that ran again, seen from the tape.
fn core_error(error: Error) -> bmtrain_core::Error {
    match error {
        Error::Core(error) => error,
        other => bmtrain_core::Error::argument("recompute", other.to_string()),
    }
}

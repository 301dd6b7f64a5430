//! The loop over the blocks of a [`TransformerBlockList`], for training, evaluation and decoding alike. While ops are
//! recorded, each block runs on a tape of its own or is checkpointed, and the whole run becomes one node on the outer
//! tape; `backward` is the loop in reverse.

use super::backward::ListBackward;
use super::bundle::{Bundle, Detached};
use super::inputs::KeptInputs;
use super::list::{ListOutput, RunOptions};
use super::ring::GatherRing;
use super::{Block, Recompute, TransformerBlockList};
use crate::error::Result;
use crate::param::Flat;
use bmtrain_core::autograd::{Grads, Tape, VarKey, WeightGradients};
use bmtrain_core::{Ctx, Device, Var};
use std::rc::Rc;

/// The output of a block, and while ops are recorded what its backward pass needs.
type BlockForward<B> = (Detached<<B as Block>::Carry>, Option<SavedBlock<B>>);

impl<B: Block + 'static> TransformerBlockList<B> {
    /// Run some blocks.
    pub fn run(
        &self,
        carry: B::Carry,
        shared: &B::Shared,
        options: RunOptions<'_, B::Cache>,
        cx: &mut Ctx,
    ) -> Result<ListOutput<B::Carry>> {
        self.check(&options, cx)?;
        let RunOptions { range, mut caches, return_hidden } = options;
        if range.is_empty() {
            return Ok(ListOutput { carry, hidden: Vec::new() });
        }
        // Without a tape nothing but the first block holds the carry, whose memory may then be reused.
        let inputs = if cx.is_recording() { [carry.vars(), shared.vars()].concat() } else { Vec::new() };
        let (mut carry, shared) = (Detached::new(carry), Detached::new(shared.clone()));
        let carry_inputs = carry.needs_grad.len();
        let (mut ring, mut steps, mut hidden) = (GatherRing::default(), Vec::new(), Vec::new());
        let mut room = TapeBudget::new(if cx.is_recording() { self.gradients_to_come(range.clone()) } else { 0 });
        for place in range.clone() {
            ring.gather(place, || self.flats(place))?;
            if range.contains(&(place + 1)) {
                ring.prefetch(place, place + 1, || self.flats(place + 1))?;
            }
            if return_hidden {
                hidden.push(carry.clone());
            }
            let cache = caches.as_deref_mut().and_then(|caches| caches.get_mut(place - range.start));
            let keeps = room.keeps(place, &steps, self);
            let (output, saved) = self.forward_block((place, keeps), carry, &shared, cache, cx)?;
            // No gradient can reach a block if none of its outputs needs one.
            if let Some(saved) = saved.filter(|_| output.any_needs_grad()) {
                steps.push(RecordedBlock { place, saved, in_use: RecordedPass::begin(&self.entry(place).flats)? });
                room.fit(&mut steps, self)?;
            }
            carry = output;
            ring.release(place);
        }
        if !cx.is_recording() || !carry.any_needs_grad() && !hidden.iter().any(Detached::any_needs_grad) {
            let hidden = hidden.into_iter().map(|entering| entering.bundle).collect();
            return Ok(ListOutput { carry: carry.bundle, hidden });
        }
        let (list, width, cx_replay) = (self.clone(), carry.needs_grad.len(), cx.with_tape(None).for_replay());
        let node = ListBackward { list, range, steps, shared, width, carry_inputs, return_hidden, cx: cx_replay };
        Ok(node.record(carry, hidden, &inputs, cx))
    }

    /// The maths of the block at `place`.
    fn call(
        &self,
        place: usize,
        carry: B::Carry,
        shared: &B::Shared,
        cache: Option<&mut B::Cache>,
        cx: &mut Ctx,
    ) -> Result<B::Carry> {
        let block = &self.entry(place).block;
        if place + 1 == self.len() {
            return block.forward_last(carry, shared, cache, cx);
        }
        block.forward(carry, shared, cache, cx)
    }

    /// Run one block, on a tape of its own or without one.
    fn forward_block(
        &self,
        (place, keeps): (usize, Keeps),
        carry: Detached<B::Carry>,
        shared: &Detached<B::Shared>,
        cache: Option<&mut B::Cache>,
        cx: &Ctx,
    ) -> Result<BlockForward<B>> {
        let entry = self.entry(place);
        if cx.is_recording() && matches!(keeps, Keeps::Tape | Keeps::Either) {
            let (output, tape) = BlockTape::record(self, place, &carry, shared, cx)?;
            let is_kept = keeps == Keeps::Tape;
            let saved = if is_kept { SavedBlock::Tape(tape) } else { SavedBlock::Either(tape, carry) };
            return Ok((output, Some(saved)));
        }
        let asked = self.asked.get();
        let inputs_need_grad = carry.any_needs_grad() || shared.any_needs_grad();
        let saved = match (cx.is_recording(), keeps) {
            (false, _) => None,
            (true, Keeps::Nothing) => Some(SavedBlock::Following),
            (true, _) => Some(SavedBlock::Inputs(self.keeper.keep(carry.clone(), entry.options.inputs)?)),
        };
        let output =
            cx.with_tape(None).at_index(place, |cx| self.call(place, carry.bundle, &shared.bundle, cache, cx))?;
        // Which outputs need a gradient is known without a tape: all of them, once an input or a parameter does. The
        // parameters may also be some that were declared outside of the block.
        let needs_grad = cx.is_recording() && (inputs_need_grad || self.asked.get() != asked);
        let needs_grad = output.vars().iter().map(|var| needs_grad && var.dtype().is_float()).collect();
        Ok((Detached { bundle: output, needs_grad }, saved))
    }
}

/// Activations that a block keeps in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Tape,
    Either,
    Inputs,
    /// It runs again after the block before it, which passes it its inputs.
    Nothing,
}

/// Byte budget of the tapes kept by blocks with [`Recompute::Auto`], and bytes in use.
struct TapeBudget {
    bytes: usize,
    taken: usize,
    /// Index among the recorded blocks: those before it have no tape that may be dropped.
    next: usize,
}

impl TapeBudget {
    fn new(bytes: usize) -> Self {
        TapeBudget { bytes, taken: 0, next: 0 }
    }

    /// The activations that the block at `place` keeps in this run, after the recorded ones.
    fn keeps<B: Block + 'static>(
        &self,
        place: usize,
        steps: &[RecordedBlock<B>],
        list: &TransformerBlockList<B>,
    ) -> Keeps {
        let recompute = list.entry(place).options.recompute;
        match recompute {
            Recompute::Keep | Recompute::Attention => Keeps::Tape,
            Recompute::Auto if self.bytes > 0 => Keeps::Either,
            Recompute::Every(count) if segment(place, steps, list).is_some_and(|length| length < count) => {
                Keeps::Nothing
            }
            Recompute::Auto | Recompute::Checkpoint | Recompute::Every(_) => Keeps::Inputs,
        }
    }

    /// Account for the block recorded last, and drop tapes until the others fit: the first ones, whose backward pass
    /// comes when most gradients are there.
    fn fit<B: Block + 'static>(
        &mut self,
        steps: &mut [RecordedBlock<B>],
        list: &TransformerBlockList<B>,
    ) -> Result<()> {
        if let Some(RecordedBlock { saved: SavedBlock::Either(tape, _), .. }) = steps.last() {
            self.taken += tape.tape.saved_bytes();
        }
        while self.taken > self.bytes && self.next < steps.len() {
            let RecordedBlock { saved, place, .. } = &mut steps[self.next];
            if let SavedBlock::Either(tape, inputs) = saved {
                self.taken -= tape.tape.saved_bytes();
                let kept = list.keeper.keep(inputs.clone(), list.entry(*place).options.inputs)?;
                self.taken += kept.bytes();
                *saved = SavedBlock::Inputs(kept);
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// The number of blocks in the segment of the block before the one at `place`, if it was recorded with the same policy.
/// A gradient reaches this block then, since one reaches its inputs.
fn segment<B: Block + 'static>(
    place: usize,
    steps: &[RecordedBlock<B>],
    list: &TransformerBlockList<B>,
) -> Option<usize> {
    let last = steps.last().filter(|last| last.place + 1 == place)?;
    let following = steps.iter().rev().take_while(|step| matches!(step.saved, SavedBlock::Following)).count();
    let policy = |place: usize| list.entry(place).options.recompute;
    (policy(last.place) == policy(place)).then_some(following + 1)
}

/// The backward pass's view of one block that a gradient can reach.
pub(super) struct RecordedBlock<B: Block> {
    pub(super) place: usize,
    pub(super) saved: SavedBlock<B>,
    /// Until the block's backward pass is done.
    pub(super) in_use: RecordedPass,
}

/// Activations kept of a block's forward pass.
pub(super) enum SavedBlock<B: Block> {
    /// Its inner tape.
    Tape(BlockTape),
    /// Its inputs only: activation checkpointing.
    Inputs(KeptInputs<B::Carry>),
    /// Nothing: it runs again after the block before it, from the inputs of the first block of their segment.
    Following,
    /// Its inner tape, as long as there is room for it, and its inputs.
    Either(BlockTape, Detached<B::Carry>),
}

/// A recorded pass through a block whose backward pass is still to come. Dropping it means that none will come.
#[derive(Debug, Default)]
pub(super) struct RecordedPass {
    flats: Vec<Rc<Flat>>,
}

impl RecordedPass {
    /// On an error the passes begun so far are ended again.
    fn begin(flats: &[Rc<Flat>]) -> Result<Self> {
        let mut begun = RecordedPass::default();
        for flat in flats {
            begun.flats.push(Rc::clone(flat));
            flat.begin_pass()?;
        }
        Ok(begun)
    }
}

impl Drop for RecordedPass {
    fn drop(&mut self) {
        self.flats.iter().for_each(|flat| flat.end_pass());
    }
}

/// A block that has run on a tape of its own.
pub(super) struct BlockTape {
    pub(super) tape: Tape,
    carry: Vec<VarKey>,
    shared: Vec<VarKey>,
    outputs: Vec<VarKey>,
}

impl BlockTape {
    /// Run the block at `place` on a new tape: its output, and the tape.
    pub(super) fn record<B: Block + 'static>(
        list: &TransformerBlockList<B>,
        place: usize,
        carry: &Detached<B::Carry>,
        shared: &Detached<B::Shared>,
        cx: &Ctx,
    ) -> Result<(Detached<B::Carry>, Self)> {
        let tape = Tape::new();
        let ((inner_carry, carry), (inner_shared, shared)) = (carry.on_tape(&tape), shared.on_tape(&tape));
        let options = list.entry(place).options;
        let output = cx
            .with_tape(Some(tape.clone()))
            .with_attention_recomputed(options.recompute == Recompute::Attention)
            .at_index(place, |cx| list.call(place, inner_carry, &inner_shared, None, cx))?;
        let keys = |vars: Vec<Var>| vars.iter().map(Var::key).collect();
        let (carry, shared, outputs) = (keys(carry), keys(shared), keys(output.vars()));
        Ok((Detached::new(output), BlockTape { tape, carry, shared, outputs }))
    }

    /// Gradients of the block's carry and shared inputs from the gradients of its outputs.
    pub(super) fn backward(
        self,
        device: &Device,
        dy: Grads,
        queue: Option<&WeightGradients>,
    ) -> bmtrain_core::Result<(Grads, Grads)> {
        let seeds = self.outputs.into_iter().zip(dy).filter_map(|(key, dy)| Some((key, dy?))).collect();
        let wanted = [&self.carry[..], &self.shared].concat();
        let mut grads = self.tape.backward_keys(device, seeds, &wanted, queue)?;
        let shared = grads.split_off(self.carry.len());
        Ok((grads, shared))
    }
}

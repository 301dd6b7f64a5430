//! A run of blocks on a tape: each block runs on a tape of its own or without one, and what the backward pass needs of
//! it is kept. Defines [`Step`], [`Replay`] and [`Use`]; called by
//! [`TransformerBlockList::run`](super::TransformerBlockList::run).

use super::backward::ListBackward;
use super::list::ListOutput;
use super::ring::Ring;
use super::{Block, Bundle, Recompute, TransformerBlockList};
use crate::error::Result;
use crate::param::Flat;
use bmtrain_core::autograd::{Grads, Tape};
use bmtrain_core::{Ctx, Device, Tensor, Var};
use std::ops::Range;
use std::rc::Rc;

/// What the backward pass needs of one block, which is there only if a gradient can reach the block.
pub(super) struct Step<B: Block> {
    pub(super) place: usize,
    pub(super) saved: SavedBlock<B>,
    /// Until the block's backward pass is done.
    pub(super) in_use: Use,
}

/// What was kept of a block.
pub(super) enum SavedBlock<B: Block> {
    /// Its inner tape.
    Kept(Replay),
    /// Its inputs, and which of them need a gradient.
    Inputs(B::Carry, Vec<bool>),
}

/// A recorded pass through a block whose gradients are still to come. Whoever drops it says that none will.
#[derive(Debug, Default)]
pub(super) struct Use {
    flats: Vec<Rc<Flat>>,
}

impl Use {
    /// # Errors
    /// As [`Flat::begin_use`]; the storages before it are given up again.
    fn begin(flats: &[Rc<Flat>]) -> Result<Self> {
        let mut begun = Use::default();
        for flat in flats {
            begun.flats.push(Rc::clone(flat));
            flat.begin_use()?;
        }
        Ok(begun)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.flats.iter().for_each(|flat| flat.end_use());
    }
}

impl<B: Block + 'static> TransformerBlockList<B> {
    pub(super) fn record(
        &self,
        carry: B::Carry,
        shared: &B::Shared,
        range: Range<usize>,
        return_hidden: bool,
        cx: &mut Ctx,
    ) -> Result<ListOutput<B::Carry>> {
        let outer_carry = carry.vars();
        let outer_shared = shared.vars();
        let carry_template = carry.rebuild(&mut outer_carry.iter().map(Var::detach));
        let shared_template = shared.rebuild(&mut outer_shared.iter().map(Var::detach));
        let mut needs: Vec<bool> = outer_carry.iter().map(Var::needs_grad).collect();
        let shared_needs: Vec<bool> = outer_shared.iter().map(Var::needs_grad).collect();
        drop(carry);
        let (mut current, mut hidden, mut steps) = (carry_template, Vec::new(), Vec::with_capacity(range.len()));
        let mut ring = Ring::default();
        for place in range.clone() {
            ring.enter(place, (place + 1 < range.end).then_some(place + 1), |place| self.flats(place))?;
            if return_hidden {
                hidden.push((current.clone(), needs.clone()));
            }
            let (next, next_needs, saved) =
                self.record_block(place, current, &shared_template, (&needs, &shared_needs), cx)?;
            // No gradient can reach a block of whose results none needs one.
            if next_needs.contains(&true) {
                steps.push(Step { place, saved, in_use: Use::begin(&self.entry(place).flats)? });
            }
            (current, needs) = (next, next_needs);
            ring.leave(place);
        }
        let hidden_need = hidden.iter().any(|(_, needs): &(_, Vec<bool>)| needs.contains(&true));
        if !needs.contains(&true) && !hidden_need {
            return Ok(ListOutput { carry: current, hidden: hidden.into_iter().map(|(bundle, _)| bundle).collect() });
        }
        let mut values: Vec<Tensor> = current.vars().into_iter().map(Var::into_value).collect();
        for (bundle, _) in &hidden {
            values.extend(bundle.vars().into_iter().map(Var::into_value));
        }
        let width = needs.len();
        let inputs: Vec<&Var> = outer_carry.iter().chain(&outer_shared).collect();
        let node = ListBackward {
            list: self.clone(),
            range,
            steps,
            shared: shared_template,
            shared_needs,
            width,
            carry_inputs: outer_carry.len(),
            return_hidden,
            cx: cx.with_tape(None).for_replay(),
        };
        let mut vars = cx.record_node(values, &inputs, Box::new(node)).into_iter();
        let keep = |var: Var, needs: bool| if needs { var } else { var.detach() };
        let carry = current.rebuild(&mut vars.by_ref().take(width).zip(&needs).map(|(var, &needs)| keep(var, needs)));
        let hidden = hidden
            .iter()
            .map(|(bundle, needs)| {
                bundle.rebuild(&mut vars.by_ref().take(width).zip(needs).map(|(var, &needs)| keep(var, needs)))
            })
            .collect();
        Ok(ListOutput { carry, hidden })
    }

    /// Run one block: what leaves it, which of that needs a gradient, and what to keep for the backward pass.
    fn record_block(
        &self,
        place: usize,
        carry: B::Carry,
        shared: &B::Shared,
        (needs, shared_needs): (&[bool], &[bool]),
        cx: &Ctx,
    ) -> Result<(B::Carry, Vec<bool>, SavedBlock<B>)> {
        let entry = self.entry(place);
        match entry.options.recompute {
            Recompute::Keep => {
                let replay = Replay::run(self, place, &carry, shared, (needs, shared_needs), cx)?;
                let next = carry.rebuild(&mut replay.outputs.iter().map(Var::detach));
                Ok((next, replay.outputs.iter().map(Var::needs_grad).collect(), SavedBlock::Kept(replay)))
            }
            Recompute::Checkpoint => {
                let mut inner = cx.with_tape(None);
                let asked = self.asked.get();
                let next = inner.at_index(place, |inner| entry.block.forward(carry.clone(), shared, None, inner))?;
                // What will need a gradient is known without a tape: everything, once anything before it is trained.
                // The parameters may also be such as were declared outside of the block.
                let any = needs.iter().chain(shared_needs).any(|&needs| needs) || self.asked.get() != asked;
                let next_needs = next.vars().iter().map(|var| any && var.dtype().is_float()).collect();
                Ok((next, next_needs, SavedBlock::Inputs(carry, needs.to_vec())))
            }
        }
    }
}

/// A block that has run on a tape of its own.
pub(super) struct Replay {
    pub(super) tape: Tape,
    carry: Vec<Var>,
    shared: Vec<Var>,
    outputs: Vec<Var>,
}

impl Replay {
    /// `needs` says of the carry and of what is shared which variables need a gradient.
    pub(super) fn run<B: Block + 'static>(
        list: &TransformerBlockList<B>,
        place: usize,
        carry: &B::Carry,
        shared: &B::Shared,
        needs: (&[bool], &[bool]),
        cx: &Ctx,
    ) -> Result<Self> {
        let tape = Tape::new();
        let enter = |vars: Vec<Var>, needs: &[bool]| -> Vec<Var> {
            vars.into_iter()
                .zip(needs)
                .map(|(var, &needs)| if needs { tape.input(var.into_value()) } else { var.detach() })
                .collect()
        };
        let carry_vars = enter(carry.vars(), needs.0);
        let shared_vars = enter(shared.vars(), needs.1);
        let inner_carry = carry.rebuild(&mut carry_vars.iter().cloned());
        let inner_shared = shared.rebuild(&mut shared_vars.iter().cloned());
        let mut inner = cx.with_tape(Some(tape.clone()));
        let block = &list.entry(place).block;
        let next = inner.at_index(place, |inner| block.forward(inner_carry, &inner_shared, None, inner))?;
        Ok(Replay { tape, carry: carry_vars, shared: shared_vars, outputs: next.vars() })
    }

    /// Gradients of the block's carry and shared inputs from those of its outputs.
    pub(super) fn backward(self, device: &Device, dy: Grads) -> bmtrain_core::Result<(Grads, Grads)> {
        let seeds = self.outputs.into_iter().zip(dy).filter_map(|(var, dy)| Some((var, dy?))).collect();
        let wanted: Vec<&Var> = self.carry.iter().chain(&self.shared).collect();
        let mut grads = self.tape.backward(device, seeds, &wanted)?;
        let shared = grads.split_off(self.carry.len());
        Ok((grads, shared))
    }
}

//! The list of blocks: an explicit loop forward, one node on the outer tape, the loop in reverse on the way back.

use super::ring::Ring;
use super::{Block, Bundle};
use crate::error::{Error, Result};
use crate::param::{Builder, Flat, Param};
use crate::shard::ZeroLevel;
use bmtrain_core::autograd::{Backward, BackwardCtx, Grads, Tape};
use bmtrain_core::kernel::AddScaled;
use bmtrain_core::{Ctx, Device, Tensor, Var};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// What is kept of a block's forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Recompute {
    /// Everything its ops saved.
    #[default]
    Keep,
    /// Only its inputs; the block runs again on the way back.
    Checkpoint,
}

/// Policy of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockOptions {
    /// Keep or recompute.
    pub recompute: Recompute,
}

struct Entry<B> {
    block: B,
    /// To see whether anything inside is trained.
    params: Vec<Param>,
    /// The storages they lie in.
    flats: Vec<Rc<Flat>>,
    options: BlockOptions,
}

/// Blocks of one kind, run one after the other.
///
/// Keeping and recomputing give the same bits: the recomputation draws the same random numbers, as they are addressed
/// by the place in the list.
pub struct TransformerBlockList<B> {
    entries: Rc<Vec<Entry<B>>>,
}

impl<B> Clone for TransformerBlockList<B> {
    fn clone(&self) -> Self {
        TransformerBlockList { entries: Rc::clone(&self.entries) }
    }
}

impl<B> fmt::Debug for TransformerBlockList<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransformerBlockList({} blocks)", self.entries.len())
    }
}

/// What a run of a list may do besides running.
pub struct RunOptions<'a, C> {
    /// Which blocks.
    pub range: Range<usize>,
    /// One cache per block of the range, for decoding; not together with a tape.
    pub caches: Option<&'a mut [C]>,
    /// Return the carry that entered each block, with gradient.
    pub return_hidden: bool,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct ListOutput<C> {
    /// What left the last block.
    pub carry: C,
    /// What entered each block, if it was asked for.
    pub hidden: Vec<C>,
}

impl<B: Block + 'static> TransformerBlockList<B> {
    /// Build `count` blocks named `{builder}.0`, `{builder}.1`, …
    ///
    /// # Errors
    /// Those of `build`.
    pub fn build(
        builder: &Builder,
        count: usize,
        options: BlockOptions,
        mut build: impl FnMut(usize, &Builder) -> Result<B>,
    ) -> Result<Self> {
        let mut entries = Vec::with_capacity(count);
        for index in 0..count {
            let before = builder.count();
            let block = builder.index(index).block(|inner| build(index, inner))?;
            let params = builder.since(before);
            let mut flats: Vec<Rc<Flat>> = Vec::new();
            for param in &params {
                let flat = param.place()?.0;
                if !flats.iter().any(|known| Rc::ptr_eq(known, flat)) {
                    flats.push(Rc::clone(flat));
                }
            }
            entries.push(Entry { block, params, flats, options });
        }
        Ok(TransformerBlockList { entries: Rc::new(entries) })
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The blocks.
    pub fn iter(&self) -> impl Iterator<Item = &B> {
        self.entries.iter().map(|entry| &entry.block)
    }

    /// Run all blocks.
    ///
    /// # Errors
    /// Those of the blocks.
    pub fn forward(&self, carry: B::Carry, shared: &B::Shared, cx: &mut Ctx) -> Result<B::Carry> {
        let options = RunOptions { range: 0..self.len(), caches: None, return_hidden: false };
        self.run(carry, shared, options, cx).map(|output| output.carry)
    }

    /// Run some blocks.
    ///
    /// # Errors
    /// Those of the blocks; a range outside the list; caches together with a tape, or another number of them.
    pub fn run(
        &self,
        carry: B::Carry,
        shared: &B::Shared,
        mut options: RunOptions<'_, B::Cache>,
        cx: &mut Ctx,
    ) -> Result<ListOutput<B::Carry>> {
        let range = options.range.clone();
        if range.start > range.end || range.end > self.len() {
            return Err(Error::setting("block list", format!("blocks {range:?} of {}", self.len())));
        }
        if let Some(caches) = &options.caches {
            if caches.len() != range.len() {
                return Err(Error::setting(
                    "block list",
                    format!("{} caches for {} blocks", caches.len(), range.len()),
                ));
            }
            if cx.is_recording() {
                return Err(Error::setting("block list", "caches are for inference: run without a tape"));
            }
        }
        let inputs_need_grad = carry.vars().iter().chain(&shared.vars()).any(Var::needs_grad);
        let trained = self.entries[range.clone()].iter().any(|entry| entry.params.iter().any(Param::is_trainable));
        if cx.is_recording() && (inputs_need_grad || trained) {
            return self.record(carry, shared, range, options.return_hidden, cx);
        }
        let (mut carry, mut hidden, mut ring) = (carry, Vec::new(), Ring::default());
        for index in range.clone() {
            if options.return_hidden {
                hidden.push(carry.clone());
            }
            let cache = options.caches.as_mut().and_then(|caches| caches.get_mut(index - range.start));
            let block = &self.entries[index].block;
            ring.enter(index, (index + 1 < range.end).then_some(index + 1), |index| self.flats(index))?;
            carry = cx.at_index(index, |cx| block.forward(carry, shared, cache, cx))?;
            ring.leave(index);
        }
        Ok(ListOutput { carry, hidden })
    }

    fn record(
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
        for index in range.clone() {
            ring.enter(index, (index + 1 < range.end).then_some(index + 1), |index| self.flats(index))?;
            if return_hidden {
                hidden.push((current.clone(), needs.clone()));
            }
            let entry = &self.entries[index];
            let step_needs = needs.clone();
            match entry.options.recompute {
                Recompute::Keep => {
                    let step = Replay::run(self, index, &current, &shared_template, &step_needs, &shared_needs, cx)?;
                    needs = step.outputs.iter().map(Var::needs_grad).collect();
                    current = current.rebuild(&mut step.outputs.iter().map(Var::detach));
                    steps.push(Step::Kept { index, replay: step });
                }
                Recompute::Checkpoint => {
                    let mut inner = cx.with_tape(None);
                    let block = &entry.block;
                    let next =
                        inner.at_index(index, |inner| block.forward(current.clone(), &shared_template, None, inner))?;
                    // What will need a gradient is known without a tape: everything, once anything before it is trained.
                    let any = step_needs.iter().chain(&shared_needs).any(|&needs| needs)
                        || entry.params.is_empty()
                        || entry.params.iter().any(Param::is_trainable);
                    needs = next.vars().iter().map(|var| any && var.dtype().is_float()).collect();
                    steps.push(Step::Checkpoint {
                        index,
                        carry: std::mem::replace(&mut current, next),
                        needs: step_needs,
                    });
                }
            }
            if self.entries[index].flats.iter().any(|flat| flat.sharding().level == ZeroLevel::Two) {
                // Whole until the way back has passed.
                self.entries[index].flats.iter().try_for_each(|flat| flat.gather())?;
            }
            ring.leave(index);
        }
        let mut values: Vec<Tensor> = current.vars().into_iter().map(Var::into_value).collect();
        for (bundle, _) in &hidden {
            values.extend(bundle.vars().into_iter().map(Var::into_value));
        }
        let width = needs.len();
        let inputs: Vec<&Var> = outer_carry.iter().chain(&outer_shared).collect();
        let node = ListBackward {
            list: self.clone(),
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
}

impl<B> TransformerBlockList<B> {
    /// The storages of a block.
    fn flats(&self, index: usize) -> Vec<Rc<Flat>> {
        self.entries.get(index).map_or_else(Vec::new, |entry| entry.flats.clone())
    }

    /// A block's way back is done: its gradients go to their owners while the next block computes.
    fn finish(&self, index: usize) -> Result<()> {
        for flat in self.flats(index) {
            if flat.sharding().level == ZeroLevel::Two {
                flat.release();
            }
            flat.finish_batch()?;
        }
        Ok(())
    }
}

/// What the way back needs of one block.
enum Step<B: Block> {
    /// Its inner tape.
    Kept { index: usize, replay: Replay },
    /// Its inputs.
    Checkpoint { index: usize, carry: B::Carry, needs: Vec<bool> },
}

impl<B: Block> Step<B> {
    fn index(&self) -> usize {
        match self {
            Step::Kept { index, .. } | Step::Checkpoint { index, .. } => *index,
        }
    }
}

/// A block that has run on a tape of its own.
struct Replay {
    tape: Tape,
    carry: Vec<Var>,
    shared: Vec<Var>,
    outputs: Vec<Var>,
}

impl Replay {
    fn run<B: Block + 'static>(
        list: &TransformerBlockList<B>,
        index: usize,
        carry: &B::Carry,
        shared: &B::Shared,
        carry_needs: &[bool],
        shared_needs: &[bool],
        cx: &Ctx,
    ) -> Result<Self> {
        let tape = Tape::new();
        let enter = |vars: Vec<Var>, needs: &[bool]| -> Vec<Var> {
            vars.into_iter()
                .zip(needs)
                .map(|(var, &needs)| if needs { tape.input(var.into_value()) } else { var.detach() })
                .collect()
        };
        let carry_vars = enter(carry.vars(), carry_needs);
        let shared_vars = enter(shared.vars(), shared_needs);
        let inner_carry = carry.rebuild(&mut carry_vars.iter().cloned());
        let inner_shared = shared.rebuild(&mut shared_vars.iter().cloned());
        let mut inner = cx.with_tape(Some(tape.clone()));
        let block = &list.entries[index].block;
        let next = inner.at_index(index, |inner| block.forward(inner_carry, &inner_shared, None, inner))?;
        Ok(Replay { tape, carry: carry_vars, shared: shared_vars, outputs: next.vars() })
    }

    /// Gradients of the block's carry and shared inputs from those of its outputs.
    fn backward(self, device: &Device, dy: Grads) -> bmtrain_core::Result<(Grads, Grads)> {
        let seeds = self.outputs.into_iter().zip(dy).filter_map(|(var, dy)| Some((var, dy?))).collect();
        let wanted: Vec<&Var> = self.carry.iter().chain(&self.shared).collect();
        let mut grads = self.tape.backward(device, seeds, &wanted)?;
        let shared = grads.split_off(self.carry.len());
        Ok((grads, shared))
    }
}

/// The list on the outer tape. Inputs: the carry's variables, then the shared ones. Results: the last carry's variables, then, if
/// asked for, those of the carry that entered each block.
struct ListBackward<B: Block> {
    list: TransformerBlockList<B>,
    steps: Vec<Step<B>>,
    shared: B::Shared,
    shared_needs: Vec<bool>,
    width: usize,
    carry_inputs: usize,
    return_hidden: bool,
    cx: Ctx,
}

impl<B: Block> fmt::Debug for ListBackward<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListBackward({} blocks)", self.steps.len())
    }
}

impl<B: Block + 'static> Backward for ListBackward<B> {
    fn backward(mut self: Box<Self>, mut dy: Grads, cx: &mut BackwardCtx<'_>) -> bmtrain_core::Result<()> {
        let device = cx.device().clone();
        let mut hidden = dy.split_off(self.width);
        let mut carry_grads = dy;
        let mut ring = Ring::default();
        while let Some(step) = self.steps.pop() {
            let index = step.index();
            let (carry, shared) = if carry_grads.iter().any(Option::is_some) {
                let next = self.steps.last().map(Step::index);
                ring.enter(index, next, |index| self.list.flats(index)).map_err(core_error)?;
                let replay = match step {
                    Step::Kept { replay, .. } => replay,
                    Step::Checkpoint { index, carry, needs } => {
                        Replay::run(&self.list, index, &carry, &self.shared, &needs, &self.shared_needs, &self.cx)
                            .map_err(core_error)?
                    }
                };
                let grads = replay.backward(&device, carry_grads)?;
                ring.leave(index);
                self.list.finish(index).map_err(core_error)?;
                grads
            } else {
                (self.blank(), Vec::new())
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
        let step_bytes = |step: &Step<B>| match step {
            Step::Kept { replay, .. } => replay.tape.saved_bytes(),
            Step::Checkpoint { carry, .. } => carry.vars().iter().map(|var| var.value().bytes()).sum(),
        };
        self.steps.iter().map(step_bytes).sum()
    }
}

impl<B: Block> ListBackward<B> {
    fn blank(&self) -> Grads {
        (0..self.width).map(|_| None).collect()
    }
}

fn accumulate(device: &Device, sum: &mut Option<Tensor>, term: Option<Tensor>) -> bmtrain_core::Result<()> {
    let Some(term) = term else { return Ok(()) };
    *sum = Some(match sum.take() {
        None => term,
        Some(mut sum) if sum.is_alone() => {
            device.launch(AddScaled { alpha: 1.0, a: term.view()?, beta: 1.0, b: None, out: sum.view_mut()? })?;
            sum
        }
        Some(sum) => {
            let mut fresh = Tensor::empty(device, sum.shape(), sum.dtype(), bmtrain_core::Segment::Activations)?;
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

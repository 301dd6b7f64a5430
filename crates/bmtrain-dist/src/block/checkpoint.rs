//! Activation checkpointing of a part of a block: [`checkpoint`].

use super::backward::core_error;
use crate::error::Result;
use bmtrain_core::autograd::{Backward, BackwardCtx, Grads, Tape, VarKey};
use bmtrain_core::{Ctx, Tensor, Var};
use std::fmt;

/// Run `forward` and keep its inputs alone: it runs again in the backward pass. Models use it for attention where
/// [`Ctx::recomputes_attention`] asks for it.
///
/// Everything that `forward` computes with and that may need a gradient is either among its inputs or a parameter of
/// the block. Its random numbers are the same in both runs, whether it takes them from its context or has captured
/// them. Where ops are not recorded, or no input needs a gradient, it runs once, as if it were called directly.
pub fn checkpoint(
    inputs: &[&Var],
    cx: &mut Ctx,
    forward: impl Fn(&[Var], &mut Ctx) -> Result<Var> + 'static,
) -> Result<Var> {
    if !cx.records(inputs) {
        let inputs: Vec<Var> = inputs.iter().map(|&input| input.clone()).collect();
        return forward(&inputs, cx);
    }
    let detached: Vec<Var> = inputs.iter().map(|input| input.detach()).collect();
    let output = forward(&detached, &mut cx.with_tape(None))?;
    let inputs_kept = inputs.iter().map(|input| (input.value().clone(), input.needs_grad())).collect();
    let replay = cx.with_tape(None).for_replay();
    let node = CheckpointBackward { inputs: inputs_kept, forward: Box::new(forward), cx: replay };
    Ok(cx.record(output.into_value(), inputs, || Box::new(node)))
}

type Forward = dyn Fn(&[Var], &mut Ctx) -> Result<Var>;

struct CheckpointBackward {
    /// Each with whether it needs a gradient.
    inputs: Vec<(Tensor, bool)>,
    forward: Box<Forward>,
    cx: Ctx,
}

impl fmt::Debug for CheckpointBackward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckpointBackward({} inputs)", self.inputs.len())
    }
}

impl Backward for CheckpointBackward {
    fn backward(self: Box<Self>, mut dy: Grads, cx: &mut BackwardCtx<'_>) -> bmtrain_core::Result<()> {
        let Some(dy) = dy.pop().flatten() else { return Ok(()) };
        let CheckpointBackward { inputs, forward, cx: replay } = *self;
        let (tape, device) = (Tape::new(), cx.device().clone());
        let enter = |(value, needs): (Tensor, bool)| if needs { tape.input(value) } else { Var::constant(value) };
        let inputs: Vec<Var> = inputs.into_iter().map(enter).collect();
        let output = forward(&inputs, &mut replay.with_tape(Some(tape.clone()))).map_err(core_error)?;
        // Values are freed as their gradients are computed.
        let (seed, wanted) = (output.key(), inputs.iter().map(Var::key).collect::<Vec<VarKey>>());
        drop((output, inputs, forward));
        let grads = tape.backward_keys(&device, vec![(seed, dy)], &wanted, cx.weight_gradients())?;
        for (index, grad) in grads.into_iter().enumerate() {
            if let Some(grad) = grad {
                cx.give(index, grad)?;
            }
        }
        Ok(())
    }

    fn saved_bytes(&self) -> usize {
        self.inputs.iter().map(|(value, _)| value.bytes()).sum()
    }
}

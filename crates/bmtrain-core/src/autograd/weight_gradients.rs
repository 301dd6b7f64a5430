//! Gradients of weights that are computed apart from the gradients of inputs: [`WeightGradients`], a queue.
//!
//! The gradient of an op's input is needed by the op before it, or by another pipeline stage; nothing needs the
//! gradient of its weight before the optimizer's step. An op whose two gradients are two products gives the second to
//! [`BackwardCtx::later`], which runs it at once unless the backward pass was given a queue.

use super::tape::BackwardCtx;
use super::var::Source;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

type Work = Box<dyn FnOnce(&mut BackwardCtx<'_>) -> Result<()>>;

struct Deferred {
    inputs: Vec<Source>,
    work: Work,
}

/// Gradients of weights that a backward pass has put off, in the order of that pass. Clones share the queue.
///
/// Numerics: run in this order, and queues in the order of their backward passes, every sum has its terms in the order
/// of a backward pass without a queue. A parameter that is used by ops that put their work off and by others is the
/// exception.
#[derive(Clone, Default)]
pub struct WeightGradients {
    queue: Rc<RefCell<VecDeque<Deferred>>>,
}

impl fmt::Debug for WeightGradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightGradients({} waiting)", self.queue.borrow().len())
    }
}

impl WeightGradients {
    /// Compute what waits. What each op kept for it is free as soon as it is done.
    pub fn run(&self, device: &Device) -> Result<()> {
        loop {
            // Taken out one by one, so that the queue is not borrowed while work runs.
            let Some(Deferred { inputs, work }) = self.queue.borrow_mut().pop_front() else { return Ok(()) };
            work(&mut BackwardCtx::of_leaves(device, &inputs))?;
        }
    }
}

impl<'t> BackwardCtx<'t> {
    /// The queue of this backward pass, for a tape inside an op.
    pub fn weight_gradients(&self) -> Option<&'t WeightGradients> {
        self.queue
    }

    /// A gradient that [`BackwardCtx::later`] needs. With a queue it is a copy where the memory is shared: others may
    /// write over theirs, and round as they would without a queue.
    pub fn keep(&self, dy: &Tensor) -> Result<Tensor> {
        match self.queue.is_some() && !dy.may_be_overwritten() {
            true => dy.clone().owned(),
            false => Ok(dy.clone()),
        }
    }

    /// Compute the gradients of these inputs: now, or later where they are all parameters and the backward pass has a
    /// queue. `work` is told under which numbers it finds the inputs.
    pub fn later<const N: usize>(
        &mut self,
        inputs: [usize; N],
        work: impl FnOnce(&mut BackwardCtx<'_>, [usize; N]) -> Result<()> + 'static,
    ) -> Result<()> {
        let source = |index: usize| self.sources().get(index).cloned().unwrap_or(Source::Constant);
        let sources = inputs.map(source);
        let can_wait = sources.iter().all(|source| !matches!(source, Source::Node(_)));
        match self.queue.filter(|_| can_wait && inputs.iter().any(|index| self.needs(*index))) {
            Some(WeightGradients { queue }) => {
                let work: Work = Box::new(move |cx| work(cx, std::array::from_fn(|number| number)));
                queue.borrow_mut().push_back(Deferred { inputs: sources.to_vec(), work });
                Ok(())
            }
            None => work(self, inputs),
        }
    }
}

//! Context of a forward pass: device, mode, the address of its randomness, and the tape if there is one.

use super::observe::Observer;
use super::tape::{Backward, Tape};
use super::var::{GradSink, Var};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::Dropout;
use crate::philox::Key;
use crate::tensor::Tensor;
use std::fmt::Write;
use std::rc::Rc;

/// The part of a random address that one optimizer step shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Randomness {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u32,
    /// Global number of the micro-batch within the step.
    pub micro_batch: u32,
}

/// The path of a module, such as `encoder.layers.3`: part of the address of its random numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site(String);

impl Site {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The context of a forward pass.
#[derive(Debug)]
pub struct Ctx {
    device: Device,
    training: bool,
    randomness: Randomness,
    site: Site,
    tape: Option<Tape>,
    observer: Option<Rc<dyn Observer>>,
    /// A block runs again, for its gradients.
    replay: bool,
    recomputes_attention: bool,
}

impl Ctx {
    /// For evaluation: nothing is dropped, nothing recorded.
    pub fn inference(device: &Device) -> Self {
        Ctx {
            device: device.clone(),
            training: false,
            randomness: Randomness::default(),
            site: Site::default(),
            tape: None,
            observer: None,
            replay: false,
            recomputes_attention: false,
        }
    }

    /// For training: dropout as addressed by `randomness`, every op recorded.
    pub fn training(device: &Device, randomness: Randomness) -> Self {
        Ctx { training: true, randomness, tape: Some(Tape::new()), ..Ctx::inference(device) }
    }

    /// For gradients without dropout, e.g. to compare with another program.
    pub fn gradients(device: &Device) -> Self {
        Ctx { training: false, ..Ctx::training(device, Randomness::default()) }
    }

    /// This device, mode and address with another tape, for the inside of a block.
    pub fn with_tape(&self, tape: Option<Tape>) -> Ctx {
        Ctx {
            device: self.device.clone(),
            training: self.training,
            randomness: self.randomness,
            site: self.site.clone(),
            tape,
            observer: self.observer.clone(),
            replay: self.replay,
            recomputes_attention: self.recomputes_attention,
        }
    }

    /// This context for running again what has run before: observers see the same values twice.
    pub fn for_replay(self) -> Ctx {
        Ctx { replay: true, ..self }
    }

    /// Whether something runs again that has run before, for its gradients.
    pub fn is_replay(&self) -> bool {
        self.replay
    }

    /// This context with or without recomputation of attention, which then keeps its inputs alone.
    pub fn with_attention_recomputed(self, recomputes_attention: bool) -> Ctx {
        Ctx { recomputes_attention, ..self }
    }

    /// Whether attention is to keep its inputs alone and to be recomputed in the backward pass.
    pub fn recomputes_attention(&self) -> bool {
        self.recomputes_attention
    }

    /// Show the values that this forward pass names to an observer.
    pub fn set_observer(&mut self, observer: Rc<dyn Observer>) {
        self.observer = Some(observer);
    }

    pub(crate) fn observer(&self) -> Option<&Rc<dyn Observer>> {
        self.observer.as_ref()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether dropout is on.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Whether ops are recorded.
    pub fn is_recording(&self) -> bool {
        self.tape.is_some()
    }

    /// The tape, if ops are recorded.
    pub fn tape(&self) -> Option<&Tape> {
        self.tape.as_ref()
    }

    /// Take the tape out; ops are no longer recorded.
    pub fn take_tape(&mut self) -> Option<Tape> {
        self.tape.take()
    }

    /// The path of the place that is computed now.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The present random address.
    pub fn randomness(&self) -> Randomness {
        self.randomness
    }

    /// Run `inner` one name deeper in the path.
    pub fn at<T, E>(
        &mut self,
        name: &str,
        inner: impl FnOnce(&mut Ctx) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let length = self.site.0.len();
        if length > 0 {
            self.site.0.push('.');
        }
        self.site.0.push_str(name);
        let result = inner(self);
        self.site.0.truncate(length);
        result
    }

    /// As [`Ctx::at`] for a place in a list.
    pub fn at_index<T, E>(
        &mut self,
        index: usize,
        inner: impl FnOnce(&mut Ctx) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut name = String::with_capacity(8);
        // Writing to a string cannot fail.
        let _ = write!(name, "{index}");
        self.at(&name, inner)
    }

    /// The dropout of this place; `None` when nothing is dropped, as always outside training.
    ///
    /// # Errors
    /// A probability outside `[0, 1)`.
    pub fn dropout(&self, name: &str, probability: f32) -> Result<Option<Dropout>> {
        let path = format!("{}/{name}", self.site.0);
        let Randomness { seed, step, micro_batch } = self.randomness;
        let dropout = Dropout::new(probability, Key::new(seed, &path), step, micro_batch)?;
        Ok(dropout.filter(|_| self.training))
    }

    /// A leaf whose gradient goes to `sink`, such as a parameter; operators on it record on this context's tape.
    pub fn leaf(&self, value: Tensor, sink: Rc<dyn GradSink>) -> Var {
        let leaf = Var::leaf(value, sink);
        match &self.tape {
            Some(tape) => leaf.on(tape.downgrade()),
            None => leaf,
        }
    }

    /// Whether an op over these inputs has to be recorded.
    pub fn records(&self, inputs: &[&Var]) -> bool {
        self.tape.is_some() && inputs.iter().any(|input| input.needs_grad())
    }

    /// Wrap the result of an op. `backward` is made only when a gradient can be asked for.
    ///
    /// The order of `inputs` is the order in which the op's [`Backward`] names them.
    pub fn record(&self, value: Tensor, inputs: &[&Var], backward: impl FnOnce() -> Box<dyn Backward>) -> Var {
        if !self.records(inputs) {
            return Var::constant(value);
        }
        let mut vars = self.record_node(vec![value], inputs, backward());
        vars.pop().unwrap_or_else(|| unreachable!("one value in, one variable out"))
    }

    /// Record a node even where no input needs a gradient, because leaves inside it do: a list of blocks.
    pub fn record_node(&self, values: Vec<Tensor>, inputs: &[&Var], op: Box<dyn Backward>) -> Vec<Var> {
        match &self.tape {
            Some(tape) => tape.push(inputs.iter().map(|input| input.source().clone()).collect(), values, op),
            None => values.into_iter().map(Var::constant).collect(),
        }
    }

    /// As [`Ctx::record`] for an op with several results.
    pub fn record_many(
        &self,
        values: Vec<Tensor>,
        inputs: &[&Var],
        backward: impl FnOnce() -> Box<dyn Backward>,
    ) -> Vec<Var> {
        if !self.records(inputs) {
            return values.into_iter().map(Var::constant).collect();
        }
        self.record_node(values, inputs, backward())
    }
}

//! [`Var`]: a tensor with an optional position on a tape; constants, results of ops, and leaves such as parameters.

use super::Recall;
use super::tape::{Tape, WeakTape};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Dest;
use crate::shape::Shape;
use crate::tensor::{Storage, Tensor};
use std::fmt;
use std::rc::Rc;

/// A place on one tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VarId {
    pub(crate) tape: u64,
    pub(crate) index: u32,
}

/// Destination of the gradient of a leaf: a range of a gradient storage.
#[derive(Debug)]
pub struct SinkTarget {
    /// The gradient storage.
    pub storage: Storage,
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// The range holds a gradient already, which is added to.
    pub add: bool,
}

impl SinkTarget {
    /// As the destination of a kernel.
    pub fn dest(&self) -> Result<Dest<'_>> {
        Ok(Dest { view: self.storage.view_mut(self.start..self.start + self.len)?, add: self.add })
    }
}

/// The owner of a leaf's gradient, typically a parameter.
pub trait GradSink: fmt::Debug {
    /// Called once for each contribution. The first one after the gradient was taken finds `add == false`; from then
    /// on the range counts as written.
    fn target(&self) -> Result<SinkTarget>;
}

#[derive(Debug, Clone)]
pub(crate) enum Source {
    Constant,
    /// The result of a recorded op, or an input of the tape.
    Node(VarId),
    Leaf(Rc<dyn GradSink>),
}

impl Source {
    pub(crate) fn id(&self) -> Option<VarId> {
        match self {
            Source::Node(id) => Some(*id),
            Source::Constant | Source::Leaf(_) => None,
        }
    }
}

/// A variable without its value: enough to give its gradient to a backward pass, or to ask one for it. The memory of
/// the value can be freed before that, as a pipeline stage does with what it has sent.
#[derive(Debug, Clone)]
pub struct VarKey {
    pub(crate) source: Source,
    pub(crate) shape: Shape,
}

/// A tensor in a computation that may be differentiated.
#[derive(Debug, Clone)]
pub struct Var {
    value: Tensor,
    source: Source,
    origin: Option<Rc<dyn Recall>>,
    /// Tape on which operators record. Weak, because the tape itself keeps variables alive.
    tape: WeakTape,
}

impl Var {
    /// A value without gradient.
    pub fn constant(value: Tensor) -> Self {
        Var { value, source: Source::Constant, origin: None, tape: WeakTape::default() }
    }

    /// A value whose gradient goes to `sink`. Operators on it need another operand that is on a tape, or
    /// [`Ctx::leaf`](super::Ctx::leaf).
    pub fn leaf(value: Tensor, sink: Rc<dyn GradSink>) -> Self {
        Var { value, source: Source::Leaf(sink), origin: None, tape: WeakTape::default() }
    }

    pub(crate) fn node(value: Tensor, id: VarId, tape: WeakTape) -> Self {
        Var { value, source: Source::Node(id), origin: None, tape }
    }

    pub(crate) fn on(self, tape: WeakTape) -> Self {
        Var { tape, ..self }
    }

    /// The tape on which operators record, if it is alive.
    pub(crate) fn tape(&self) -> Option<Tape> {
        self.tape.upgrade()
    }

    /// The value.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The value alone, forgetting where it comes from.
    pub fn into_value(self) -> Tensor {
        self.value
    }

    /// This variable with an `origin` at which its value can be found again: ops keep that and not the value.
    pub fn recalled_from(self, origin: Rc<dyn Recall>) -> Self {
        Var { origin: Some(origin), ..self }
    }

    pub(crate) fn origin(&self) -> Option<&Rc<dyn Recall>> {
        self.origin.as_ref()
    }

    /// The value without gradient.
    pub fn detach(&self) -> Self {
        Var { source: Source::Constant, ..self.clone() }
    }

    /// Whether a gradient can flow back from here.
    pub fn needs_grad(&self) -> bool {
        !matches!(self.source, Source::Constant)
    }

    /// Whether the gradient goes to an owner outside of every tape, typically a parameter.
    pub fn is_leaf(&self) -> bool {
        matches!(self.source, Source::Leaf(_))
    }

    /// Shape of the value.
    pub fn shape(&self) -> Shape {
        self.value.shape()
    }

    /// Dtype of the value.
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    /// Device of the value.
    pub fn device(&self) -> &Device {
        self.value.device()
    }

    /// Exactly `N` dimensions, naming the operation that asks.
    pub fn dims<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        self.value.dims(op)
    }

    /// The variable without its value, for its gradient.
    pub fn key(&self) -> VarKey {
        VarKey { source: self.source.clone(), shape: self.shape() }
    }

    /// This variable in another shape; not an op, the gradient is seen in whichever shape it is asked for.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        Ok(Var { value: self.value.reshape(shape)?, ..self.clone() })
    }

    /// Value and source apart, so that an op that was handed the variable may write the value in place.
    pub(crate) fn into_parts(self) -> (Tensor, Source) {
        (self.value, self.source)
    }

    pub(crate) fn from_parts(value: Tensor, source: Source) -> Self {
        Var { value, source, origin: None, tape: WeakTape::default() }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn id(&self) -> Option<VarId> {
        self.source.id()
    }
}

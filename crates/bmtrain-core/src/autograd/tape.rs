//! The tape: ops in the order they ran, and the walk back.

use super::observe::Observer;
use super::var::{SinkTarget, Source, Var, VarId, VarKey};
use super::weight_gradients::WeightGradients;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{AddScaled, Cast, Dest};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

/// Gradients of an op's results, in their order; `None` where nothing flowed back.
pub type Grads = Vec<Option<Tensor>>;

/// Backward function of an op. One structure per op; what it saved are its named fields.
pub trait Backward: fmt::Debug {
    /// Turn the gradients of the results into gradients of the inputs, through [`BackwardCtx`].
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()>;

    /// Bytes this op keeps alive for its backward pass, for the memory planner.
    fn saved_bytes(&self) -> usize {
        0
    }

    /// Whether the op runs on the backward pass even where no gradient came to its results: other ranks wait for it.
    fn always_runs(&self) -> bool {
        false
    }
}

struct Node {
    op: Box<dyn Backward>,
    inputs: Vec<Source>,
    first: u32,
    count: u32,
}

struct Inner {
    id: u64,
    nodes: Vec<Node>,
    results: u32,
    /// Whom to show the gradients of results.
    watched: Watched,
}

type Watched = BTreeMap<u32, Vec<(Rc<dyn Observer>, usize)>>;

/// The record of a forward pass. Clones share the record.
#[derive(Clone)]
pub struct Tape {
    inner: Rc<RefCell<Inner>>,
}

/// A handle of a tape that does not keep it alive.
#[derive(Clone, Default)]
pub(crate) struct WeakTape(Weak<RefCell<Inner>>);

impl WeakTape {
    pub(crate) fn upgrade(&self) -> Option<Tape> {
        self.0.upgrade().map(|inner| Tape { inner })
    }
}

impl fmt::Debug for WeakTape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakTape")
    }
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.borrow();
        write!(f, "Tape({} ops)", inner.nodes.len())
    }
}

impl Default for Tape {
    fn default() -> Self {
        Tape::new()
    }
}

impl Tape {
    /// An empty tape.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Tape { inner: Rc::new(RefCell::new(Inner { id, nodes: Vec::new(), results: 0, watched: BTreeMap::new() })) }
    }

    pub(crate) fn downgrade(&self) -> WeakTape {
        WeakTape(Rc::downgrade(&self.inner))
    }

    /// A value that enters this tape from outside and whose gradient is asked for.
    pub fn input(&self, value: Tensor) -> Var {
        let mut inner = self.inner.borrow_mut();
        let id = VarId { tape: inner.id, index: inner.results };
        inner.results += 1;
        Var::node(value, id, self.downgrade())
    }

    /// Bytes kept alive by the recorded ops.
    pub fn saved_bytes(&self) -> usize {
        self.inner.borrow().nodes.iter().map(|node| node.op.saved_bytes()).sum()
    }

    /// Show the gradient of a result to an observer when it is complete, under this number.
    pub(crate) fn watch(&self, id: VarId, observer: Rc<dyn Observer>, number: usize) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        if id.tape != inner.id {
            return Err(Error::argument("observe", "a variable of another tape: bring it in with Tape::input"));
        }
        inner.watched.entry(id.index).or_default().push((observer, number));
        Ok(())
    }

    pub(crate) fn push(&self, inputs: Vec<Source>, values: Vec<Tensor>, op: Box<dyn Backward>) -> Vec<Var> {
        let mut inner = self.inner.borrow_mut();
        let (tape, first) = (inner.id, inner.results);
        inner.results += values.len() as u32;
        inner.nodes.push(Node { op, inputs, first, count: values.len() as u32 });
        (first..).zip(values).map(|(index, value)| Var::node(value, VarId { tape, index }, self.downgrade())).collect()
    }

    /// Walk back from `seeds`, results with their gradients, and return the gradients of `wanted`.
    ///
    /// The record is consumed as it is walked: what an op saved is free as soon as its gradients are made. Gradients of
    /// leaves go to their sinks. Seeds that are constants are ignored, as nothing is upstream of them here.
    pub fn backward(&self, device: &Device, seeds: Vec<(Var, Tensor)>, wanted: &[&Var]) -> Result<Grads> {
        // Values of seeds are free on the way, unless the caller keeps them.
        let seeds = seeds.into_iter().map(|(var, grad)| (var.key(), grad)).collect();
        let wanted: Vec<VarKey> = wanted.iter().map(|var| var.key()).collect();
        self.backward_keys(device, seeds, &wanted, None)
    }

    /// As [`Tape::backward`], for variables whose values may be freed already. With a queue the gradients of weights
    /// wait there, as far as their ops can put them off.
    pub fn backward_keys(
        &self,
        device: &Device,
        seeds: Vec<(VarKey, Tensor)>,
        wanted: &[VarKey],
        queue: Option<&WeightGradients>,
    ) -> Result<Grads> {
        let (id, results, watched) = {
            let mut inner = self.inner.borrow_mut();
            (inner.id, inner.results as usize, std::mem::take(&mut inner.watched))
        };
        let grads = (0..results).map(|_| None).collect();
        let mut cx = BackwardCtx { device, tape: id, grads, inputs: &[], queue };
        for (VarKey { source, shape }, grad) in seeds {
            if shape.elements() != grad.elements() {
                return Err(Error::shape("backward", "gradient of a result", shape, grad.shape()));
            }
            cx.add(&source, grad)?;
        }
        loop {
            // Taken out one by one, so that the tape is not borrowed while an op runs.
            let Some(node) = self.inner.borrow_mut().nodes.pop() else { break };
            let range = node.first as usize..(node.first + node.count) as usize;
            show(&watched, node.first..node.first + node.count, &cx.grads)?;
            let dy: Grads = cx.grads[range].iter_mut().map(Option::take).collect();
            if dy.iter().all(Option::is_none) && !node.op.always_runs() {
                continue;
            }
            let grads = std::mem::take(&mut cx.grads);
            let mut inner_cx = BackwardCtx { device, tape: id, grads, inputs: &node.inputs, queue };
            let result = node.op.backward(dy, &mut inner_cx);
            cx.grads = inner_cx.grads;
            result?;
        }
        // What is left are gradients of inputs.
        show(&watched, 0..results as u32, &cx.grads)?;
        wanted
            .iter()
            .map(|key| match key.source.id() {
                Some(var) if var.tape == id => Ok(cx.grads.get_mut(var.index as usize).and_then(Option::take)),
                Some(_) => Err(Error::argument("backward", "a variable of another tape was asked for")),
                None => Ok(None),
            })
            .collect()
    }
}

enum Place {
    Unwanted,
    Sink(SinkTarget),
    /// A tensor, and whether it holds a partial sum.
    Tensor(Tensor, bool),
}

/// Context of an op's backward pass: reports which gradients are wanted, and takes them.
pub struct BackwardCtx<'t> {
    device: &'t Device,
    tape: u64,
    grads: Grads,
    inputs: &'t [Source],
    /// Queue of deferred gradients of weights.
    pub(super) queue: Option<&'t WeightGradients>,
}

impl<'t> BackwardCtx<'t> {
    /// A context for leaves alone.
    pub(super) fn of_leaves(device: &'t Device, inputs: &'t [Source]) -> Self {
        // No tape has this number.
        BackwardCtx { device, tape: u64::MAX, grads: Vec::new(), inputs, queue: None }
    }

    pub(super) fn sources(&self) -> &'t [Source] {
        self.inputs
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Whether the gradient of input `index` is wanted. Inputs that were not given count as not wanted.
    pub fn needs(&self, index: usize) -> bool {
        !matches!(self.inputs.get(index), None | Some(Source::Constant))
    }

    /// Let a kernel write, or add, the gradient of input `index`, without a temporary where one is avoidable.
    ///
    /// `write` runs at most once: not at all when the gradient is not wanted. For a leaf the destination is the
    /// sink's storage, whatever its dtype; otherwise it is a tensor of `shape` and `dtype`, which may hold a partial
    /// sum.
    pub fn write(
        &mut self,
        index: usize,
        shape: Shape,
        dtype: DType,
        write: impl FnOnce(&Device, Dest<'_>) -> Result<()>,
    ) -> Result<()> {
        self.write_many([(index, shape, dtype)], |device, [dest]| dest.map_or(Ok(()), |dest| write(device, dest)))
    }

    /// As [`BackwardCtx::write`] for a kernel that makes several gradients in one pass: each request is an input with
    /// the shape and dtype of its gradient. Destinations that are not wanted are `None`; `write` does not run when none
    /// is.
    pub fn write_many<const N: usize>(
        &mut self,
        requests: [(usize, Shape, DType); N],
        write: impl FnOnce(&Device, [Option<Dest<'_>>; N]) -> Result<()>,
    ) -> Result<()> {
        let mut places: [Place; N] = std::array::from_fn(|_| Place::Unwanted);
        for (i, (index, shape, dtype)) in requests.iter().enumerate() {
            let earlier = &requests[..i];
            places[i] = self.place(*index, earlier.iter().map(|request| request.0), *shape, *dtype)?;
        }
        if places.iter().all(|place| matches!(place, Place::Unwanted)) {
            return Ok(());
        }
        let mut dests: [Option<Dest<'_>>; N] = std::array::from_fn(|_| None);
        for (dest, place) in dests.iter_mut().zip(&mut places) {
            *dest = match place {
                Place::Unwanted => None,
                Place::Sink(target) => Some(target.dest()?),
                Place::Tensor(tensor, add) => Some(Dest { view: tensor.view_mut()?, add: *add }),
            };
        }
        write(self.device, dests)?;
        for (place, (index, ..)) in places.into_iter().zip(requests) {
            if let Place::Tensor(tensor, _) = place {
                self.give(index, tensor)?;
            }
        }
        Ok(())
    }

    /// Destination of the gradient of input `index` by a kernel that also writes the gradients of the `earlier` ones.
    fn place(
        &mut self,
        index: usize,
        mut earlier: impl Iterator<Item = usize>,
        shape: Shape,
        dtype: DType,
    ) -> Result<Place> {
        let fresh = || Tensor::empty_in(self.device, shape, dtype, Segment::Activations);
        match self.inputs.get(index) {
            None | Some(Source::Constant) => Ok(Place::Unwanted),
            Some(Source::Leaf(sink)) => {
                let again = earlier
                    .any(|other| matches!(self.inputs.get(other), Some(Source::Leaf(leaf)) if Rc::ptr_eq(leaf, sink)));
                if again {
                    // One range cannot be written twice by one kernel.
                    return Ok(Place::Tensor(fresh()?, false));
                }
                let target = sink.target()?;
                if target.len != shape.elements() {
                    return Err(Error::shape("backward", "gradient of a leaf", target.len, shape));
                }
                Ok(Place::Sink(target))
            }
            Some(Source::Node(id)) => {
                let slot = self.slot(*id)?;
                // The partial sum may be seen in another shape of the same elements.
                match self.grads[slot].take_if(|partial| partial.may_be_overwritten() && partial.dtype() == dtype) {
                    Some(partial) => Ok(Place::Tensor(partial, true)),
                    None => Ok(Place::Tensor(fresh()?, false)),
                }
            }
        }
    }

    /// Whether the gradient of input `index` will be added to what is there, or goes to a leaf: then a kernel that adds
    /// is better than making the gradient in place of the result's.
    pub fn accumulates(&self, index: usize) -> bool {
        match self.inputs.get(index) {
            None | Some(Source::Constant) => false,
            Some(Source::Leaf(_)) => true,
            Some(Source::Node(id)) => self.grads.get(id.index as usize).is_some_and(Option::is_some),
        }
    }

    /// Deliver a finished gradient of input `index`.
    pub fn give(&mut self, index: usize, grad: Tensor) -> Result<()> {
        match self.inputs.get(index).cloned() {
            Some(source) => self.add(&source, grad),
            None => Ok(()),
        }
    }

    fn add(&mut self, source: &Source, grad: Tensor) -> Result<()> {
        match source {
            Source::Constant => Ok(()),
            Source::Leaf(sink) => {
                let target = sink.target()?;
                if target.len != grad.elements() {
                    return Err(Error::shape("backward", "gradient of a leaf", target.len, grad.shape()));
                }
                self.device.launch(Cast { x: grad.view()?, out: target.dest()? })
            }
            Source::Node(id) => {
                let slot = self.slot(*id)?;
                self.grads[slot] = Some(match self.grads[slot].take() {
                    None => grad,
                    Some(partial) if partial.may_be_overwritten() => add_into(self.device, partial, &grad)?,
                    Some(partial) => add_into(self.device, grad.owned()?, &partial)?,
                });
                Ok(())
            }
        }
    }

    fn slot(&self, id: VarId) -> Result<usize> {
        if id.tape == self.tape {
            Ok(id.index as usize)
        } else {
            Err(Error::argument("backward", "a variable of another tape was used: bring it in with Tape::input"))
        }
    }
}

/// Show the gradients of a range of results, as far as there are any, to those who watch them.
fn show(watched: &Watched, results: Range<u32>, grads: &[Option<Tensor>]) -> Result<()> {
    for (index, observers) in watched.range(results) {
        let Some(Some(grad)) = grads.get(*index as usize) else { continue };
        observers.iter().try_for_each(|(observer, number)| observer.gradient(*number, grad))?;
    }
    Ok(())
}

fn add_into(device: &Device, mut sum: Tensor, term: &Tensor) -> Result<Tensor> {
    device.launch(AddScaled { alpha: 1.0, a: term.view()?, beta: 1.0, b: None, out: sum.view_mut()? })?;
    Ok(sum)
}

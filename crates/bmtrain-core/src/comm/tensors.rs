//! Collectives on tensors, without a tape: each allocates its result, launches on a lane and returns.
//!
//! For values without a gradient, and for the ops with gradients (`ops::all_gather` and others),
//! which are made of these. All run on the compute lane but [`send`], which does not hold up what follows it, and those
//! that begin on another lane and are waited for later ([`Pending`]). Several at once: [`Communicator::launch_all`].

use super::{Collective, Communicator, Reduction};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::lane::{Lane, Mark};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The tensors of all ranks one after the other, in the order of the ranks.
///
/// Shapes: `[A, ..]`, alike on all W ranks → `[W A, ..]`; a scalar → `[W]`.
pub fn all_gather(ranks: &dyn Communicator, x: &Tensor) -> Result<Tensor> {
    let mut all = empty(x.device(), stacked("all_gather", x.shape(), ranks.size())?, x.dtype())?; // [W A, ..]
    launch(ranks, x.device(), Collective::AllGather { send: x.view()?, recv: all.view_mut()? })?;
    Ok(all)
}

/// Each rank's part of the reduction of the tensors of all ranks.
///
/// Shapes: `[W A, ..]` → `[A, ..]`.
///
/// # Errors
/// A leading axis that is not a multiple of the number of ranks; as for every collective; no memory left.
pub fn reduce_scatter(ranks: &dyn Communicator, x: &Tensor, by: Reduction) -> Result<Tensor> {
    let mut part = empty(x.device(), part_of("reduce_scatter", x.shape(), ranks.size())?, x.dtype())?; // [A, ..]
    launch(ranks, x.device(), Collective::ReduceScatter { send: x.view()?, recv: part.view_mut()?, by })?;
    Ok(part)
}

/// The reduction of the tensors of all ranks, on every rank. Memory that `x` owns alone, and that no
/// message is sent from, is used again.
pub fn all_reduce(ranks: &dyn Communicator, x: Tensor, by: Reduction) -> Result<Tensor> {
    let mut data = owned(x)?;
    let device = data.device().clone();
    launch(ranks, &device, Collective::AllReduce { data: data.view_mut()?, by })?;
    Ok(data)
}

/// The reduction of the tensors of all ranks, on rank `root` alone; nothing on the others.
pub fn reduce(ranks: &dyn Communicator, x: Tensor, by: Reduction, root: usize) -> Result<Option<Tensor>> {
    let mut data = owned(x)?;
    let device = data.device().clone();
    launch(ranks, &device, Collective::Reduce { data: data.view_mut()?, by, root })?;
    Ok((ranks.rank() == root).then_some(data))
}

/// Broadcast of rank `root`'s tensor; the others give a tensor of the same shape, whose values are not read.
pub fn broadcast(ranks: &dyn Communicator, x: Tensor, root: usize) -> Result<Tensor> {
    let mut data = owned(x)?;
    let device = data.device().clone();
    launch(ranks, &device, Collective::Broadcast { data: data.view_mut()?, root })?;
    Ok(data)
}

/// Part r of the result is the part that rank r had for this one.
///
/// Shapes: `[W A, ..]` → `[W A, ..]`.
///
/// # Errors
/// A leading axis that is not a multiple of the number of ranks; as for every collective; no memory left.
pub fn all_to_all(ranks: &dyn Communicator, x: &Tensor) -> Result<Tensor> {
    part_of("all_to_all", x.shape(), ranks.size())?;
    let mut parts = empty(x.device(), x.shape(), x.dtype())?; // [W A, ..]
    launch(ranks, x.device(), Collective::AllToAll { send: x.view()?, recv: parts.view_mut()? })?;
    Ok(parts)
}

/// A collective on another lane than the compute lane, which goes on beside it.
#[derive(Debug)]
pub struct Pending {
    result: Tensor,
    /// Source of the collective: held until its end, so that its memory is not given to others, who would wait for it.
    source: Option<Tensor>,
    end: Option<Mark>,
}

impl Pending {
    /// A result that is there when a mark is reached.
    pub(crate) fn of(result: Tensor, end: Option<Mark>) -> Self {
        Pending { result, source: None, end }
    }

    /// Let the compute lane wait for the result.
    pub fn wait(self) -> Result<Tensor> {
        let Pending { result, source, end } = self;
        if let Some(end) = end {
            result.device().backend().wait(Lane::Compute, end)?;
            std::iter::once(&result).chain(&source).for_each(|tensor| tensor.joined(end));
        }
        Ok(result)
    }
}

/// As [`all_reduce`], on the lane `on` after what the compute lane was given so far.
pub fn begin_all_reduce(ranks: &dyn Communicator, x: Tensor, by: Reduction, on: Lane) -> Result<Pending> {
    let mut data = owned(x)?;
    let device = data.device().clone();
    begin(&device, on)?;
    ranks.launch(device.backend(), Collective::AllReduce { data: data.view_mut_on(on)?, by }, on)?;
    Ok(Pending { result: data, source: None, end: Some(device.backend().mark(on)?) })
}

/// As [`all_gather`], on the lane `on` after what the compute lane was given so far.
pub fn begin_all_gather(ranks: &dyn Communicator, x: Tensor, on: Lane) -> Result<Pending> {
    let device = x.device().clone();
    let mut all = empty(&device, stacked("all_gather", x.shape(), ranks.size())?, x.dtype())?; // [W A, ..]
    begin(&device, on)?;
    let gather = Collective::AllGather { send: x.view_on(on)?, recv: all.view_mut_on(on)? };
    ranks.launch(device.backend(), gather, on)?;
    let end = device.backend().mark(on)?;
    x.reads_until(end);
    Ok(Pending { result: all, source: Some(x), end: Some(end) })
}

/// As [`reduce_scatter`], on the lane `on` after what the compute lane was given so far.
pub fn begin_reduce_scatter(ranks: &dyn Communicator, x: Tensor, by: Reduction, on: Lane) -> Result<Pending> {
    let device = x.device().clone();
    let mut part = empty(&device, part_of("reduce_scatter", x.shape(), ranks.size())?, x.dtype())?; // [A, ..]
    begin(&device, on)?;
    let scatter = Collective::ReduceScatter { send: x.view_on(on)?, recv: part.view_mut_on(on)?, by };
    ranks.launch(device.backend(), scatter, on)?;
    let end = device.backend().mark(on)?;
    x.reads_until(end);
    Ok(Pending { result: part, source: Some(x), end: Some(end) })
}

/// As [`begin_all_reduce`] for `len` elements of a tensor from element `start` on, while the compute lane goes on with
/// the others. Returns the end of the collective.
pub(crate) fn begin_all_reduce_part(
    ranks: &dyn Communicator,
    x: &mut Tensor,
    start: usize,
    len: usize,
    by: Reduction,
    on: Lane,
) -> Result<Mark> {
    let device = x.device().clone();
    begin(&device, on)?;
    let data = x.view_mut_on(on)?.part(start, len)?;
    ranks.launch(device.backend(), Collective::AllReduce { data, by }, on)?;
    device.backend().mark(on)
}

/// As [`begin_reduce_scatter`] to `len` elements of a tensor from element `start` on. `x` has to live until the end of
/// the collective, which is returned.
pub(crate) fn begin_reduce_scatter_part(
    ranks: &dyn Communicator,
    x: &Tensor,
    to: &mut Tensor,
    start: usize,
    len: usize,
    by: Reduction,
    on: Lane,
) -> Result<Mark> {
    let device = x.device().clone();
    begin(&device, on)?;
    let recv = to.view_mut_on(on)?.part(start, len)?;
    ranks.launch(device.backend(), Collective::ReduceScatter { send: x.view_on(on)?, recv, by }, on)?;
    device.backend().mark(on)
}

/// Let a lane wait for the compute lane.
fn begin(device: &Device, on: Lane) -> Result<()> {
    let backend = device.backend();
    backend.wait(on, backend.mark(Lane::Compute)?)
}

/// Send a tensor to another rank, which has to call [`recv`] with its shape and dtype. Goes on before it has arrived:
/// messages have a lane of their own, where the messages of one sender leave in their order. Ops that follow leave the
/// memory as it is; a view to write it waits until the message has left.
pub fn send(ranks: &dyn Communicator, x: &Tensor, to: usize) -> Result<()> {
    let backend = x.device().backend();
    backend.wait(Lane::Pipe, backend.mark(Lane::Compute)?)?;
    ranks.launch(backend, Collective::Send { data: x.view_on(Lane::Pipe)?, to }, Lane::Pipe)?;
    x.reads_until(backend.mark(Lane::Pipe)?);
    Ok(())
}

/// A tensor that another rank sends.
pub fn recv(
    ranks: &dyn Communicator,
    device: &Device,
    shape: impl Into<Shape>,
    dtype: DType,
    from: usize,
) -> Result<Tensor> {
    let mut data = empty(device, shape, dtype)?;
    launch(ranks, device, Collective::Recv { data: data.view_mut()?, from })?;
    Ok(data)
}

fn launch(ranks: &dyn Communicator, device: &Device, collective: Collective<'_>) -> Result<()> {
    ranks.launch(device.backend(), collective, Lane::Compute)
}

fn empty(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    Tensor::empty_in(device, shape, dtype, Segment::Activations)
}

/// The tensor itself when its memory may be written, else a copy.
fn owned(x: Tensor) -> Result<Tensor> {
    if x.may_be_overwritten() {
        return Ok(x);
    }
    let mut copy = empty(x.device(), x.shape(), x.dtype())?;
    x.device().backend().copy(x.view()?, copy.view_mut()?, Lane::Compute)?;
    Ok(copy)
}

/// `ranks` tensors of a shape, one after the other.
pub(crate) fn stacked(op: &'static str, shape: Shape, ranks: usize) -> Result<Shape> {
    let (first, inner) = shape.dims().split_first().map_or((1, &[][..]), |(first, inner)| (*first, inner));
    let long = || Error::shape(op, "leading axis", "a length that exists", format!("{ranks} times {first}"));
    let leading = first.checked_mul(ranks).ok_or_else(long)?;
    Shape::new(&[&[leading], inner].concat())
}

/// One of `ranks` parts of a shape.
pub(crate) fn part_of(op: &'static str, shape: Shape, ranks: usize) -> Result<Shape> {
    match shape.dims().split_first() {
        Some((first, inner)) if first.is_multiple_of(ranks) => Shape::new(&[&[first / ranks], inner].concat()),
        _ => Err(Error::shape(op, "leading axis", format!("a multiple of {ranks}, the number of ranks"), shape)),
    }
}

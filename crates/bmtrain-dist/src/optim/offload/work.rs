//! Work of the host on its part of an optimizer's state, on the thread of the copy lane.
//!
//! Called by [`HostOptimizer`](super::HostOptimizer), which lays out the work; [`HostTensor`] is read by snapshots.

use crate::optim::{KeptSpec, MASTER};
use crate::shard::host::HostShare;
use bmtrain_core::exact::Sum;
use bmtrain_core::offload::{HostBuffer, HostSettings, HostUpdate, Threads};
use bmtrain_core::{DType, Error, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host's state of one flat storage, laid out like the storage's optimizer state.
#[derive(Debug)]
pub(super) struct Moments {
    /// The tensors of [`Rule::sharded`](super::Rule::sharded). An f32 parameter has no master: it is updated where it
    /// is.
    pub(super) tensors: Vec<(KeptSpec, HostBuffer)>,
    /// The squares of what each parameter moved by in the last step, if that is recorded.
    pub(super) moved: Vec<Sum>,
}

impl Moments {
    /// The tensor of a name.
    pub(super) fn tensor(&mut self, name: &str) -> Option<&mut HostBuffer> {
        self.tensors.iter_mut().find(|(spec, _)| spec.name == name).map(|(_, tensor)| tensor)
    }
}

/// One of the host's tensors of one flat storage, moments or values, to be read from work on the copy lane.
#[derive(Debug, Clone)]
pub struct HostTensor(HostSource);

#[derive(Debug, Clone)]
enum HostSource {
    Moments { host: Arc<Mutex<Moments>>, name: &'static str },
    Values(HostShare),
}

impl HostTensor {
    pub(super) fn of_moments(host: Arc<Mutex<Moments>>, name: &'static str) -> Self {
        HostTensor(HostSource::Moments { host, name })
    }

    pub(crate) fn of_values(values: HostShare) -> Self {
        HostTensor(HostSource::Values(values))
    }

    /// Dtype of the elements.
    pub fn dtype(&self) -> DType {
        match &self.0 {
            HostSource::Moments { .. } => DType::F32,
            HostSource::Values(values) => values.dtype(),
        }
    }

    /// Append the bytes of these elements to a buffer.
    pub fn append_to(&self, buffer: &mut Vec<u8>, elements: Range<usize>) -> Result<()> {
        let (host, wanted) = match &self.0 {
            HostSource::Values(values) => return values.append_to(buffer, elements),
            HostSource::Moments { host, name } => (host, *name),
        };
        let mut host = lock(host);
        let tensor = host.tensor(wanted).map(|tensor| tensor.as_slice());
        let values = tensor.and_then(|tensor| tensor.get(elements.clone())).ok_or_else(|| outside(&elements))?;
        buffer.extend_from_slice(bytemuck::cast_slice(values));
        Ok(())
    }
}

/// A run of elements with one set of numbers, from the start of its stretch.
pub(super) struct Run {
    pub(super) elements: Range<usize>,
    /// Their positions in the host's buffers.
    pub(super) in_state: Range<usize>,
    pub(super) settings: HostSettings,
    /// The parameter they are, where this rank records what it moved by.
    pub(super) recorded: Option<usize>,
}

pub(super) fn lock(host: &Mutex<Moments>) -> MutexGuard<'_, Moments> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn run_all(
    runs: &[Run],
    host: &mut Moments,
    factor: f32,
    threads: &Threads,
    (values, dtype): (&mut [u8], DType),
    (grads, grad_dtype): (&[u8], DType),
) -> Result<()> {
    let bytes = |range: &Range<usize>, dtype: DType| range.start * dtype.size()..range.end * dtype.size();
    let Moments { tensors, moved } = host;
    for run in runs {
        let grad = grads.get(bytes(&run.elements, grad_dtype)).ok_or_else(|| outside(&run.elements))?;
        let (mut master, mut views) = (None, Vec::with_capacity(3));
        for (spec, tensor) in tensors.iter_mut() {
            let view = within(tensor.as_mut_slice(), &run.in_state)?;
            match spec.name {
                MASTER => master = Some(view),
                _ => views.push(view),
            }
        }
        let mut views = views.into_iter();
        let states = run.settings.states().map(|name| name.and_then(|_| views.next()));
        let update = HostUpdate {
            parameter: within(values, &bytes(&run.elements, dtype))?,
            dtype,
            master,
            states,
            grad,
            grad_dtype,
            factor,
            settings: run.settings,
        };
        update.run(threads, run.recorded.and_then(|index| moved.get_mut(index)))?;
    }
    Ok(())
}

pub(super) fn within<'s, T>(all: &'s mut [T], range: &Range<usize>) -> Result<&'s mut [T]> {
    all.get_mut(range.clone()).ok_or_else(|| outside(range))
}

pub(super) fn outside(range: &Range<usize>) -> Error {
    Error::argument("offload", format!("elements {range:?} are outside of what the lane was given"))
}

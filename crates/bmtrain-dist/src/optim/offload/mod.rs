//! Optimizers on the host: masters and moments in the host's memory, one update beside the device.
//!
//! Defines [`HostOptimizer`], of Adam [`AdamOffload`] and of the other formulas [`ElementwiseOffload`], which is given
//! to an [`OptimManager`](super::OptimManager) like [`Adam`](super::Adam) and has the same settings, formulas, bits and
//! form of state.
//!
//! A step is work of the host on the copy lane ([`Backend::on_host`](bmtrain_core::Backend::on_host)): for each flat
//! storage the gradients come to the host, the update runs on its threads, and the new parameters are copied back,
//! after what the compute lane has done. There is no wait for the whole: the next use of a storage's values waits for
//! that storage ([`Flat::updates_until`]), so that storages follow each other over the link, and loading and the next
//! forward pass begin while the later ones are still updated. On the CPU backend the host's memory is the device's, and
//! nothing is copied.
//!
//! An update does not begin before the backward pass is over, with clipping or without. With clipping the factor needs
//! the norm of all gradients. Without, a gradient that is not finite may still turn up in the last block, and a step
//! that is not finite changes nothing: undoing updates would take a second copy of parameters, masters and moments, or
//! would not preserve their bits.

mod work;

pub use work::HostTensor;

use super::delta::Delta;
use super::on_device::{Rule, StepNumbers};
use super::state::{DueUpdate, FlatState, States, stretches_of};
use super::{
    AdamOptions, ElementwiseOptions, Kept, KeptSpec, KeptTensor, MASTER, Optimizer, ParamGroup, ReadKept, StateStretch,
    StepArgs,
};
use crate::error::{Error, Result};
use crate::param::{AtRest, Flat, Param};
use bmtrain_core::exact::Sum;
use bmtrain_core::offload::{HostBuffer, HostSettings, Threads, widen};
use bmtrain_core::{DType, Lane, Segment, Storage};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use work::{Moments, Run, lock, run_all, within};

/// The host's part of a storage's state. It is up to date only after a wait for the copy lane.
type HostMoments = Arc<Mutex<Moments>>;

struct Update {
    index: usize,
    decay: f32,
    lr_factor: f64,
    /// The elements of the state whose change this rank measures, in order.
    recorded: Vec<Range<usize>>,
}

/// Neighbouring parameters that are updated in one go, and nothing between them that is not.
struct Stretch {
    in_values: Range<usize>,
    in_state: Range<usize>,
    runs: Vec<Run>,
}

/// A [`Rule`] whose step the host can take.
pub trait HostRule: Rule + Copy {
    /// The formulas and the numbers of a parameter's step, with the states of [`Rule::states`].
    fn host_settings(&self, numbers: StepNumbers) -> HostSettings;
}

impl HostRule for AdamOptions {
    fn host_settings(&self, numbers: StepNumbers) -> HostSettings {
        HostSettings::Adam(self.settings(numbers))
    }
}

impl HostRule for ElementwiseOptions {
    fn host_settings(&self, numbers: StepNumbers) -> HostSettings {
        HostSettings::Update(self.settings(numbers))
    }
}

/// An optimizer with its state in the host's memory; see the [module](self) for what moves when.
#[derive(Debug)]
pub struct HostOptimizer<R> {
    inner: States<R, HostMoments>,
    threads: Option<Arc<Threads>>,
}

/// Adam and AdamW with their state in the host's memory.
pub type AdamOffload = HostOptimizer<AdamOptions>;

/// The optimizers of [`Elementwise`](super::Elementwise) with their state in the host's memory.
pub type ElementwiseOffload = HostOptimizer<ElementwiseOptions>;

impl<R: HostRule> HostOptimizer<R> {
    /// An optimizer over these groups. It works on the threads that the backend lends, else on the lane's own.
    pub fn new(groups: Vec<ParamGroup>, options: R) -> Result<Self> {
        Ok(HostOptimizer { inner: States::new(groups, options)?, threads: None })
    }

    /// An optimizer with this number of threads of its own.
    pub fn with_threads(groups: Vec<ParamGroup>, options: R, threads: usize) -> Result<Self> {
        Ok(HostOptimizer { threads: Some(Arc::new(Threads::new(threads)?)), ..HostOptimizer::new(groups, options)? })
    }

    fn threads(&mut self, flat: &Flat) -> Result<Arc<Threads>> {
        if let Some(threads) = &self.threads {
            return Ok(Arc::clone(threads));
        }
        let threads = match flat.device().backend().host_threads() {
            Some(threads) => threads,
            None => Arc::new(Threads::new(1)?),
        };
        Ok(Arc::clone(self.threads.insert(threads)))
    }

    /// Give the updates of one storage to the copy lane.
    fn update(&mut self, flat: &Rc<Flat>, updates: &[Update], lr: f64, factor: &Arc<AtomicU32>) -> Result<()> {
        let Some(grads) = flat.reduced() else { return Ok(()) };
        let (threads, options) = (self.threads(flat)?, self.inner.options);
        let (state, _) = self.inner.of_flat(flat, |options| host_moments(flat, options))?;
        let stretches = stretches(state, updates, lr, &options);
        let (backend, dtypes) = (flat.device().backend(), (flat.dtype(), grads.dtype()));
        for Stretch { in_values, in_state, runs } in stretches {
            let (host, threads, factor) = (Arc::clone(&state.moments), Arc::clone(&threads), Arc::clone(factor));
            let work = move |grads: &[u8], values: &mut [u8]| {
                let factor = f32::from_bits(factor.load(Ordering::Relaxed));
                run_all(&runs, &mut lock(&host), factor, &threads, (values, dtypes.0), (grads, dtypes.1))
            };
            let grads = grads.view_on(in_state, Lane::Copy)?;
            match flat.values_at_rest() {
                AtRest::Device(values) => {
                    let values = values.view_mut_on(in_values, Lane::Copy)?;
                    backend.on_host(Some(grads), Some(values), Box::new(work), Lane::Copy)?;
                }
                AtRest::Host(values) => values.visit(Some(grads), in_values, work)?,
            }
        }
        flat.updates_until(backend.mark(Lane::Copy)?);
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        for state in &self.inner.states {
            state.flat.device().backend().sync(Lane::Copy)?;
        }
        Ok(())
    }
}

/// Initial states, and masters with the values as they are now.
fn host_moments(flat: &Flat, rule: &impl Rule) -> Result<HostMoments> {
    let (count, len) = (flat.layout().spans().len(), flat.state_len());
    let mut tensors = Vec::new();
    for (spec, value) in rule.sharded(flat.dtype()) {
        let mut tensor = HostBuffer::zeros(flat.device(), len)?;
        if value != 0.0 {
            tensor.as_mut_slice().fill(value);
        }
        tensors.push((spec, tensor));
    }
    let has_master = tensors.iter().any(|(spec, _)| spec.name == MASTER);
    let host = Arc::new(Mutex::new(Moments { tensors, moved: vec![Sum::ZERO; count] }));
    if has_master {
        follow_compute(flat)?;
        for part in (0..count).map(|index| flat.owned(index)).filter(|part| !part.of_param.is_empty()) {
            let (host, dtype, range) = (Arc::clone(&host), flat.dtype(), part.in_state);
            let fill = move |values: &[u8]| match lock(&host).tensor(MASTER) {
                Some(master) => widen(values, dtype, within(master.as_mut_slice(), &range)?),
                None => Ok(()),
            };
            match flat.values_at_rest() {
                AtRest::Device(values) => {
                    let (values, work) =
                        (values.view_on(part.in_values, Lane::Copy)?, move |v: &[u8], _: &mut [u8]| fill(v));
                    flat.device().backend().on_host(Some(values), None, Box::new(work), Lane::Copy)?;
                }
                AtRest::Host(values) => values.visit(None, part.in_values, move |_, values| fill(values))?,
            }
        }
    }
    Ok(host)
}

/// Let the copy lane wait for all work of the compute lane.
fn follow_compute(flat: &Flat) -> Result<()> {
    let backend = flat.device().backend();
    Ok(backend.wait(Lane::Copy, backend.mark(Lane::Compute)?)?)
}

/// Count the step of each parameter, and lay out what this rank updates.
fn stretches(state: &mut FlatState<HostMoments>, updates: &[Update], lr: f64, options: &impl HostRule) -> Vec<Stretch> {
    let mut all: Vec<(usize, Stretch)> = Vec::new();
    for Update { index, decay, lr_factor, recorded } in updates {
        let (index, decay, lr) = (*index, *decay, lr * lr_factor);
        let (step, part) = (state.count_step(index), state.flat.owned(index));
        let settings = options.host_settings(StepNumbers { lr, decay, step });
        if part.of_param.is_empty() {
            continue;
        }
        let stretch = match all.last_mut() {
            Some((last, stretch)) if *last + 1 == index => {
                *last = index;
                stretch.in_values.end = part.in_values.end;
                stretch.in_state.end = part.in_state.end;
                stretch
            }
            _ => {
                let (in_values, in_state) = (part.in_values, part.in_state.clone());
                all.push((index, Stretch { in_values, in_state, runs: Vec::new() }));
                let Some((_, stretch)) = all.last_mut() else { continue };
                stretch
            }
        };
        for (in_state, recorded) in cuts(part.in_state, recorded) {
            let first = stretch.in_state.start;
            let elements = in_state.start - first..in_state.end - first;
            stretch.runs.push(Run { elements, in_state, settings, recorded: recorded.then_some(index) });
        }
    }
    all.into_iter().map(|(_, stretch)| stretch).collect()
}

/// A range in pieces that are recorded or not: ranks that all hold the whole each record a part of it.
fn cuts(all: Range<usize>, recorded: &[Range<usize>]) -> Vec<(Range<usize>, bool)> {
    let (mut cuts, mut at) = (Vec::with_capacity(2 * recorded.len() + 1), all.start);
    for range in recorded {
        let range = range.start.clamp(at, all.end)..range.end.clamp(at, all.end);
        cuts.extend([(at..range.start, false), (range.clone(), true)]);
        at = range.end;
    }
    cuts.push((at..all.end, false));
    cuts.retain(|(range, _)| !range.is_empty());
    cuts
}

impl<R: HostRule> Optimizer for HostOptimizer<R> {
    fn groups(&self) -> &[ParamGroup] {
        &self.inner.groups
    }

    fn step(&mut self, args: StepArgs<'_>) -> Result<()> {
        // By storage, in the order in which the groups first name the storages.
        let mut updates: Vec<(Rc<Flat>, Vec<Update>)> = Vec::new();
        for DueUpdate { flat, index, decay, lr_factor, recorded, .. } in self.inner.begin_step()? {
            let recorded = recorded.into_iter().map(|part| part.in_state).collect();
            let update = Update { index, decay, lr_factor, recorded };
            match updates.iter_mut().find(|(known, _)| Rc::ptr_eq(known, &flat)) {
                Some((_, updates)) => updates.push(update),
                None => updates.push((flat, vec![update])),
            }
        }
        updates.iter_mut().for_each(|(_, updates)| updates.sort_by_key(|update| update.index));
        let Some((first, _)) = updates.first() else { return Ok(()) };
        follow_compute(first)?;
        let backend = args.factor.device().backend();
        // Until it is read, nothing is changed.
        let factor = Arc::new(AtomicU32::new(f32::NAN.to_bits()));
        let (theirs, recorded) = (Arc::clone(&factor), self.inner.options.records_delta());
        let hosts: Vec<_> = self.inner.states.iter().map(|state| Arc::clone(&state.moments)).collect();
        let read = move |bytes: &[u8], _: &mut [u8]| {
            if let Some(bits) = bytes.first_chunk() {
                theirs.store(u32::from_ne_bytes(*bits), Ordering::Relaxed);
            }
            for host in hosts.iter().filter(|_| recorded) {
                lock(host).moved.fill(Sum::ZERO);
            }
            Ok(())
        };
        backend.on_host(Some(args.factor.view_on(Lane::Copy)?), None, Box::new(read), Lane::Copy)?;
        let read = backend.mark(Lane::Copy)?;
        for (flat, updates) in &updates {
            self.update(flat, updates, args.lr, &factor)?;
        }
        // The next step writes another factor to the same place.
        Ok(backend.wait(Lane::Compute, read)?)
    }

    fn undo_count(&mut self) {
        self.inner.undo_count();
    }

    fn visit_stretches(&self, visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>) -> Result<()> {
        self.settle()?;
        for (state, params) in self.inner.updated()? {
            let flat = &state.flat;
            let mut gathered = flat.sharding().shards_state() || flat.tensor_ranks().size() > 1;
            for (param, _) in &params {
                gathered |= param.is_divided()?;
            }
            for (KeptSpec { name: tensor, .. }, buffer) in &lock(&state.moments).tensors {
                let part = buffer.as_slice();
                let whole = if gathered { Some(whole_on_device(flat, part)?) } else { None };
                for (param, index) in &params {
                    let (name, steps) = (param.name(), state.steps[*index]);
                    let range = flat.layout().spans()[*index].range();
                    if let Some(whole) = &whole {
                        stretches_of(whole, range, param, steps, tensor, visit)?;
                        continue;
                    }
                    let (values, tensor) = (part.get(range).unwrap_or_default(), *tensor);
                    visit(StateStretch { param: name, steps, tensor, len: values.len(), start: 0, values })?;
                }
            }
        }
        Ok(())
    }

    fn kept(&self, param: &Param) -> Result<Option<Kept>> {
        let Some((state, index)) = self.inner.of_param(param)? else { return Ok(None) };
        let tensor = |spec: KeptSpec| {
            let tensor = HostTensor::of_moments(Arc::clone(&state.moments), spec.name);
            (spec, KeptTensor::Host(tensor))
        };
        let tensors = self.kept_specs(param).into_iter().map(tensor).collect();
        Ok(Some(Kept { steps: state.steps[index], tensors }))
    }

    fn kept_specs(&self, param: &Param) -> Vec<KeptSpec> {
        self.inner.options.kept_specs(&param.spec().tensors(), param.spec().dtype)
    }

    fn load_kept(&mut self, param: &Param, steps: u64, read: &mut ReadKept<'_>) -> Result<()> {
        let (flat, index) = param.place()?;
        let ((state, _), part) = (self.inner.of_flat(flat, |options| host_moments(flat, options))?, flat.owned(index));
        flat.device().backend().sync(Lane::Copy)?;
        for (spec, buffer) in &mut lock(&state.moments).tensors {
            let (values, name) = (read(spec, part.of_param.clone())?, spec.name);
            let to = within(buffer.as_mut_slice(), &part.in_state)?;
            if values.len() != to.len() {
                let reason = format!("optimizer state {name}: expected {} values, got {}", to.len(), values.len());
                return Err(Error::parameter(param.name(), reason));
            }
            to.copy_from_slice(&values);
        }
        state.steps[index] = steps;
        Ok(())
    }

    fn deltas(&self) -> Result<Vec<Delta>> {
        if !self.inner.options.records_delta() {
            return Ok(Vec::new());
        }
        self.settle()?;
        self.inner.deltas(|host| Ok(Some(lock(host).moved.iter().flat_map(|sum| sum.words()).collect())))
    }
}

/// The whole state of a storage from this rank's part of it, gathered from all ranks in the device's memory.
fn whole_on_device(flat: &Flat, part: &[f32]) -> Result<Storage> {
    let device = flat.device();
    let cut = Storage::empty(device, part.len(), DType::F32, Segment::Workspace)?;
    device.backend().upload(bytemuck::cast_slice(part), cut.view_mut(0..part.len())?, Lane::Compute)?;
    flat.gather_state(&cut)
}

//! The manager of optimizers and schedules: backward with weights and scale, clipping by the true norm, one step for
//! all.

use super::clip::{Clip, Clipping};
use super::scale::Outcome;
use super::tensor_terms::sum_all_terms;
use super::{Delta, LossScaler, Optimizer, ParamGroup, ScalePolicy, Scheduler, StepArgs};
use crate::control::join;
use crate::error::{Error, Result};
use crate::param::{Flat, Param, Parameters};
use bmtrain_core::{Ctx, Device, Lane, Segment, Tensor, Var};
use std::cell::OnceCell;
use std::collections::HashSet;
use std::rc::Rc;

/// Report of one optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInfo {
    /// True norm of the gradients, before clipping: of all optimizers without a clip of their own, 0 if there is none.
    pub grad_norm: f32,
    /// The number of each optimizer with a clip of its own ([`OptimManager::clip_apart`]), and the true norm of its
    /// gradients, before clipping.
    pub apart_norms: Vec<(usize, f32)>,
    /// Rate of the first optimizer.
    pub lr: f64,
    /// Rates of all optimizers, in the order in which they were added.
    pub rates: Vec<f64>,
    /// A norm was not finite: no weight, moment or schedule was changed. All ranks agree.
    pub skipped: bool,
    /// Loss scale of this step.
    pub scale: f32,
    /// Too many consecutive steps were skipped.
    pub give_up: bool,
}

/// The norm of what is clipped together, and of each optimizer that is clipped apart, by its number.
type Norms = (f32, Vec<(usize, f32)>);

struct Entry {
    optimizer: Box<dyn Optimizer>,
    scheduler: Option<Scheduler>,
    lr: f64,
}

/// Several optimizers with their schedules, stepped together: each has its own parameters and learning rate; loss
/// scale, norm and clipping cover all gradients. A parameter belongs to at most one of them, see
/// [`OptimManager::untrained`]. Gradients in storages that no manager updates are dropped after the backward pass.
///
/// Gradients accumulate over calls of [`OptimManager::backward`]; [`OptimManager::step`] uses and frees them.
pub struct OptimManager {
    pub(super) device: Device,
    pub(super) scaler: LossScaler,
    entries: Vec<Entry>,
    /// Result of [`OptimManager::flats`], until an optimizer is added.
    flats: OnceCell<Rc<[Rc<Flat>]>>,
    /// The model's other storages, which no optimizer of this manager updates.
    others: OnceCell<Rc<[Rc<Flat>]>>,
    /// Clipping of the optimizers without a clip of their own, then of each that has one.
    clipping: Clipping,
    /// A parameter whose gradient was not finite in the last step.
    broken: Option<String>,
}

impl std::fmt::Debug for OptimManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OptimManager({} optimizers, {:?})", self.entries.len(), self.clipping)
    }
}

impl OptimManager {
    /// A manager without optimizers yet.
    pub fn new(device: &Device, clip: Clip) -> Result<Self> {
        Ok(OptimManager {
            device: device.clone(),
            scaler: LossScaler::new(ScalePolicy::NONE, LossScaler::MAX_SKIPS)?,
            entries: Vec::new(),
            flats: OnceCell::new(),
            others: OnceCell::new(),
            clipping: Clipping::new(device, clip)?,
            broken: None,
        })
    }

    /// The device of its parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Add an optimizer with a schedule. A parameter that another optimizer has is refused before the next backward
    /// pass.
    pub fn add_scheduled(&mut self, optimizer: Box<dyn Optimizer>, scheduler: Scheduler) {
        self.enter(Entry { optimizer, scheduler: Some(scheduler), lr: 0.0 });
    }

    /// Add an optimizer with a constant rate, as [`OptimManager::add_scheduled`].
    pub fn add(&mut self, optimizer: Box<dyn Optimizer>, lr: f64) {
        self.enter(Entry { optimizer, scheduler: None, lr });
    }

    /// Clip the gradients of one optimizer, by its number in the order in which they were added, by a norm of their
    /// own; the others are clipped together. Over all ranks that share the parameters, as the norm of all.
    ///
    /// # Errors
    /// No optimizer of this number, one that has a clip of its own already, a bound that is not above 0.
    pub fn clip_apart(&mut self, optimizer: usize, clip: Clip) -> Result<()> {
        if optimizer >= self.entries.len() {
            let reason = format!("optimizer {optimizer} of {}: add it first", self.entries.len());
            return Err(Error::setting("clip", reason));
        }
        self.clipping.add(&self.device, optimizer, clip)
    }

    fn enter(&mut self, entry: Entry) {
        // Another manager, which may walk back first, is not to drop these gradients. What has no place yet has none.
        let places = entry.optimizer.groups().iter().flat_map(|group| &group.params).map(Param::place);
        places.flatten().for_each(|(flat, _)| flat.claim());
        self.entries.push(entry);
        (self.flats, self.others) = (OnceCell::new(), OnceCell::new());
    }

    /// Loss scale of the backward pass; gradients are divided by it again before they are used.
    pub fn loss_scale(&self) -> f32 {
        self.scaler.scale()
    }

    /// The state of loss scaling.
    pub fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// Scale losses by this rule, or go on with a state that was saved.
    pub fn set_scaler(&mut self, scaler: LossScaler) {
        self.scaler = scaler;
    }

    /// The learning rate of the next step of the first optimizer.
    pub fn lr(&self) -> f64 {
        self.entries.first().map_or(0.0, Entry::rate)
    }

    /// The learning rates of the next step, one for each optimizer.
    pub fn rates(&self) -> impl Iterator<Item = f64> {
        self.entries.iter().map(Entry::rate)
    }

    /// Names of the parameters that are to be trained and that no optimizer has: they keep their first values.
    pub fn untrained(&self, parameters: &Parameters) -> Vec<String> {
        let trained: HashSet<&str> = self.params().map(Param::name).collect();
        let left = parameters.iter().filter(|param| param.is_trainable() && !trained.contains(param.name()));
        left.map(|param| param.name().to_owned()).collect()
    }

    /// Size of the last update of each parameter, of the optimizers that record it
    /// ([`AdamOptions::record_delta`](super::AdamOptions::record_delta)). All ranks have to ask. Waits for the device.
    pub fn deltas(&self) -> Result<Vec<Delta>> {
        let all = self.entries.iter().map(|entry| entry.optimizer.deltas()).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().flatten().collect())
    }

    /// As [`OptimManager::backward`] for the last micro-batch of a rank before the step. Where gradients are reduced
    /// once a step, the gradients of a block are reduced while the block before it computes. The result is the same to
    /// the last bit. All ranks have to call it for their last micro-batch, or none.
    pub fn backward_last(&self, loss: &Var, weight: f32, cx: &mut Ctx) -> Result<()> {
        self.flats()?.iter().for_each(|flat| flat.begin_last_micro_batch());
        self.backward(loss, weight, cx)
    }

    /// Walk back from a loss of one element, multiplied by `weight`: the micro-batch's share of the whole batch.
    pub fn backward(&self, loss: &Var, weight: f32, cx: &mut Ctx) -> Result<()> {
        let _backward = tracing::debug_span!("backward").entered();
        let Some(tape) = cx.take_tape() else {
            return Err(Error::setting("backward", "the forward pass was not recorded"));
        };
        if loss.value().elements() != 1 {
            return Err(Error::setting("backward", format!("a loss has one element, got shape {}", loss.shape())));
        }
        let seed = Tensor::full_in(
            &self.device,
            loss.shape(),
            loss.dtype(),
            weight * self.loss_scale(),
            Segment::Activations,
        )?;
        tape.backward(&self.device, vec![(loss.clone(), seed)], &[])?;
        self.finish_micro_batch()
    }

    /// After a backward pass: reduce the gradients of the micro-batch where that is done for each, and release what was
    /// gathered for it.
    pub(crate) fn finish_micro_batch(&self) -> Result<()> {
        // Blocks did this on the way; what is outside of them may get gradients until the end.
        for flat in self.flats()?.iter() {
            flat.finish_batch()?;
            flat.release_on_demand();
        }
        for flat in self.others()?.iter().filter(|flat| !flat.is_claimed()) {
            flat.clear_grads();
            flat.release_on_demand();
        }
        Ok(())
    }

    /// The storages of the same models that none of these optimizers updates.
    fn others(&self) -> Result<Rc<[Rc<Flat>]>> {
        if let Some(others) = self.others.get() {
            return Ok(Rc::clone(others));
        }
        let (flats, mut others) = (self.flats()?, Vec::new());
        let mut known: HashSet<*const Flat> = flats.iter().map(Rc::as_ptr).collect();
        for flat in flats.iter().flat_map(|flat| flat.siblings()) {
            if known.insert(Rc::as_ptr(&flat)) {
                others.push(flat);
            }
        }
        Ok(Rc::clone(self.others.get_or_init(|| others.into())))
    }

    pub(super) fn flats(&self) -> Result<Rc<[Rc<Flat>]>> {
        if let Some(flats) = self.flats.get() {
            return Ok(Rc::clone(flats));
        }
        let (mut flats, mut known, mut names) = (Vec::new(), HashSet::new(), HashSet::new());
        for param in self.params() {
            if !names.insert(param.name()) {
                let reason = "is in two optimizers of a manager, which would both update it; leave it to one";
                return Err(Error::parameter(param.name(), reason));
            }
            let flat = param.place()?.0;
            if known.insert(Rc::as_ptr(flat)) {
                flat.claim();
                flats.push(Rc::clone(flat));
            }
        }
        Ok(Rc::clone(self.flats.get_or_init(|| flats.into())))
    }

    /// The first parameter, in the order of the groups, whose gradient kept the last step from happening; on all
    /// ranks the same.
    pub fn broken_gradient(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(super) fn params(&self) -> impl Iterator<Item = &Param> {
        self.entries.iter().flat_map(|entry| entry.optimizer.groups()).flat_map(|group| &group.params)
    }

    /// Measure, clip, update every optimizer, move the schedules on, free the gradients. The one host wait is for the
    /// norm.
    pub fn step(&mut self) -> Result<StepInfo> {
        Ok(self.step_and_read(&[])?.0)
    }

    /// As [`OptimManager::step`], and bring f32 tensors to the host that the device computes meanwhile, such as losses,
    /// concatenated: all with the one wait that a step makes.
    pub fn step_and_read(&mut self, beside: &[&Tensor]) -> Result<(StepInfo, Vec<f32>)> {
        let _optimizer = tracing::debug_span!("optimizer").entered();
        let flats = self.flats()?;
        for flat in flats.iter() {
            flat.finish_step()?;
        }
        let backend = self.device.backend();
        // Sums on their way; and a snapshot may still be reading what is about to change.
        for lane in [Lane::Zero, Lane::Copy] {
            backend.wait(Lane::Compute, backend.mark(lane)?)?;
        }
        sum_all_terms(&self.device, &flats, &self.params().collect::<Vec<_>>())?;
        self.measure()?;
        let (lr, rates) = (self.lr(), self.rates().collect());
        for (number, entry) in self.entries.iter_mut().enumerate() {
            let lr = entry.rate();
            entry.optimizer.step(StepArgs { lr, factor: self.clipping.factor_of(number) })?;
        }
        let ((grad_norm, apart_norms), read) = self.read_norms(beside)?;
        let skipped = !grad_norm.is_finite() || apart_norms.iter().any(|(_, norm)| !norm.is_finite());
        self.broken = if skipped { self.find_broken()? } else { None };
        for entry in &mut self.entries {
            if skipped {
                entry.optimizer.undo_count();
            } else if let Some(scheduler) = &mut entry.scheduler {
                scheduler.step();
            }
        }
        self.zero_grad()?;
        for flat in flats.iter() {
            flat.publish()?;
        }
        let scale = self.scaler.scale();
        let give_up = matches!(self.scaler.update(skipped), Outcome::GiveUp { .. });
        Ok((StepInfo { grad_norm, apart_norms, lr, rates, skipped, scale, give_up }, read))
    }

    /// The norms and what is wanted with them: the step's one wait of the host.
    fn read_norms(&self, beside: &[&Tensor]) -> Result<(Norms, Vec<f32>)> {
        let norms: Vec<&Tensor> = self.clipping.norms().collect();
        let mut numbers = join(&self.device, &[&norms, beside].concat())?.to_vec::<f32>()?;
        let mut norms = numbers.drain(..norms.len());
        let norm = norms.next().unwrap_or(f32::NAN);
        let apart = self.clipping.apart().zip(norms.by_ref()).collect();
        drop(norms);
        Ok(((norm, apart), numbers))
    }

    /// The true norms and the factors of all gradients, on the device.
    fn measure(&mut self) -> Result<()> {
        let flats = self.flats()?;
        let groups: Vec<&[ParamGroup]> = self.entries.iter().map(|entry| entry.optimizer.groups()).collect();
        self.clipping.measure(&self.device, &flats, &groups, self.scaler.scale())
    }

    /// Forget all gradients.
    pub fn zero_grad(&self) -> Result<()> {
        self.flats()?.iter().for_each(|flat| flat.clear_grads());
        Ok(())
    }

    /// Optimizers and schedules, to look at.
    pub fn parts(&self) -> impl Iterator<Item = (&(dyn Optimizer + 'static), Option<&Scheduler>)> {
        self.entries.iter().map(|entry| (&*entry.optimizer, entry.scheduler.as_ref()))
    }

    /// Optimizers and schedules, to continue from a checkpoint.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = (&mut (dyn Optimizer + 'static), Option<&mut Scheduler>)> {
        self.entries.iter_mut().map(|entry| (&mut *entry.optimizer, entry.scheduler.as_mut()))
    }
}

impl Entry {
    fn rate(&self) -> f64 {
        self.scheduler.as_ref().map_or(self.lr, Scheduler::current_lr)
    }
}

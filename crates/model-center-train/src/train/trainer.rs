//! [`Trainer`]: a model with its optimizer, data and ranks, ready to step.
//!
//! The training step is [`Trainer::step`](Trainer) in `finetune.rs`, what ranks agree on after it in `agree.rs`.

use super::agree::{Decision, StepMetrics, StopVote};
use super::batches::Batches;
use super::divergence::DivergenceGuard;
use super::evaluate::EvalContext;
use super::objective::{self, Objective, Opening};
use super::preconditions::FinetuneOptions;
use super::prefetch::StepPart;
use super::run_ranks::RunRanks;
use super::setup::Setup;
use super::step_runner::pipeline;
use crate::train::stop::StopConditions;
use crate::{Error, Result};
use bmtrain_core::{DType, Device, Tensor, Var};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{LossScaler, Optimizer, ScalePolicy, Schedule, Scheduler, StepInfo, WeightAverage};
use bmtrain_dist::pipeline::Pipeline;
use model_center_base::batch::Position;
use model_center_data::{LoaderOptions, Order};
use model_center_models::adapter::AdapterPlan;
use model_center_models::{OpenedModel, TextModel};
use model_center_recipe::run::{Phases, StopReason};
use model_center_recipe::{BatchRamp, LastBatch, Resolved, TrainSettings, param_groups};
use std::time::{Duration, Instant, SystemTime};

/// A model in training.
pub(crate) struct Trainer {
    pub(crate) device: Device,
    pub(crate) ranks: RunRanks,
    pub(crate) model: Box<dyn TextModel>,
    /// What is trained of the model, if not all of it.
    pub(crate) adapter: Option<AdapterPlan>,
    pub(crate) optim: OptimManager,
    /// Where the model is on several pipeline stages.
    pub(super) pipeline: Option<Pipeline>,
    pub(super) batches: Batches,
    /// What the model is trained for.
    pub(super) objective: Box<dyn Objective>,
    /// Seed of dropout.
    pub(super) seed: u64,
    pub(super) schedule: StepSchedule,
    pub(super) progress: TrainingProgress,
    pub(super) clock: TrainingClock,
    pub(super) stop: StopConditions,
    /// What this process is to do at most; another one goes on.
    pub(super) share: ProcessShare,
    pub(super) guard: Option<DivergenceGuard>,
    /// Every this number of steps, parameters and hidden states are looked at; `None`: never.
    pub(super) inspect_every: Option<u64>,
}

/// How samples are divided into steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepSchedule {
    /// The most micro-batches of one optimizer step, of all ranks.
    pub(crate) micro_batches: u64,
    pub(crate) steps_per_epoch: u64,
    /// Samples of a micro-batch, and how batches grow; `None` where all are of one size.
    ramp: Option<(u64, BatchRamp)>,
}

impl StepSchedule {
    /// Of a step whose batches a program gives: each step is an epoch of its own.
    pub(super) fn given(micro_batches: u64) -> Self {
        StepSchedule { micro_batches, steps_per_epoch: 1, ramp: None }
    }
}

/// How far training is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TrainingProgress {
    pub(crate) step: u64,
    pub(crate) samples: u64,
    pub(crate) tokens: u64,
}

/// What a process of a run does at most before it stops as if it was asked to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ProcessShare {
    /// New steps.
    pub(super) steps: Option<u64>,
    /// Time since its first step began.
    pub(super) time: Option<Duration>,
    /// No step after this time.
    until: Option<SystemTime>,
    /// The step that it began at.
    begun_at: u64,
}

impl ProcessShare {
    fn is_done(&self, step: u64, elapsed: Duration) -> bool {
        let by_steps = self.steps.is_some_and(|most| step.saturating_sub(self.begun_at) >= most);
        let by_clock = self.until.is_some_and(|until| SystemTime::now() >= until);
        by_steps || by_clock || self.time.is_some_and(|most| elapsed >= most)
    }
}

/// The time that training took.
#[derive(Debug, Default)]
pub(super) struct TrainingClock {
    /// Time of the steps alone.
    in_steps: Duration,
    /// Time of training up to the checkpoint that was resumed.
    before_resume: Duration,
    /// When the first step of this process began.
    first_step: Option<Instant>,
}

/// The outcome of one optimizer step.
pub(crate) struct StepResult {
    pub(crate) info: StepInfo,
    /// Of all ranks.
    pub(crate) metrics: StepMetrics,
    /// What the ranks agreed to do next.
    pub(crate) decision: Decision,
    pub(crate) seconds: f64,
    /// Of these, until the step knew its samples.
    pub(crate) data_seconds: f64,
    /// The same seconds by phase.
    pub(crate) phases: Phases,
    /// Tables of parameters and hidden states, of a step that was looked at.
    pub(crate) inspection: Option<String>,
}

impl Trainer {
    pub(crate) fn new(
        setup: &Setup,
        resolved: &Resolved,
        stop: StopConditions,
        OpenedModel { model, adapter, .. }: OpenedModel,
        opening: Opening<'_>,
        ranks: RunRanks,
    ) -> Result<Self> {
        let (train, device) = (&resolved.train, opening.device);
        let micro_batches = train.batch_size / resolved.micro_batch_on(ranks.data_size());
        let pipeline = pipeline(model.as_ref(), device, micro_batches / ranks.data_size())?;
        Ok(Trainer {
            device: device.clone(),
            pipeline,
            optim: optimizer(&resolved.train, resolved.model.dtype, setup.schedule, device, model.as_ref())?,
            model,
            batches: batches(setup, resolved, &ranks)?,
            objective: objective::open(setup, resolved, opening, adapter.as_ref())?,
            adapter,
            seed: train.seed,
            schedule: StepSchedule {
                micro_batches: micro_batches as u64,
                steps_per_epoch: setup.steps_per_epoch,
                ramp: train.batch_ramp.map(|ramp| (resolved.micro_batch_on(ranks.data_size()) as u64, ramp)),
            },
            progress: TrainingProgress::default(),
            clock: TrainingClock::default(),
            stop,
            share: ProcessShare::default(),
            guard: train.divergence.map(DivergenceGuard::new),
            inspect_every: train.inspect_every,
            ranks,
        })
    }

    /// Continue from a checkpoint whose parameters and optimizer state are loaded.
    pub(super) fn resume(&mut self, progress: TrainingProgress, elapsed: Duration) {
        self.progress = progress;
        self.share.begun_at = progress.step;
        self.clock = TrainingClock { in_steps: elapsed, before_resume: elapsed, first_step: None };
    }

    /// Micro-batches that each step has at most, where the rest would be like them.
    pub(crate) fn limit_micro_batches(&mut self, most: u64) {
        self.schedule.micro_batches = self.schedule.micro_batches.min(most);
    }

    pub(crate) fn schedule(&self) -> StepSchedule {
        self.schedule
    }

    pub(crate) fn progress(&self) -> TrainingProgress {
        self.progress
    }

    pub(crate) fn stop_conditions(&self) -> &StopConditions {
        &self.stop
    }

    /// The model as it is evaluated between steps.
    pub(crate) fn evaluated<'a>(&'a self, is_stopped: &'a dyn Fn() -> bool) -> EvalContext<'a> {
        let Trainer { model, device, ranks, pipeline, objective, .. } = self;
        EvalContext { model: &**model, device, pipeline: pipeline.as_ref(), ranks, objective: &**objective, is_stopped }
    }

    /// Do something with the averages of the weights in their place, if the run keeps any. On all ranks.
    pub(super) fn with_averages<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let used = self.optim.use_averages()?;
        let done = work();
        used.restore()?;
        done
    }

    /// Steps done.
    pub(crate) fn steps(&self) -> u64 {
        self.progress.step
    }

    /// Epochs done, with fractions.
    pub(super) fn epoch(&self) -> f64 {
        self.progress.step as f64 / self.schedule.steps_per_epoch as f64
    }

    /// Time of the training steps.
    pub(super) fn train_time(&self) -> Duration {
        self.clock.in_steps
    }

    /// Time since the first step began, which is what `train.minutes` limits: without loading and the first evaluation,
    /// with evaluations between steps. Time before a resume counts up to the checkpoint.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.before_resume + self.clock.first_step.map_or(Duration::ZERO, |started| started.elapsed())
    }

    /// Stop as if asked to after the new steps or minutes of the options, or at their time.
    pub(super) fn limit_process(&mut self, options: &FinetuneOptions) {
        let minutes = options.exit_after_minutes;
        let time = minutes.and_then(|minutes| Duration::try_from_secs_f64(60.0 * minutes).ok());
        let (steps, until) = (options.exit_after_steps, options.exit_at);
        self.share = ProcessShare { steps, time, until, begun_at: self.progress.step };
    }

    /// This rank's vote on stopping after `step` steps.
    pub(super) fn vote(&self, step: u64, checkpoint_due: bool) -> StopVote {
        let own = self.clock.first_step.map_or(Duration::ZERO, |started| started.elapsed());
        let is_done = self.share.is_done(step, own).then_some(StopReason::Request);
        StopVote { reason: self.stop.check(step, self.elapsed()).or(is_done), checkpoint_due }
    }

    /// Micro-batches of the present step, of all ranks.
    pub(super) fn micro_batches(&self) -> u64 {
        let StepSchedule { micro_batches, ramp, .. } = self.schedule;
        ramp.map_or(micro_batches, |(size, ramp)| (ramp.at(self.progress.step).1 / size).min(micro_batches))
    }

    /// The data position of a micro-batch of the present step.
    pub(super) fn position(&self, micro_batch: u64) -> Position {
        let StepSchedule { micro_batches, steps_per_epoch, ramp } = self.schedule;
        let step = self.progress.step;
        if let Some((size, ramp)) = ramp {
            return Position { epoch: 0, index: ramp.at(step).0 / size + micro_batch };
        }
        Position { epoch: step / steps_per_epoch, index: step % steps_per_epoch * micro_batches + micro_batch }
    }

    /// Count a step that began at `start`.
    ///
    /// # Errors
    /// Too many steps in succession whose gradients were not finite.
    pub(super) fn advance(
        &mut self,
        start: Instant,
        info: StepInfo,
        (metrics, decision): (StepMetrics, Decision),
    ) -> Result<StepResult> {
        self.progress.step += 1;
        self.progress.samples += metrics.samples;
        self.progress.tokens += metrics.tokens;
        if info.give_up {
            return Err(self.diverged(metrics.loss));
        }
        // A step that was skipped for its scale does not count, nor does one without a loss.
        if let (Some(guard), true) = (&mut self.guard, !info.skipped && metrics.has_targets) {
            guard.observe(self.progress.step, metrics.loss)?;
        }
        let elapsed = start.elapsed();
        self.clock.in_steps += elapsed;
        let (seconds, phases) = (elapsed.as_secs_f64(), Phases::default());
        Ok(StepResult { info, metrics, decision, seconds, data_seconds: 0.0, phases, inspection: None })
    }

    pub(super) fn start_step(&mut self) -> Instant {
        let now = Instant::now();
        self.clock.first_step.get_or_insert(now);
        now
    }

    fn diverged(&self, loss: f32) -> Error {
        let first = self.optim.broken_gradient().map(|name| format!(", gradient of {name}")).unwrap_or_default();
        Error::diverged(
            format!("step {}{first}", self.progress.step),
            format!("too many steps in a row had gradients that are not finite, loss {loss}"),
            "lower train.lr, or look for bad samples; the weights were not changed by these steps",
        )
    }
}

/// The micro-batches of a run on these ranks.
pub(super) fn batches(setup: &Setup, resolved: &Resolved, ranks: &RunRanks) -> Result<Batches> {
    let data = &resolved.data;
    let micro_batch = resolved.micro_batch_on(ranks.data_size());
    let options = LoaderOptions {
        order: Order::training(data.shuffle, data.length_grouped),
        packing: data.packing,
        drop_last: data.last_batch == LastBatch::Drop,
        // Every rank computes all its micro-batches of the last step too, as collectives and pipelines need.
        round_epoch_to: resolved.train.batch_size / micro_batch.max(1),
        ..LoaderOptions::training(micro_batch, resolved.train.seed)
    };
    let threads = resolved.data.source.pretraining().map_or(0, |settings| settings.loading_threads);
    let part = StepPart { rank: ranks.data_rank() as u64, ranks: ranks.data_size() as u64 };
    Ok(Batches::training(&setup.train, options, part, threads)?.weighing(setup.class_weights.clone()))
}

/// Whether the loss is scaled, so that its scale is worth showing.
pub(super) fn scales_loss(resolved: &Resolved) -> bool {
    resolved.train.loss_scale.policy(resolved.model.dtype) != ScalePolicy::NONE
}

/// The recipe's optimizer over the model's parameters, with this schedule and the recipe's clipping and loss scale.
pub(super) fn optimizer(
    train: &TrainSettings,
    dtype: DType,
    schedule: Schedule,
    device: &Device,
    model: &dyn TextModel,
) -> Result<OptimManager> {
    let groups = param_groups(train, model.parameters())?;
    let mut optim = OptimManager::new(device, train.clip)?;
    optim.set_scaler(LossScaler::new(train.loss_scale.policy(dtype), LossScaler::MAX_SKIPS)?);
    for optimizer in train.optimizer.make(groups, train.offload)? {
        let optimizer: Box<dyn Optimizer> = match train.average {
            Some(form) => Box::new(WeightAverage::new(optimizer, form)?),
            None => optimizer,
        };
        optim.add_scheduled(optimizer, Scheduler::new(schedule));
    }
    Ok(optim)
}

/// The losses of a step's micro-batches on this rank, with what is counted of their samples.
#[derive(Default)]
pub(super) struct LocalMetrics {
    pub(super) losses: Vec<Var>,
    pub(super) sample_hashes: Vec<[f32; 2]>,
    /// The numbers of each micro-batch beside its loss, of an objective that has such.
    pub(super) numbers: Vec<Vec<Tensor>>,
    /// Samples, tokens, and tokens with padding.
    pub(super) counts: [f32; 3],
    /// Where the time went so far.
    pub(super) phases: Phases,
}

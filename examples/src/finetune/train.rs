//! The training step, [`Trainer::step`]: batch, forward, backward, optimizer; and what it is made of.
//!
//! [`run`] puts device, model and files together; the loop around the step is in `course`.

use super::course::Run;
use super::setup::{Job, open_options, sharding};
use super::written::Written;
use super::{Options, evaluate, ranks, room};
use crate::device;
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::Meeting;
use bmtrain_core::cpu::gemm::measure_peak;
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::launch::{Launch, threads_of_rank, threads_per_rank};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, LossScaler, Optimizer, ParamGroup, ScalePolicy, Scheduler, StepInfo,
};
use bmtrain_dist::{ControlGroup, OptimManager};
use model_center::data::{Loader, LoaderOptions, Order, Position};
use model_center::metrics::Metric;
use model_center::model::{Registry, TextModel};
use model_center::recipe::{EvalMetric, Resolved, Threads};
use model_center::run::{ExitStatus, Progress, ProgressMode, STOP_FILE, StopConditions, StopFlag, StopReason};
use model_center::{Error, Result};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Windows of this many batches are sorted by length when batches are grouped by length.
const LENGTH_WINDOW: usize = 50;

/// Everything that is decided before the first rank starts.
#[derive(Debug)]
pub struct Plan {
    /// Data and facts about the model.
    pub job: Job,
    /// The settings.
    pub resolved: Resolved,
    /// The command line.
    pub options: Options,
    /// The families of models.
    pub registry: Registry<'static>,
    /// How the ranks were started.
    pub launch: Launch,
    /// This process as one of several on this host.
    pub meeting: Option<Meeting>,
    /// Settings that are not as in the run that the output directory holds.
    pub changes: Vec<String>,
    /// Set when somebody asks for an end.
    pub stop: StopFlag,
}

/// Run a prepared job to its end: on this thread, on one thread for each of `--ranks`, or as one of the processes of a
/// launcher.
///
/// # Errors
/// A failing device or disk; numbers that are not finite; a lost rank.
pub fn run(plan: Arc<Plan>) -> Result<ExitStatus> {
    let of_rank = {
        let plan = Arc::clone(&plan);
        move |ranks| run_rank(&plan, ranks)
    };
    ranks::run(&plan.launch, plan.options.comm, None, plan.meeting.clone(), of_rank)
}

/// One rank's run. The first rank writes the files and speaks.
fn run_rank(plan: &Plan, ranks: Arc<dyn Communicator>) -> Result<ExitStatus> {
    let begin = Instant::now();
    let Plan { job, resolved, options, registry, launch, .. } = plan;
    let threads = match resolved.device.threads {
        Threads::Count(count) => threads_per_rank(count, launch.local_size),
        Threads::Auto => threads_of_rank(&ControlGroup::new(Arc::clone(&ranks), &Device::cpu(1)?))?,
    };
    let is_first = ranks.rank() == 0;
    let local_rank = if launch.ranks_in_process() > 1 { ranks.rank() } else { launch.local_rank };
    let opened = device::open(resolved.device.name, (local_rank, launch.local_size), threads, is_first)?;
    let on_processors = opened.cuda.is_none();
    if on_processors {
        // Before the ranks meet in the next line: after it, one that is ahead takes memory for its weights already.
        room::check(job, resolved, launch)?;
    }
    let ranks = ranks::exchange(launch, options.comm, &opened, ranks)?;
    let backend = opened.backend;
    let profiled = (options.profile && is_first).then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
    let device = Device::new(match &profiled {
        Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
        None => backend,
    });
    let sharding = sharding(resolved, Arc::clone(&ranks));
    let team = ControlGroup::new(ranks, &device);
    let opened = registry.open(&job.directory, &open_options(resolved, job.train.labels(), &device, sharding))?;
    let progress_mode = ProgressMode::choose(
        resolved.log.quiet || !is_first,
        std::io::stderr().is_terminal(),
        std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
    );
    let stop = StopConditions::new(&resolved.train, job.steps_per_epoch, plan.stop.clone());
    let stop = if is_first { stop.or_file(resolved.output.dir.join(STOP_FILE)) } else { stop };
    let mut trainer = Trainer::new(job, resolved, stop, &device, opened.model, progress_mode, team)?;
    // Only now, when nothing can be wrong with the input any more, the output directory is touched.
    let mut run = Run::create(plan, begin, &trainer)?;
    // What a CUDA device can do is not measured here, and no share of it is shown.
    trainer.peak = if on_processors { measure_peak(threads) * launch.world as f64 } else { 0.0 };
    let ended = match run.start(plan, &mut trainer, threads) {
        Ok(()) => run.follow(plan, &mut trainer, profiled.as_deref()),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        run.fail(&trainer, resolved, error);
    }
    trainer.progress.finish();
    ended
}

/// The model with its optimizer and data.
pub(crate) struct Trainer {
    pub(super) device: Device,
    pub(crate) model: Box<dyn TextModel>,
    /// The directory it came from, whose tokenizer is saved with it.
    pub(super) directory: PathBuf,
    pub(super) optim: OptimManager,
    pub(super) loader: Loader,
    pub(crate) eval: Option<Loader>,
    pub(crate) metrics: Vec<Metric>,
    /// How answers are written, where the task knows answers.
    pub(crate) written: Option<Written>,
    pub(super) stop: StopConditions,
    pub(super) progress: Progress,
    /// Micro-batches of one optimizer step.
    pub(crate) micro_batches: u64,
    pub(super) steps_per_epoch: u64,
    pub(super) label_smoothing: f32,
    /// What each class weighs in the loss; `None`: all samples weigh the same.
    pub(super) class_weights: Option<Vec<f32>>,
    /// How much the words of prompts count beside their answers.
    pub(super) prompt_loss: f32,
    /// Whether the loss scale is worth showing.
    pub(super) scales_loss: bool,
    pub(super) seed: u64,
    /// Floating-point operations per second this machine can do.
    pub(super) peak: f64,
    pub(super) flops_per_token: f64,
    pub(super) step: u64,
    pub(super) samples: u64,
    pub(super) tokens: u64,
    pub(super) train_time: Duration,
    pub(crate) team: ControlGroup,
    /// Whether this rank's clock says that the state should be saved, and what all go by: the first rank's.
    pub(super) time_to_save: bool,
    pub(super) agreed_to_save: bool,
    /// Time of training before this process took it up.
    earlier: Duration,
    /// When its first step began.
    started: Option<Instant>,
    /// Why the run ends now: as the first rank sees it, for clocks differ, or because any rank is asked for it.
    agreed: Option<StopReason>,
}

/// One optimizer step, for the log.
pub(crate) struct StepResult {
    pub(super) loss: f32,
    pub(super) info: StepInfo,
    pub(super) tokens: u64,
    pub(super) padded_tokens: u64,
    /// Stands for the numbers of the samples, in their order.
    pub(super) batch: u64,
    pub(super) seconds: f64,
}

impl Trainer {
    pub(crate) fn new(
        job: &Job,
        resolved: &Resolved,
        stop: StopConditions,
        device: &Device,
        model: Box<dyn TextModel>,
        mode: ProgressMode,
        team: ControlGroup,
    ) -> Result<Self> {
        let train = &resolved.train;
        let order = match resolved.data.length_grouped {
            true => Order::LengthGrouped { window: LENGTH_WINDOW },
            false => Order::Shuffled,
        };
        let micro_batch = resolved.micro_batch_on(team.size());
        let loader = LoaderOptions { order, ..LoaderOptions::training(micro_batch, train.seed) };
        let loader = Loader::new(Arc::clone(&job.train), loader)?.weighing(job.class_weights.clone());
        let micro_batches = (train.batch_size / micro_batch) as u64;
        let steps_per_epoch = job.steps_per_epoch;
        let total = stop.total_steps();
        let eval = job.eval.as_ref().map(|data| evaluate::loader(data, resolved.eval.batch_size)).transpose()?;
        // Scores and weighted sums of attention are left out: they depend on the lengths, and up to a few hundred
        // tokens they are a few hundredths of the rest. The share of the peak is so much too small.
        // A token that is read or written passes one of two stacks, which are about as large; a classifier's passes
        // both.
        let passed = if model.info().generates_targets { 0.5 } else { 1.0 };
        let flops_per_token = 6.0 * passed * model.matmul_parameters() as f64;
        Ok(Trainer {
            device: device.clone(),
            metrics: metrics(job, resolved),
            written: job.written.clone(),
            optim: optimizer(job, resolved, device, model.as_ref())?,
            model,
            directory: job.directory.clone(),
            loader,
            eval,
            progress: Progress::new(mode, total),
            stop,
            micro_batches,
            steps_per_epoch,
            label_smoothing: train.label_smoothing,
            class_weights: job.class_weights.clone(),
            prompt_loss: train.prompt_loss,
            scales_loss: train.loss_scale.policy(resolved.model.dtype) != ScalePolicy::NONE,
            seed: train.seed,
            peak: 0.0,
            flops_per_token,
            step: 0,
            samples: 0,
            tokens: 0,
            train_time: Duration::ZERO,
            team,
            time_to_save: false,
            agreed_to_save: false,
            earlier: Duration::ZERO,
            started: None,
            agreed: None,
        })
    }

    /// One optimizer step: for each of this rank's micro-batches load, forward, backward; then clip and update. Of the
    /// step's micro-batches a rank takes every R-th, R the number of ranks.
    pub(crate) fn step(&mut self) -> Result<StepResult> {
        let start = Instant::now();
        self.started.get_or_insert(start);
        let epoch = self.step / self.steps_per_epoch;
        let first = self.step % self.steps_per_epoch * self.micro_batches;
        let shares = self.loader.shares(Position { epoch, index: first }, self.micro_batches)?;
        let of_prompts = self.prompt_losses(Position { epoch, index: first })?;
        let (mut losses, mut batches, mut counts) = (Vec::new(), Vec::new(), [0.0f32; 3]);
        for micro_batch in (self.team.rank() as u64..self.micro_batches).step_by(self.team.size()) {
            let mut batch = self.loader.batch(Position { epoch, index: first + micro_batch })?;
            for (count, more) in counts.iter_mut().zip([batch.samples.len(), batch.tokens(), batch.padded_tokens()]) {
                *count += more as f32;
            }
            batches.push(mark_of(&batch.samples));
            batch.label_smoothing = self.label_smoothing;
            batch.class_weights.clone_from(&self.class_weights);
            if let (Some(verbalizer), Some(weight)) = (&mut batch.verbalizer, of_prompts.get(micro_batch as usize)) {
                verbalizer.prompt_loss = *weight;
            }
            let address = Randomness { seed: self.seed, step: self.step as u32, micro_batch: micro_batch as u32 };
            let mut cx = Ctx::training(&self.device, address);
            let loss = self.model.loss(&batch, &mut cx)?.ok_or_else(|| {
                Error::model("training", "the model made no loss", "open it with a head for these labels")
            })?;
            let weight = shares.get(micro_batch as usize).copied().unwrap_or(0.0);
            match micro_batch + self.team.size() as u64 >= self.micro_batches {
                true => self.optim.backward_last(&loss, weight, &mut cx)?,
                false => self.optim.backward(&loss, weight, &mut cx)?,
            }
            losses.push(loss);
        }
        let told = self.tell(&losses, &batches, counts)?;
        // Gradients' norm, losses and what the ranks tell each other come to the host with one wait.
        let (info, told) = self.optim.step_and_read(&[&told])?;
        self.step += 1;
        let Agreed { loss, batch, samples, tokens, padded_tokens } = self.agree(&told, losses.len(), &shares);
        self.samples += samples;
        self.tokens += tokens;
        self.guard(&info, loss)?;
        let elapsed = start.elapsed();
        self.train_time += elapsed;
        Ok(StepResult { loss, info, tokens, padded_tokens, batch, seconds: elapsed.as_secs_f64() })
    }

    /// How much the mean loss of the prompts' words counts in each micro-batch of a step, so that it is a mean over
    /// those of the whole step, whichever micro-batch they are in; nothing where it does not count.
    fn prompt_losses(&mut self, first: Position) -> Result<Vec<f32>> {
        if self.prompt_loss == 0.0 {
            return Ok(Vec::new());
        }
        let shares = self.loader.prompt_shares(first, self.micro_batches)?;
        Ok(shares.into_iter().map(|share| self.prompt_loss * share * self.micro_batches as f32).collect())
    }

    /// Go on after `step` steps that another process made.
    pub(super) fn go_on(&mut self, step: u64, (samples, tokens): (u64, u64), earlier: Duration) {
        (self.step, self.samples, self.tokens) = (step, samples, tokens);
        (self.earlier, self.train_time) = (earlier, earlier);
    }

    /// What this rank knows of a step, and of the others, still on the device: its losses, the marks of their samples,
    /// counts, and its votes.
    fn tell(&self, losses: &[Var], batches: &[[f32; 2]], counts: [f32; 3]) -> Result<Tensor> {
        let known = [batches.as_flattened(), &counts, &self.votes(self.step + 1)].concat();
        let known = Tensor::from_slice_in(&self.device, [known.len()], &known, Segment::Data)?;
        let numbers: Vec<&Tensor> = losses.iter().map(Var::value).chain([&known]).collect();
        Ok(self.team.gather_later(&numbers)?)
    }

    /// Bring together what every rank told of a step of so many losses each: in the order of the micro-batches, which
    /// is the same on any number of ranks.
    fn agree(&mut self, told: &[f32], losses: usize, shares: &[f32]) -> Agreed {
        let each = (told.len() / self.team.size()).max(1);
        let all: Vec<&[f32]> = told.chunks(each).collect();
        let (mut loss, mut batch, mut sums) = (0.0, 0u64, [0u64; 3]);
        let mut shares = shares.iter();
        for micro_batch in 0..losses {
            for numbers in &all {
                let mark = losses + 2 * micro_batch;
                let [this, high, low] =
                    [micro_batch, mark, mark + 1].map(|at| numbers.get(at).copied().unwrap_or(f32::NAN));
                loss += shares.next().copied().unwrap_or(0.0) * this;
                batch = join(batch, [high, low]);
            }
        }
        for numbers in &all {
            for (sum, count) in sums.iter_mut().zip(numbers.iter().skip(3 * losses)) {
                *sum += *count as u64;
            }
        }
        let votes: Vec<&[f32]> = all.iter().filter_map(|numbers| numbers.last_chunk::<2>()).map(|v| &v[..]).collect();
        self.heed(&votes);
        let [samples, tokens, padded_tokens] = sums;
        Agreed { loss, batch, samples, tokens, padded_tokens }
    }

    /// Agree before the first step on whether there is to be one.
    pub(super) fn look_around(&mut self) -> Result<()> {
        let all = self.team.gather(&self.votes(self.step))?;
        self.heed(&all.iter().map(Vec::as_slice).collect::<Vec<_>>());
        Ok(())
    }

    /// Whether to stop after `step` steps and whether to save, in the opinion of this rank.
    fn votes(&self, step: u64) -> [f32; 2] {
        let reason = self.stop.check(step, self.elapsed());
        [reason.map_or(-1.0, |reason| reason as u8 as f32), f32::from(u8::from(self.time_to_save))]
    }

    /// Go by the votes of all ranks.
    fn heed(&mut self, votes: &[&[f32]]) {
        let named =
            |said: &[f32]| StopReason::ALL.into_iter().find(|reason| said.first() == Some(&(*reason as u8 as f32)));
        let asked = votes.iter().filter_map(|said| named(said)).find(|reason| *reason == StopReason::Request);
        self.agreed = votes.first().and_then(|said| named(said)).or(asked);
        self.agreed_to_save = votes.first().is_some_and(|said| said.last() == Some(&1.0));
    }

    /// A step that is not finite changed nothing; too many in a row end the run.
    fn guard(&self, info: &StepInfo, loss: f32) -> Result<()> {
        if !info.give_up {
            return Ok(());
        }
        let first = self.optim.broken_gradient().map(|name| format!(", gradient of {name}")).unwrap_or_default();
        Err(Error::diverged(
            format!("step {}{first}", self.step),
            format!("too many steps in a row had gradients that are not finite, loss {loss}"),
            "lower train.lr, or look for bad samples; the weights were not changed by these steps",
        ))
    }

    pub(super) fn epoch(&self) -> f64 {
        self.step as f64 / self.steps_per_epoch as f64
    }

    /// Time since the first step began, which is what `train.minutes` limits: loading and the first evaluation are none
    /// of it, evaluations on the way are. Time of processes that were cut off counts up to the checkpoint.
    pub(super) fn elapsed(&self) -> Duration {
        self.earlier + self.started.map_or(Duration::ZERO, |started| started.elapsed())
    }

    /// Why the run ends now, if it does.
    pub(super) fn stop(&self) -> Option<StopReason> {
        self.agreed
    }

    /// All ranks have seen that somebody asks for an end.
    pub(super) fn ask_to_stop(&mut self) {
        self.agreed = Some(StopReason::Request);
    }
}

/// What the ranks know of a step together.
struct Agreed {
    /// Of the whole batch.
    loss: f32,
    batch: u64,
    samples: u64,
    tokens: u64,
    padded_tokens: u64,
}

/// 48 bits that stand for the numbers of some samples, in two numbers that travel with the losses.
fn mark_of(samples: &[u32]) -> [f32; 2] {
    let hash = samples.iter().fold(FNV, |hash, sample| (hash ^ u64::from(*sample)).wrapping_mul(FNV_PRIME));
    let mixed = hash ^ (hash >> 48);
    [((mixed >> 24) & 0xff_ffff) as f32, (mixed & 0xff_ffff) as f32]
}

/// The mark of the micro-batches so far and the next one's in one.
fn join(so_far: u64, [high, low]: [f32; 2]) -> u64 {
    let next = (high as u64) << 24 | low as u64;
    (so_far.rotate_left(5) ^ next).wrapping_mul(FNV_PRIME) & 0xffff_ffff_ffff
}

/// AdamW over the model's parameters, with the recipe's schedule, clipping and loss scale.
fn optimizer(job: &Job, resolved: &Resolved, device: &Device, model: &dyn TextModel) -> Result<OptimManager> {
    let train = &resolved.train;
    let groups = match train.decay_norms_and_biases {
        true => ParamGroup::all(model.parameters(), train.weight_decay),
        false => ParamGroup::by_decay(model.parameters(), train.weight_decay),
    };
    let adam = AdamOptions {
        beta1: train.beta1,
        beta2: train.beta2,
        epsilon: train.eps,
        decay_form: train.decay_form,
        ..AdamOptions::default()
    };
    let mut optim = OptimManager::new(device, train.clip)?;
    optim.set_scaler(LossScaler::new(train.loss_scale.policy(resolved.model.dtype), LossScaler::LIMIT)?);
    let adam: Box<dyn Optimizer> = match train.offload {
        true => Box::new(AdamOffload::new(groups, adam)?),
        false => Box::new(Adam::new(groups, adam)?),
    };
    optim.add_scheduled(adam, Scheduler::new(job.schedule));
    Ok(optim)
}

/// Beginning and factor of the FNV-1a hash of 64 bits.
const FNV: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

/// What evaluation reports: the task's metrics, or those that fit the labels, and whatever else the recipe judges by.
fn metrics(job: &Job, resolved: &Resolved) -> Vec<Metric> {
    let mut metrics =
        resolved.data.source.task_metrics().unwrap_or_else(|| Metric::defaults(job.train.labels())).to_vec();
    for judge in std::iter::once(resolved.eval.metric).chain(resolved.train.early_stop.map(|early| early.metric)) {
        if let EvalMetric::Metric(metric) = judge
            && !metrics.contains(&metric)
        {
            metrics.push(metric);
        }
    }
    metrics
}

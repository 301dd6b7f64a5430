//! Fine-tuning from a resolved recipe: checks before any weights are read, then one [`Run`] per rank, its loop, and the
//! training step.

use super::agree::StepMetrics;
use super::beside::Beside;
use super::division::check_layout;
use super::dry_run::dry_run;
use super::model_options::{Multiplies, check_products, multiplies_bf16, open_options, with_products};
use super::objective::Opening;
use super::passes::StepPasses;
use super::peak::{measured_peak, peak_of};
use super::preconditions::{FinetuneOptions, changes, check_output, is_finished, on_ranks};
use super::run::Run;
use super::run_ranks::RunRanks;
use super::setup::{self, Setup};
use super::start::{compare_instruction_sets, compare_ranks};
use super::trainer::{LocalMetrics, StepResult, Trainer};
use super::{memory_limit, profile, timed_partition, waiting};
use crate::train::stop::StopConditions;
use crate::{Error, Result};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Device};
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup, cpu_options_of_rank, init_distributed};
use bmtrain_dist::{ControlGroup, RankGroups};
use model_center_base::error::ExitStatus;
use model_center_base::stop_flag::StopFlag;
use model_center_models::{OpenMode, Registry};
use model_center_recipe::run::{Machine, Phases, Progress, ProgressMode, STOP_FILE, StopReason, console, listen};
use model_center_recipe::{Resolved, Threads};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

/// Everything that is decided before the first rank starts.
#[derive(Debug)]
pub(super) struct RunConfig {
    pub(super) setup: Setup,
    pub(super) resolved: Resolved,
    pub(super) options: FinetuneOptions,
    pub(super) registry: Registry<'static>,
    pub(super) group: ProcessGroup,
    /// Settings that differ from the run in the output directory.
    pub(super) changes: Vec<String>,
    pub(super) stop: StopFlag,
}

/// Fine-tune a model as a recipe specifies, on the ranks that the environment names.
///
/// # Errors
/// Mistakes in the recipe, the data or the model directory; a full disk; numbers that are not finite; a lost rank.
pub fn finetune(resolved: Resolved, options: &FinetuneOptions, registry: Registry<'static>) -> Result<ExitStatus> {
    let group = init_distributed(DistributedOptions::default())?;
    let ended = finetune_on(&group, resolved, options, registry);
    abandon_unless_done(&group, &ended);
    ended
}

/// Tell ranks that wait for this process that it ends before it has joined them, unless it ends well.
pub fn abandon_unless_done(group: &ProcessGroup, ended: &Result<ExitStatus>) {
    match ended {
        Ok(ExitStatus::Done) => {}
        Ok(status) => group.abandon(status.code(), status.meaning()),
        Err(error) => group.abandon(ExitStatus::from(error).code(), &error.summary()),
    }
}

/// [`finetune`] on the ranks of `group`.
///
/// # Errors
/// As [`finetune`].
pub fn finetune_on(
    group: &ProcessGroup,
    resolved: Resolved,
    options: &FinetuneOptions,
    registry: Registry<'static>,
) -> Result<ExitStatus> {
    let launch = group.launch();
    group.check_device(resolved.device.name)?;
    let resolved = on_ranks(resolved, options, launch.world);
    if options.dry_run {
        return dry_run(group, &resolved, options, registry);
    }
    options.objective.as_ref().map_or(Ok(()), |own| own.check(&resolved))?;
    let mut changes = changes(&resolved);
    // The first rank writes and reports; the others would only repeat it.
    if launch.rank == 0 {
        check_output(&resolved, options, &changes)?;
    }
    if is_finished(&resolved, options, launch.rank == 0)? {
        return Ok(ExitStatus::Done);
    }
    check_layout(&resolved, launch.world, registry, &options.places)?;
    let data_ranks = resolved.parallel.data_ranks(launch.world);
    let (begun, micro_batch) = (resolved.train.micro_batch_size, resolved.micro_batch_on(data_ranks));
    if begun != micro_batch {
        changes.push(format!("train.micro_batch_size: {begun} -> {micro_batch} on {data_ranks} ranks"));
        if launch.rank == 0 {
            let text = "the run was begun with micro-batches of";
            console::note(&format!("{text} {begun}; {data_ranks} ranks share the batch in ones of {micro_batch}"));
        }
    }
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    if launch.rank == 0 {
        waiting::note_reading(&resolved);
    }
    let setup = setup::prepare(&resolved, registry, &options.places)?;
    if stop.is_requested() {
        console::note("stopped before the first step: nothing was written");
        return Ok(ExitStatus::Stopped);
    }
    let (options, group) = (options.clone(), group.clone());
    let config = Arc::new(RunConfig { setup, resolved, options, registry, group, changes, stop });
    let of_rank = {
        let config = Arc::clone(&config);
        move |ranks| run_rank(&config, ranks)
    };
    config.group.run(of_rank)
}

/// The run of one rank. The first rank writes the files and reports.
fn run_rank(config: &RunConfig, ranks: Arc<dyn Communicator>) -> Result<ExitStatus> {
    let begin = Instant::now();
    let RunConfig { setup, resolved, options, registry, group, .. } = config;
    let launch = group.launch();
    let asked = match resolved.device.threads {
        Threads::Count(count) => Some(count),
        Threads::Auto => None,
    };
    let control = ControlGroup::new(Arc::clone(&ranks), &Device::cpu(1)?);
    compare_ranks(config, &control)?;
    let cpu = cpu_options_of_rank(&control, launch, asked, resolved.device.pin_threads)?;
    let cpu = with_products(resolved, cpu);
    let threads = cpu.threads;
    let is_first = ranks.rank() == 0;
    let opened = group.open_device(resolved.device.name, ranks.rank(), cpu)?;
    opened.note.iter().filter(|_| is_first).for_each(|note| console::note(note));
    let multiplies = Multiplies::of(&opened, cpu.instruction_set);
    let products = check_products(resolved.train.products, multiplies)?;
    // None on a CUDA device.
    let set = multiplies.set.map(|set| set.of_products(multiplies_bf16(resolved)));
    compare_instruction_sets(&control, set)?;
    let places = group.describe_ranks(&control, &opened, threads)?;
    places.iter().filter(|_| is_first).for_each(|place| console::note(place));
    let on_processors = opened.cuda.is_none();
    if on_processors {
        // Before the ranks meet in the next line: after it, one that is ahead already allocates its weights.
        memory_limit::check(setup, resolved, launch)?;
    }
    let beside = Beside::of(config, &control)?;
    let ranks = group.communicator(&opened, ranks)?;
    let machine = Machine::here(cpu.instruction_set, opened.cuda.map(|_| opened.backend.name().to_string()));
    let backend = opened.backend;
    let profiled = (options.profile && is_first).then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
    let device = Device::new(match &profiled {
        Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
        None => backend,
    });
    let groups = RankGroups::split(ranks, resolved.parallel.pipeline, resolved.parallel.tensor)?;
    let ranks = RunRanks::new(&groups, &device);
    let open = open_options(resolved, setup.train.labels(), &device, &groups)?;
    let open = timed_partition::by_time(config, &ranks, open)?;
    let opened = registry.open(&setup.start.directory, &setup.start.with_config(open))?;
    let resolved = &*timed_partition::in_force(resolved, &*opened.model, &ranks);
    let stop = StopConditions::new(&resolved.train, setup.steps_per_epoch, config.stop.clone());
    let stop = if is_first { stop.or_file(resolved.output.dir.join(STOP_FILE)) } else { stop };
    let display = display(resolved.log.quiet || !is_first, stop.total_steps());
    let own = options.objective.as_ref();
    let opening = Opening { registry: *registry, device: &device, groups: &groups, own, mode: OpenMode::Load };
    let mut trainer = Trainer::new(setup, resolved, stop, opened, opening, ranks)?;
    trainer.limit_process(options);
    // Only now that all input is checked, the output directory is touched.
    let mut run = Run::create((config, resolved), (begin, beside), &trainer, display)?;
    run.instruction_set = set.map(|set| set.name().to_owned());
    products.into_iter().for_each(|note| run.note_first(note));
    let peak = peak_of(resolved, on_processors, |in_bf16| measured_peak(in_bf16, threads, cpu.instruction_set));
    run.set_peak(peak * launch.world as f64, &trainer);
    let ended = match run.start(&mut trainer, (threads, machine)) {
        Ok(()) => run.train(&mut trainer, profiled.as_deref()),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        run.fail(&trainer, error);
    }
    run.display.finish();
    ended
}

fn display(is_quiet: bool, total_steps: Option<u64>) -> Progress {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Progress::new(ProgressMode::choose(is_quiet, std::io::stderr().is_terminal(), no_color), total_steps)
}

impl Run<'_> {
    /// Evaluate, train, evaluate again, save.
    pub(super) fn train(&mut self, trainer: &mut Trainer, profiled: Option<&Profiled>) -> Result<ExitStatus> {
        if self.eval_before.is_none() && self.decision.stop != Some(StopReason::Request) {
            self.eval_before = self.evaluate(trainer, false)?;
        }
        if let Some(profiled) = profiled {
            profiled.reset();
        }
        let reason = match self.train_steps(trainer) {
            // A range test goes on until it diverges.
            Err(Error::Diverged { .. }) if self.lr_range.is_some() => StopReason::Steps,
            other => other?,
        };
        self.write_lr_range()?;
        if let Some(profiled) = profiled {
            self.display.finish();
            profile::print(profiled, trainer.train_time().as_secs_f64());
        }
        let after = match reason {
            StopReason::Request => None,
            _ if self.lr_range.is_some() => None,
            _ => self.evaluate(trainer, true)?,
        };
        if self.decision.stop != Some(StopReason::Request) && self.lr_range.is_none() {
            self.test(trainer)?;
        }
        if self.decision.stop == Some(StopReason::Request) {
            return self.stop_early(trainer);
        }
        if self.checkpointer.saves_at_end() {
            self.save_checkpoint(trainer)?;
        }
        let note = self.checkpointer.finish()?;
        self.note(note);
        self.finish(trainer, reason, after)?;
        Ok(ExitStatus::Done)
    }

    /// Step until a stop condition holds.
    fn train_steps(&mut self, trainer: &mut Trainer) -> Result<StopReason> {
        let every = self.config.resolved.eval.every.in_steps(trainer.schedule().steps_per_epoch);
        loop {
            // Here, so that weights from a checkpoint are evaluated too. The last evaluation follows the loop, whatever
            // ends it.
            let is_due = trainer.steps() > 0 && every.is_some_and(|every| trainer.steps().is_multiple_of(every));
            if is_due && self.decision.stop.is_none() {
                self.evaluate(trainer, true)?;
            }
            if let Some(reason) = self.decision.stop {
                return Ok(reason);
            }
            if self.best.has_lost_patience() {
                return Ok(StopReason::NoImprovement);
            }
            if self.checkpointer.is_due(trainer.steps(), self.decision.checkpoint) {
                self.save_checkpoint(trainer)?;
            }
            let result = trainer.step(self.checkpointer.is_due_by_time())?;
            self.decision = result.decision;
            self.report(trainer, &result)?;
            let note = self.checkpointer.advance()?;
            self.note(note);
        }
    }
}

impl Trainer {
    /// One optimizer step: for each of this rank's micro-batches load, forward and backward; then clip and update.
    /// `checkpoint_due` is this rank's vote on saving a checkpoint after the step.
    pub(crate) fn step(&mut self, checkpoint_due: bool) -> Result<StepResult> {
        let _step = tracing::debug_span!("step", step = self.progress.step).entered();
        let start = self.start_step();
        let first = self.position(0);
        let weights = self.batches.shares(first, self.micro_batches())?;
        // What prefetching has not done by now, the step waits for.
        let data_seconds = start.elapsed().as_secs_f64();
        let inspectors = self.inspectors();
        let mut passes = StepPasses {
            model: &*self.model,
            device: &self.device,
            ranks: &self.ranks,
            pipeline: self.pipeline.as_ref(),
            batches: &mut self.batches,
            optim: &mut self.optim,
            first,
            randomness: Randomness { seed: self.seed, step: self.progress.step as u32, micro_batch: 0 },
            weights,
            inspectors: &inspectors,
            local: LocalMetrics::default(),
        };
        passes.local.phases.data = data_seconds;
        self.objective.run(&mut passes)?;
        passes.check(&*self.objective)?;
        let StepPasses { weights, local, .. } = passes;
        let inspection = if inspectors.is_empty() { None } else { Some(self.inspect(&inspectors)?) };
        let vote = self.vote(self.progress.step + 1, checkpoint_due);
        let updating = Instant::now();
        let gathered = local.gather_later(vote, &self.ranks, &self.device)?;
        // The step's one host wait: gradient norm, losses and votes arrive together.
        let (info, gathered) = self.optim.step_and_read(&[&gathered])?;
        let merged = StepMetrics::merge(&gathered, &self.ranks, local.layout(), (&weights, &*self.objective));
        let phases = Phases { optimizer: updating.elapsed().as_secs_f64(), ..local.phases };
        let result = self.advance(start, info, merged)?;
        let phases = Phases { step: result.seconds, ..phases };
        Ok(StepResult { inspection, data_seconds, phases, ..result })
    }
}

//! Fine-tuning from a resolved recipe: what is checked before any weights are read, then one [`Run`] per rank.

use super::resume::{CheckpointPath, Resume, recipe_of, run_directory};
use super::run::Run;
use super::setup::{self, Setup, open_options, sharding};
use super::trainer::Trainer;
use super::{memory_limit, save, waiting};
use crate::formats::ModelCaches;
use crate::model::Registry;
use crate::recipe::{Resolved, Threads};
use crate::run::{
    CHECKPOINT_DIRECTORY, Earlier, ExitStatus, IfThere, MARKER, OutputDirectory, OutputFault, Progress, ProgressMode,
    RECIPE_FILE, STOP_FILE, StopConditions, StopFlag, console, listen,
};
use crate::{Error, Result};
use bmtrain_core::comm::Communicator;
use bmtrain_core::cpu::gemm::measure_peak;
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Device};
use bmtrain_dist::ControlGroup;
use bmtrain_dist::checkpoint::FailPoints;
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup, init_distributed, threads_of_rank, threads_per_rank};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

/// What a run is asked for beside its recipe.
#[derive(Debug, Clone)]
pub struct FinetuneOptions {
    /// Which checkpoint to resume from.
    pub resume: Resume,
    /// Start with the weights of this checkpoint, and nothing else of it.
    pub init_from: Option<CheckpointPath>,
    /// Resume although settings that decide the results, or the data, have changed.
    pub accept_change: bool,
    /// Replace an earlier run in the output directory.
    pub overwrite: bool,
    /// Check everything that can be checked without reading weights, and stop.
    pub dry_run: bool,
    /// Print at the end where the time of the training steps went.
    pub profile: bool,
    /// Failures to inject into saving; only the feature `testing` of `bmtrain-dist` can make any.
    pub fail_points: FailPoints,
    /// Where models that are named as on the hub are looked for.
    pub places: ModelCaches,
}

impl Default for FinetuneOptions {
    fn default() -> Self {
        FinetuneOptions {
            resume: Resume::Auto,
            init_from: None,
            accept_change: false,
            overwrite: false,
            dry_run: false,
            profile: false,
            fail_points: FailPoints::NONE,
            places: ModelCaches::default(),
        }
    }
}

impl FinetuneOptions {
    /// What to do with an earlier run in the output directory.
    pub(super) fn if_there(&self) -> IfThere {
        match self.resume {
            _ if self.overwrite => IfThere::Replace,
            Resume::Never => IfThere::Refuse,
            _ => IfThere::Continue { accept_change: self.accept_change },
        }
    }
}

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
pub fn finetune_on(
    group: &ProcessGroup,
    resolved: Resolved,
    options: &FinetuneOptions,
    registry: Registry<'static>,
) -> Result<ExitStatus> {
    let launch = group.launch();
    group.hosts()?;
    let resolved = on_ranks(resolved, options, launch.world);
    let mut changes = changes(&resolved);
    // The first rank writes and reports; the others would only repeat it.
    if launch.rank == 0 {
        check_output(&resolved, options, &changes)?;
    }
    if is_finished(&resolved, options, launch.rank == 0)? {
        return Ok(ExitStatus::Done);
    }
    setup::check_ranks(&resolved, launch.world)?;
    let (begun, micro_batch) = (resolved.train.micro_batch_size, resolved.micro_batch_on(launch.world));
    if begun != micro_batch {
        changes.push(format!("train.micro_batch_size: {begun} -> {micro_batch} on {} ranks", launch.world));
        if launch.rank == 0 {
            let text = "the run was begun with micro-batches of";
            console::note(&format!("{text} {begun}; {} ranks share the batch in ones of {micro_batch}", launch.world));
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
    if options.dry_run && launch.rank > 0 {
        return Ok(ExitStatus::Done);
    }
    if options.dry_run {
        let summary = setup.summary(&resolved);
        console::print(&format!("{summary}\ndry run: nothing is wrong that can be seen without reading weights"))?;
        return Ok(ExitStatus::Done);
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
    let threads = match resolved.device.threads {
        Threads::Count(count) => threads_per_rank(count, launch.local_size),
        Threads::Auto => threads_of_rank(&ControlGroup::new(Arc::clone(&ranks), &Device::cpu(1)?))?,
    };
    let is_first = ranks.rank() == 0;
    let opened = group.open_device(resolved.device.name, ranks.rank(), threads)?;
    opened.note.iter().filter(|_| is_first).for_each(|note| console::note(note));
    let on_processors = opened.cuda.is_none();
    if on_processors {
        // Before the ranks meet in the next line: after it, one that is ahead already allocates its weights.
        memory_limit::check(setup, resolved, launch)?;
    }
    let ranks = group.communicator(&opened, ranks)?;
    let backend = opened.backend;
    let profiled = (options.profile && is_first).then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
    let device = Device::new(match &profiled {
        Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
        None => backend,
    });
    let sharding = sharding(resolved, Arc::clone(&ranks));
    let team = ControlGroup::new(ranks, &device);
    let opened = registry.open(&setup.directory, &open_options(resolved, setup.train.labels(), &device, sharding))?;
    let stop = StopConditions::new(&resolved.train, setup.steps_per_epoch, config.stop.clone());
    let stop = if is_first { stop.or_file(resolved.output.dir.join(STOP_FILE)) } else { stop };
    let display = display(resolved.log.quiet || !is_first, stop.total_steps());
    let mut trainer = Trainer::new(setup, resolved, stop, opened.model, &device, team)?;
    // Only now that all input is checked, the output directory is touched.
    let mut run = Run::create(config, begin, &trainer, display)?;
    // The peak of a CUDA device is not measured, and no share of it is shown.
    run.set_peak(if on_processors { measure_peak(threads) * launch.world as f64 } else { 0.0 }, &trainer);
    let ended = match run.start(&mut trainer, threads) {
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

/// Check that the output directory is free for this run; settings that differ from the earlier run's are named.
fn check_output(resolved: &Resolved, options: &FinetuneOptions, changes: &[String]) -> Result<()> {
    let checked = OutputDirectory::check(&resolved.output.dir, &resolved.recipe_hash(), options.if_there());
    checked.map(drop).map_err(|error| match error {
        Error::Output { fault, place, reason, fix } if !changes.is_empty() => {
            Error::Output { fault, place, reason: format!("{reason}: {}", changes.join(", ")), fix }
        }
        Error::Output { fault: OutputFault::OtherRecipe, place, reason, fix } if has_recipe(resolved) => {
            let reason = format!(
                "{reason}; but the settings in {RECIPE_FILE} there are the same: {MARKER} is damaged, or another \
                 version of the program wrote it"
            );
            Error::Output { fault: OutputFault::OtherRecipe, place, reason, fix }
        }
        other => other,
    })
}

/// Settings that decide the results and differ from the run in the output directory; none without a run.
fn changes(resolved: &Resolved) -> Vec<String> {
    recipe_of(&resolved.output.dir).and_then(|text| resolved.changes(&text).ok()).unwrap_or_default()
}

/// The recipe with its micro-batch for this number of ranks: the resumed run's, if it resumes one.
pub fn on_ranks(resolved: Resolved, options: &FinetuneOptions, ranks: usize) -> Resolved {
    let begun = match &options.resume {
        _ if options.overwrite => None,
        Resume::From(at) => recipe_of(&run_directory(&at.path)),
        _ => recipe_of(&resolved.output.dir),
    };
    resolved.on_ranks(ranks, begun.as_deref())
}

/// Whether the output directory holds a recipe that can be compared with.
fn has_recipe(resolved: &Resolved) -> bool {
    recipe_of(&resolved.output.dir).is_some_and(|text| resolved.changes(&text).is_ok())
}

/// Whether the run in the output directory is finished and nothing is to be done. Every rank checks that its models are
/// undamaged, so that all end with the same exit code.
fn is_finished(resolved: &Resolved, options: &FinetuneOptions, is_first: bool) -> Result<bool> {
    let IfThere::Continue { .. } = options.if_there() else { return Ok(false) };
    let (dir, asked) = (&resolved.output.dir, matches!(options.resume, Resume::From(_)));
    let earlier = OutputDirectory::check(dir, &resolved.recipe_hash(), options.if_there());
    let is_finished =
        !asked && changes(resolved).is_empty() && earlier.is_ok_and(|earlier| earlier == Earlier::Finished);
    if is_finished && !options.dry_run {
        save::check_finished(dir, dir.join(CHECKPOINT_DIRECTORY).is_dir())?;
    }
    if is_finished && is_first {
        let text = "the run in this directory is finished; to train again add --overwrite, or set output.dir to \
                    another directory";
        console::note(&format!("{}: {text}", dir.display()));
    }
    Ok(is_finished)
}

//! The finetune program: a recipe, a Hugging Face directory and text in, with labels or to be learnt by its words; a
//! trained directory, metrics and the resolved recipe out.
//!
//! [`setup`] reads and checks everything before weights are read, [`train`] holds the training step, [`evaluate`]
//! judges, [`ranks`] brings the ranks together, `keep` saves the state on the way, `models` the models, [`resume`] goes
//! on from it, [`profile`] shows where the time went, [`pool`] what the memory was.

mod classes;
mod course;
pub mod evaluate;
mod keep;
mod models;
pub mod pool;
pub mod profile;
pub mod ranks;
pub mod resume;
mod room;
pub mod setup;
mod start;
pub mod train;
pub(crate) mod waiting;
mod written;

use crate::places::model_places;
use crate::program;
use crate::settings::SettingOptions;
use crate::terminal;
use bmtrain_core::comm::host::Meeting;
use bmtrain_dist::Launch;
use bmtrain_dist::checkpoint::FailPoints;
use clap::Parser;
use model_center::file::read_text;
use model_center::model::Registry;
use model_center::recipe::{self, Resolved, as_error, preflight, settings_page};
use model_center::run::{
    CHECKPOINT_DIRECTORY, Earlier, ExitStatus, IfThere, MARKER, OutputDirectory, RECIPE_FILE, StopFlag, listen,
};
use model_center::{Error, Result};
use resume::Resume;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use train::Plan;

/// A recipe is a few kilobytes.
const MAX_RECIPE_BYTES: u64 = 1 << 20;

/// Fine-tune a model from a Hugging Face directory on text: on its labels, on its next words, or on targets behind it.
///
/// Example: finetune --recipe examples/recipes/boolq_bert.toml --set train.lr=3e-5
#[derive(Debug, Clone, Parser)]
#[command(name = "finetune", version)]
pub struct Options {
    /// The recipe.
    #[command(flatten)]
    pub settings: SettingOptions,
    /// Print every setting with its origin, and what is missing, and stop.
    #[arg(long)]
    pub print_config: bool,
    /// Print every key of a recipe with type, default and meaning, as Markdown, and stop.
    #[arg(long)]
    pub list_settings: bool,
    /// Check recipe, data, model directory and output directory without reading weights, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Share the work among this many ranks, threads of this process; without it as a launcher says (torchrun, Slurm,
    /// mpirun, RANK and WORLD_SIZE).
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// What it runs on: auto, cpu, cuda, or cuda:1 for the second CUDA device; short for --set device.name=DEVICE.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// How ranks exchange data: through memory they share, by MPI (with the feature `mpi`, started by mpirun), or by
    /// NCCL; auto is nccl where each rank has a CUDA device of its own, else host on one host and mpi on several.
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub comm: ranks::Comm,
    /// Where to go on: auto (the newest sound checkpoint of the output directory, else from the beginning), never, must
    /// (auto, but there has to be one), or the path of a checkpoint or run, PATH@STEP for an older one.
    #[arg(long, value_name = "HOW", default_value = "auto", conflicts_with = "overwrite")]
    pub resume: Resume,
    /// Begin with the weights of a checkpoint or run, PATH or PATH@STEP, and nothing else of it.
    #[arg(long, value_name = "PATH")]
    pub init_from: Option<resume::At>,
    /// Go on although settings that decide what is computed, or the data, are not those the run was begun with.
    #[arg(long)]
    pub accept_change: bool,
    /// Replace what an earlier run left in the output directory.
    #[arg(long)]
    pub overwrite: bool,
    /// Print at the end where the time of the training steps went.
    #[arg(long)]
    pub profile: bool,
    /// Fail or die at places of a save: for tests of what a crash leaves behind.
    #[cfg(feature = "testing")]
    #[arg(long, value_name = "POINT=ACTION,..", hide = true)]
    pub fail_points: Option<String>,
}

impl Options {
    /// The fail points that a test arms.
    fn fail_points(&self) -> Result<FailPoints> {
        #[cfg(feature = "testing")]
        if let Some(text) = &self.fail_points {
            return Ok(FailPoints::parse(text)?);
        }
        Ok(FailPoints::NONE)
    }

    /// What to do with a run that is in the output directory.
    fn if_there(&self) -> IfThere {
        match self.resume {
            _ if self.overwrite => IfThere::Replace,
            Resume::Never => IfThere::Refuse,
            _ => IfThere::Continue { accept_change: self.accept_change },
        }
    }
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main_or(registry, run, |error| ranks::tell_misuse(&error.to_string()))
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Mistakes in the recipe, the data or the model directory; a full disk; numbers that are not finite.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    if options.list_settings {
        terminal::print(settings_page().trim_end())?;
        return Ok(ExitStatus::Done);
    }
    let launch = Launch::detect(options.ranks, &|name| std::env::var(name).ok());
    if options.print_config {
        // What a launcher sets wrongly is nothing to a recipe that is only looked at.
        return print_config(options, launch.map_or(1, |launch| launch.world));
    }
    let launch = launch?;
    // A dry run joins no other rank.
    let meeting = if options.dry_run { None } else { ranks::enter(&launch, options.comm)? };
    let ended = run_process(options, registry, launch, meeting.clone());
    if let Some(meeting) = &meeting {
        ranks::tell(meeting, &ended);
    }
    ended
}

/// What this process does, which is one rank of a launcher or all of `--ranks`.
fn run_process(
    options: &Options,
    registry: Registry<'static>,
    launch: Launch,
    meeting: Option<Meeting>,
) -> Result<ExitStatus> {
    let resolved = resolve(options)?;
    launch.connection(options.comm.hosts())?;
    let resolved = on_ranks(resolved, options, launch.world);
    let mut changes = changes(&resolved);
    // The first rank writes and says everything; the others would only repeat it.
    if launch.rank == 0 {
        let earlier = OutputDirectory::check(&resolved.output.dir, &resolved.recipe_hash(), options.if_there());
        let earlier = earlier.map_err(|error| match error {
            Error::Recipe { place, reason, fix } if !changes.is_empty() => {
                Error::recipe(place, format!("{reason}: {}", changes.join(", ")), fix)
            }
            Error::Recipe { place, reason, fix } if reason.contains("another recipe") && has_recipe(&resolved) => {
                let text = format!(
                    "{reason}; but the settings in {RECIPE_FILE} there are the same: {MARKER} is damaged, or another \
                     version of the program wrote it"
                );
                Error::recipe(place, text, fix)
            }
            other => other,
        });
        earlier?;
    }
    if is_finished(&resolved, options, &launch)? {
        return Ok(ExitStatus::Done);
    }
    setup::check_ranks(&resolved, launch.world)?;
    let (begun, micro_batch) = (resolved.train.micro_batch_size, resolved.micro_batch_on(launch.world));
    if begun != micro_batch {
        changes.push(format!("train.micro_batch_size: {begun} -> {micro_batch} on {} ranks", launch.world));
        if launch.rank == 0 {
            let text = "the run was begun with micro-batches of";
            terminal::note(&format!("{text} {begun}; {} ranks share the batch in ones of {micro_batch}", launch.world));
        }
    }
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    if launch.rank == 0 {
        waiting::note_reading(&resolved);
    }
    let job = setup::prepare(&resolved, registry, &model_places())?;
    if stop.is_requested() {
        terminal::note("stopped before the first step: nothing was written");
        return Ok(ExitStatus::Stopped);
    }
    if options.dry_run && launch.rank > 0 {
        return Ok(ExitStatus::Done);
    }
    if options.dry_run {
        let summary = job.summary(&resolved);
        terminal::print(&format!("{summary}\ndry run: nothing is wrong that can be seen without reading weights"))?;
        return Ok(ExitStatus::Done);
    }
    train::run(Arc::new(Plan { job, resolved, options: options.clone(), registry, launch, meeting, changes, stop }))
}

/// What decides the results and is not as in the run that the output directory holds; nothing where there is none.
fn changes(resolved: &Resolved) -> Vec<String> {
    recipe_in(&resolved.output.dir).and_then(|text| resolved.changes(&text).ok()).unwrap_or_default()
}

/// The recipe that the run in this directory was begun with; `None` without a run.
pub(crate) fn recipe_in(dir: &Path) -> Option<String> {
    read_text(&dir.join(RECIPE_FILE), MAX_RECIPE_BYTES).ok()
}

/// The recipe with its micro-batch for this number of ranks: that of the run it resumes, if it resumes one.
fn on_ranks(resolved: Resolved, options: &Options, ranks: usize) -> Resolved {
    let begun = match &options.resume {
        _ if options.overwrite => None,
        Resume::From(at) => recipe_in(&resume::run_directory(&at.path)),
        _ => recipe_in(&resolved.output.dir),
    };
    resolved.on_ranks(ranks, begun.as_deref())
}

/// Whether the output directory holds a recipe that can be compared with.
fn has_recipe(resolved: &Resolved) -> bool {
    recipe_in(&resolved.output.dir).is_some_and(|text| resolved.changes(&text).is_ok())
}

/// Whether the run in the output directory is finished and is left alone; then no rank has anything to do. Every rank
/// checks that its models are still what was written, so that all end with the same code.
fn is_finished(resolved: &Resolved, options: &Options, launch: &Launch) -> Result<bool> {
    let IfThere::Continue { .. } = options.if_there() else { return Ok(false) };
    let (dir, asked) = (&resolved.output.dir, matches!(options.resume, Resume::From(_)));
    let earlier = OutputDirectory::check(dir, &resolved.recipe_hash(), options.if_there());
    let is_finished =
        !asked && changes(resolved).is_empty() && earlier.is_ok_and(|earlier| earlier == Earlier::Finished);
    if is_finished && !options.dry_run {
        models::check_finished(dir, dir.join(CHECKPOINT_DIRECTORY).is_dir())?;
    }
    if is_finished && launch.rank == 0 {
        let text = "the run in this directory is finished; to train again add --overwrite, or set output.dir to another directory";
        terminal::note(&format!("{}: {text}", dir.display()));
    }
    Ok(is_finished)
}

/// The settings of a recipe, which may lack some, with their origins.
fn print_config(options: &Options, ranks: usize) -> Result<ExitStatus> {
    let draft = options.settings.draft(&device_set(options)).map_err(as_error)?;
    let shown = match draft.is_complete() {
        true => on_ranks(options.settings.read(&device_set(options)).map_err(as_error)?, options, ranks).print_config(),
        false => draft.print_config(),
    };
    terminal::print(shown.trim_end())?;
    let wrong = draft.into_wrong();
    if wrong.is_empty() { Ok(ExitStatus::Done) } else { Err(as_error(wrong)) }
}

/// The short form of a setting as that setting.
fn device_set(options: &Options) -> Vec<String> {
    options.device.iter().map(|name| format!("device.name={name}")).collect()
}

pub(crate) fn resolve(options: &Options) -> Result<Resolved> {
    let checked = options.settings.read(&device_set(options)).and_then(|resolved| {
        let mistakes = preflight(&resolved, &model_places());
        if mistakes.is_empty() { Ok(resolved) } else { Err(mistakes) }
    });
    match checked {
        Ok(resolved) => Ok(resolved),
        // A dry run is for finding mistakes: it shows all of them, any other run the first.
        Err(mistakes) if options.dry_run && mistakes.len() > 1 => {
            terminal::note(&recipe::list(&mistakes));
            let reason = format!("{} mistakes, listed above", mistakes.len());
            Err(Error::recipe("dry run", reason, "mend them in the order shown"))
        }
        Err(mistakes) => Err(as_error(mistakes)),
    }
}

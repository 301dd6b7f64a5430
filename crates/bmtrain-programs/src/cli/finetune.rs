//! The finetune program: a recipe, a Hugging Face directory and text in; a trained directory, metrics and the resolved
//! recipe out. [`model_center_train::train`] trains.

use crate::cli::{comm::Comm, exit_time, places::model_places, program, settings::SettingOptions, terminal};
use crate::{Error, Result};
use bmtrain_dist::Launch;
use bmtrain_dist::checkpoint::FailPoints;
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup};
use clap::Parser;
use model_center_base::error::ExitStatus;
use model_center_base::file::shell_word;
use model_center_models::Registry;
use model_center_recipe::{Mistake, Resolved, as_error_with, preflight, recipe_schema, settings_page};
use model_center_train::{
    CheckpointPath, FinetuneOptions, Resume, abandon_unless_done, environment_mistakes, finetune_on, on_ranks,
    refuse_all,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Fine-tune a model from a Hugging Face directory on text: on its labels, on its next tokens, or on targets after it.
///
/// Example: bmtrain finetune --recipe examples/recipes/boolq_bert.toml --set train.lr=3e-5
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
    /// Print the JSON schema of a recipe, by which editors complete and check its keys, and stop.
    #[arg(long)]
    pub schema: bool,
    /// Check recipe, data, model directory and output directory without reading weights, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Share the work among this many ranks, threads of this process; by default what a launcher sets (torchrun, Slurm,
    /// LSF, mpirun, RANK and WORLD_SIZE).
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// What it runs on: auto, cpu, cuda, or cuda:1 for the second CUDA device; short for --set device.name=DEVICE.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// How ranks communicate: through shared memory, by MPI (with the feature `mpi`, started by mpirun), or by NCCL, on
    /// one host or on several; auto is nccl where each rank has a CUDA device of its own, else host on one host and mpi
    /// on several.
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub comm: Comm,
    /// Where to go on: auto (the newest sound checkpoint of the output directory, else from the beginning), never, must
    /// (auto, but there has to be one), or the path of a checkpoint or run, PATH@STEP for an older one.
    #[arg(long, value_name = "HOW", default_value = "auto", conflicts_with = "overwrite")]
    pub resume: Resume,
    /// Begin with the weights of a checkpoint or run, PATH or PATH@STEP, and nothing else of it.
    #[arg(long, value_name = "PATH")]
    pub init_from: Option<CheckpointPath>,
    /// Go on although settings that decide what is computed, or the data, are not those the run was begun with.
    #[arg(long, conflicts_with = "overwrite")]
    pub accept_change: bool,
    /// Go on with the learning-rate schedule of the checkpoint, although the recipe sets another one or another length
    /// of the run; all else that decides what is computed has to be as it was.
    #[arg(long, conflicts_with_all = ["accept_change", "overwrite"])]
    pub keep_schedule: bool,
    /// Go on without the optimizer state of the checkpoint, or from a checkpoint without one: step, schedule, loss
    /// scale and position in the data are kept.
    #[arg(long, conflicts_with = "overwrite")]
    pub fresh_optimizer: bool,
    /// Begin anew, and replace what an earlier run with the same settings left in the output directory. A run whose
    /// settings compute something else is never replaced: set output.dir to another directory.
    #[arg(long)]
    pub overwrite: bool,
    /// Save a checkpoint and stop after this many steps, with exit code 75: the same command goes on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub exit_after_steps: Option<u64>,
    /// The same after this many minutes of training.
    #[arg(long, value_name = "MINUTES")]
    pub exit_after_minutes: Option<f64>,
    /// The same at a time: in ISO 8601 with an offset, such as 2026-11-26T06:00:00+01:00, or HH:MM, the next time that
    /// the local clock shows it.
    #[arg(long, value_name = "TIME", value_parser = exit_time::parse)]
    pub exit_at: Option<SystemTime>,
    /// Print at the end where the time of the training steps went.
    #[arg(long)]
    pub profile: bool,
    /// Write what each rank and lane did, and when, to this file: a Chrome trace, which Perfetto opens. A process of a
    /// rank above 0 adds its rank to the name.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Fail or die at places of a save: for tests of crashes.
    #[cfg(feature = "testing")]
    #[arg(long, value_name = "POINT=ACTION,..", hide = true)]
    pub fail_points: Option<String>,
}

impl Options {
    /// Options of the run beside the recipe.
    fn run(&self) -> Result<FinetuneOptions> {
        Ok(FinetuneOptions {
            resume: self.resume.clone(),
            init_from: self.init_from.clone(),
            accept_change: self.accept_change,
            keep_schedule: self.keep_schedule,
            fresh_optimizer: self.fresh_optimizer,
            overwrite: self.overwrite,
            dry_run: self.dry_run,
            dry_run_option: Some(DRY_RUN),
            exit_after_steps: self.exit_after_steps,
            exit_after_minutes: self.exit_after_minutes,
            exit_at: self.exit_at,
            profile: self.profile,
            fail_points: self.fail_points()?,
            objective: None,
            places: model_places(),
            command: std::env::args().map(|word| shell_word(&word)).collect::<Vec<_>>().join(" "),
        })
    }

    /// The fail points that a test arms.
    fn fail_points(&self) -> Result<FailPoints> {
        #[cfg(feature = "testing")]
        if let Some(text) = &self.fail_points {
            return Ok(FailPoints::parse(text)?);
        }
        Ok(FailPoints::NONE)
    }

    /// The trace of this process.
    pub(super) fn trace_path(&self) -> Option<PathBuf> {
        let mut path = self.trace.clone()?.into_os_string();
        let rank = Launch::from_env(self.ranks).map_or(0, |launch| launch.rank);
        if rank > 0 {
            path.push(format!(".{rank}"));
        }
        Some(path.into())
    }

    fn distributed(&self) -> DistributedOptions {
        DistributedOptions { ranks: self.ranks, connection: self.comm.connection(), deadline: None }
    }
}

/// Trains as a recipe specifies on the ranks of a group: [`finetune_on`], or a training of one's own around it.
pub type Train = fn(&ProcessGroup, Resolved, &FinetuneOptions, Registry<'static>) -> Result<ExitStatus>;

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    main_with(registry, finetune_on)
}

/// [`main`] with the function that trains once command line, ranks and recipe are read.
pub fn main_with(registry: Registry<'static>, train: Train) -> ExitCode {
    let run = |options: &Options, registry| run(options, registry, train);
    program::main_or(registry, Options::trace_path, run, abandon_misused)
}

/// The option of a dry run, as errors recommend it.
const DRY_RUN: &str = "--dry-run";

/// Longest time that a rank with a wrong command line looks for the others.
const MISUSE: Duration = Duration::from_secs(10);

/// Tell the other ranks that this one ends because of its command line, as far as the launcher's variables name them.
pub(super) fn abandon_misused(reason: &str) {
    // Rank 0 of another host may be ending for the same reason.
    let options = DistributedOptions { deadline: Some(MISUSE), ..DistributedOptions::default() };
    if let Ok(group) = bmtrain_dist::init_distributed(options) {
        group.abandon(ExitStatus::Usage.code(), reason);
    }
}

pub(super) fn run(options: &Options, registry: Registry<'static>, train: Train) -> Result<ExitStatus> {
    if options.list_settings {
        terminal::print(settings_page(registry.own_data()).trim_end())?;
        return Ok(ExitStatus::Done);
    }
    if options.schema {
        let schema = recipe_schema(registry.own_data());
        // What JSON cannot hold is not in a schema.
        terminal::print(&serde_json::to_string_pretty(&schema).unwrap_or_default())?;
        return Ok(ExitStatus::Done);
    }
    let launch = Launch::from_env(options.ranks);
    if options.print_config {
        // What a launcher sets wrongly does not matter to a recipe that is only printed.
        return print_config(options, registry, launch.map_or(1, |launch| launch.world));
    }
    // A dry run communicates with no other rank.
    let group = match options.dry_run {
        true => ProcessGroup::detached(launch?, options.distributed()),
        false => ProcessGroup::join(launch?, options.distributed())?,
    };
    let ended =
        resolve(options, registry, &group).and_then(|resolved| train(&group, resolved, &options.run()?, registry));
    abandon_unless_done(&group, &ended);
    ended
}

/// The first mistake of a recipe as an error of a program with a dry run.
fn as_error(mistakes: Vec<Mistake>) -> Error {
    as_error_with(mistakes, &format!("{DRY_RUN} lists all"))
}

/// Refuses a recipe of another task than `pretrain`.
pub(super) fn require_pretraining(resolved: &Resolved) -> Result<()> {
    if resolved.data.source.pretraining().is_some() {
        return Ok(());
    }
    let reason = format!("the task is {}, and this program is for task pretrain", resolved.data.source.task().name());
    Err(Error::recipe(resolved.place("data.task"), reason, "use finetune, or set data.task = \"pretrain\""))
}

/// The settings of a recipe, which may lack some, with their origins.
fn print_config(options: &Options, registry: Registry<'_>, ranks: usize) -> Result<ExitStatus> {
    let draft = options.settings.draft(&device_set(options), registry).map_err(as_error)?;
    let shown = match draft.is_complete() {
        true => {
            let resolved = options.settings.read(&device_set(options), registry).map_err(as_error)?;
            on_ranks(resolved, &options.run()?, ranks).print_config()
        }
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

fn resolve(options: &Options, registry: Registry<'_>, group: &ProcessGroup) -> Result<Resolved> {
    let (resolved, mistakes) = match options.settings.read(&device_set(options), registry) {
        Ok(resolved) => {
            let mistakes = preflight(&resolved, &model_places());
            (Some(resolved), mistakes)
        }
        Err(mistakes) => (None, mistakes),
    };
    match resolved {
        Some(resolved) if mistakes.is_empty() => Ok(resolved),
        // A dry run is for finding mistakes: it shows all of them, any other run the first.
        resolved if options.dry_run => {
            let around = match &resolved {
                Some(resolved) => environment_mistakes(group, resolved, &options.run()?),
                None => Vec::new(),
            };
            refuse_all(mistakes.iter().cloned().map(Error::from).chain(around).collect())?;
            Err(as_error(mistakes))
        }
        _ => Err(as_error(mistakes)),
    }
}

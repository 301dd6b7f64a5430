//! The finetune program: a recipe, a Hugging Face folder and labelled text in; a trained folder, metrics and the
//! resolved recipe out.
//!
//! [`setup`] reads and checks everything before weights are read, [`train`] holds the training step, [`evaluate`] judges,
//! [`team`] is the other ranks, [`profile`] shows where the time went, [`pool`] what the memory was.

mod course;
pub mod evaluate;
pub mod pool;
pub mod profile;
pub mod setup;
pub mod team;
pub mod train;

use crate::terminal;
use bmtrain_dist::Launch;
use clap::Parser;
use model_center::model::Registry;
use model_center::recipe::{self, Recipe, Resolved, as_error, preflight};
use model_center::run::{ExitStatus, OutputFolder};
use model_center::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use train::Plan;

/// Fine-tune a model from a Hugging Face folder on labelled text.
///
/// Example: finetune --recipe examples/recipes/boolq_bert.toml --set train.lr=3e-5
#[derive(Debug, Clone, Parser)]
#[command(name = "finetune", version)]
pub struct Options {
    /// Recipe in TOML; without it every setting comes from --set.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Change one setting, e.g. --set train.lr=3e-5; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// The same without --set: train.lr=3e-5.
    #[arg(value_name = "KEY=VALUE")]
    pub bare_sets: Vec<String>,
    /// Print every setting with its origin, and stop.
    #[arg(long)]
    pub print_config: bool,
    /// Check recipe, data, model folder and output folder without reading weights, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Share the work among this many ranks, threads of this process; without it as a launcher says (torchrun, Slurm,
    /// mpirun, RANK and WORLD_SIZE).
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Replace what an earlier run left in the output folder.
    #[arg(long)]
    pub overwrite: bool,
    /// Print at the end where the time of the training steps went.
    #[arg(long)]
    pub profile: bool,
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Mistakes in the recipe, the data or the model folder; a full disk; numbers that are not finite.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let resolved = resolve(options)?;
    if options.print_config {
        terminal::print(resolved.print_config().trim_end())?;
        return Ok(ExitStatus::Done);
    }
    let launch = Launch::detect(options.ranks, &|name| std::env::var(name).ok())?;
    launch.require_one_host()?;
    // The first rank writes and says everything; the others would only repeat it.
    if launch.rank == 0 {
        OutputFolder::check(&resolved.output.dir, &resolved.recipe_hash(), options.overwrite)?;
    }
    setup::check_ranks(&resolved, launch.world)?;
    let job = setup::prepare(&resolved, registry)?;
    if options.dry_run && launch.rank > 0 {
        return Ok(ExitStatus::Done);
    }
    if options.dry_run {
        let summary = job.summary(&resolved);
        terminal::print(&format!("{summary}\ndry run: nothing is wrong that can be seen without reading weights"))?;
        return Ok(ExitStatus::Done);
    }
    train::run(Arc::new(Plan { job, resolved, options: options.clone(), registry, launch }))
}

pub(crate) fn resolve(options: &Options) -> Result<Resolved> {
    let sets: Vec<String> = options.sets.iter().chain(&options.bare_sets).cloned().collect();
    let checked = Recipe::read(options.recipe.as_deref(), &sets).and_then(|resolved| {
        let mistakes = if options.print_config { Vec::new() } else { preflight(&resolved) };
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

//! The plan program: a recipe and a number of ranks in; memory of a rank by class, disk space and a verdict out.

mod formula;
mod layout;
mod report;

pub use self::formula::FormulaOptions;
use self::report::{json, text};
use crate::Result;
use crate::cli::{opened, places::model_places, program, settings::SettingOptions, terminal};
use clap::Parser;
use model_center_base::error::ExitStatus;
use model_center_models::Registry;
use model_center_train::plan::{self, Machine, PlanOptions};
use model_center_train::{note_reading, train};
use std::process::ExitCode;

/// Report the memory of each rank by class and the disk space that a finetune run needs. Reads the data and the headers
/// of the weights, and takes no memory for the model.
///
/// With --layout, counts the ranks of a layout of tensor, pipeline and data parallelism, and with --fit proposes such
/// layouts by formula; both from config.json alone.
///
/// Example: bmtrain plan --recipe examples/recipes/boolq_bert.toml --ranks 2 --set parallel.zero=3
#[derive(Debug, Clone, Parser)]
#[command(name = "plan", version)]
pub struct Options {
    /// The recipe.
    #[command(flatten)]
    pub settings: SettingOptions,
    /// Ranks that share the work.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// How many of them run on one machine; by default all.
    #[arg(long, value_name = "N")]
    pub local_ranks: Option<usize>,
    /// Plan for one process per rank, as torchrun, mpirun and Slurm start them; by default the ranks of one machine are
    /// threads of one process, and ranks of several machines are processes.
    #[arg(long)]
    pub processes: bool,
    /// Host memory of the machine that is planned for, in GiB; by default what this one has available now.
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,
    /// Memory of each CUDA device that is planned for, in GiB; by default what the driver of this machine reports.
    #[arg(long, value_name = "GIB")]
    pub device_memory: Option<f64>,
    /// Plan for sequences of this many tokens, at most data.max_length; by default for the longest of the data.
    #[arg(long, value_name = "TOKENS")]
    pub length: Option<usize>,
    /// Compare ZeRO 0 to 3, with every kind of recomputation.
    #[arg(long)]
    pub all_levels: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Layouts in three dimensions.
    #[command(flatten)]
    pub formula: FormulaOptions,
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Mistakes in the recipe, the data or the model directory; ranks that do not fit the batch. A run that does not fit
/// is a result, not an error.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    if options.formula.is_asked() {
        return formula::run(options, registry);
    }
    let resolve = |sets: &[String]| options.settings.resolve(sets, registry);
    let request = PlanOptions {
        ranks: options.ranks,
        local_ranks: options.local_ranks,
        processes: options.processes,
        machine: Machine { memory: options.memory, device_memory: options.device_memory },
        length: options.length,
        all_levels: options.all_levels,
    };
    let checked = plan::check(&request, &resolve)?;
    train::check_layout(&checked.resolved, options.ranks, registry, &model_places())?;
    note_reading(&checked.resolved);
    let setup = train::prepare(&checked.resolved, registry, &model_places())?;
    opened::remarks(&setup.notes, &setup.unused).iter().for_each(|line| terminal::note(line));
    let plan = plan::plan(&request, &resolve, checked, (&setup, registry))?;
    terminal::print(&if options.json { json(&plan)? } else { text(&setup, &plan) })?;
    Ok(ExitStatus::Done)
}

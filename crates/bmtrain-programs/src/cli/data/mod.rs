//! The data program: what a recipe's records become, before anything is trained.

mod display;
mod preview;

use crate::Result;
use crate::cli::{program, settings::SettingOptions};
use clap::{Args, Parser, Subcommand, ValueEnum};
use model_center_base::error::ExitStatus;
use model_center_models::Registry;
use std::process::ExitCode;

/// Look at the samples that a recipe trains on.
///
/// Example: bmtrain data preview 3 --recipe examples/recipes/sft_llama.toml
#[derive(Debug, Clone, Parser)]
#[command(name = "data", version)]
pub struct Options {
    /// Task of the program.
    #[command(subcommand)]
    pub task: Task,
}

/// What the program does.
#[derive(Debug, Clone, Subcommand)]
pub enum Task {
    /// Print samples with token ids, text and loss mask, and the lengths of all samples.
    Preview(PreviewOptions),
}

/// Options of `bmtrain data preview`.
#[derive(Debug, Clone, Args)]
pub struct PreviewOptions {
    /// Number of samples that are printed, in the order in which the first epoch has them without shuffling.
    #[arg(value_name = "N")]
    pub samples: usize,
    /// The recipe.
    #[command(flatten)]
    pub settings: SettingOptions,
    /// Which samples.
    #[arg(long, value_enum, default_value_t = Part::Train)]
    pub part: Part,
    /// Print a JSON object for each sample and one for all, instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The training data.
    Train,
    /// The evaluation data.
    Eval,
}

/// The program: what a binary's `main` calls, with the families and classes of data sets it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models and classes of `registry`.
///
/// # Errors
/// Mistakes in the recipe, the data or the model directory.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    match &options.task {
        Task::Preview(options) => preview::run(options, registry),
    }
}

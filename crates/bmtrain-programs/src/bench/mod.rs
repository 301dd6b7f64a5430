//! The benchmarks. The bench program has one subcommand for each measured part: [`collectives`] measures communication
//! between ranks. [`decode`] is the program `decode-bench`: the claims compare it with PyTorch.

pub mod collectives;
pub mod decode;
mod figures;
mod measure;

use clap::{Parser, Subcommand};
use model_center_base::Result;
use model_center_recipe::run::ExitStatus;

/// Measure the parts that a training run is made of.
#[derive(Debug, Clone, Parser)]
#[command(name = "bench", version)]
pub struct Options {
    /// Part to measure.
    #[command(subcommand)]
    pub part: Part,
}

/// What can be measured.
#[derive(Debug, Clone, Subcommand)]
pub enum Part {
    /// Measure collectives between ranks.
    Collectives(collectives::Options),
}

/// Run the program.
///
/// # Errors
/// Mistakes on the command line; a failing device; a lost rank.
pub fn run(options: &Options) -> Result<ExitStatus> {
    match &options.part {
        Part::Collectives(options) => collectives::run(options),
    }
}

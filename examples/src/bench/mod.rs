//! The bench program: one subcommand for each measured part; [`collectives`] measures communication between
//! ranks.

pub mod collectives;
mod figures;

use clap::{Parser, Subcommand};
use model_center::Result;
use model_center::run::ExitStatus;

/// Measure the parts that a training run is made of.
#[derive(Debug, Clone, Parser)]
#[command(name = "bench", version)]
pub struct Options {
    /// What to measure.
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

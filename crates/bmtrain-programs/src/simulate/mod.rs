//! The simulate program: pipeline schedules as diagrams, and training steps in time on a machine described by numbers.
//!
//! [`picture`] shows a schedule; [`report`] prints the runs of a file as tables, beside the figures published for them.

mod picture;
mod report;

use crate::cli::terminal;
use bmtrain_dist::pipeline::ScheduleKind;
use clap::{Parser, Subcommand};
use model_center_base::Result;
use model_center_recipe::run::ExitStatus;
use std::path::PathBuf;

/// Simulate pipeline schedules and training steps in tensor, pipeline and data parallelism. Nothing is measured: a
/// result follows from the numbers of a file alone.
///
/// Example: bmtrain simulate run examples/simulate/megatron_2021.toml
#[derive(Debug, Parser)]
#[command(name = "simulate", version)]
pub struct Options {
    /// Task of the simulation.
    #[command(subcommand)]
    pub task: Task,
}

/// What to simulate.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Show a schedule as a diagram, whose forward passes, input gradients and weight gradients take equal time, over
    /// links that take none.
    Schedule {
        /// gpipe, 1f1b, interleaved, zb-1p, zb-v or forward-only.
        #[arg(long, default_value_t = ScheduleKind::OneForwardOneBackward)]
        kind: ScheduleKind,
        /// Stages of the pipeline.
        #[arg(long, value_name = "P", default_value_t = 4)]
        stages: usize,
        /// Chunks of the model on each rank; by default 2 where the kind needs several, else 1.
        #[arg(long, value_name = "N")]
        chunks: Option<usize>,
        /// Micro-batches of a step.
        #[arg(long, value_name = "M", default_value_t = 8)]
        micro_batches: usize,
        /// Write an SVG file instead of text.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Simulate the runs of a TOML file, and print the figures published for them beside the simulated ones.
    Run {
        /// The file: a machine and runs, as those in examples/simulate.
        file: PathBuf,
        /// Only the run of this name, in full.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Weak scaling: the runs on these numbers of data-parallel ranks, each with the micro-batches of the file.
        #[arg(long, value_name = "N,N,...", value_delimiter = ',', requires = "name")]
        data: Vec<usize>,
        /// Print one JSON object for each run.
        #[arg(long)]
        json: bool,
    },
}

/// Run the program.
///
/// # Errors
/// Schedules and runs that cannot be; a file that cannot be read or written.
pub fn run(options: &Options) -> Result<ExitStatus> {
    let text = match &options.task {
        Task::Schedule { kind, stages, chunks, micro_batches, svg } => {
            let chunks = chunks.unwrap_or(kind.default_chunks());
            picture::show((*kind, *stages, chunks, *micro_batches), svg.as_deref())?
        }
        Task::Run { file, name, data, json } => report::run(file, name.as_deref(), data, *json)?,
    };
    terminal::print(&text)?;
    Ok(ExitStatus::Done)
}

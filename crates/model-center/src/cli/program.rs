//! A program from its command line to its exit code, around the families of a registry.
//!
//! Defines [`main`], which the programs share.

use crate::Result;
use crate::cli::{limits, terminal};
use crate::model::Registry;
use crate::run::ExitStatus;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Read the command line, whose help lists the families, and run the program.
pub fn main<O: Parser>(
    registry: Registry<'static>,
    run: impl FnOnce(&O, Registry<'static>) -> Result<ExitStatus>,
) -> ExitCode {
    main_or(registry, |_| None, run, |_| {})
}

/// [`main`] that writes a trace of the run where one is asked for, and calls `misused` before it ends because of a
/// command line that cannot be read or a trace that cannot be written.
pub fn main_or<O: Parser>(
    registry: Registry<'static>,
    trace: impl FnOnce(&O) -> Option<PathBuf>,
    run: impl FnOnce(&O, Registry<'static>) -> Result<ExitStatus>,
    misused: impl Fn(&str),
) -> ExitCode {
    limits::prepare();
    let matches = O::command().after_help(families(registry)).try_get_matches().unwrap_or_else(|error| {
        if error.use_stderr() {
            misused(&error.to_string());
        }
        error.exit()
    });
    // What the matches lack they were just checked for.
    let options = O::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // The trace is complete when it is dropped.
    let tracing = terminal::start_tracing(trace(&options).as_deref());
    if let Err(error) = &tracing {
        misused(&error.to_string());
    }
    terminal::finish(tracing.and_then(|_trace| run(&options, registry)))
}

/// The families by the names that `config.json` has for them, and the further tasks.
fn families(registry: Registry<'_>) -> String {
    let lines = registry.entries().map(|entry| format!("\n  {:<10} {}", entry.model_type, entry.doc));
    let tasks = registry.tasks.iter().map(|entry| format!("\n  {:<10} {}", entry.name, entry.doc)).collect::<String>();
    let tasks = if tasks.is_empty() { tasks } else { format!("\n\nFurther tasks (data.task):{tasks}") };
    format!("Families of models:{}{tasks}", lines.collect::<String>())
}

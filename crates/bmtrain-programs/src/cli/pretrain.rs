//! The pretrain program: `finetune` for recipes whose task is to learn from token files.

use crate::cli::{finetune, program};
use clap::Parser;
use model_center_models::Registry;
use model_center_train::finetune_on;
use std::process::ExitCode;

/// Pretrain a model on token files, from initialized parameters or from the weights of a directory.
///
/// Example: bmtrain pretrain --recipe examples/recipes/pretrain_gpt2_345m.toml --set train.steps=1000
#[derive(Debug, Clone, Parser)]
#[command(name = "pretrain", version)]
#[group(skip)]
pub struct Options {
    /// Options of finetune.
    #[command(flatten)]
    pub run: finetune::Options,
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    let trace = |options: &Options| options.run.trace_path();
    let run = |options: &Options, registry| {
        finetune::run(&options.run, registry, |group, resolved, asked, registry| {
            finetune::require_pretraining(&resolved)?;
            finetune_on(group, resolved, asked, registry)
        })
    };
    program::main_or(registry, trace, run, finetune::abandon_misused)
}

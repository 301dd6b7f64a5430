//! The generate program: texts for prompts, or a conversation.
//!
//! Generation is in [`model_center_models::generate`]; here are the command line (`options`, `setup`), the ranks
//! (`ranks`), the output (`output`) and the conversation in a terminal (`chat`). The manual is `docs/generate.md`.

mod chat;
pub mod options;
mod output;
mod ranks;
mod setup;

use crate::Result;
use crate::cli::{
    device::{DeviceArguments, WeightsArgument},
    opened::ModelSource,
    program,
    ranks::ModelRanks,
    terminal,
};
use bmtrain_core::cpu::Pinning;
use clap::Parser;
use model_center_base::error::ExitStatus;
use model_center_models::Registry;
use options::{MethodOptions, PromptOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Generate text for prompts, with a decoder or an encoder-decoder.
///
/// Prompts are given on the command line, with their texts printed as they are generated, or as the rows of JSONL
/// files, which are written with their texts to another. With --chat they are messages of a user, formatted by the
/// model's chat template; without prompts this starts a conversation. With --interactive each line of standard input is
/// completed.
///
/// Settings that are not given here come from generation_config.json in the model directory, else from config.json;
/// --print-config prints them all.
///
/// Example: bmtrain generate HuggingFaceTB/SmolLM2-135M-Instruct --chat --prompt "Why is the sky blue?" --sample
#[derive(Debug, Clone, Parser)]
#[command(name = "generate", version)]
pub struct Options {
    /// Directory of Hugging Face or ModelCenter, a GGUF file, or the hub name of a model in its cache (program fetch).
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Files of the model, and its adapter.
    #[command(flatten)]
    pub source: ModelSource,
    /// Prompts.
    #[command(flatten)]
    pub prompts: PromptOptions,
    /// Decoding.
    #[command(flatten)]
    pub method: MethodOptions,
    /// Print each prompt before its text, when the text is complete.
    #[arg(long, requires = "prompt", conflicts_with_all = ["json", "chat"])]
    pub echo: bool,
    /// Print one JSON object for each prompt, as in --output.
    #[arg(long, requires = "prompt")]
    pub json: bool,
    /// File to write, one JSON object for each row of --input or --data; by default they are printed.
    #[arg(long, value_name = "FILE", requires = "rows")]
    pub output: Option<PathBuf>,
    /// Replace an existing --output.
    #[arg(long, requires = "output")]
    pub overwrite: bool,
    /// Go on after the rows of an existing --output, which have to be the first ones of --input or --data; rows are
    /// written as they are generated.
    #[arg(long, requires = "output", conflicts_with = "overwrite")]
    pub append: bool,
    /// Batch size on each rank; by default 8 for --input and --data, 1 for --prompt. Texts depend on it by rounding
    /// only.
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Device and dtype of the computation.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Form of a GGUF file's blocks in memory.
    #[command(flatten)]
    pub held: WeightsArgument,
    /// What threads are pinned to: the NUMA nodes of a rank's cores (nodes), a core each (cores), or nothing (none).
    #[arg(long, value_name = "TO", default_value_t = Pinning::Nodes)]
    pub pin_threads: Pinning,
    /// Share prompts and weights (ZeRO-3) among this number of ranks, threads of this process; each has all matrices
    /// that are held in blocks. By default the ranks of --tensor and --pipeline.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Of the ranks, this number share each prompt: each has some of the heads, columns and tokens of every layer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tensor: usize,
    /// Divide the blocks into this number of pipeline stages of --tensor ranks each; the other --ranks share prompts,
    /// and each has the weights of its stage.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub pipeline: usize,
    /// Print every setting with its origin, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Print only errors on standard error.
    #[arg(long)]
    pub quiet: bool,
}

impl Options {
    fn model_ranks(&self) -> ModelRanks {
        ModelRanks { tensor: self.tensor, pipeline: self.pipeline }
    }

    /// Whether this is a conversation in the terminal.
    fn is_conversation(&self) -> bool {
        self.prompts.chat && self.prompts.prompt.is_empty() && !self.prompts.are_rows()
    }

    /// Whether prompts are lines of standard input.
    fn reads_lines(&self) -> bool {
        self.is_conversation() || self.prompts.interactive
    }
}

/// The program: what a binary's `main` calls, with the families of its registry.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Settings without effect or out of range; a model, a file or a row that cannot be used; an existing output.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let run = setup::prepare(options, registry)?;
    if options.print_config {
        terminal::print(&run.settings.to_string())?;
        return Ok(ExitStatus::Done);
    }
    ranks::run(run)
}

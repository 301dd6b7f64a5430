//! The generate program: a model and prompts in, texts out; or a conversation.
//!
//! [`settings`] brings the command line and what the model's directory states together, [`rows`] reads prompts and
//! makes ids of them, `work` runs the model on its ranks, `sink` writes what comes, `chat` talks. How words are chosen
//! is in [`model_center::generate`]; `docs/generate.md` is the manual.

mod chat;
pub mod rows;
pub mod settings;
mod setup;
mod sink;
mod work;

use crate::opened::Stored;
use crate::program;
use crate::terminal;
use bmtrain_core::DeviceChoice;
use clap::Parser;
use model_center::Result;
use model_center::model::Registry;
use model_center::run::ExitStatus;
use rows::RowOptions;
use settings::MethodOptions;
use std::path::PathBuf;
use std::process::ExitCode;

/// Generate texts behind prompts, with a decoder or with an encoder and a decoder.
///
/// Prompts come from the command line, whose texts are printed as they come, or from the rows of a JSONL file, which
/// are written with their texts to another. With --chat they are what a user says, by the model's chat template; with
/// neither --prompt nor --input the program then talks until the end of its input.
///
/// What is not said here is as generation_config.json in the model's directory has it, else config.json; --print-config
/// shows all of it.
///
/// Example: generate HuggingFaceTB/SmolLM2-135M-Instruct --chat --prompt "Why is the sky blue?" --sample --top-p 0.9
#[derive(Debug, Clone, Parser)]
#[command(name = "generate", version)]
pub struct Options {
    /// Directory of Hugging Face or ModelCenter, or the hub's name of a model that is in its cache (program fetch).
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Branch, tag or commit of a model of the hub; by default main.
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Family of a model whose config.json does not name it, as ModelCenter's do not.
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<String>,
    /// Leave out tensors that the model has no use for, by a pattern in which * stands for any text; may be repeated.
    /// Those of heads for other tasks need none.
    #[arg(long, value_name = "PATTERN")]
    pub leave: Vec<String>,
    /// What is read.
    #[command(flatten)]
    pub rows: RowOptions,
    /// How words are chosen.
    #[command(flatten)]
    pub method: MethodOptions,
    /// Print each prompt in front of its text, when that is complete.
    #[arg(long, requires = "prompt", conflicts_with_all = ["json", "chat"])]
    pub echo: bool,
    /// Print one JSON object for each prompt, as --output has them.
    #[arg(long, requires = "prompt")]
    pub json: bool,
    /// File to write, one JSON object for each row of --input; without it they are printed.
    #[arg(long, value_name = "FILE", requires = "input")]
    pub output: Option<PathBuf>,
    /// Replace --output if it is there.
    #[arg(long, requires = "output")]
    pub overwrite: bool,
    /// Prompts at a time, on each rank; by default 8 of --input and 1 of --prompt. Texts do not depend on it, but for
    /// rounding.
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// What it runs on: auto, cpu, cuda, or cuda:1 for the second CUDA device.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Dtype of the weights while it runs; by default the one they are stored in.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<Stored>,
    /// Threads, of all ranks together; by default all that this process may use.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Share the prompts and the weights (ZeRO-3) among this many ranks, threads of this process.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Print every setting with its origin, and stop.
    #[arg(long)]
    pub print_config: bool,
    /// Say nothing on standard error but errors.
    #[arg(long)]
    pub quiet: bool,
}

impl Options {
    /// Whether the program talks, rather than answering prompts.
    fn is_conversation(&self) -> bool {
        self.rows.chat && self.rows.prompt.is_empty() && self.rows.input.is_none()
    }
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Settings without effect or out of their range; a model, a file or a row that cannot be used; an output that is there
/// already; a failing device.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let job = setup::prepare(options, registry)?;
    if options.print_config {
        terminal::print(&job.settings.to_string())?;
        return Ok(ExitStatus::Done);
    }
    work::run(job)
}

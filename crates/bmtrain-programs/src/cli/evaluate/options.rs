//! The options of the command line.

use crate::cli::device::{DeviceArguments, WeightsArgument};
use crate::cli::opened::ModelSource;
use crate::cli::ranks::ModelRanks;
use clap::Args;
use model_center_data::corpus::text::TextFormat;
use model_center_train::evaluate::Detokenizer;
use std::path::PathBuf;

/// The model and the ranks that share it.
#[derive(Debug, Clone, Args)]
pub struct ModelOptions {
    /// Directory of Hugging Face or ModelCenter, a GGUF file, or the hub name of a model in its cache (program fetch).
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Files of the model, and its adapter.
    #[command(flatten)]
    pub source: ModelSource,
    /// Tokens of a sequence; by default the positions of the model, at most 1024.
    #[arg(long, value_name = "TOKENS")]
    pub length: Option<usize>,
    /// Batch size on each rank. Results depend on it by rounding only.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub batch: usize,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Device and dtype of the computation.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Form of a GGUF file's blocks in memory.
    #[command(flatten)]
    pub held: WeightsArgument,
    /// Share sequences and weights (ZeRO-3) among this number of ranks, threads of this process. By default the ranks
    /// of --tensor and --pipeline.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Of the ranks, this number share each sequence: each has some of the heads, columns and tokens of every layer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tensor: usize,
    /// Divide the blocks into this number of pipeline stages of --tensor ranks each.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub pipeline: usize,
}

impl ModelOptions {
    pub(super) fn model_ranks(&self) -> ModelRanks {
        ModelRanks { tensor: self.tensor, pipeline: self.pipeline }
    }
}

/// Perplexity of a text, a corpus or a token file.
#[derive(Debug, Clone, Args)]
pub struct PerplexityOptions {
    /// The model.
    #[command(flatten)]
    pub model: ModelOptions,
    /// A text; a corpus of JSON, CSV or TSV; or a token file, by its prefix or either of its two files.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Start a window every N tokens. Each window after the first scores its last N targets, with the tokens before
    /// them as context. By default --length: windows that share no target.
    #[arg(long, value_name = "N")]
    pub overlap: Option<usize>,
    /// Score this number of batches alone, over all ranks; by default the whole file.
    #[arg(long, value_name = "N")]
    pub iterations: Option<u64>,
    /// Undo the tokenisation of a published test set; by default the one that the path of a text names (wikitext, ptb).
    #[arg(long, value_enum, value_name = "RULES")]
    pub detokenizer: Option<Detokenizer>,
    /// Format of the documents; by default by the file name, else one text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<TextFormat>,
    /// Key or column of the documents.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub text_key: String,
}

/// The last word of passages.
#[derive(Debug, Clone, Args)]
pub struct LambadaOptions {
    /// The model.
    #[command(flatten)]
    pub model: ModelOptions,
    /// Passages in JSONL.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Key of the passages.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub text_key: String,
}

/// Log-likelihoods of given continuations.
#[derive(Debug, Clone, Args)]
pub struct LikelihoodOptions {
    /// The model.
    #[command(flatten)]
    pub model: ModelOptions,
    /// Requests in JSONL.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File to write, one JSON object for each request; by default they are printed.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Masked tokens.
#[derive(Debug, Clone, Args)]
pub struct MlmOptions {
    /// The model.
    #[command(flatten)]
    pub model: ModelOptions,
    /// Texts, one a line, or a corpus of JSON, CSV or TSV; with --given-masks rows of ids.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Share of the tokens of a sequence that are masked together, at least one.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15, conflicts_with_all = ["pseudo", "given_masks"])]
    pub mask_share: f64,
    /// Seed of the choice of masked tokens, which is otherwise fixed by the place of a sequence in the file.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["pseudo", "given_masks"])]
    pub seed: u64,
    /// Mask each token alone: the pseudo-perplexity.
    #[arg(long, conflicts_with = "given_masks")]
    pub pseudo: bool,
    /// FILE is JSONL of input_ids with masked tokens and labels, -100 where nothing is predicted.
    #[arg(long)]
    pub given_masks: bool,
    /// Format of the texts; by default by the file name, else lines.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<TextFormat>,
    /// Key or column of the texts.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub text_key: String,
}

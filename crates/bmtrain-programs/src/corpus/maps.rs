//! The task that computes index maps.

use crate::cli::terminal;
use clap::{Args, ValueEnum};
use model_center_base::{Error, Result};
use model_center_data::corpus::{DocumentSet, SampleOptions, SampleOrder, Samples, SplitShares, TokenFile};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Which maps are computed.
#[derive(Debug, Args)]
pub struct MapArguments {
    /// Path without .bin and .idx, or either file.
    pub prefix: PathBuf,
    /// Inputs of a sample, which has one token more.
    #[arg(long, value_name = "L")]
    pub sequence_length: u64,
    /// Samples that are needed; by default one epoch's.
    #[arg(long, value_name = "N")]
    pub samples: Option<u64>,
    /// Which part of the split.
    #[arg(long, value_enum, default_value_t = Part::Train)]
    pub part: Part,
    /// Shares of training, validation and test.
    #[arg(long, default_value = "949,50,1")]
    pub split: String,
    /// Split a random order of the documents, not the order of the file.
    #[arg(long)]
    pub permuted: bool,
    /// Decides the orders.
    #[arg(long, default_value_t = 1234)]
    pub seed: u64,
    /// The rule of the orders.
    #[arg(long, value_enum, default_value_t = Order::Addressed)]
    pub order: Order,
    /// The directory of the maps; by default beside the corpus.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Threads; by default one per processor.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
}

/// A part of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// What is trained on.
    Train,
    /// What is evaluated while training.
    Valid,
    /// What is evaluated at the end.
    Test,
}

/// The rule of the orders of documents and samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Each epoch an order of its own, computed in parallel.
    Addressed,
    /// Megatron-LM's since its third version, with NumPy's generator.
    Megatron,
    /// Megatron-LM's before.
    MegatronV1,
}

/// Compute and describe.
pub(super) fn run(arguments: &MapArguments, as_json: bool) -> Result<()> {
    let file = Arc::new(TokenFile::open(&arguments.prefix)?);
    let ranges = SplitShares::parse(&arguments.split)?.ranges(file.sequences());
    let [train, valid, test] = ranges;
    let (part, range) = match arguments.part {
        Part::Train => ("train", train),
        Part::Valid => ("valid", valid),
        Part::Test => ("test", test),
    };
    if range.is_empty() {
        let reason = format!("the part {part} has none of the {} documents", file.sequences());
        return Err(Error::argument("--split", reason, "give it a larger share"));
    }
    let documents = match arguments.permuted {
        true => DocumentSet::permuted(range, file.sequences(), arguments.seed),
        false => DocumentSet::range(range),
    };
    let order = match arguments.order {
        Order::Addressed => SampleOrder::Addressed,
        Order::Megatron => SampleOrder::Megatron,
        Order::MegatronV1 => SampleOrder::MegatronV1,
    };
    let options = SampleOptions {
        sequence_length: arguments.sequence_length,
        // One sample needs one epoch, which has more.
        samples: arguments.samples.unwrap_or(1),
        seed: arguments.seed,
        order,
        part: part.into(),
        cache: arguments.out.clone(),
        threads: arguments.threads,
    };
    let count = documents.len();
    let samples = Samples::open(file, &documents, &options)?;
    let (len, epochs, tokens) = (samples.len(), samples.epochs(), samples.tokens_per_epoch());
    if as_json {
        let record = json!({
            "part": part, "documents": count, "samples": len, "epochs": epochs, "tokens_per_epoch": tokens,
            "order": order.name(),
        });
        return terminal::print(&record.to_string());
    }
    terminal::print(&format!(
        "{part}: {len} samples of {} tokens from {count} documents with {tokens} tokens, {epochs} epochs",
        samples.sample_tokens()
    ))
}

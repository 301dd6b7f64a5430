//! The corpus program: raw text cleaned and split into sentences, token files, their description and check, other
//! formats, index maps, fixed splits.

mod blocks;
mod build;
mod clean;
mod convert;
mod describe;
mod display;
mod maps;
mod presplit;
mod random;
mod samples;
mod sources;

use crate::cli::places::model_places;
use crate::cli::terminal;
use bmtrain_corpus::formats::{CorpusFormat, ReadOptions};
use bmtrain_corpus::{FixedSplit, split_lines};
use clap::{Args, Parser, Subcommand};
use model_center_base::Result;
use model_center_data::corpus::SplitShares;
use model_center_formats::Pretrained;
use model_center_formats::tokenizer::{AutoTokenizer, TextSpecials, Tokenizer};
use model_center_recipe::run::ExitStatus;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Build token files for pretraining from raw text, and look after them.
///
/// PREFIX is the path of a token file without its endings: PREFIX.bin has the token ids, PREFIX.idx the index, in
/// Megatron-LM's format.
///
/// Example: bmtrain corpus build books.jsonl.gz --tokenizer gpt2 --append-eod --out data/books
#[derive(Debug, Parser)]
#[command(name = "corpus", version)]
pub struct Options {
    /// Task of the program.
    #[command(subcommand)]
    pub task: Task,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Tokenise the documents of files and write a token file. The same command goes on with a build that was stopped
    /// or killed; its bytes depend neither on that nor on the number of threads.
    Build(Box<build::BuildArguments>),
    /// Clean documents before they are tokenised: by URL, encoding, language, length, near-duplicates and task texts.
    /// The same command goes on with a run that was stopped or killed; the result depends neither on that nor on the
    /// number of threads.
    Clean(Box<clean::CleanArguments>),
    /// Put each sentence of the documents on a line of its own, as build --split-lines reads them.
    Presplit(Box<presplit::PresplitArguments>),
    /// Describe a corpus by what it states of itself.
    Info(CorpusArguments),
    /// Read a corpus whole and check every id, and every entry of the index of a token file.
    Verify(describe::VerifyArguments),
    /// Write corpora in another format, one after the other.
    Convert(convert::ConvertArguments),
    /// Join token files, one after the other, byte for byte as Megatron-LM does.
    Merge(convert::MergeArguments),
    /// Shuffle, compact or mask BMTrain's block files.
    Blocks {
        /// Task for block files.
        #[command(subcommand)]
        task: blocks::BlockTask,
    },
    /// Compute the index maps of a token file: which tokens each sample has. Training does it when they are missing.
    Maps(maps::MapArguments),
    /// Write a token file of random ids, to measure training with.
    Random(random::RandomArguments),
    /// Show samples of a pretraining recipe as the model reads them: masked, with hidden spans, with their labels.
    Samples(samples::SampleArguments),
    /// Deal the lines of files, as of JSONL, to train, valid and test files once, with the origin of each line in .map
    /// files.
    Split(SplitArguments),
}

/// A corpus, and how it is read.
#[derive(Debug, Args)]
pub struct CorpusArguments {
    /// Path of a token file without .bin and .idx, a directory, or a file.
    pub path: PathBuf,
    /// Settings of reading it.
    #[command(flatten)]
    pub read: ReadArguments,
}

/// How a corpus is read.
#[derive(Debug, Args)]
pub struct ReadArguments {
    /// The format; by default what the files are.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub from: Option<CorpusFormat>,
    /// Where records and dictionaries have the token ids.
    #[arg(long, default_value = "input_ids")]
    pub key: String,
    /// For CPM-2, whose placeholders begin with this id: the number of tokens of the vocabulary.
    #[arg(long, value_name = "ID")]
    pub first_placeholder: Option<u32>,
}

impl ReadArguments {
    fn options(&self) -> ReadOptions {
        let ReadArguments { from, key, first_placeholder } = self;
        ReadOptions { format: *from, key: key.clone(), first_placeholder: *first_placeholder }
    }
}

/// What is split.
#[derive(Debug, Args)]
pub struct SplitArguments {
    /// Files of lines, which gzip or zstd may have compressed.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The directory of the parts, which exists.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Shares of train, valid and test.
    #[arg(long, default_value = "949,50,1")]
    pub split: String,
    /// Decides which line is in which part.
    #[arg(long, default_value_t = 1234)]
    pub seed: u64,
    /// The longest line, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = model_center_data::corpus::text::MAX_DOCUMENT_BYTES)]
    pub max_line_bytes: usize,
}

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    match &options.task {
        Task::Build(arguments) => return build::run(arguments, options.json),
        Task::Clean(arguments) => return clean::run(arguments, options.json),
        Task::Presplit(arguments) => return presplit::run(arguments, options.json),
        Task::Info(arguments) => describe::info(arguments, options.json)?,
        Task::Verify(arguments) => describe::verify(arguments, options.json)?,
        Task::Convert(arguments) => convert::run(arguments, options.json)?,
        Task::Merge(arguments) => convert::merge(arguments, options.json)?,
        Task::Blocks { task } => blocks::run(task, options.json)?,
        Task::Maps(arguments) => maps::run(arguments, options.json)?,
        Task::Random(arguments) => random::run(arguments, options.json)?,
        Task::Samples(arguments) => samples::run(arguments, options.json)?,
        Task::Split(arguments) => split(arguments, options.json)?,
    }
    Ok(ExitStatus::Done)
}

fn open_tokenizer(model: &str, specials: TextSpecials) -> Result<Arc<dyn Tokenizer>> {
    AutoTokenizer::open_with(&Pretrained::resolve(model, None, &model_places())?, specials)
}

fn split(arguments: &SplitArguments, as_json: bool) -> Result<()> {
    let shares = SplitShares::parse(&arguments.split)?;
    let SplitArguments { files, out, seed, max_line_bytes, .. } = arguments;
    let FixedSplit { lines: [train, valid, test] } = split_lines(files, out, shares, *seed, *max_line_bytes)?;
    if as_json {
        return terminal::print(&json!({"train": train, "valid": valid, "test": test}).to_string());
    }
    terminal::print(&format!("{}: {train} lines train, {valid} valid, {test} test", out.display()))
}

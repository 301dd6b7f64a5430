//! The corpus program: raw text cleaned and split into sentences, token files, their description and check, index
//! maps, fixed splits.

mod build;
mod clean;
mod display;
mod maps;
mod presplit;
mod sources;

use crate::places::model_places;
use crate::terminal;
use clap::{Args, Parser, Subcommand};
use model_center::Result;
use model_center::corpus::{FileReport, FixedSplit, SplitShares, TokenFile, split_lines, verify};
use model_center::formats::Pretrained;
use model_center::run::ExitStatus;
use model_center::tokenizer::{AutoTokenizer, TextSpecials, Tokenizer};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Build token files for pretraining from raw text, and look after them.
///
/// PREFIX is the path of a token file without its endings: PREFIX.bin has the token ids, PREFIX.idx the index, in
/// Megatron-LM's format.
///
/// Example: corpus build books.jsonl.gz --tokenizer gpt2 --append-eod --out data/books
#[derive(Debug, Parser)]
#[command(name = "corpus", version)]
pub struct Options {
    /// What to do.
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
    /// Describe a token file by its header.
    Info {
        /// Path without .bin and .idx, or either file.
        prefix: PathBuf,
    },
    /// Read a token file whole and compare every entry of its index and every id.
    Verify(VerifyArguments),
    /// Compute the index maps of a token file: which tokens each sample has. Training does it when they are missing.
    Maps(maps::MapArguments),
    /// Deal the lines of files, as of JSONL, to train, valid and test files once, with the origin of each line in .map
    /// files.
    Split(SplitArguments),
}

/// What is checked.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// Path without .bin and .idx, or either file.
    pub prefix: PathBuf,
    /// Ids must be below this.
    #[arg(long, value_name = "N", conflicts_with = "tokenizer")]
    pub vocab_size: Option<u64>,
    /// Ids must be of this tokenizer: a directory, or the name of a model in the local cache.
    #[arg(long, value_name = "MODEL")]
    pub tokenizer: Option<String>,
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
    #[arg(long, value_name = "BYTES", default_value_t = model_center::corpus::text::MAX_DOCUMENT_BYTES)]
    pub max_line_bytes: usize,
}

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    match &options.task {
        Task::Build(arguments) => return build::run(arguments, options.json),
        Task::Clean(arguments) => return clean::run(arguments, options.json),
        Task::Presplit(arguments) => return presplit::run(arguments, options.json),
        Task::Info { prefix } => info(&TokenFile::open(prefix)?, options.json)?,
        Task::Verify(arguments) => check(arguments, options.json)?,
        Task::Maps(arguments) => maps::run(arguments, options.json)?,
        Task::Split(arguments) => split(arguments, options.json)?,
    }
    Ok(ExitStatus::Done)
}

fn open_tokenizer(model: &str, specials: TextSpecials) -> Result<Arc<dyn Tokenizer>> {
    AutoTokenizer::open_with(&Pretrained::resolve(model, None, &model_places())?, specials)
}

fn info(file: &TokenFile, as_json: bool) -> Result<()> {
    let (format, token) = (file.format().name(), file.token_type().name());
    if as_json {
        let record = json!({
            "prefix": file.prefix().display().to_string(), "format": format, "dtype": token,
            "documents": file.documents(), "sequences": file.sequences(), "tokens": file.tokens(),
            "bytes": file.bytes(),
        });
        return terminal::print(&record.to_string());
    }
    let lines = [
        format!("format     {format}"),
        format!("dtype      {token}"),
        format!("documents  {}", file.documents()),
        format!("sequences  {}", file.sequences()),
        format!("tokens     {}", file.tokens()),
        format!("bytes      {}", file.bytes()),
    ];
    terminal::print(&lines.join("\n"))
}

fn check(arguments: &VerifyArguments, as_json: bool) -> Result<()> {
    let vocabulary = match &arguments.tokenizer {
        Some(model) => Some(open_tokenizer(model, TextSpecials::AsText)?.vocab_size() as u64),
        None => arguments.vocab_size,
    };
    let FileReport { sequences, documents, tokens, empty, longest, largest_id } =
        verify(&arguments.prefix, vocabulary)?;
    if as_json {
        let record = json!({
            "sequences": sequences, "documents": documents, "tokens": tokens, "empty_sequences": empty,
            "longest_sequence": longest, "largest_id": largest_id,
        });
        return terminal::print(&record.to_string());
    }
    let largest = largest_id.map_or("no ids".into(), |id| format!("ids up to {id}"));
    terminal::print(&format!(
        "{}: whole; {documents} documents, {sequences} sequences ({empty} empty, the longest {longest} tokens), \
         {tokens} tokens, {largest}",
        arguments.prefix.display()
    ))
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

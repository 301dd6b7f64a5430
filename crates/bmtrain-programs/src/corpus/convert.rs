//! The tasks that write corpora in another format, and join token files.

use super::ReadArguments;
use super::build::Dtype;
use super::display::Display;
use crate::cli::terminal;
use bmtrain_corpus::formats::{CorpusFormat, WriteOptions};
use bmtrain_corpus::{ConvertOptions, ConvertReport, convert, merge as merge_files};
use clap::Args;
use model_center_base::{Error, Result};
use model_center_data::corpus::TokenFile;
use serde_json::json;
use std::path::PathBuf;

/// What is converted.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// The corpora, and at the end the path of the result: without .bin and .idx for megatron, a directory for npy and
    /// blocks, a file for tfrecord, which is compressed if its name ends in .gz.
    #[arg(required = true, num_args = 2.., value_name = "IN... OUT")]
    pub paths: Vec<PathBuf>,
    /// The format of the result.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: CorpusFormat,
    /// Settings of reading the corpora.
    #[command(flatten)]
    pub read: ReadArguments,
    /// How ids are stored in token files and arrays; by default as in a token file that is read, else as uint16.
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Each sequence becomes a document.
    #[arg(long)]
    pub by_sequence: bool,
    /// Cut documents off after this many ids; the scripts of Yuan 1.0 do it after 2048.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_tokens: usize,
    /// Documents of an array file.
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    pub shard_documents: u64,
    /// Bytes of a block; all files of a dataset have blocks of one size.
    #[arg(long, value_name = "BYTES", default_value_t = bmtrain_corpus::formats::DEFAULT_BLOCK_BYTES)]
    pub block_bytes: u64,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// What is joined.
#[derive(Debug, Args)]
pub struct MergeArguments {
    /// Paths of token files without .bin and .idx, in the order of the result.
    #[arg(required = true)]
    pub prefixes: Vec<PathBuf>,
    /// Where the result is written: PREFIX.bin and PREFIX.idx.
    #[arg(long, value_name = "PREFIX")]
    pub out: PathBuf,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// Convert, show progress, report.
pub(super) fn run(arguments: &ConvertArguments, as_json: bool) -> Result<()> {
    let Some((out, sources)) = arguments.paths.split_last() else {
        return Err(Error::argument("OUT", "no paths", "name corpora, and then the result"));
    };
    let read = arguments.read.options();
    let defaults = WriteOptions::default();
    let stored = || {
        let file = TokenFile::open(sources.first()?).ok()?;
        Some(file.token_type())
    };
    let write = WriteOptions {
        token: arguments.dtype.map(Dtype::token_type).or_else(stored).unwrap_or(defaults.token),
        shard_documents: arguments.shard_documents,
        block_bytes: arguments.block_bytes,
        key: read.key.clone(),
    };
    let ConvertArguments { by_sequence, max_tokens, .. } = *arguments;
    let options = ConvertOptions { by_sequence, max_tokens };
    let mut display = Display::new(arguments.quiet);
    let show = &mut |read, all| display.show_read(read, all);
    let report = convert(sources, &read, (out.as_path(), arguments.to), &write, options, show);
    display.finish();
    let ConvertReport { documents, tokens, cut } = report?;
    if as_json {
        let record = json!({
            "path": out.display().to_string(), "format": arguments.to.name(), "documents": documents, "tokens": tokens,
            "cut_tokens": cut,
        });
        return terminal::print(&record.to_string());
    }
    let mut text = format!("{}: {documents} documents, {tokens} tokens as {}", out.display(), arguments.to.name());
    if cut > 0 {
        text += &format!("; {cut} tokens cut off");
    }
    terminal::print(&text)
}

/// Join, show progress, report.
pub(super) fn merge(arguments: &MergeArguments, as_json: bool) -> Result<()> {
    let MergeArguments { prefixes, out, quiet } = arguments;
    let mut display = Display::new(*quiet);
    let merged = merge_files(prefixes, out, &mut |read, all| display.show_read(read, all));
    display.finish();
    let written = merged?;
    let (documents, sequences, tokens) = (written.documents, written.sequences, written.tokens);
    if as_json {
        let prefix = out.display().to_string();
        let record = json!({"prefix": prefix, "documents": documents, "sequences": sequences, "tokens": tokens});
        return terminal::print(&record.to_string());
    }
    let text = format!("{}: {documents} documents, {sequences} sequences, {tokens} tokens", out.display());
    terminal::print(&text)
}

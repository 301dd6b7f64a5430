//! The tasks that describe and check corpora.

use super::display::Display;
use super::{CorpusArguments, open_tokenizer};
use crate::cli::terminal;
use bmtrain_corpus::formats::{CorpusFormat, ReadOptions, StatedCounts, open_documents};
use bmtrain_corpus::{FileReport, verify_documents, verify_showing};
use clap::Args;
use model_center_base::Result;
use model_center_data::corpus::TokenFile;
use model_center_formats::tokenizer::TextSpecials;
use serde_json::json;
use std::path::Path;

/// What is checked.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// The corpus.
    #[command(flatten)]
    pub corpus: CorpusArguments,
    /// Ids must be below this.
    #[arg(long, value_name = "N", conflicts_with = "tokenizer")]
    pub vocab_size: Option<u64>,
    /// Ids must be of this tokenizer: a directory, or the name of a model in the local cache.
    #[arg(long, value_name = "MODEL")]
    pub tokenizer: Option<String>,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// The format that is asked for, or found.
fn format_of(path: &Path, options: &ReadOptions) -> Result<CorpusFormat> {
    options.format.map_or_else(|| CorpusFormat::detect(path), Ok)
}

/// Print what a corpus states.
pub(super) fn info(arguments: &CorpusArguments, as_json: bool) -> Result<()> {
    let (path, options) = (&arguments.path, arguments.read.options());
    let format = format_of(path, &options)?;
    if format == CorpusFormat::Megatron {
        return token_file(&TokenFile::open(path)?, as_json);
    }
    let documents = open_documents(path, &ReadOptions { format: Some(format), ..options })?;
    let (StatedCounts { documents, tokens }, bytes) = (documents.stated(), documents.total_bytes());
    if as_json {
        let record = json!({
            "path": path.display().to_string(), "format": format.name(), "documents": documents, "tokens": tokens,
            "bytes": bytes,
        });
        return terminal::print(&record.to_string());
    }
    let stated = |count: Option<u64>| count.map_or("not stated".into(), |count| count.to_string());
    let lines = [
        format!("format     {}", format.name()),
        format!("documents  {}", stated(documents)),
        format!("tokens     {}", stated(tokens)),
        format!("bytes      {bytes}"),
    ];
    terminal::print(&lines.join("\n"))
}

fn token_file(file: &TokenFile, as_json: bool) -> Result<()> {
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

/// Check a corpus and print what it has.
pub(super) fn verify(arguments: &VerifyArguments, as_json: bool) -> Result<()> {
    let vocabulary = match &arguments.tokenizer {
        Some(model) => Some(open_tokenizer(model, TextSpecials::AsText)?.vocab_size() as u64),
        None => arguments.vocab_size,
    };
    let (path, options) = (&arguments.corpus.path, arguments.corpus.read.options());
    let format = format_of(path, &options)?;
    let mut display = Display::new(arguments.quiet);
    let mut show = |read, all| display.show_read(read, all);
    let report = match format {
        CorpusFormat::Megatron => verify_showing(path, vocabulary, &mut show),
        _ => verify_documents(path, &ReadOptions { format: Some(format), ..options }, vocabulary, &mut show),
    };
    display.finish();
    let FileReport { sequences, documents, tokens, empty, longest, largest_id } = report?;
    if as_json {
        let record = json!({
            "format": format.name(), "sequences": sequences, "documents": documents, "tokens": tokens,
            "empty_sequences": empty, "longest_sequence": longest, "largest_id": largest_id,
        });
        return terminal::print(&record.to_string());
    }
    let largest = largest_id.map_or("no ids".into(), |id| format!("ids up to {id}"));
    terminal::print(&format!(
        "{}: whole; {documents} documents, {sequences} sequences ({empty} empty, the longest {longest} tokens), \
         {tokens} tokens, {largest}",
        path.display()
    ))
}

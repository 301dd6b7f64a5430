//! The task that builds a token file.

use super::display::{Display, share};
use super::sources::{SourceArguments, on_bad_record};
use crate::cli::terminal;
use bmtrain_corpus::build::{BuildOptions, BuildProgress, BuildReport, build};
use clap::{Args, ValueEnum};
use model_center_base::{Error, Result};
use model_center_data::corpus::TokenType;
use model_center_formats::tokenizer::{TextSpecials, Tokenizer};
use model_center_recipe::run::{ExitStatus, StopFlag, listen};
use serde_json::json;
use std::path::PathBuf;

/// What is built.
#[derive(Debug, Args)]
pub struct BuildArguments {
    /// Texts to read.
    #[command(flatten)]
    pub source: SourceArguments,
    /// The tokenizer: a directory, or the name of a model in the local cache.
    #[arg(long, value_name = "MODEL")]
    pub tokenizer: String,
    /// Where the result is written: PREFIX.bin and PREFIX.idx.
    #[arg(long, value_name = "PREFIX")]
    pub out: PathBuf,
    /// End every document with the tokenizer's EOS token.
    #[arg(long)]
    pub append_eod: bool,
    /// End every document with this token.
    #[arg(long, value_name = "TOKEN", conflicts_with = "append_eod")]
    pub eod_token: Option<String>,
    /// Each line of a document is a sequence, as of documents with a sentence a line.
    #[arg(long)]
    pub split_lines: bool,
    /// What stands for a line break in the texts, such as <n> in CPM's and Yuan's.
    #[arg(long, value_name = "TEXT")]
    pub newline: Option<String>,
    /// How ids are stored; by default uint16 below 65,500 tokens, else int32.
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Leave out records that cannot be used, up to this share of all.
    #[arg(long, value_name = "SHARE")]
    pub skip_bad: Option<f64>,
    /// Read control tokens that a text spells as such; by default they are text.
    #[arg(long)]
    pub control: bool,
    /// Threads that tokenise; by default one per processor.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// Type of stored ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 1 byte.
    Uint8,
    /// 2 bytes.
    Uint16,
    /// 4 bytes.
    Int32,
    /// 8 bytes.
    Int64,
}

impl Dtype {
    pub(super) fn token_type(self) -> TokenType {
        match self {
            Dtype::Uint8 => TokenType::U8,
            Dtype::Uint16 => TokenType::U16,
            Dtype::Int32 => TokenType::I32,
            Dtype::Int64 => TokenType::I64,
        }
    }
}

/// The text for a line break; an empty one would be between all characters.
fn newline(arguments: &BuildArguments) -> Result<Option<String>> {
    match arguments.newline.as_deref() {
        Some("") => Err(Error::argument("--newline", "the text is empty", "name a text such as <n>, or leave it out")),
        newline => Ok(newline.map(str::to_owned)),
    }
}

/// Build, show progress, report.
pub(super) fn run(arguments: &BuildArguments, as_json: bool) -> Result<ExitStatus> {
    let specials = if arguments.control { TextSpecials::AsTokens } else { TextSpecials::AsText };
    let tokenizer = super::open_tokenizer(&arguments.tokenizer, specials)?;
    let options = options(arguments, tokenizer.as_ref())?;
    let sources = arguments.source.sources()?;
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    let mut display = Display::new(arguments.quiet);
    let report = build(sources, tokenizer.as_ref(), &options, &stop, &mut |progress| show(&mut display, progress));
    display.finish();
    print(arguments, &report?, as_json)
}

fn options(arguments: &BuildArguments, tokenizer: &dyn Tokenizer) -> Result<BuildOptions> {
    let end_of_document = match (&arguments.eod_token, arguments.append_eod) {
        (Some(token), _) => Some(tokenizer.id(token).ok_or_else(|| {
            let reason = format!("the tokenizer has no token {token:?}");
            Error::argument("--eod-token", reason, "look the token up with bmtrain tokenizer info")
        })?),
        (None, true) => Some(tokenizer.special_ids().eos.ok_or_else(|| {
            let fix = "name the token that ends documents with --eod-token";
            Error::argument("--append-eod", "the tokenizer has no EOS token", fix)
        })?),
        (None, false) => None,
    };
    let token = arguments.dtype.map(Dtype::token_type);
    Ok(BuildOptions {
        prefix: arguments.out.clone(),
        token,
        end_of_document,
        split_lines: arguments.split_lines,
        newline: newline(arguments)?,
        on_bad_record: on_bad_record(arguments.skip_bad)?,
        threads: arguments.threads,
    })
}

fn show(display: &mut Display, now: &BuildProgress) {
    let share = share(now.read_bytes, now.total_bytes);
    let text = format!("documents {} | {share}% read | {}", now.written.documents, rates(now));
    display.show(now.read_bytes, now.total_bytes, &text);
}

fn rates(now: &BuildProgress) -> String {
    let rate = now.text_bytes as f64 / 1e6 / now.time.as_secs_f64().max(1e-9);
    format!("tokens {} | {rate:.1} MB/s of text", now.written.tokens)
}

fn print(arguments: &BuildArguments, report: &BuildReport, as_json: bool) -> Result<ExitStatus> {
    let BuildReport { progress, stopped, resumed, token } = report;
    let (counts, written, prefix) = (progress.counts, progress.written, arguments.out.display());
    let status = if *stopped { ExitStatus::Stopped } else { ExitStatus::Done };
    if as_json {
        let record = json!({
            "prefix": prefix.to_string(), "dtype": token.name(), "documents": written.documents,
            "sequences": written.sequences, "tokens": written.tokens, "text_bytes": counts.bytes,
            "empty": counts.empty, "unusable": counts.unusable, "resumed_documents": resumed, "stopped": stopped,
        });
        terminal::print(&record.to_string())?;
        return Ok(status);
    }
    let mut text = format!(
        "{prefix}: {} documents, {} sequences, {} tokens as {}",
        written.documents,
        written.sequences,
        written.tokens,
        token.name()
    );
    let left_out = counts.empty + (counts.documents - written.documents.min(counts.documents));
    for (count, what) in [(left_out, "documents without a token"), (counts.unusable, "unusable records")] {
        if count > 0 && !stopped {
            text += &format!("; {count} {what} left out");
        }
    }
    if *resumed > 0 {
        text += &format!("; {resumed} documents were there from an earlier call");
    }
    if *stopped {
        text += "; stopped: the same command goes on";
    }
    terminal::print(&text)?;
    Ok(status)
}

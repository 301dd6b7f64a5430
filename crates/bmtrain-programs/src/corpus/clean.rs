//! The task that cleans raw text.

use super::display::Display;
use super::sources::{SourceArguments, on_bad_record};
use crate::cli::terminal;
use bmtrain_corpus::clean::{
    CleanOptions, CleanProgress, CleanReport, CleanStage, Compression, NearOptions, NgramOptions, Similarity,
    UrlOptions, clean,
};
use clap::Args;
use model_center_base::{Error, Result};
use model_center_data::corpus::text::{MAX_DOCUMENT_BYTES, TextSource};
use model_center_formats::tokenizer::TextSpecials;
use model_center_recipe::run::{ExitStatus, StopFlag, listen};
use std::path::{Path, PathBuf};

/// The most bytes of a list of sites.
const MAX_SITES_BYTES: u64 = 64 << 20;
/// The least number of tokens of a document of openwebtext.
const OPENWEBTEXT_TOKENS: usize = 128;

/// What is cleaned, and how.
#[derive(Debug, Args)]
pub struct CleanArguments {
    /// Texts to read.
    #[command(flatten)]
    pub source: SourceArguments,
    /// The directory of the result: documents.jsonl, report.json and, with --near, pairs.jsonl and groups.jsonl.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// All that openwebtext did: --urls --repair --language eng --min-tokens 128 --near --shuffle.
    #[arg(long)]
    pub openwebtext: bool,
    /// Leave out documents by their URL: blocked sites and endings, short and malformed ones, duplicates.
    #[arg(long)]
    pub urls: bool,
    /// The key or column of the URLs, which also name documents in pairs.jsonl.
    #[arg(long, value_name = "KEY", default_value = "url")]
    pub url_key: String,
    /// A file of blocked sites, names such as example between white space, in the place of openwebtext's.
    #[arg(long, value_name = "FILE")]
    pub sites: Option<PathBuf>,
    /// Repair texts whose UTF-8 was read as Windows-1252 or Latin-1, control characters and line ends.
    #[arg(long)]
    pub repair: bool,
    /// Keep documents in these languages alone, codes of ISO 639-3 between commas, such as eng or cmn.
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub language: Vec<String>,
    /// Leave out documents of fewer tokens; one of eight times as many characters is not tokenised.
    #[arg(long, value_name = "N")]
    pub min_tokens: Option<usize>,
    /// The tokenizer that counts tokens: a directory, or the name of a model in the local cache.
    #[arg(long, value_name = "MODEL")]
    pub tokenizer: Option<String>,
    /// Leave out documents of fewer characters.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_characters: usize,
    /// Leave out near-duplicates, found by MinHash signatures of 5-character shingles.
    #[arg(long)]
    pub near: bool,
    /// Hash functions of a signature.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub hashes: usize,
    /// Bands of a signature; documents that share one are compared.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub bands: usize,
    /// What the similarity is: common shingles over the shingles of both documents, the smaller or the larger one.
    #[arg(long, value_enum, default_value_t = Similarity::Union)]
    pub similarity: Similarity,
    /// Report pairs above this similarity in pairs.jsonl.
    #[arg(long, value_name = "SIMILARITY", default_value_t = 0.5)]
    pub report: f64,
    /// Group documents from this similarity on; the first of a group is kept.
    #[arg(long, value_name = "SIMILARITY", default_value_t = 0.9)]
    pub group: f64,
    /// The most documents that share a band and are compared with all others that do.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub leaders: usize,
    /// Take the texts of these files out of the documents: 13-grams of an evaluation task.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub tasks: Vec<PathBuf>,
    /// The key or column of the task texts.
    #[arg(long, value_name = "KEY", default_value = "text")]
    pub task_key: String,
    /// Words of an n-gram.
    #[arg(long, value_name = "N", default_value_t = 13)]
    pub ngram_words: usize,
    /// A task text of fewer words is not sought.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub min_ngram_words: usize,
    /// Characters that go on each side of an n-gram.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub margin: usize,
    /// Pieces of this number of characters or fewer are dropped.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub min_piece: usize,
    /// Documents that split into more pieces are dropped.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max_pieces: usize,
    /// N-grams that documents have as often as this stay; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub common: u64,
    /// Write the documents in a random order.
    #[arg(long)]
    pub shuffle: bool,
    /// Decides signatures and the random order.
    #[arg(long, default_value_t = 1234)]
    pub seed: u64,
    /// How the result is compressed.
    #[arg(long, value_enum, default_value_t = Compression::None)]
    pub compress: Compression,
    /// Leave out records that cannot be used, up to this share of all.
    #[arg(long, value_name = "SHARE")]
    pub skip_bad: Option<f64>,
    /// Threads; by default one per processor.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Memory for sorting, in MiB; what does not fit is sorted on the disk.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub memory: usize,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// Clean, show progress, report.
pub(super) fn run(arguments: &CleanArguments, as_json: bool) -> Result<ExitStatus> {
    let model = arguments.tokenizer.as_deref();
    let tokenizer = model.map(|model| super::open_tokenizer(model, TextSpecials::AsText)).transpose()?;
    let (source, options) = (arguments.source.source()?, options(arguments)?);
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    let mut display = Display::new(arguments.quiet);
    let mut stage = None;
    let report = clean(&source, tokenizer.as_deref(), &options, &stop, &mut |now: CleanProgress| {
        if stage.replace(now.stage) != Some(now.stage) {
            display.finish();
            display = Display::new(arguments.quiet);
        }
        display.show(now.done, now.total, name(now.stage));
    });
    display.finish();
    print(&arguments.out, &report?, as_json)
}

fn name(stage: CleanStage) -> &'static str {
    match stage {
        CleanStage::Screen => "reading documents",
        CleanStage::Urls => "URLs",
        CleanStage::Near => "near-duplicates",
        CleanStage::Tasks => "task texts",
        CleanStage::Write => "writing",
    }
}

fn options(arguments: &CleanArguments) -> Result<CleanOptions> {
    let all = arguments.openwebtext;
    let read_sites = |path: &PathBuf| model_center_base::file::read_text(path, MAX_SITES_BYTES);
    let sites = arguments.sites.as_ref().map(read_sites).transpose()?;
    let languages = match (&arguments.language[..], all) {
        ([], true) => vec!["eng".to_owned()],
        (languages, _) => languages.to_vec(),
    };
    let min_tokens = arguments.min_tokens.or(all.then_some(OPENWEBTEXT_TOKENS)).unwrap_or(0);
    if min_tokens > 0 && arguments.tokenizer.is_none() {
        let reason = format!("documents of fewer than {min_tokens} tokens are left out, and no tokenizer counts them");
        return Err(Error::argument("--tokenizer", reason, "name one, such as gpt2, or set --min-tokens 0"));
    }
    let near = NearOptions {
        hashes: arguments.hashes,
        bands: arguments.bands,
        seed: arguments.seed,
        similarity: arguments.similarity,
        report: arguments.report,
        group: arguments.group,
        leaders: arguments.leaders,
    };
    let tasks = (!arguments.tasks.is_empty()).then(|| TextSource {
        key: arguments.task_key.clone(),
        max_document_bytes: MAX_DOCUMENT_BYTES,
        ..TextSource::new(arguments.tasks.clone())
    });
    Ok(CleanOptions {
        compression: arguments.compress,
        url_key: arguments.url_key.clone(),
        urls: (all || arguments.urls).then_some(UrlOptions { sites }),
        repair: all || arguments.repair,
        languages,
        min_tokens,
        min_characters: arguments.min_characters,
        near: (all || arguments.near).then_some(near),
        tasks,
        ngrams: NgramOptions {
            max_words: arguments.ngram_words,
            min_words: arguments.min_ngram_words,
            margin: arguments.margin,
            min_characters: arguments.min_piece,
            max_pieces: arguments.max_pieces,
            common: arguments.common,
        },
        shuffle: (all || arguments.shuffle).then_some(arguments.seed),
        on_bad_record: on_bad_record(arguments.skip_bad)?,
        threads: arguments.threads,
        memory: arguments.memory.saturating_mul(1 << 20),
        ..CleanOptions::new(arguments.out.clone())
    })
}

fn print(out: &Path, report: &CleanReport, as_json: bool) -> Result<ExitStatus> {
    let status = if report.stopped { ExitStatus::Stopped } else { ExitStatus::Done };
    if as_json {
        let mut record = report.to_json();
        record["resumed_documents"] = report.resumed.into();
        record["stopped"] = report.stopped.into();
        terminal::print(&record.to_string())?;
        return Ok(status);
    }
    let read = report.counts.documents;
    if report.stopped {
        terminal::print(&format!("{}: {read} documents read; stopped: the same command goes on", out.display()))?;
        return Ok(status);
    }
    let (documents, bytes) = report.written;
    let mut lines = vec![format!("{}: {documents} of {read} documents written, {bytes} bytes", out.display())];
    let gone = report.documents.iter().filter(|(name, count)| *name != "kept" && *count > 0);
    lines.extend(gone.map(|(name, count)| format!("  {:<16} {count} left out", name.replace('_', " "))));
    for (what, count) in [("repaired", report.repaired), ("split", report.split), ("similar pairs", report.pairs)] {
        if count > 0 {
            lines.push(format!("  {what:<16} {count}"));
        }
    }
    terminal::print(&lines.join("\n"))?;
    Ok(status)
}

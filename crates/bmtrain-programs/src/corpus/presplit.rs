//! The task that splits documents into sentences.

use super::display::Display;
use super::sources::{SourceArguments, on_bad_record};
use crate::cli::terminal;
use bmtrain_corpus::sentences::{PresplitOptions, PresplitReport, SentenceRules, presplit};
use clap::{Args, ValueEnum};
use model_center_base::Result;
use model_center_recipe::run::{ExitStatus, StopFlag, listen};
use serde_json::json;
use std::path::PathBuf;

/// What is split, and how.
#[derive(Debug, Args)]
pub struct PresplitArguments {
    /// Texts to read.
    #[command(flatten)]
    pub source: SourceArguments,
    /// The file of JSON lines to write; .gz and .zst are compressed.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Whose rules decide where a sentence ends.
    #[arg(long, value_enum, default_value_t = Language::En)]
    pub language: Language,
    /// Lines are wrapped: only an empty line ends a sentence.
    #[arg(long)]
    pub wrapped: bool,
    /// Leave out records that cannot be used, up to this share of all.
    #[arg(long, value_name = "SHARE")]
    pub skip_bad: Option<f64>,
    /// Threads; by default one per processor.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// English.
    En,
    /// Chinese.
    Zh,
}

/// Split, show progress, report.
pub(super) fn run(arguments: &PresplitArguments, as_json: bool) -> Result<ExitStatus> {
    let options = PresplitOptions {
        out: arguments.out.clone(),
        rules: match arguments.language {
            Language::En => SentenceRules::English,
            Language::Zh => SentenceRules::Chinese,
        },
        is_wrapped: arguments.wrapped,
        on_bad_record: on_bad_record(arguments.skip_bad)?,
        threads: arguments.threads,
    };
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    let mut display = Display::new(arguments.quiet);
    let report = presplit(&arguments.source.source()?, &options, &stop, &mut |read, total| {
        display.show(read, total, "splitting");
    });
    display.finish();
    let PresplitReport { counts, sentences, stopped } = report?;
    let (documents, out) = (counts.documents, arguments.out.display());
    terminal::print(&match (as_json, stopped) {
        (true, _) => json!({
            "documents": documents, "sentences": sentences, "empty": counts.empty, "unusable": counts.unusable,
            "stopped": stopped,
        })
        .to_string(),
        (false, true) => format!("{out}: stopped, nothing is written"),
        (false, false) => format!("{out}: {documents} documents, {sentences} sentences"),
    })?;
    Ok(if stopped { ExitStatus::Stopped } else { ExitStatus::Done })
}

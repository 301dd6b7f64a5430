//! Documents with a sentence a line, as `build` reads them where each line is a sequence.
//!
//! Defines [`presplit`] and [`split_sentences`]. `english` decides where a full stop ends a sentence, `chinese` has the
//! marks of Chinese. Documents are split in parallel and written in their order. The program `corpus` is the caller.

mod chinese;
mod english;

use std::path::PathBuf;

use super::clean::{line_of, put_text};
use super::output::LineWriter;
use super::pipeline::{BATCHES_PER_THREAD, Pipeline};
use crate::Result;
use model_center_base::stop_flag::StopFlag;
use model_center_data::corpus::text::{DocumentCounts, Documents, TextRecord, TextSource};
use model_center_data::corpus::threads::thread_count;
use model_center_formats::io::flaws::OnBadRecord;

/// Documents that are split together.
const BATCH: usize = 64;

/// Rules that decide where a sentence ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum SentenceRules {
    /// Full stops that end no abbreviation, initial or number; `!` and `?`.
    #[default]
    English,
    /// `。！？；…` with closing quotation marks.
    Chinese,
}

/// Options of splitting.
#[derive(Debug, Clone, PartialEq)]
pub struct PresplitOptions {
    /// The file of JSON lines, which gzip or zstd compresses by its name.
    pub out: PathBuf,
    /// The rules.
    pub rules: SentenceRules,
    /// Lines are wrapped: the end of a line ends a sentence only before an empty line.
    pub is_wrapped: bool,
    /// Treatment of records that cannot be used.
    pub on_bad_record: OnBadRecord,
    /// Threads; 0 for one per processor.
    pub threads: usize,
}

/// Report of splitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresplitReport {
    /// Counts of what was read.
    pub counts: DocumentCounts,
    /// Sentences that were written.
    pub sentences: u64,
    /// Whether it was stopped on request; nothing is written then.
    pub stopped: bool,
}

/// The sentences of a text, without white space around them.
pub fn split_sentences(text: &str, rules: SentenceRules, is_wrapped: bool) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines().map(str::trim) {
        match blocks.last_mut().filter(|_| is_wrapped && is_open && !line.is_empty()) {
            Some(block) => {
                if rules == SentenceRules::English {
                    block.push(' ');
                }
                block.push_str(line);
            }
            None if line.is_empty() => {}
            None => blocks.push(line.to_owned()),
        }
        is_open = !line.is_empty();
    }
    let split = |block: &String| -> Vec<String> {
        let sentences = match rules {
            SentenceRules::English => english::split(block),
            SentenceRules::Chinese => chinese::split(block),
        };
        sentences.into_iter().map(|sentence| sentence.trim().to_owned()).filter(|text| !text.is_empty()).collect()
    };
    blocks.iter().flat_map(split).collect()
}

/// Writes the records of documents with a sentence a line under `key`; `show` gets the bytes read and all of them.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if the result is there; [`Error::Data`](crate::Error::Data) for
/// documents that cannot be used; [`Error::File`](crate::Error::File) if reading or writing fails.
pub fn presplit(
    source: &TextSource,
    options: &PresplitOptions,
    stop: &StopFlag,
    show: &mut dyn FnMut(u64, u64),
) -> Result<PresplitReport> {
    LineWriter::require_free(&options.out)?;
    let mut documents = Documents::open(source.clone(), options.on_bad_record)?;
    let mut lines = LineWriter::create(&options.out)?;
    let split = |records: Vec<TextRecord>| -> Result<Vec<(String, u64)>> {
        let split = |TextRecord { text, mut fields }: TextRecord| -> Result<(String, u64)> {
            let sentences = split_sentences(&text, options.rules, options.is_wrapped);
            put_text(&mut fields, &source.key, sentences.join("\n"));
            Ok((line_of(&fields)?, sentences.len() as u64))
        };
        records.into_iter().map(split).collect()
    };
    let threads = thread_count(options.threads);
    let mut sentences = 0;
    std::thread::scope(|scope| {
        let mut pipeline = Pipeline::start(scope, threads, &split);
        let mut is_ended = false;
        loop {
            while !is_ended && pipeline.in_flight() < BATCHES_PER_THREAD * threads {
                let mut batch = Vec::new();
                while batch.len() < BATCH {
                    let Some(record) = documents.advance_record()? else { break };
                    batch.push(record);
                }
                is_ended = batch.is_empty() || stop.is_requested();
                pipeline.send(batch);
            }
            let Some(done) = pipeline.receive() else { return Ok::<(), crate::Error>(()) };
            for (line, count) in done? {
                lines.add(&line)?;
                sentences += count;
            }
            show(documents.read_bytes(), documents.total_bytes());
        }
    })?;
    let stopped = !documents.is_at_end();
    if !stopped {
        lines.commit()?;
    }
    Ok(PresplitReport { counts: documents.counts(), sentences, stopped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_are_joined_up_to_an_empty_one() {
        let text = "One sentence that\ngoes on. Another\n\nA title\nand so on.";
        let split = |is_wrapped| split_sentences(text, SentenceRules::English, is_wrapped);
        assert_eq!(split(true), ["One sentence that goes on.", "Another", "A title and so on."]);
        assert_eq!(split(false), ["One sentence that", "goes on.", "Another", "A title", "and so on."]);
        assert_eq!(split_sentences("一句話\n很長。二。", SentenceRules::Chinese, true), ["一句話很長。", "二。"]);
    }
}

//! Raw text to a token file: documents are tokenised in parallel and written in their order.
//!
//! Defines [`build`]. The bytes of the result depend on the documents, the tokenizer and the options, not on threads or
//! on how often the build was interrupted: at intervals everything is flushed to the disk, and the hidden file
//! `.NAME.build.json` records how far it is; the same call goes on from there. `state` has the record. The program
//! `corpus` is the caller.

mod state;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::state::BuildState;
use super::pipeline::{BATCHES_PER_THREAD, Pipeline};
use crate::{Error, Result};
use model_center_base::stop_flag::StopFlag;
use model_center_data::corpus::text::{DocumentCounts, Documents, TextSource};
use model_center_data::corpus::threads::thread_count;
use model_center_data::corpus::token_type::TokenType;
use model_center_data::corpus::writer::{TokenFileWriter, WriterPosition};
use model_center_formats::io::flaws::OnBadRecord;
use model_center_formats::tokenizer::Tokenizer;

/// A batch has this many bytes of text, or one document above.
const BATCH_BYTES: usize = 1 << 18;
/// Between two records of the state.
const SAVE_INTERVAL: Duration = Duration::from_secs(20);

/// Options of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildOptions {
    /// The path of the result without `.bin` and `.idx`.
    pub prefix: PathBuf,
    /// Storage type of ids; by default what Megatron-LM chooses for the size of the vocabulary.
    pub token: Option<TokenType>,
    /// A token that ends every document.
    pub end_of_document: Option<u32>,
    /// Each line of a document that is not empty is a sequence of its own, as where a sentence is on a line.
    pub split_lines: bool,
    /// Text for a line break, such as `<n>`.
    pub newline: Option<String>,
    /// Treatment of records that cannot be used.
    pub on_bad_record: OnBadRecord,
    /// Threads that tokenise; 0 for one per processor.
    pub threads: usize,
}

/// Progress of a build.
#[derive(Debug, Clone, Copy)]
pub struct BuildProgress {
    /// Documents that were read.
    pub counts: DocumentCounts,
    /// Written part of them.
    pub written: WriterPosition,
    /// Bytes read of all files, as they are stored.
    pub read_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Bytes of text that this process has tokenised.
    pub text_bytes: u64,
    /// The time it took.
    pub time: Duration,
}

/// Report of a build.
#[derive(Debug, Clone, Copy)]
pub struct BuildReport {
    /// At its end.
    pub progress: BuildProgress,
    /// Whether it was stopped on request; the same call goes on.
    pub stopped: bool,
    /// Documents that an earlier process had written.
    pub resumed: u64,
    /// Storage type of ids.
    pub token: TokenType,
}

/// Builds a token file of sources one after the other, or goes on with it; `show` is called after each batch.
///
/// # Errors
/// [`Error::Argument`] if the result is there, another process is building it, or the type cannot hold the vocabulary;
/// [`Error::Data`] for documents that cannot be used; [`Error::Model`] if the tokenizer fails; [`Error::File`] if
/// reading or writing fails.
pub fn build(
    sources: Vec<TextSource>,
    tokenizer: &dyn Tokenizer,
    options: &BuildOptions,
    stop: &StopFlag,
    show: &mut dyn FnMut(&BuildProgress),
) -> Result<BuildReport> {
    let token = token_type(tokenizer, options)?;
    let identity = state::identity(&sources, tokenizer, options, token)?;
    let mut documents = Documents::open_all(sources, options.on_bad_record)?;
    let earlier = state::load(&options.prefix, &identity);
    let (mut writer, counts) = match earlier {
        Some(BuildState { written, counts, .. }) => match TokenFileWriter::resume(&options.prefix, token, written)? {
            Some(writer) => (writer, counts),
            None => (TokenFileWriter::create(&options.prefix, token)?, DocumentCounts::default()),
        },
        None => (TokenFileWriter::create(&options.prefix, token)?, DocumentCounts::default()),
    };
    let resumed = counts.documents;
    while documents.counts().documents < resumed && documents.advance()?.is_some() {
        if stop.is_requested() {
            let progress = progress(&documents, &writer, 0, Instant::now());
            return Ok(BuildReport { progress, stopped: true, resumed, token });
        }
    }
    let work = Work { tokenizer, options, identity, stop };
    let progress = work.run(&mut documents, &mut writer, show)?;
    let stopped = stop.is_requested() && !progress.is_whole;
    if !stopped {
        writer.finish()?;
        state::remove(&options.prefix)?;
    }
    Ok(BuildReport { progress: progress.last, stopped, resumed, token })
}

/// The type of the ids, which holds the whole vocabulary.
fn token_type(tokenizer: &dyn Tokenizer, options: &BuildOptions) -> Result<TokenType> {
    let largest = options.end_of_document.map_or(0, |id| id as usize + 1);
    let vocabulary = tokenizer.vocab_size().max(largest);
    let token = options.token.unwrap_or_else(|| TokenType::for_vocabulary(vocabulary));
    if vocabulary > token.max_id() as usize + 1 {
        let reason = format!("{vocabulary} tokens do not fit {}, which ends at {}", token.name(), token.max_id());
        return Err(Error::argument("token type", reason, "store the ids as int32"));
    }
    Ok(token)
}

/// Documents that are tokenised together.
#[derive(Debug)]
struct Batch {
    texts: Vec<String>,
    bytes: u64,
    /// Counts of what was read up to its end.
    counts: DocumentCounts,
}

/// A batch that was tokenised.
#[derive(Debug)]
struct Done {
    /// For each document its sequences.
    sequences: Result<Vec<Vec<Vec<u32>>>>,
    bytes: u64,
    counts: DocumentCounts,
}

struct Work<'a> {
    tokenizer: &'a dyn Tokenizer,
    options: &'a BuildOptions,
    identity: String,
    stop: &'a StopFlag,
}

/// End of the work.
struct Ended {
    last: BuildProgress,
    is_whole: bool,
}

impl Work<'_> {
    /// Reads, tokenises and writes until the documents end or a stop is requested.
    fn run(
        &self,
        documents: &mut Documents,
        writer: &mut TokenFileWriter,
        show: &mut dyn FnMut(&BuildProgress),
    ) -> Result<Ended> {
        let threads = thread_count(self.options.threads);
        let tokenize =
            |batch: Batch| Done { sequences: self.tokenize(&batch), bytes: batch.bytes, counts: batch.counts };
        std::thread::scope(|scope| {
            let mut pipeline = Pipeline::start(scope, threads, &tokenize);
            let (mut ended, mut text_bytes, begun, mut saved) = (false, 0, Instant::now(), Instant::now());
            loop {
                while !ended && pipeline.in_flight() < BATCHES_PER_THREAD * threads {
                    let batch = read_batch(documents)?;
                    ended = batch.texts.is_empty() || self.stop.is_requested();
                    if !batch.texts.is_empty() {
                        pipeline.send(batch);
                    }
                }
                let Some(done) = pipeline.receive() else { break };
                self.write(writer, done.sequences?)?;
                text_bytes += done.bytes;
                show(&progress(documents, writer, text_bytes, begun));
                if saved.elapsed() >= SAVE_INTERVAL {
                    self.save(writer, done.counts)?;
                    saved = Instant::now();
                }
                if pipeline.in_flight() == 0 && ended && self.stop.is_requested() {
                    self.save(writer, done.counts)?;
                }
            }
            let is_whole = documents.is_at_end();
            Ok(Ended { last: progress(documents, writer, text_bytes, begun), is_whole })
        })
    }

    /// The sequences of each document of a batch.
    fn tokenize(&self, batch: &Batch) -> Result<Vec<Vec<Vec<u32>>>> {
        let mut documents = Vec::with_capacity(batch.texts.len());
        for text in &batch.texts {
            let text = match &self.options.newline {
                Some(newline) => &text.replace(&**newline, "\n"),
                None => text,
            };
            let mut sequences = Vec::new();
            if self.options.split_lines {
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    sequences.append(&mut self.tokenizer.tokenize(&[line])?);
                }
            } else {
                sequences = self.tokenizer.tokenize(&[text])?;
            }
            // Control characters alone, for example, have no tokens: such a sequence is left out.
            sequences.retain(|sequence| !sequence.is_empty());
            if let (Some(last), Some(end)) = (sequences.last_mut(), self.options.end_of_document) {
                last.push(end);
            }
            documents.push(sequences);
        }
        Ok(documents)
    }

    fn write(&self, writer: &mut TokenFileWriter, documents: Vec<Vec<Vec<u32>>>) -> Result<()> {
        for sequences in documents.into_iter().filter(|sequences| !sequences.is_empty()) {
            sequences.iter().try_for_each(|sequence| writer.add_sequence(sequence))?;
            writer.end_document()?;
        }
        Ok(())
    }

    fn save(&self, writer: &mut TokenFileWriter, counts: DocumentCounts) -> Result<()> {
        let written = writer.sync()?;
        state::save(&self.options.prefix, &BuildState { identity: self.identity.clone(), written, counts })
    }
}

fn read_batch(documents: &mut Documents) -> Result<Batch> {
    let (mut texts, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES {
        let Some(text) = documents.advance()? else { break };
        bytes += text.len();
        texts.push(text);
    }
    Ok(Batch { texts, bytes: bytes as u64, counts: documents.counts() })
}

fn progress(documents: &Documents, writer: &TokenFileWriter, text_bytes: u64, begun: Instant) -> BuildProgress {
    BuildProgress {
        counts: documents.counts(),
        written: writer.position(),
        read_bytes: documents.read_bytes(),
        total_bytes: documents.total_bytes(),
        text_bytes,
        time: begun.elapsed(),
    }
}

//! Cleaning of raw text: the stages that made openwebtext, for documents that are on the disk.
//!
//! ```text
//! documents ─▶ screen (URL, repair, language, length) ─▶ urls ─▶ near ─▶ ngrams ─▶ write (shuffled)
//! ```
//!
//! Defines [`clean`]. Each document is screened by itself first, in parallel, and what is left goes to a file of JSON
//! lines with its band hashes beside it (`screen`, `screening`, `store`); documents of one URL (`urls`) and
//! near-duplicates (`near`) are found by sorting on the disk (`sort`); task texts are taken out (`ngrams`, `write`).
//! The result is a function of documents and options, not of threads or interruptions: the hidden directory `.clean`
//! has what is done, and the same call goes on from there (`state`). `docs/clean-a-corpus.md` has the rules, and
//! `docs/adr/0032-cleaning-in-stages-on-the-disk.md` these choices. The program `corpus` is the caller.

mod fates;
mod minhash;
mod near;
mod ngrams;
mod options;
mod repair;
mod report;
mod screen;
mod screening;
mod sort;
mod state;
mod store;
mod url;
mod urls;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

pub use self::minhash::Similarity;
pub use self::options::{CleanOptions, Compression, NearOptions, NgramOptions, UrlOptions};
pub use self::report::CleanReport;
pub(super) use self::store::{line_of, put_text};

use self::fates::Fates;
use self::near::{Groups, NearStage, PAIR};
use self::sort::ExternalSort;
use self::state::CleanState;
use self::store::{Store, StoreWriter};
use super::output::LineWriter;
use crate::{Error, Result};
use model_center_base::file::prepared_name;
use model_center_base::stop_flag::StopFlag;
use model_center_data::corpus::positioned::PositionedFile;
use model_center_data::corpus::spool::Spool;
use model_center_data::corpus::text::TextSource;
use model_center_data::corpus::threads::thread_count;
use model_center_formats::tokenizer::Tokenizer;

/// Beginnings of the names of files in the result.
const RESULTS: [&str; 4] = ["documents.jsonl", "groups.jsonl", "pairs.jsonl", "report.json"];

/// The stages in their order, with what their progress counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanStage {
    /// Documents are read and screened; bytes of the input.
    Screen,
    /// Documents of one URL are sought; no count.
    Urls,
    /// Near-duplicates are sought; bands.
    Near,
    /// Task texts are taken out; documents.
    Tasks,
    /// The result is written; documents.
    Write,
}

/// Progress of a stage.
#[derive(Debug, Clone, Copy)]
pub struct CleanProgress {
    /// The stage.
    pub stage: CleanStage,
    /// Finished part of it.
    pub done: u64,
    /// All of it.
    pub total: u64,
}

/// The keys of a record.
#[derive(Debug, Clone, Copy)]
struct TextKeys<'a> {
    text: &'a str,
    url: &'a str,
}

/// State that the stages share.
struct Work<'a> {
    options: &'a CleanOptions,
    keys: TextKeys<'a>,
    stop: &'a StopFlag,
    directory: PathBuf,
    threads: usize,
}

/// Cleans documents, or goes on with it.
///
/// # Errors
/// [`Error::Argument`] for options that contradict each other, a result that is there, and while another process writes
/// it; [`Error::Data`] for documents that cannot be used; [`Error::Model`] if the tokenizer fails; [`Error::File`] if
/// reading or writing fails.
pub fn clean(
    source: &TextSource,
    tokenizer: Option<&dyn Tokenizer>,
    options: &CleanOptions,
    stop: &StopFlag,
    show: &mut dyn FnMut(CleanProgress),
) -> Result<CleanReport> {
    if let Some(near) = &options.near {
        near.check()?;
    }
    let screen = screen::Screen::new(options, &source.key, tokenizer)?;
    let work = Work {
        options,
        keys: TextKeys { text: &source.key, url: &options.url_key },
        stop,
        directory: options.out.join(".clean"),
        threads: thread_count(options.threads),
    };
    LineWriter::require_free(&work.result())?;
    let identity = state::identity(source, tokenizer, options)?;
    fs::create_dir_all(&work.directory).map_err(|e| {
        Error::file("make the directory", &work.directory, e, "choose a directory that you may write to")
    })?;
    let lock = Spool::open(work.path("lock"))?;
    if !lock.lock() {
        let reason = format!("another process is writing {}", options.out.display());
        return Err(Error::argument("--out", reason, "wait for it, or choose another directory"));
    }
    remove_leftovers(&options.out)?;
    let mut state = state::load(&work.directory, &identity);
    let mut files = match work.open(&state)? {
        Some(files) => files,
        None => {
            state = CleanState { identity, ..CleanState::default() };
            work.open(&state)?.ok_or_else(|| Error::argument("state", "an empty file is too short", "report this"))?
        }
    };
    let resumed = state.counts.documents;
    let is_done = work.screen(source, &screen, &mut state, &mut files, show)?
        && work.same_urls(&mut state, &mut files.fates, show)?
        && work.near(&mut state, &mut files.fates, show)?
        && work.tasks(&mut state, &mut files.fates, show)?;
    let written = if is_done { work.write(&state, &files.fates, show)? } else { None };
    let report = CleanReport::new(&state, &files.fates, written.as_ref().map(|(_, position)| *position), resumed)?;
    if let Some((documents, _)) = written {
        let path = options.out.join("report.json");
        model_center_base::file::write_atomic(&path, format!("{:#}\n", report.to_json()).as_bytes())?;
        // The documents get their name last, so that a result that is there is whole.
        documents.commit()?;
        remove(&work.directory)?;
    }
    Ok(report)
}

/// The files that grow while documents are screened.
struct Files {
    fates: Fates,
    store: StoreWriter,
    urls: Spool,
    bands: Spool,
}

impl Work<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The file of the documents.
    fn result(&self) -> PathBuf {
        self.options.out.join(format!("documents.jsonl{}", self.options.compression.ending()))
    }

    fn save(&self, state: &CleanState) -> Result<()> {
        state::save(&self.directory, state)
    }

    /// The files after what the state records; `None` if they do not have it.
    fn open(&self, state: &CleanState) -> Result<Option<Files>> {
        let bands = self.options.near.as_ref().map_or(0, |near| near.bands as u64);
        let Some(fates) = Fates::open(self.path("fates"), state.counts.documents)? else { return Ok(None) };
        let Some(store) = StoreWriter::open(&self.path("store"), state.store)? else { return Ok(None) };
        let mut files =
            Files { fates, store, urls: Spool::open(self.path("urls"))?, bands: Spool::open(self.path("bands"))? };
        let is_there = files.urls.cut(urls::RECORD * state.urls)?
            && files.bands.cut(8 * bands * state.store.documents)?
            && Spool::open(self.path("pairs"))?.cut(PAIR * state.pairs)?;
        Ok(is_there.then_some(files))
    }

    fn sort<const N: usize>(&self) -> ExternalSort<N> {
        ExternalSort::new(self.path("runs"), self.options.memory)
    }

    /// Marks documents with the URL of an earlier one. False if a stop was requested before it was done.
    fn same_urls(
        &self,
        state: &mut CleanState,
        fates: &mut Fates,
        show: &mut dyn FnMut(CleanProgress),
    ) -> Result<bool> {
        if !state.are_urls_done && state.urls > 0 {
            show(CleanProgress { stage: CleanStage::Urls, done: 0, total: 1 });
            if !urls::mark_same(&self.path("urls"), state.urls, self.sort(), fates, self.stop)? {
                return Ok(false);
            }
            fates.sync()?;
        }
        state.are_urls_done = true;
        self.save(state)?;
        Ok(true)
    }

    /// Marks near-duplicates. False if a stop was requested before it was done.
    fn near(&self, state: &mut CleanState, fates: &mut Fates, show: &mut dyn FnMut(CleanProgress)) -> Result<bool> {
        let Some(options) = self.options.near.as_ref().filter(|_| !state.are_near_done) else { return Ok(true) };
        let store = Store::open(&self.path("store"), state.store)?;
        let bands = PositionedFile::open(&self.path("bands"))?;
        let (keys, threads, stop) = (self.keys, self.threads, self.stop);
        let stage = NearStage { options, keys, store: &store, bands: &bands, threads, stop };
        let path = self.path("pairs");
        let mut pairs = Spool::open(path.clone())?;
        pairs.cut(PAIR * state.pairs)?;
        let mut groups = Groups::read(options, &path, state.pairs)?;
        while state.bands < options.bands {
            show(CleanProgress { stage: CleanStage::Near, done: state.bands as u64, total: options.bands as u64 });
            if !stage.band(state.bands, self.sort(), fates, &mut groups, &mut pairs)? {
                return Ok(false);
            }
            pairs.sync()?;
            let length = fs::metadata(&path).map_err(|e| model_center_base::file::unreadable(&path, e))?.len();
            (state.bands, state.pairs) = (state.bands + 1, length / PAIR);
            self.save(state)?;
        }
        stage.group(&path, state.pairs, &self.options.out, fates)?;
        fates.sync()?;
        state.are_near_done = true;
        self.save(state)?;
        Ok(true)
    }
}

/// Removes files that a killed process was writing.
fn remove_leftovers(out: &Path) -> Result<()> {
    let failed = |e| Error::file("read", out, e, "choose a directory that you may read and write");
    for entry in fs::read_dir(out).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(prepared_name);
        if name.is_some_and(|name| RESULTS.iter().any(|result| name.starts_with(result))) {
            fs::remove_file(&path).map_err(|e| Error::file("remove", &path, e, "remove it by hand"))?;
        }
    }
    Ok(())
}

fn remove(directory: &Path) -> Result<()> {
    fs::remove_dir_all(directory).map_err(|e| Error::file("remove", directory, e, "remove it by hand"))
}

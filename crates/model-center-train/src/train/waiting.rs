//! Notes on standard error during work that takes long, so that it is not taken for a hang.
//!
//! Defines [`note_reading`], called before data are read, and [`Progress`], which an evaluation reports to.

use model_center_recipe::run::console;
use model_center_recipe::{DataSource, Resolved};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Data of this size take some seconds to tokenize.
const LARGE_BYTES: u64 = 8_000_000;
/// How often progress is noted.
const INTERVAL: Duration = Duration::from_secs(30);

/// Notes the data of a recipe that are large, with their bytes.
pub fn note_reading(resolved: &Resolved) {
    let paths = match &resolved.data.source {
        DataSource::Files { train, eval, .. }
        | DataSource::LanguageModeling { train, eval, .. }
        | DataSource::QuestionAnswering { train, eval, .. }
        | DataSource::TokenClassification { train, eval, .. }
        | DataSource::Embedding { train, eval, .. }
        | DataSource::MultiLabel { train, eval, .. }
        | DataSource::Template { train, eval, .. } => vec![Some(train.as_path()), eval.as_deref()],
        DataSource::Sft(task) => {
            task.sets.iter().flat_map(|set| [Some(set.path.as_path()), set.eval.as_deref()]).collect()
        }
        // Token files are not read before training.
        DataSource::Pretraining(_) => Vec::new(),
        source => vec![source.directory().map(PathBuf::as_path)],
    };
    for path in paths.into_iter().flatten() {
        let bytes = bytes_of(path);
        if bytes >= LARGE_BYTES {
            console::note(&format!("reading {}: {} MB", path.display(), bytes.div_ceil(1_000_000)));
        }
    }
}

/// Of a file, or of the files of a directory. What cannot be looked at is reported by the reading of it.
fn bytes_of(path: &Path) -> u64 {
    let bytes = |path: &Path| path.metadata().map_or(0, |file| if file.is_file() { file.len() } else { 0 });
    match path.read_dir() {
        Ok(entries) => entries.flatten().map(|entry| bytes(&entry.path())).sum(),
        Err(_) => bytes(path),
    }
}

/// The progress of work of a known size.
pub(super) struct Progress {
    what: &'static str,
    noted: Instant,
}

impl Progress {
    /// Work that begins now.
    pub(super) fn new(what: &'static str) -> Self {
        Progress { what, noted: Instant::now() }
    }

    /// Notes that `done` of `all` batches are, if the last note is long ago.
    pub(super) fn report(&mut self, done: u64, all: u64) {
        if self.noted.elapsed() >= INTERVAL {
            self.noted = Instant::now();
            console::note(&format!("{}: {done} of {all} batches", self.what));
        }
    }
}

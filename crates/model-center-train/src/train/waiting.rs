//! Notes on standard error during work that takes long, so that it is not taken for a hang.
//!
//! Defines [`note_reading`], called before data are read, and [`Progress`], which an evaluation reports to.

use model_center_recipe::Resolved;
use model_center_recipe::run::console;
use std::path::Path;
use std::time::{Duration, Instant};

/// Data of this size take some seconds to tokenize.
const LARGE_BYTES: u64 = 8_000_000;
/// How often progress is noted.
const INTERVAL: Duration = Duration::from_secs(30);

/// Notes the data of a recipe that are large, with their bytes.
pub fn note_reading(resolved: &Resolved) {
    // Token files are not read before training.
    for path in resolved.data.source.paths() {
        let bytes = bytes_of(path);
        if bytes >= LARGE_BYTES {
            console::note(&format!("reading {}: {} MB", path.display(), bytes.div_ceil(1_000_000)));
        }
    }
}

/// Bytes of a file, or of the files of a directory. What cannot be looked at is reported by the reading of it.
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

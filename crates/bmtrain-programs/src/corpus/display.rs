//! Progress of a task over the bytes of files: a bar, or a line now and then.

use model_center_recipe::run::{Progress, ProgressMode};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines of progress where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Reading is shown after this many bytes.
const SHOWN_BYTES: u64 = 1 << 20;

/// Shows how many bytes of all are read.
pub(super) struct Display {
    is_quiet: bool,
    progress: Option<Progress>,
    last_line: Instant,
    begun: Instant,
    /// Bytes after which reading is shown again.
    next_shown: u64,
}

impl Display {
    pub(super) fn new(is_quiet: bool) -> Display {
        Display { is_quiet, progress: None, last_line: Instant::now(), begun: Instant::now(), next_shown: 0 }
    }

    /// Shows `read` of `all`, bytes or documents, with a text.
    pub(super) fn show(&mut self, read: u64, all: u64, text: &str) {
        let progress = self.progress.get_or_insert_with(|| {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let mode = ProgressMode::choose(self.is_quiet, std::io::stderr().is_terminal(), no_color);
            Progress::new(mode, Some(all))
        });
        let is_line = self.last_line.elapsed() >= LINE_INTERVAL;
        if is_line {
            self.last_line = Instant::now();
        }
        progress.advance(read, &text, is_line);
    }

    /// Shows `read` bytes of `all` with the speed of reading, every now and then: callers ask for each document.
    pub(super) fn show_read(&mut self, read: u64, all: u64) {
        if read < self.next_shown {
            return;
        }
        self.next_shown = read + SHOWN_BYTES;
        let seconds = self.begun.elapsed().as_secs_f64().max(1e-9);
        let rate = read as f64 / 1e6 / seconds;
        self.show(read, all, &format!("{}% read | {rate:.1} MB/s", share(read, all)));
    }

    pub(super) fn finish(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.finish();
        }
    }
}

/// Per cent.
pub(super) fn share(read: u64, all: u64) -> u64 {
    100 * read.min(all) / all.max(1)
}

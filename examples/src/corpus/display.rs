//! The progress of tasks that read whole corpora: a bar, or a line now and then.

use model_center::run::{Progress, ProgressMode};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines of progress where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A bar, or a line now and then.
pub(super) struct Display {
    is_quiet: bool,
    progress: Option<Progress>,
    last_line: Instant,
}

impl Display {
    pub(super) fn new(is_quiet: bool) -> Display {
        Display { is_quiet, progress: None, last_line: Instant::now() }
    }

    /// `done` of `total`, with a text beside it.
    pub(super) fn show(&mut self, done: u64, total: u64, text: &str) {
        let progress = self.progress.get_or_insert_with(|| {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let mode = ProgressMode::choose(self.is_quiet, std::io::stderr().is_terminal(), no_color);
            Progress::new(mode, Some(total))
        });
        let is_line = self.last_line.elapsed() >= LINE_INTERVAL;
        if is_line {
            self.last_line = Instant::now();
        }
        progress.advance(done, &text, is_line);
    }

    pub(super) fn finish(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.finish();
        }
    }
}

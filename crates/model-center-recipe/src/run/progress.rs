//! Shows a run: a bar and a status line in a terminal, plain lines elsewhere, nothing when asked to be quiet.
//!
//! Defines [`Progress`] and [`ProgressMode`]. Everything goes to standard error; results belong to standard output and
//! are not printed here. A program decides the mode once, from its flags and its surroundings. Called by the programs
//! that train or generate.

use super::status::Status;
use super::text_log::TextLog;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::time::{Duration, Instant};

/// The longest time without a line while steps are made.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Mode of showing progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressMode {
    /// A bar with one status line below, redrawn in place; coloured or not.
    Bar {
        /// Whether colours may be used.
        color: bool,
    },
    /// One plain line per log step, without control characters.
    Lines,
    /// Nothing but notes that were asked for.
    Quiet,
}

impl ProgressMode {
    /// The mode for what a program knows: `--quiet`, whether standard error is a terminal, whether `NO_COLOR` is set.
    pub fn choose(quiet: bool, is_terminal: bool, no_color: bool) -> Self {
        match (quiet, is_terminal) {
            (true, _) => ProgressMode::Quiet,
            (false, true) => ProgressMode::Bar { color: !no_color },
            (false, false) => ProgressMode::Lines,
        }
    }
}

enum Sink {
    Bar(ProgressBar),
    /// A bar that was taken away; lines are still printed through it.
    Finished(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Quiet,
}

/// The display of a run in progress.
///
/// A display that cannot be written to, such as a closed pipe, does not stop a run.
pub struct Progress {
    sink: Sink,
    /// Gets log steps and notes too, whatever is shown.
    copy: Option<TextLog>,
    last_line: Instant,
    last_step: Instant,
    max_silence: Duration,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.sink {
            Sink::Bar(_) => "Bar",
            Sink::Finished(_) => "Finished",
            Sink::Lines(_) => "Lines",
            Sink::Quiet => "Quiet",
        };
        f.debug_tuple("Progress").field(&name).finish()
    }
}

impl Progress {
    /// On standard error; `total` steps, or `None` if unknown.
    pub fn new(mode: ProgressMode, total: Option<u64>) -> Self {
        match mode {
            // Ten times a second looks alive and costs nothing measurable.
            ProgressMode::Bar { color } => Self::on_terminal(ProgressDrawTarget::stderr_with_hz(10), color, total),
            ProgressMode::Lines => Self::on_writer(Box::new(std::io::stderr())),
            ProgressMode::Quiet => Self::on(Sink::Quiet),
        }
    }

    /// Plain lines on any writer.
    pub fn on_writer(writer: Box<dyn Write + Send>) -> Self {
        Self::on(Sink::Lines(writer))
    }

    fn on(sink: Sink) -> Self {
        let now = Instant::now();
        Progress { sink, copy: None, last_line: now, last_step: now, max_silence: MAX_SILENCE }
    }

    /// A bar on any terminal.
    pub fn on_terminal(target: ProgressDrawTarget, color: bool, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, target);
        let template = match (total.is_some(), color) {
            (true, true) => "{wide_bar:.cyan} {percent:>3}%\n{wide_msg}",
            (true, false) => "{wide_bar} {percent:>3}%\n{wide_msg}",
            (false, _) => "{wide_msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self::on(Sink::Bar(bar))
    }

    /// Writes log steps and notes to this log too.
    pub fn copy_to(&mut self, log: TextLog) {
        self.copy = Some(log);
    }

    /// Sets the longest time between two lines while steps are made; a minute by default.
    pub fn set_max_silence(&mut self, max_silence: Duration) {
        self.max_silence = max_silence;
    }

    /// Writes to the log alone.
    pub fn log(&mut self, text: &str) {
        self.copy.iter_mut().for_each(|log| log.write(text));
    }

    /// After a step: the bar always moves on, a plain line is written when `is_log_step`, and where steps are slow
    /// for one whose successor would end more than a minute after the last line.
    pub fn step(&mut self, status: &Status, is_log_step: bool) {
        self.advance(status.step, status, is_log_step);
    }

    /// Shows that `done` of the total are done, with a text, for work other than training.
    pub fn advance(&mut self, done: u64, text: &dyn std::fmt::Display, is_line: bool) {
        let now = Instant::now();
        // The next step takes about as long as this one.
        let is_line = is_line || (now - self.last_line) + (now - self.last_step) > self.max_silence;
        self.last_step = now;
        if is_line {
            self.last_line = now;
            self.log(&text.to_string());
        }
        match &mut self.sink {
            Sink::Bar(bar) => {
                bar.set_message(text.to_string());
                bar.set_position(done);
            }
            Sink::Lines(writer) if is_line => {
                let _ = writeln!(writer, "{text}").and_then(|()| writer.flush());
            }
            Sink::Lines(_) | Sink::Finished(_) | Sink::Quiet => {}
        }
    }

    /// A message of its own line or lines, above the bar; the quiet mode shows none.
    pub fn note(&mut self, text: &str) {
        self.last_line = Instant::now();
        self.log(text);
        match &mut self.sink {
            // A hidden target would swallow the text, and the bar is not shown either.
            Sink::Bar(bar) | Sink::Finished(bar) => bar.println(text),
            Sink::Lines(writer) => {
                let _ = writeln!(writer, "{text}").and_then(|()| writer.flush());
            }
            Sink::Quiet => {}
        }
    }

    /// Takes the bar away; the last status stays as a plain line. A second call does nothing.
    pub fn finish(&mut self) {
        let Sink::Bar(bar) = &self.sink else { return };
        let (bar, last) = (bar.clone(), bar.message());
        bar.finish_and_clear();
        if !last.is_empty() {
            bar.println(last);
        }
        self.sink = Sink::Finished(bar);
    }
}

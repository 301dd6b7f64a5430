//! Where texts go: to a file that is there whole or not at all, or to standard output, in the order of the prompts; and
//! what is said of the run at its end.
//!
//! Defines [`Sink`], which all ranks share, and [`Figures`]. Called by `work`, and for its figures by `chat`.

use super::rows::{Row, Said};
use super::setup::Job;
use crate::terminal;
use model_center::file::AtomicFile;
use model_center::generate::{Ending, Generated};
use model_center::run::{Progress, ProgressMode, memory};
use model_center::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Fields that are written into rows.
pub(super) const WRITTEN: [&str; 3] = ["generated_text", "generated_ids", "generated"];

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    started: Option<Instant>,
    first: Option<Duration>,
    took: Duration,
    tokens: usize,
    texts: usize,
    /// The most that a CUDA device held.
    pub(super) device_bytes: Option<usize>,
}

impl Figures {
    /// Texts are about to come.
    pub(super) fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// A piece of text has come.
    pub(super) fn piece(&mut self) {
        let started = self.started;
        self.first = self.first.or(started.map(|started| started.elapsed()));
    }

    /// Texts are there.
    pub(super) fn add(&mut self, texts: &[Generated]) {
        self.texts += texts.len();
        self.tokens += texts.iter().map(|text| text.words.len()).sum::<usize>();
    }

    /// What was begun does not count: it was cut off.
    pub(super) fn forget(&mut self) {
        self.started = None;
    }

    /// The time up to now counts.
    pub(super) fn stop(&mut self) {
        self.took += self.started.take().map_or(Duration::ZERO, |started| started.elapsed());
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = self.took + self.started.map_or(Duration::ZERO, |started| started.elapsed());
        let seconds = took.as_secs_f64();
        let gib = |bytes: u64| bytes as f64 / f64::from(1_u32 << 30);
        write!(f, "{} tokens of {} texts in {seconds:.2} s", self.tokens, self.texts)?;
        if seconds > 0.0 {
            write!(f, ", {:.1} tokens/s", self.tokens as f64 / seconds)?;
        }
        if let Some(first) = self.first {
            write!(f, ", first text after {:.2} s", first.as_secs_f64())?;
        }
        if let Some(bytes) = memory::peak_resident_bytes() {
            write!(f, ", at most {:.2} GiB of memory", gib(bytes))?;
        }
        match self.device_bytes {
            Some(bytes) => write!(f, " and {:.2} GiB of the device's", gib(bytes as u64)),
            None => Ok(()),
        }
    }
}

/// Where texts go.
enum Target {
    /// Rows, into a file.
    File { file: AtomicFile, lines: Vec<u8> },
    /// Rows, printed.
    Lines,
    /// Texts, printed; those of prompts that are shown while they come are printed already.
    Texts { are_shown: bool },
}

/// Written out when so much has come together.
const CHUNK_BYTES: usize = 1 << 20;

/// Texts on their way out.
pub(super) struct Sink {
    target: Target,
    /// The row that is written next; those that came before their turn wait.
    next: usize,
    waiting: BTreeMap<usize, String>,
    rows: usize,
    progress: Progress,
    pub(super) figures: Figures,
}

impl Sink {
    /// Open it; a directory that cannot be written is found here, before weights are read.
    ///
    /// # Errors
    /// What the operating system refuses.
    pub(super) fn open(job: &Job) -> Result<Self> {
        let options = &job.options;
        let target = match (&options.output, options.json || options.rows.input.is_some()) {
            (Some(output), _) => Target::File { file: AtomicFile::create(output)?, lines: Vec::new() },
            (None, true) => Target::Lines,
            (None, false) => Target::Texts { are_shown: job.shows_pieces() },
        };
        let is_silent = options.quiet || !matches!(target, Target::File { .. });
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let mode = ProgressMode::choose(is_silent, std::io::stderr().is_terminal(), no_color);
        let rows = job.rows.len();
        let progress = Progress::new(mode, Some(rows as u64));
        Ok(Sink { target, next: 0, waiting: BTreeMap::new(), rows, progress, figures: Figures::default() })
    }

    /// Take the texts of a row, printed with what stands in front of each; they are written when all before them are.
    /// Whether anybody still reads them.
    ///
    /// # Errors
    /// The disk or standard output refuses.
    pub(super) fn take(
        &mut self,
        (number, row): (usize, &Row),
        texts: &[Generated],
        fronts: &[String],
        has_words: bool,
    ) -> Result<bool> {
        self.figures.add(texts);
        let line = match &self.target {
            Target::Texts { are_shown: true } => "\n".to_owned(),
            Target::Texts { are_shown: false } => {
                texts.iter().zip(fronts).map(|(text, front)| format!("{front}{}\n", text.text)).collect()
            }
            Target::File { .. } | Target::Lines => Value::Object(written(row, texts, has_words)).to_string() + "\n",
        };
        self.waiting.insert(number, line);
        let mut is_read = true;
        while let Some(line) = self.waiting.remove(&self.next) {
            self.next += 1;
            match &mut self.target {
                Target::File { file, lines } => {
                    lines.extend_from_slice(line.as_bytes());
                    if lines.len() >= CHUNK_BYTES {
                        write_out(file, lines)?;
                    }
                }
                Target::Lines => is_read &= terminal::print_bytes(line.as_bytes())?,
                Target::Texts { .. } => is_read &= show(&line)?,
            }
        }
        let (done, rows, figures) = (self.next, self.rows, &self.figures);
        let tenth = |row: usize| 10 * row / rows.max(1);
        let is_line = done < rows && tenth(done) > tenth(done.saturating_sub(1));
        self.progress.advance(done as u64, &format!("row {done}/{rows} | {figures}"), is_line);
        Ok(is_read)
    }

    /// All rows are there: the file gets its name.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn finish(mut self) -> Result<Figures> {
        self.figures.stop();
        self.progress.finish();
        if let Target::File { file, mut lines } = self.target {
            write_out(&file, &mut lines)?;
            file.commit()?;
        }
        Ok(self.figures)
    }
}

fn write_out(file: &AtomicFile, lines: &mut Vec<u8>) -> Result<()> {
    let fix = "check that the disk has room left and that you may write there";
    let written = file.file().write_all(lines);
    lines.clear();
    written.map_err(|error| Error::file("write", file.target(), error, fix))
}

/// A row with its texts.
fn written(row: &Row, texts: &[Generated], has_words: bool) -> Map<String, Value> {
    let [text_name, ids_name, all_name] = WRITTEN;
    let mut object = row.object.clone();
    let ids = |text: &Generated| Value::from(text.words.clone());
    if let Some(best) = texts.first() {
        if has_words {
            object.insert(text_name.to_owned(), Value::from(best.text.as_str()));
        }
        if !has_words || matches!(row.said, Said::Ids(_)) {
            object.insert(ids_name.to_owned(), ids(best));
        }
    }
    if texts.len() > 1 {
        let all = texts.iter().map(|text| {
            let mut one = json!({"ids": ids(text), "ended_by": ending(text.ending)});
            if has_words {
                one["text"] = text.text.as_str().into();
            }
            if let Some(score) = text.score {
                // As many digits as the number has.
                one["score"] = score.to_string().parse::<f64>().unwrap_or(f64::from(score)).into();
            }
            one
        });
        object.insert(all_name.to_owned(), all.collect());
    }
    object
}

fn ending(ending: Ending) -> &'static str {
    match ending {
        Ending::Word => "token",
        Ending::Stop => "stop",
        Ending::Length => "length",
    }
}

/// Print a text or a piece of one at once. In a terminal what would control it is left out: models write what they have
/// read. Whether anybody still reads it.
///
/// # Errors
/// Standard output cannot be written to.
pub(super) fn show(text: &str) -> Result<bool> {
    match std::io::stdout().is_terminal() {
        true => {
            let is_shown = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
            terminal::print_bytes(text.chars().filter(is_shown).collect::<String>().as_bytes())
        }
        false => terminal::print_bytes(text.as_bytes()),
    }
}

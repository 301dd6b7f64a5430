//! The output of texts in the order of the prompts, to standard output or atomically to a file, and the statistics of a
//! run.

use super::setup::GenerateRun;
use crate::cli::terminal;
use crate::{Error, Result};
use bmtrain_dist::inspect::process as memory;
use model_center_base::file::{AtomicFile, open_regular};
use model_center_models::generate::{Generated, PromptRow, RESULT_FIELDS};
use model_center_recipe::run::{Progress, ProgressMode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Numbers of texts and tokens, times and memory of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Statistics {
    started: Option<Instant>,
    first: Option<Duration>,
    took: Duration,
    tokens: usize,
    texts: usize,
    /// Peak memory of the CUDA device.
    pub(super) device_bytes: Option<usize>,
}

impl Statistics {
    /// Start the clock.
    pub(super) fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// Text was generated.
    pub(super) fn on_text(&mut self) {
        let started = self.started;
        self.first = self.first.or(started.map(|started| started.elapsed()));
    }

    /// Count finished texts.
    pub(super) fn add(&mut self, texts: &[Generated]) {
        self.texts += texts.len();
        self.tokens += texts.iter().map(|text| text.tokens.len()).sum::<usize>();
    }

    /// Drop the time of an interrupted text.
    pub(super) fn forget(&mut self) {
        self.started = None;
    }

    /// Stop the clock.
    pub(super) fn stop(&mut self) {
        self.took += self.started.take().map_or(Duration::ZERO, |started| started.elapsed());
    }
}

impl fmt::Display for Statistics {
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

/// Destination of texts.
enum Target {
    /// Rows, into a file.
    File { file: AtomicFile, lines: Vec<u8> },
    /// Rows, printed.
    Lines,
    /// Lines of an output file that is gone on with.
    Appended { file: File, path: PathBuf },
    /// Plain text; streamed text is printed already.
    Texts { is_streamed: bool },
}

/// Fix for a file that cannot be written.
const ROOM: &str = "check that the disk has room left and that you may write there";
/// Written out when so much has come together.
const CHUNK_BYTES: usize = 1 << 20;

/// The ordered output of all ranks.
pub(super) struct TextOutput {
    target: Target,
    /// The row to write next; later rows wait.
    next: usize,
    waiting: BTreeMap<usize, String>,
    rows: usize,
    progress: Progress,
    pub(super) statistics: Statistics,
}

impl TextOutput {
    /// Open the output, before the weights are read.
    pub(super) fn open(run: &GenerateRun) -> Result<Self> {
        let options = &run.options;
        let target = match (&options.output, options.json || options.prompts.are_rows()) {
            (Some(output), _) if options.append => append_to(output)?,
            (Some(output), _) => Target::File { file: AtomicFile::create(output)?, lines: Vec::new() },
            (None, true) => Target::Lines,
            (None, false) => Target::Texts { is_streamed: run.streams() },
        };
        let is_silent = options.quiet || !matches!(target, Target::File { .. } | Target::Appended { .. });
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let mode = ProgressMode::choose(is_silent, std::io::stderr().is_terminal(), no_color);
        let rows = run.rows.len();
        let progress = Progress::new(mode, Some(rows as u64));
        Ok(TextOutput {
            target,
            next: run.done,
            waiting: BTreeMap::new(),
            rows,
            progress,
            statistics: Statistics::default(),
        })
    }

    /// Add the texts of a row, each with what is printed before it; they are written after all earlier rows. Returns
    /// whether standard output is still open.
    pub(super) fn add(
        &mut self,
        (index, row): (usize, &PromptRow),
        texts: &[Generated],
        before: &[String],
        has_text: bool,
    ) -> Result<bool> {
        self.statistics.add(texts);
        let line = match &self.target {
            Target::Texts { is_streamed: true } => "\n".to_owned(),
            Target::Texts { is_streamed: false } => {
                texts.iter().zip(before).map(|(text, before)| format!("{before}{}\n", text.text)).collect()
            }
            Target::File { .. } | Target::Appended { .. } | Target::Lines => {
                Value::Object(row.result(texts, has_text)).to_string() + "\n"
            }
        };
        self.waiting.insert(index, line);
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
                Target::Appended { file, path } => {
                    let written = file.write_all(line.as_bytes());
                    written.map_err(|error| Error::file("write", &*path, error, ROOM))?;
                }
                Target::Lines => is_read &= terminal::print_bytes(line.as_bytes())?,
                Target::Texts { .. } => is_read &= show(&line)?,
            }
        }
        let (done, rows, statistics) = (self.next, self.rows, &self.statistics);
        let tenth = |row: usize| 10 * row / rows.max(1);
        let is_line = done < rows && tenth(done) > tenth(done.saturating_sub(1));
        self.progress.advance(done as u64, &format!("row {done}/{rows} | {statistics}"), is_line);
        Ok(is_read)
    }

    /// Commit the file after the last row.
    pub(super) fn finish(mut self) -> Result<Statistics> {
        self.statistics.stop();
        self.progress.finish();
        if let Target::File { file, mut lines } = self.target {
            write_out(&file, &mut lines)?;
            file.commit()?;
        } else if let Target::Appended { file, path } = self.target {
            file.sync_all().map_err(|error| Error::file("write", &path, error, ROOM))?;
        }
        Ok(self.statistics)
    }
}

/// The number of rows that an existing output has. A last line that was cut off is not one of them.
///
/// # Errors
/// A line that is not the result of the row in its place.
pub(super) fn rows_done(path: &Path, rows: &[PromptRow]) -> Result<usize> {
    if path.symlink_metadata().is_err() {
        return Ok(0);
    }
    let (mut file, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| Error::file("read", path, error, "check the file"))?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut done = 0;
    for line in bytes[..whole].split_inclusive(|byte| *byte == b'\n') {
        let wrong = |reason: &str| {
            let place = format!("{}:{}", path.display(), done + 1);
            Error::data(place, reason, "give the rows that the output was begun with, or begin anew with --overwrite")
        };
        let row = rows.get(done).ok_or_else(|| wrong("the output has more lines than there are rows"))?;
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(line) else {
            return Err(wrong("the line is not a JSON object"));
        };
        let has_result = RESULT_FIELDS.iter().filter(|name| fields.remove(**name).is_some()).count() > 0;
        if !has_result || fields != row.fields {
            return Err(wrong(&format!("the line is not the result of {}", row.place)));
        }
        done += 1;
    }
    Ok(done)
}

/// The output after its last complete line.
fn append_to(path: &Path) -> Result<Target> {
    let failed = |error| Error::file("write", path, error, ROOM);
    let mut file = File::options().create(true).read(true).write(true).truncate(false).open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1) as u64;
    file.set_len(whole).map_err(failed)?;
    file.seek(SeekFrom::Start(whole)).map_err(failed)?;
    Ok(Target::Appended { file, path: path.to_owned() })
}

fn write_out(file: &AtomicFile, lines: &mut Vec<u8>) -> Result<()> {
    let written = file.file().write_all(lines);
    lines.clear();
    written.map_err(|error| Error::file("write", file.target(), error, ROOM))
}

/// Print a text and flush it; to a terminal without control characters, which a model may generate. Returns whether
/// standard output is still open.
pub(super) fn show(text: &str) -> Result<bool> {
    match std::io::stdout().is_terminal() {
        true => {
            let is_shown = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
            terminal::print_bytes(text.chars().filter(is_shown).collect::<String>().as_bytes())
        }
        false => terminal::print_bytes(text.as_bytes()),
    }
}

//! Results of the program: lines as they come, a table at the end, and everything as JSON.

use bmtrain_programs::cli::terminal;
use model_center_base::file::write_atomic;
use model_center_base::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// One line of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    what: String,
    figure: String,
    /// Target of the figure, and whether it is reached.
    target: Option<(String, bool)>,
}

/// Content of an earlier run's file that is continued.
#[derive(Debug, Deserialize)]
struct Earlier {
    emulated: bool,
    program: String,
    running: Option<String>,
    failures: Vec<String>,
    #[serde(default)]
    with: Vec<String>,
    rows: Vec<Row>,
    done: Vec<String>,
    parts: Map<String, Value>,
}

/// Everything that was found so far.
#[derive(Debug)]
pub struct Report {
    /// The device is emulated.
    pub emulated: bool,
    /// The options of the backend that are on.
    with: Vec<String>,
    rows: Vec<Row>,
    /// The parts that have ended.
    done: Vec<String>,
    parts: Map<String, Value>,
    failures: Vec<String>,
    /// Why the device answers nothing any more.
    lost: Option<String>,
    /// Where the JSON is kept up to date.
    path: Option<PathBuf>,
}

impl Report {
    /// Nothing yet. The JSON is written to `path` with every part.
    pub fn new(emulated: bool, path: Option<PathBuf>, with: Vec<String>) -> Self {
        let (rows, done, parts, failures) = (Vec::new(), Vec::new(), Map::new(), Vec::new());
        Report { emulated, with, rows, done, parts, failures, lost: None, path }
    }

    /// Content of the report's file from an earlier run, if there is one: its parts are not run again. A part that it
    /// did not survive is a failure and is not run again either, unless it is among `wanted`: it may kill this process
    /// too.
    ///
    /// # Errors
    /// A file that is not a report, or of another version of the program, or of an emulated device where this one is
    /// not.
    pub fn resume(&mut self, wanted: &[String]) -> Result<()> {
        const FIX: &str = "remove the file, or leave out --resume";
        let Some(path) = self.path.clone() else { return Ok(()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::file("read", &path, error, FIX)),
        };
        let place = || path.display().to_string();
        let earlier: Earlier = serde_json::from_str(&text)
            .map_err(|error| Error::data(place(), format!("this is not a report of gpu-check: {error}"), FIX))?;
        let version = env!("CARGO_PKG_VERSION");
        if earlier.program != version || earlier.emulated != self.emulated {
            let reason = format!(
                "the report is of version {} on {} device, and this is {version} on {} one",
                earlier.program,
                kind(earlier.emulated),
                kind(self.emulated)
            );
            return Err(Error::data(place(), reason, FIX));
        }
        if earlier.with != self.with {
            let all = |with: &[String]| if with.is_empty() { "none".into() } else { with.join(",") };
            let reason =
                format!("the report is of a run with {}, and this is one with {}", all(&earlier.with), all(&self.with));
            return Err(Error::data(place(), reason, FIX));
        }
        (self.rows, self.done, self.parts, self.failures) =
            (earlier.rows, earlier.done, earlier.parts, earlier.failures);
        if let Some(part) = earlier.running.filter(|part| !wanted.contains(part)) {
            self.fail(format!("{part}: the run before ended in it; --only {part} runs it again"));
            self.done.push(part);
        }
        Ok(())
    }

    /// Whether a part has ended, in this run or in the one that is continued.
    pub fn is_done(&self, part: &str) -> bool {
        self.done.iter().any(|done| done == part)
    }

    /// A part has ended.
    pub fn end(&mut self, part: String) {
        self.done.push(part);
    }

    /// A line of progress.
    pub fn say(&self, text: &str) {
        text.lines().for_each(|line| terminal::note(&self.marked(line)));
    }

    /// A line of the table.
    pub fn row(&mut self, what: impl Into<String>, figure: impl Into<String>) {
        let row = Row { what: what.into(), figure: figure.into(), target: None };
        self.say(&format!("{}: {}", row.what, row.figure));
        self.rows.push(row);
    }

    /// A line of the table with what its figure is held against. What is measured on an emulated device reaches
    /// nothing.
    pub fn held(&mut self, what: impl Into<String>, figure: impl Into<String>, (target, met): (&str, bool)) {
        let met = met && !self.emulated;
        self.row(what, figure);
        if let Some(row) = self.rows.last_mut() {
            row.target = Some((target.to_owned(), met));
        }
    }

    /// Results of a part, for the JSON.
    pub fn part(&mut self, name: &str, mut found: Value) {
        if let Value::Object(members) = &mut found {
            members.insert("emulated".into(), self.emulated.into());
        }
        self.parts.insert(name.into(), found);
    }

    /// Something that must not be, and ends the program in a failure.
    pub fn fail(&mut self, reason: impl Into<String>) {
        let reason = reason.into().lines().map(str::trim).collect::<Vec<_>>().join(" ");
        self.say(&format!("FAILED {reason}"));
        self.failures.push(reason);
    }

    /// The device answers every call with the same error from now on: what is not done yet cannot be.
    pub fn lose(&mut self, after: &str, reason: &str) {
        let text = format!("the device is lost after {after}: {reason}; nothing more can be run on it in this process");
        self.fail(&text);
        self.lost = self.failures.last().cloned();
    }

    /// Whether [`Report::lose`] was called.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether nothing failed.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty()
    }

    /// Whether every target of what was measured is reached.
    pub fn reaches_targets(&self) -> bool {
        self.rows.iter().all(|row| row.target.as_ref().is_none_or(|(_, met)| *met))
    }

    /// The table.
    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
        let figures = self.rows.iter().map(|row| row.figure.chars().count()).max().unwrap_or(0).min(60);
        let mut text = String::new();
        for Row { what, figure, target } in &self.rows {
            let target = target
                .as_ref()
                .map_or(String::new(), |(target, met)| format!("  {target}: {}", if *met { "ok" } else { "short" }));
            let line = format!("{what:<width$}  {figure:<figures$}{target}");
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", self.marked(line.trim_end()));
        }
        let verdict = match self.failures.len() {
            0 => "ok".into(),
            count => format!("FAILED: {count} of what was checked, the first: {}", self.failures[0]),
        };
        let _ = write!(text, "{}", self.marked(&verdict));
        text
    }

    /// Write everything that was found so far, where a file was named. `running` is the part that is begun next: if the
    /// program dies or is killed in it, the file names it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, running: Option<&str>) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let target = |row: &Row| {
            let (target, met) = row.target.as_ref()?;
            Some(json!({ "what": row.what, "figure": row.figure, "target": target, "met": met }))
        };
        let targets: Vec<Value> = self.rows.iter().filter_map(target).collect();
        let whole = json!({
            "emulated": self.emulated,
            "with": self.with,
            "date": date(SystemTime::now()),
            "program": env!("CARGO_PKG_VERSION"),
            "running": running,
            "passed": self.is_clean() && running.is_none(),
            "failures": self.failures,
            "device_lost": self.lost,
            "targets": targets,
            "rows": self.rows,
            "done": self.done,
            "parts": self.parts,
        });
        write_atomic(path, format!("{whole:#}\n").as_bytes())
    }

    /// A line, with a prefix where nothing in it is of a real device.
    fn marked(&self, line: &str) -> String {
        if self.emulated { format!("emulated: {line}") } else { line.to_owned() }
    }
}

fn kind(emulated: bool) -> &'static str {
    if emulated { "an emulated" } else { "a real" }
}

/// A moment as `2026-01-31T12:00:00Z`.
fn date(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut day, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= if is_leap(year) { 366 } else { 365 } {
        day -= if is_leap(year) { 366 } else { 365 };
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(at(1_709_164_800), "2024-02-29T00:00:00Z");
    }

    #[test]
    fn an_emulated_device_is_named_in_every_line_and_reaches_no_target() {
        let mut report = Report::new(true, None, Vec::new());
        report.row("a", "1");
        report.held("b", "2", ("at least 1", true));
        assert!(report.table().lines().all(|line| line.starts_with("emulated: ")), "{}", report.table());
        assert!(!report.reaches_targets() && report.is_clean());
        report.fail("c\n  because of d");
        assert!(!report.is_clean());
        assert!(
            report.table().ends_with("FAILED: 1 of what was checked, the first: c because of d"),
            "{}",
            report.table()
        );
    }

    #[test]
    fn a_target_that_is_missed_is_short_and_no_failure() {
        let mut report = Report::new(false, None, Vec::new());
        report.held("b", "2", ("at least 1", true));
        assert!(report.reaches_targets() && report.table().contains("at least 1: ok"));
        report.held("c", "2", ("at least 3", false));
        assert!(!report.reaches_targets() && report.is_clean() && report.table().contains("at least 3: short"));
    }
}

//! What the program found: lines as they come, a table at the end, and everything as JSON.

use crate::terminal;
use model_center::Result;
use model_center::file::write_atomic;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// One line of the table.
#[derive(Debug, Clone)]
struct Row {
    what: String,
    figure: String,
    /// What it is held against, and whether it is reached.
    target: Option<(String, bool)>,
}

/// Everything that was found so far.
#[derive(Debug)]
pub struct Report {
    /// The device is emulated.
    pub emulated: bool,
    rows: Vec<Row>,
    parts: Map<String, Value>,
    targets: Vec<Value>,
    failures: Vec<String>,
    /// Why the device answers nothing any more.
    lost: Option<String>,
    /// Where the JSON is kept up to date.
    path: Option<PathBuf>,
}

impl Report {
    /// Nothing yet. The JSON is written to `path` with every part.
    pub fn new(emulated: bool, path: Option<PathBuf>) -> Self {
        let (rows, parts, targets, failures) = (Vec::new(), Map::new(), Vec::new(), Vec::new());
        Report { emulated, rows, parts, targets, failures, lost: None, path }
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
        let row = self.rows.last_mut();
        if let Some(row) = row {
            row.target = Some((target.to_owned(), met));
            self.targets.push(json!({ "what": row.what, "figure": row.figure, "target": target, "met": met }));
        }
    }

    /// What a part found, for the JSON.
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
        let whole = json!({
            "emulated": self.emulated,
            "date": date(SystemTime::now()),
            "program": env!("CARGO_PKG_VERSION"),
            "running": running,
            "passed": self.is_clean() && running.is_none(),
            "failures": self.failures,
            "device_lost": self.lost,
            "targets": self.targets,
            "parts": self.parts,
        });
        write_atomic(path, format!("{whole:#}\n").as_bytes())
    }

    /// A line, with a prefix where nothing in it is of a real device.
    fn marked(&self, line: &str) -> String {
        if self.emulated { format!("emulated: {line}") } else { line.to_owned() }
    }
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
        let mut report = Report::new(true, None);
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
        let mut report = Report::new(false, None);
        report.held("b", "2", ("at least 1", true));
        assert!(report.reaches_targets() && report.table().contains("at least 1: ok"));
        report.held("c", "2", ("at least 3", false));
        assert!(!report.reaches_targets() && report.is_clean() && report.table().contains("at least 3: short"));
    }
}

//! `metrics.jsonl`: what happened in a run, one JSON object per line, only ever appended to.
//!
//! Defines [`MetricsLog`]; its records are in `metrics_records.rs`. Everything that depends on the clock or the machine
//! is in a last member `"time"`; without it, two runs of one recipe write the same bytes ([`deterministic_part`]).
//! Numbers have the fewest digits that read back as the same f32 or f64; those that JSON cannot write are the strings
//! `"NaN"`, `"Infinity"` and `"-Infinity"`. Called by the training programs, through
//! [`OutputDirectory::metrics`](super::OutputDirectory::metrics).

use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The metrics file of a run in progress.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Begins a file that does not exist yet.
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        let file = file.map_err(|e| {
            Error::file("create", path, e, "move the file elsewhere, or set log.metrics to another name")
        })?;
        Ok(MetricsLog { path: path.to_owned(), file })
    }

    /// Goes on with the file of a run that was cut off, or begins it. A last line that was cut off with it is removed.
    pub fn continued(path: &Path) -> Result<Self> {
        let failed = |e| Error::file("write", path, e, "make room on the disk, and let the run write there");
        let mut file = OpenOptions::new().append(true).read(true).create(true).open(path).map_err(failed)?;
        let whole = whole_lines(&mut file).map_err(failed)?;
        file.set_len(whole).map_err(failed)?;
        Ok(MetricsLog { path: path.to_owned(), file })
    }

    /// Appends a record. It is one write of a whole line, so readers that follow the file see whole records.
    pub fn write(&mut self, record: &impl Record) -> Result<()> {
        let mut line = record.to_json();
        line.push('\n');
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|e| Error::file("write", &self.path, e, "make room on the disk"))
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> Result<u64> {
        let metadata = self.file.metadata();
        metadata.map(|found| found.len()).map_err(|e| Error::file("read", &self.path, e, "check the disk"))
    }

    /// Waits until everything written has reached the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::file("write", &self.path, e, "make room on the disk"))
    }
}

/// Length of a file up to the end of its last whole line, searched from the end.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut chunk = [0u8; 4096];
    while end > 0 {
        let start = end.saturating_sub(chunk.len() as u64);
        let part = chunk.get_mut(..(end - start) as usize).unwrap_or_default();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The lines of a metrics file as if the run had never been cut off: without what was done again after a resume, and
/// without the records of ending and resuming in between.
pub fn without_overtaken(text: &str) -> Vec<&str> {
    let mut lines: Vec<(&str, Option<u64>)> = Vec::new();
    for line in text.lines() {
        let number = |key: &str| -> Option<u64> {
            let rest = line.split_once(&format!("\"{key}\":"))?.1;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        if !line.starts_with("{\"kind\":\"resume\"") {
            lines.push((line, number("step")));
            continue;
        }
        let from = number("step").unwrap_or(0);
        lines.retain(|(line, step)| !line.starts_with("{\"kind\":\"end\"") && step.is_none_or(|step| step <= from));
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

/// Something [`MetricsLog`] can write.
pub trait Record {
    /// One JSON object on one line, without the line's end, `"time"` last.
    fn to_json(&self) -> String;
}

/// A line without its `"time"` member: what two runs of one recipe have in common to the byte.
pub fn deterministic_part(line: &str) -> String {
    let line = line.trim_end_matches('\n');
    // Quotes in texts are escaped, so the last occurrence is the member's beginning.
    match line.rfind(",\"time\":{") {
        Some(at) if line.ends_with("}}") => format!("{}}}", line.get(..at).unwrap_or_default()),
        _ => line.to_owned(),
    }
}

/// Builds a JSON object. `serde_json` would turn every f32 into an f64 with nine more digits.
#[derive(Debug, Default)]
pub(super) struct Object {
    body: String,
}

impl Object {
    pub(super) fn member(&mut self, name: &str, value: &str) -> &mut Self {
        let comma = if self.body.is_empty() { "" } else { "," };
        self.body.push_str(&format!("{comma}{}:{value}", serde_json::Value::from(name)));
        self
    }

    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.member(name, &serde_json::Value::from(value).to_string())
    }

    pub(super) fn integer(&mut self, name: &str, value: u64) -> &mut Self {
        self.member(name, &value.to_string())
    }

    pub(super) fn flag(&mut self, name: &str, value: bool) -> &mut Self {
        self.member(name, if value { "true" } else { "false" })
    }

    /// An f32 or f64, whose `Debug` text is its shortest decimal form and, but for infinities and NaN, valid JSON.
    pub(super) fn float(&mut self, name: &str, value: impl Copy + Into<f64> + std::fmt::Debug) -> &mut Self {
        let text = match value.into() {
            f64::INFINITY => "\"Infinity\"".to_owned(),
            f64::NEG_INFINITY => "\"-Infinity\"".to_owned(),
            wide if wide.is_nan() => "\"NaN\"".to_owned(),
            _ => format!("{value:?}"),
        };
        self.member(name, &text)
    }

    pub(super) fn object(&mut self, name: &str, value: Object) -> &mut Self {
        self.member(name, &value.end())
    }

    pub(super) fn end(&self) -> String {
        format!("{{{}}}", self.body)
    }
}

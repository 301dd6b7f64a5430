//! The records of a metrics file as if the run had never been cut off, read from where an earlier reading ended.
//!
//! Defines [`LineReader`] and [`Position`].

use crate::{Error, Result};
use model_center_base::file::open_regular;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// No record is longer; what is, is not one.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Beginning of the record of a resume.
const RESUME: &[u8] = b"{\"kind\":\"resume\"";

/// Position in a metrics file that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// Bytes of whole lines that were read.
    pub bytes: u64,
    /// Hash of the first line: another one means another file.
    pub first_line: String,
    /// The last step that was read.
    pub last_step: u64,
}

/// Reads records in order, without those that a later resume overtook, and without the records of an end before it.
#[derive(Debug)]
pub struct LineReader {
    path: PathBuf,
    input: BufReader<File>,
    position: Position,
    line: Vec<u8>,
    number: usize,
    /// Line number of each resume from here on, and the smallest step of it and all later ones.
    resumes: Vec<(usize, u64)>,
    /// The first of them that is still to come.
    next_resume: usize,
    /// Lines that are not records.
    pub damaged: u64,
}

impl LineReader {
    /// Opens a file at its beginning.
    ///
    /// # Errors
    /// [`Error::Model`] if there is no such file, [`Error::File`] if it cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, _) = open_regular(path)?;
        let mut reader = LineReader::of(path, file);
        reader.scan(0)?;
        Ok(reader)
    }

    /// Opens a file at a position. `None` if all has to be read again: it is another file or a shorter one, or a run
    /// that was resumed since has overtaken what was read.
    ///
    /// # Errors
    /// As [`LineReader::open`].
    pub fn open_at(path: &Path, position: &Position) -> Result<Option<Self>> {
        let (file, length) = open_regular(path)?;
        let mut reader = LineReader::of(path, file);
        if length < position.bytes || reader.first_line()? != position.first_line {
            return Ok(None);
        }
        reader.scan(position.bytes)?;
        if reader.resumes.first().is_some_and(|(_, from)| *from < position.last_step) {
            return Ok(None);
        }
        reader.position = position.clone();
        Ok(Some(reader))
    }

    fn of(path: &Path, file: File) -> Self {
        LineReader {
            path: path.to_owned(),
            input: BufReader::with_capacity(1 << 18, file),
            position: Position::default(),
            line: Vec::new(),
            number: 0,
            resumes: Vec::new(),
            next_resume: 0,
            damaged: 0,
        }
    }

    /// Position that was read up to.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The next record; `None` at the end of the file, or at a line that is still being written.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn advance(&mut self) -> Result<Option<Value>> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            if self.position.bytes == 0 {
                self.position.first_line = hash(&self.line);
            }
            self.position.bytes += self.line.len() as u64;
            let number = self.number;
            self.number += 1;
            let Ok(record) = serde_json::from_slice::<Value>(&self.line) else {
                self.damaged += 1;
                continue;
            };
            let kind = record.get("kind").and_then(Value::as_str).unwrap_or_default();
            let step = record.get("step").and_then(Value::as_u64);
            while self.resumes.get(self.next_resume).is_some_and(|(line, _)| *line <= number) {
                self.next_resume += 1;
            }
            let limit = self.resumes.get(self.next_resume).map(|(_, step)| *step);
            // That a run was resumed stays an event, whatever came of it.
            let is_overtaken = kind != "resume" && limit.is_some_and(|limit| step.is_some_and(|step| step > limit));
            if is_overtaken || (kind == "end" && limit.is_some()) {
                continue;
            }
            self.position.last_step = step.unwrap_or(self.position.last_step);
            return Ok(Some(record));
        }
    }

    /// Notes the resumes after `bytes`, and goes back there.
    fn scan(&mut self, bytes: u64) -> Result<()> {
        self.seek(bytes)?;
        while self.read_line()? {
            if self.line.starts_with(RESUME) {
                let record: Option<Value> = serde_json::from_slice(&self.line).ok();
                let step = record.and_then(|record| record.get("step")?.as_u64());
                self.resumes.extend(step.map(|step| (self.number, step)));
            }
            self.number += 1;
        }
        self.number = 0;
        let mut least = u64::MAX;
        for (_, step) in self.resumes.iter_mut().rev() {
            least = least.min(*step);
            *step = least;
        }
        self.seek(bytes)
    }

    fn first_line(&mut self) -> Result<String> {
        self.seek(0)?;
        self.read_line()?;
        Ok(hash(&self.line))
    }

    /// Reads a whole line; false if there is none.
    fn read_line(&mut self) -> Result<bool> {
        self.line.clear();
        let mut limited = (&mut self.input).take(MAX_LINE_BYTES);
        let read = limited.read_until(b'\n', &mut self.line);
        read.map_err(|e| Error::file("read", &self.path, e, "check the disk, and that you may read it"))?;
        Ok(self.line.ends_with(b"\n"))
    }

    fn seek(&mut self, bytes: u64) -> Result<()> {
        let sought = self.input.seek(SeekFrom::Start(bytes));
        sought.map(drop).map_err(|e| Error::file("read", &self.path, e, "check the disk, and that you may read it"))
    }
}

/// A hash of a line.
fn hash(line: &[u8]) -> String {
    blake3::hash(line).to_hex().as_str().chars().take(16).collect()
}

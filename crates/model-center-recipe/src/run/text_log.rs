//! `log.txt`: what a run reported, with times, for people.
//!
//! Defines [`TextLog`], to which [`Progress`](super::Progress) copies its lines, and [`utc`].

use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The text log in the output directory.
pub const TEXT_LOG_FILE: &str = "log.txt";

/// Beginning of the line with the command of a process, after its time.
pub const COMMAND_PREFIX: &str = "command: ";

/// The text log of a run in progress.
#[derive(Debug)]
pub struct TextLog {
    file: File,
}

impl TextLog {
    /// Opens the log, new or to append.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file =
            file.map_err(|e| Error::file("write", path, e, "make room on the disk, and let the run write there"))?;
        Ok(TextLog { file })
    }

    /// Appends lines, each with the time in UTC. A log that cannot be written does not end a run: a full disk shows in
    /// `metrics.jsonl`, and that does.
    pub fn write(&mut self, text: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let now = utc(now);
        let lines: String = text.lines().map(|line| format!("{now} {line}\n")).collect();
        let _ = self.file.write_all(lines.as_bytes());
    }
}

/// A time as `2026-11-26T09:30:00Z`, of the seconds since 1970.
pub fn utc(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years that begin in March, so that a leap day is the last of its year; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let of = |seconds| utc(seconds);
        assert_eq!(of(0), "1970-01-01T00:00:00Z");
        assert_eq!(of(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(of(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(of(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(of(1_798_675_200), "2026-12-31T00:00:00Z");
    }

    #[test]
    fn every_line_has_its_time_and_earlier_lines_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join(TEXT_LOG_FILE);
        TextLog::open(&path).unwrap().write("one\ntwo");
        TextLog::open(&path).unwrap().write("three");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.split_once("Z ").unwrap().1).collect();
        assert_eq!(lines, ["one", "two", "three"]);
    }
}

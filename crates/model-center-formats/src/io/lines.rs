//! Lines of a text file, read with bounded memory.
//!
//! Defines [`LineReader`]: strips the byte order mark and both line endings, refuses lines above a bound without
//! holding them, and reports bytes that are not UTF-8 with their place. [`super::record`] builds records from it.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use super::input::{TextInput, file_error, open_text};
use crate::{Error, Result};

/// Why one line or record is unusable, while the following ones may still be fine.
pub type Flaw = Error;

/// A usable line without its ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The text.
    pub text: &'a str,
    /// From 1.
    pub number: u64,
    /// Whether a line ending followed; a line without one may be the torn end of an interrupted write.
    pub(crate) complete: bool,
}

/// Reads a file line by line.
#[derive(Debug)]
pub struct LineReader {
    path: PathBuf,
    reader: TextInput,
    text: String,
    number: u64,
    complete: bool,
    max_bytes: usize,
}

impl LineReader {
    /// Opens `path`; lines above `max_bytes` bytes are refused.
    ///
    /// Errors: the file cannot be opened, is not a regular file, or is UTF-16 text.
    pub fn open(path: &Path, max_bytes: usize) -> Result<LineReader> {
        Ok(LineReader::over(path, open_text(path)?, max_bytes))
    }

    /// Reads the lines of an input; `path` is named in errors.
    pub fn over(path: &Path, reader: TextInput, max_bytes: usize) -> LineReader {
        LineReader { path: path.to_owned(), reader, text: String::new(), number: 0, complete: true, max_bytes }
    }

    /// The file being read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The longest line this reader returns, in bytes.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The line that the last [`LineReader::advance`] read.
    pub fn line(&self) -> Line<'_> {
        Line { text: &self.text, number: self.number, complete: self.complete }
    }

    /// Reads one more line; `None` at the end of the file.
    ///
    /// Errors: the outer error (reading failed) ends everything, the inner one concerns this line alone.
    pub fn advance(&mut self) -> Result<Option<std::result::Result<(), Flaw>>> {
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        bytes.clear();
        // Two more bytes than allowed: room for the line ending, and a way to see that the line goes on.
        let room = self.max_bytes as u64 + 2;
        let read = (&mut self.reader).take(room).read_until(b'\n', &mut bytes);
        if read.map_err(|error| file_error(&self.path, error))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.complete = bytes.last() == Some(&b'\n');
        if self.complete {
            bytes.pop();
            bytes.pop_if(|byte| *byte == b'\r');
        }
        let place = |column| format!("{}:{}:{column}", self.path.display(), self.number);
        if bytes.len() > self.max_bytes {
            if !self.complete {
                skip_line(&mut self.reader).map_err(|error| file_error(&self.path, error))?;
            }
            return Ok(Some(Err(Error::data(
                place(self.max_bytes),
                format!("the line is longer than {} bytes", self.max_bytes),
                "split the record into shorter ones",
            ))));
        }
        match String::from_utf8(bytes) {
            Ok(text) => {
                self.text = text;
                Ok(Some(Ok(())))
            }
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let bytes = error.as_bytes();
                let byte = bytes.get(valid).copied().unwrap_or_default();
                Ok(Some(Err(Error::data(
                    place(String::from_utf8_lossy(&bytes[..valid]).chars().count() + 1),
                    format!("byte 0x{byte:02X} is not UTF-8 text"),
                    "convert the file, e.g. iconv -f LATIN1 -t UTF-8 OLD > NEW",
                ))))
            }
        }
    }
}

/// Consumes up to and including the next line ending, holding one buffer at a time.
fn skip_line(reader: &mut TextInput) -> std::io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        reader.consume(used);
        if end.is_some() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8], max_bytes: usize) -> Vec<std::result::Result<(String, u64, bool), String>> {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, content).unwrap();
        let mut reader = LineReader::open(&path, max_bytes).unwrap();
        let mut lines = Vec::new();
        while let Some(line) = reader.advance().unwrap() {
            let Line { text, number, complete } = reader.line();
            lines.push(line.map(|()| (text.to_owned(), number, complete)).map_err(|error| error.to_string()));
        }
        lines
    }

    fn ok(text: &str, number: u64, complete: bool) -> std::result::Result<(String, u64, bool), String> {
        Ok((text.to_owned(), number, complete))
    }

    #[test]
    fn endings_and_byte_order_mark_are_stripped() {
        let lines = read(b"\xEF\xBB\xBFa\r\n\r\nb\nc", 100);
        assert_eq!(lines, [ok("a", 1, true), ok("", 2, true), ok("b", 3, true), ok("c", 4, false)]);
        assert_eq!(read(b"", 100), []);
        assert_eq!(read(b"\xEF\xBB\xBF", 100), []);
    }

    #[test]
    fn a_long_line_is_refused_and_the_next_one_still_read() {
        let content = [vec![b'x'; 300_000], b"\nok\n".to_vec(), vec![b'y'; 11]].concat();
        let lines = read(&content, 10);
        assert!(lines[0].as_ref().unwrap_err().contains("file:1:10"));
        assert_eq!(lines[1], ok("ok", 2, true));
        assert!(lines[2].as_ref().unwrap_err().contains("longer than 10 bytes"));
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn the_bound_is_exact_with_either_line_ending() {
        for content in [&b"1234567890\nok"[..], b"1234567890\r\nok"] {
            assert_eq!(read(content, 10), [ok("1234567890", 1, true), ok("ok", 2, false)]);
        }
        for content in [&b"12345678901\nok"[..], b"12345678901\r\nok", b"123456789012\nok"] {
            let lines = read(content, 10);
            assert!(lines[0].is_err(), "{lines:?}");
            assert_eq!(lines[1], ok("ok", 2, false));
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_reported_by_character() {
        let lines = read(b"caf\xC3\xA9 \xE9t\xE9\nok\n", 100);
        let error = lines[0].as_ref().unwrap_err();
        assert!(error.contains("file:1:6") && error.contains("0xE9"), "{error}");
        assert_eq!(lines[1], ok("ok", 2, true));
    }

    #[test]
    fn directories_missing_files_and_utf16_are_named() {
        let directory = tempfile::TempDir::new().unwrap();
        assert!(LineReader::open(directory.path(), 9).unwrap_err().to_string().contains("this is a directory"));
        assert!(LineReader::open(&directory.path().join("no"), 9).unwrap_err().to_string().contains("/no"));
        let path = directory.path().join("wide");
        std::fs::write(&path, b"\xFF\xFEa\0").unwrap();
        assert!(LineReader::open(&path, 9).unwrap_err().to_string().contains("UTF-16"));
    }
}

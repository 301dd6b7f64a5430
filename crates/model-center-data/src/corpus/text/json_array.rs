//! The elements of a file that is one JSON array, without holding the array.
//!
//! Defines [`JsonArray`], which finds where each element ends by its brackets and quotes, and parses it alone. An
//! element that is broken inside is a flaw of its own; brackets that do not match end the file's use.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::TextRecord;
use crate::{Error, Result};
use model_center_formats::io::{
    input::{TextInput, file_error},
    lines::Flaw,
    record::{Fields, Record},
};

/// Reads an array element by element.
#[derive(Debug)]
pub(super) struct JsonArray {
    path: PathBuf,
    input: TextInput,
    most: usize,
    /// From 1.
    line: u64,
    state: State,
    element: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the array.
    Start,
    /// After `[` or a comma.
    Element,
    /// After an element.
    Comma,
    Ended,
}

impl JsonArray {
    /// Reads from an input whose first character is `[`.
    pub(super) fn new(path: &Path, input: TextInput, most: usize) -> JsonArray {
        JsonArray { path: path.to_owned(), input, most, line: 1, state: State::Start, element: Vec::new() }
    }

    /// Result of `text_of` for the next element; an element that is a text is its own. `None` after the array.
    pub(super) fn advance(
        &mut self,
        text_of: impl FnOnce(&Record<'_>) -> std::result::Result<TextRecord, Flaw>,
    ) -> Result<Option<std::result::Result<TextRecord, Flaw>>> {
        if !self.seek_element()? {
            return Ok(None);
        }
        let line = self.line;
        self.read_element()?;
        let place = || format!("{}:{line}", self.path.display());
        let Ok(text) = std::str::from_utf8(&self.element) else {
            let fix = "set the encoding to latin-1, or convert the file with iconv";
            return Ok(Some(Err(Error::data(place(), "the element is not UTF-8 text", fix))));
        };
        let fix = "write an array of JSON objects, [{…}, …]";
        Ok(Some(match serde_json::from_str(text) {
            Ok(Value::Object(object)) => {
                text_of(&Record { path: &self.path, line, fields: Fields::Json { text, object } })
            }
            Ok(Value::String(text)) => Ok(TextRecord::plain(text)),
            Ok(_) => Err(Error::data(place(), "the element is neither an object nor a text", fix)),
            Err(error) => Err(Error::data(place(), format!("broken JSON: {error}"), fix)),
        }))
    }

    /// Goes to the next element; whether there is one.
    fn seek_element(&mut self) -> Result<bool> {
        loop {
            let Some(byte) = self.peek()? else {
                let (State::Start | State::Ended) = self.state else {
                    return Err(self.broken("the array is not closed: the file may be cut off"));
                };
                return Ok(false);
            };
            match (self.state, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => {}
                (State::Start, b'[') => self.state = State::Element,
                // After a comma there must be an element, but what writes arrays by hand leaves commas at the end.
                (State::Element | State::Comma, b']') => self.state = State::Ended,
                (State::Comma, b',') => self.state = State::Element,
                (State::Element, b',' | b'}' | b':') => return Err(self.broken("a character between elements")),
                (State::Element, _) => return Ok(true),
                (State::Comma, _) => return Err(self.broken("no comma between elements")),
                (State::Start | State::Ended, _) => return Err(self.broken("text follows the array")),
            }
            self.skip(byte);
        }
    }

    /// Reads the element that begins here.
    fn read_element(&mut self) -> Result<()> {
        self.element.clear();
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        loop {
            let Some(byte) = self.peek()? else {
                return Err(self.broken("the array is not closed: the file may be cut off"));
            };
            if !quoted && depth == 0 && matches!(byte, b',' | b']' | b' ' | b'\t' | b'\r' | b'\n') {
                break;
            }
            if self.element.len() == self.most {
                return Err(self.broken(&format!("the element is longer than {} bytes", self.most)));
            }
            self.element.push(byte);
            self.skip(byte);
            match (quoted, byte) {
                (true, _) if escaped => escaped = false,
                (true, b'\\') => escaped = true,
                (true, b'"') => quoted = false,
                (false, b'"') => quoted = true,
                (false, b'{' | b'[') => depth += 1,
                (false, b'}' | b']') => match depth.checked_sub(1) {
                    Some(less) => depth = less,
                    None => return Err(self.broken("brackets do not match")),
                },
                _ => continue,
            }
            if depth == 0 && !quoted && matches!(byte, b'}' | b']' | b'"') {
                break;
            }
        }
        self.state = State::Comma;
        Ok(())
    }

    fn peek(&mut self) -> Result<Option<u8>> {
        let bytes = self.input.fill_buf().map_err(|error| file_error(&self.path, error))?;
        Ok(bytes.first().copied())
    }

    fn skip(&mut self, byte: u8) {
        self.input.consume(1);
        self.line += u64::from(byte == b'\n');
    }

    fn broken(&self, reason: &str) -> Error {
        let place = format!("{}:{}", self.path.display(), self.line);
        Error::data(place, reason, "write one array of JSON objects, or one object a line")
    }
}

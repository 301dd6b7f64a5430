//! WikiExtractor's output: documents between lines `<doc id=… url=… title=…>` and `</doc>`.
//!
//! Defines [`WikiReader`]. The text keeps its title line; the three characters that WikiExtractor writes as entities
//! are read as themselves.

use super::documents::require_room;
use super::quoted;
use crate::{Error, Result};
use model_center_formats::io::lines::{Flaw, LineReader};

/// Reads one document after the other.
#[derive(Debug)]
pub(super) struct WikiReader {
    lines: LineReader,
}

impl WikiReader {
    pub(super) fn new(lines: LineReader) -> WikiReader {
        WikiReader { lines }
    }

    /// The next document; `None` after the last.
    pub(super) fn advance(&mut self) -> Result<Option<std::result::Result<String, Flaw>>> {
        loop {
            match self.lines.advance()? {
                None => return Ok(None),
                Some(read) => read?,
            }
            let text = self.lines.line().text;
            if text.starts_with("<doc ") && text.trim_end().ends_with('>') {
                break;
            }
            if !text.trim().is_empty() {
                let reason = format!("text outside of documents: {:?}", quoted(text));
                return Err(self.wrong(reason));
            }
        }
        let mut document = String::new();
        loop {
            match self.lines.advance()? {
                None => return Err(self.wrong("the last document is not closed: the file may be cut off".into())),
                Some(read) => read?,
            }
            let text = self.lines.line().text;
            if text.trim_end() == "</doc>" {
                return Ok(Some(Ok(plain(document.trim()))));
            }
            require_room(&self.lines, document.len() + text.len())?;
            document.push_str(text);
            document.push('\n');
        }
    }

    fn wrong(&self, reason: String) -> Error {
        let place = format!("{}:{}", self.lines.path().display(), self.lines.line().number);
        Error::data(place, reason, "give the files that WikiExtractor wrote, or set another format")
    }
}

/// `&` is the last, as it was the first to be replaced.
fn plain(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

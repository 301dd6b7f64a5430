//! Plain text in chunks of bounded size, independent of its lines.
//!
//! Defines [`ChunkReader`], which the reader of packed sequences uses: it strips the byte order mark, normalizes line
//! endings, and reports bytes that are not text with their position.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::input::{TextInput, file_error, open_text};
use crate::{Error, Result};

/// Reads a file piece by piece.
#[derive(Debug)]
pub struct ChunkReader {
    path: PathBuf,
    reader: TextInput,
    /// Most bytes of a piece.
    most: usize,
    /// Bytes that were read and not handed out.
    bytes: Vec<u8>,
    /// Position of their start: line from 1, characters of it that were handed out.
    line: u64,
    characters: usize,
}

impl ChunkReader {
    /// Opens `path`; pieces have at most `most` bytes, at least 8.
    ///
    /// Errors: the file cannot be opened, is not a regular file, or is UTF-16 text.
    pub fn open(path: &Path, most: usize) -> Result<ChunkReader> {
        let reader = open_text(path)?;
        let most = most.max(8);
        Ok(ChunkReader { path: path.to_owned(), reader, most, bytes: Vec::new(), line: 1, characters: 0 })
    }

    /// The next piece; `None` at the end of the file. Together they are the file, with `\n` for `\r\n`.
    pub fn advance(&mut self) -> Result<Option<String>> {
        // One byte more than a piece may have tells whether the text goes on.
        let room = (self.most + 1).saturating_sub(self.bytes.len()) as u64;
        let read = (&mut self.reader).take(room).read_to_end(&mut self.bytes);
        read.map_err(|error| file_error(&self.path, error))?;
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let end = if self.bytes.len() > self.most { cut(&self.bytes) } else { self.bytes.len() };
        let rest = self.bytes.split_off(end);
        let piece = std::mem::replace(&mut self.bytes, rest);
        let piece = String::from_utf8(piece).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(valid).copied().unwrap_or_default();
            let fix = "convert the file, e.g. iconv -f LATIN1 -t UTF-8 OLD > NEW";
            let before = String::from_utf8_lossy(&error.as_bytes()[..valid]);
            self.flaw(&before, format!("byte 0x{byte:02X} is not UTF-8 text"), fix)
        })?;
        if let Some(at) = piece.find('\0') {
            let fix = "check that this is a text; UTF-16 is converted with iconv -f UTF-16 -t UTF-8 OLD > NEW";
            return Err(self.flaw(&piece[..at], "a zero byte is not text".into(), fix));
        }
        let (line, characters) = self.after(&piece);
        (self.line, self.characters) = (line, characters);
        Ok(Some(if piece.contains('\r') { piece.replace("\r\n", "\n") } else { piece }))
    }

    /// Line, and characters in it, after a text that starts at the reader's position.
    fn after(&self, text: &str) -> (u64, usize) {
        match text.rsplit_once('\n') {
            None => (self.line, self.characters + text.chars().count()),
            Some((before, last)) => {
                let ends = before.bytes().filter(|byte| *byte == b'\n').count() as u64 + 1;
                (self.line + ends, last.chars().count())
            }
        }
    }

    /// An error located after a text that starts at the reader's position.
    fn flaw(&self, before: &str, reason: String, fix: &str) -> Error {
        let (line, characters) = self.after(before);
        Error::data(format!("{}:{line}:{}", self.path.display(), characters + 1), reason, fix)
    }
}

/// End of a chunk if more text follows: before the last white space that follows an ASCII letter or digit, else before
/// the last line ending, else between two characters. In the first case, tokenizers whose words include the preceding
/// white space encode chunks like the whole text. Never 0 and never the end.
fn cut(bytes: &[u8]) -> usize {
    // The second half will do: a piece is never short.
    let window = bytes.len() / 2..bytes.len() - 1;
    let line_end = |at: usize| bytes[at] == b'\n' || (bytes[at] == b'\r' && bytes[at + 1] == b'\n');
    let in_front_of = |wanted: &dyn Fn(usize) -> bool| window.clone().rev().find(|at| wanted(*at));
    in_front_of(&|at| (bytes[at] == b' ' || line_end(at)) && bytes[at - 1].is_ascii_alphanumeric())
        .or_else(|| in_front_of(&|at| line_end(at) && bytes[at - 1] != b'\r'))
        .or_else(|| in_front_of(&|at| bytes[at] & 0xC0 != 0x80 && !(bytes[at] == b'\n' && bytes[at - 1] == b'\r')))
        .unwrap_or(window.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(content: &[u8], most: usize) -> std::result::Result<Vec<String>, String> {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, content).unwrap();
        let mut reader = ChunkReader::open(&path, most).map_err(|error| error.to_string())?;
        let mut pieces = Vec::new();
        while let Some(piece) = reader.advance().map_err(|error| error.to_string())? {
            pieces.push(piece);
        }
        Ok(pieces)
    }

    #[test]
    fn pieces_end_in_front_of_white_space_behind_a_word() {
        assert_eq!(pieces(b"one two three four", 10).unwrap(), ["one two", " three", " four"]);
        assert_eq!(pieces(b"one\r\ntwo\r\nthree", 10).unwrap(), ["one\ntwo", "\nthree"]);
        // After a full stop only where there is nothing better.
        assert_eq!(pieces(b"a cat. And.\nSo", 13).unwrap(), ["a cat. And.", "\nSo"]);
        assert_eq!(pieces(b"whole", 10).unwrap(), ["whole"]);
        assert_eq!(pieces(b"", 10).unwrap(), Vec::<String>::new());
        assert_eq!(pieces(b"\xEF\xBB\xBFa", 10).unwrap(), ["a"]);
    }

    #[test]
    fn a_text_without_white_space_is_cut_between_characters() {
        let text = "\u{4E2D}\u{6587}".repeat(50);
        let cut = pieces(text.as_bytes(), 10).unwrap();
        assert!(cut.iter().all(|piece| piece.len() <= 10), "{cut:?}");
        assert_eq!(cut.concat(), text);
    }

    #[test]
    fn any_text_comes_back_whole_in_pieces_within_the_bound() {
        let mut state = 7u64;
        let signs = ["a", "b", " ", "\n", "\r\n", "\r", ".", "\u{E9}", "\u{1F600}", "\t", "7"];
        for most in [8, 9, 13, 50] {
            let text: String = (0..400)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    signs[(state >> 33) as usize % signs.len()]
                })
                .collect();
            let cut = pieces(text.as_bytes(), most).unwrap();
            assert_eq!(cut.concat(), text.replace("\r\n", "\n"), "{most}");
            assert!(cut.iter().all(|piece| !piece.is_empty() && piece.len() <= most), "{most}");
        }
    }

    #[test]
    fn what_is_no_text_is_named_by_line_and_character() {
        let error = pieces(b"first line\nsecond \xC3\xA9 \xE9t\xE9\n", 12).unwrap_err();
        assert!(error.contains("file:2:10") && error.contains("0xE9"), "{error}");
        let error = pieces(b"ab\ncd\0ef", 100).unwrap_err();
        assert!(error.contains("file:2:3") && error.contains("zero byte"), "{error}");
        // A character that the end of the file cuts off, and bytes that no character begins with.
        assert!(pieces(b"caf\xC3", 100).unwrap_err().contains("file:1:4"));
        assert!(pieces(&[0x80; 100], 10).unwrap_err().contains("file:1:1"));
        assert!(pieces(b"\xFF\xFEa\0", 10).unwrap_err().contains("UTF-16"));
    }
}

//! Numbers and texts one after the other out of the front of a file, never past its end.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use bmtrain_core::limits::make_room;

use super::{SHORTER, damaged};
use crate::{Error, Result};
use model_center_base::file::unreadable;

/// The maximum number of bytes before the tensors. The largest real vocabularies, of 260,000 tokens, take about 20 MB.
const MAX_FRONT_BYTES: u64 = 128 << 20;
const CHUNK: usize = 64 << 10;

/// A place in a file whose next bytes are numbers and texts.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    path: &'a Path,
    place: String,
    reader: BufReader<&'a File>,
    position: u64,
    length: u64,
}

impl<'a> Cursor<'a> {
    /// The start of a file of `length` bytes that was just opened.
    pub(super) fn new(path: &'a Path, file: &'a File, length: u64) -> Self {
        let place = path.display().to_string();
        Self { path, place, reader: BufReader::with_capacity(CHUNK, file), position: 0, length }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn bad(&self, reason: impl std::fmt::Display) -> Error {
        damaged(&self.place, format!("byte {}: {reason}", self.position))
    }

    /// That `count` things of at least `each` bytes can follow, before memory is taken for them.
    pub(super) fn expect(&self, count: u64, each: u64, what: &str) -> Result<usize> {
        let left = self.length.min(MAX_FRONT_BYTES).saturating_sub(self.position);
        match count.checked_mul(each) {
            Some(bytes) if bytes <= left => Ok(count as usize),
            _ if self.length > MAX_FRONT_BYTES => Err(self.bad(format_args!(
                "{count} {what} are declared, and {left} bytes are left of the {} MiB allowed before the tensors",
                MAX_FRONT_BYTES >> 20
            ))),
            _ => Err(self.bad(format_args!("{count} {what} are declared, and the file ends after {left} bytes"))),
        }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.expect(N as u64, 1, "bytes")?;
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(super) fn truth(&mut self) -> Result<bool> {
        match self.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.bad(format_args!("a truth value is {other}, it can be 0 or 1"))),
        }
    }

    /// The next text: its length in eight bytes, then UTF-8.
    pub(super) fn text(&mut self) -> Result<Box<str>> {
        let length = self.u64()?;
        let length = self.expect(length, 1, "bytes of text")?;
        let mut bytes = self.reserve(length)?;
        bytes.resize(length, 0);
        self.fill(&mut bytes)?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text.into_boxed_str()),
            Err(e) => {
                Err(self.bad(format_args!("byte {} of the text before is not UTF-8", e.utf8_error().valid_up_to())))
            }
        }
    }

    pub(super) fn numbers<const N: usize, T>(&mut self, count: u64, one: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let count = self.expect(count, N as u64, "numbers")?;
        let mut out = self.reserve(count)?;
        let mut raw = [0u8; 4096];
        while out.len() < count {
            let part = &mut raw[..N * (count - out.len()).min(4096 / N)];
            self.fill(part)?;
            out.extend(part.as_chunks::<N>().0.iter().map(|bytes| one(*bytes)));
        }
        Ok(out)
    }

    /// `count` things of at least `each` bytes in the file, one after the other.
    pub(super) fn list<T>(
        &mut self,
        (count, each): (u64, u64),
        what: &str,
        mut one: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.expect(count, each, what)?;
        let mut out = self.reserve(count)?;
        for _ in 0..count {
            out.push(one(self)?);
        }
        Ok(out)
    }

    /// An empty vector with room for what was seen to fit the file, or an error that names the limit.
    fn reserve<T>(&self, count: usize) -> Result<Vec<T>> {
        let mut out = Vec::new();
        make_room(&mut out, count, format_args!("values of {}", self.place))?;
        Ok(out)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.reader.read_exact(out).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => damaged(&self.place, SHORTER),
            _ => unreadable(self.path, e),
        })?;
        self.position += out.len() as u64;
        Ok(())
    }
}

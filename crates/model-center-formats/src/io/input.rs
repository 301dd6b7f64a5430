//! The bytes of a text file: opened with care, decompressed, from Latin-1 if that is asked for.
//!
//! Defines [`TextInput`], which the readers of lines, chunks and JSON arrays read from, [`open_text`] for plain files
//! and [`open_corpus_text`] for files that may be compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::zstandard;
use crate::{Error, Result};
use model_center_base::file::open_regular;

const BUFFER: usize = 1 << 16;
/// First bytes of compressed files.
const GZIP: &[u8] = b"\x1F\x8B";
const ZSTD: &[u8] = b"\x28\xB5\x2F\xFD";

/// Encoding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum TextEncoding {
    /// UTF-8, with or without a byte order mark.
    #[default]
    #[serde(rename = "utf-8")]
    #[cfg_attr(feature = "cli", value(name = "utf-8"))]
    Utf8,
    /// ISO 8859-1: each byte is the character of its number.
    #[serde(rename = "latin-1")]
    #[cfg_attr(feature = "cli", value(name = "latin-1"))]
    Latin1,
}

/// A text being read.
pub struct TextInput(Box<dyn BufRead + Send>);

impl std::fmt::Debug for TextInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextInput")
    }
}

impl Read for TextInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl BufRead for TextInput {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.0.consume(bytes);
    }
}

/// Opens a text file after its byte order mark.
///
/// Errors: the file cannot be opened, is not a regular file, or is UTF-16 text.
pub fn open_text(path: &Path) -> Result<TextInput> {
    let (file, _) = open_regular(path).map_err(of_data)?;
    after_mark(path, TextInput(Box::new(BufReader::with_capacity(BUFFER, file))))
}

/// Opens a text file that gzip or zstd may have compressed, in one member or several. Bytes that were read from the
/// file, compressed or not, are added to `read`.
///
/// Errors: as [`open_text`]. Damaged compressed data are an error when they are met.
pub fn open_corpus_text(path: &Path, encoding: TextEncoding, read: &Arc<AtomicU64>) -> Result<TextInput> {
    let plain = open_decompressed(path, read)?;
    match encoding {
        TextEncoding::Utf8 => after_mark(path, TextInput(plain)),
        TextEncoding::Latin1 => Ok(TextInput(Box::new(BufReader::with_capacity(BUFFER, Latin1 { plain, half: None })))),
    }
}

/// The bytes of a file that gzip or zstd may have compressed; those read from the file are added to `read`.
pub fn open_decompressed(path: &Path, read: &Arc<AtomicU64>) -> Result<Box<dyn BufRead + Send>> {
    let (file, _) = open_regular(path).map_err(of_data)?;
    let mut raw = BufReader::with_capacity(BUFFER, Counted { file, read: Arc::clone(read) });
    let start = raw.fill_buf().map_err(|error| file_error(path, error))?;
    Ok(if start.starts_with(GZIP) {
        Box::new(BufReader::with_capacity(BUFFER, flate2::bufread::MultiGzDecoder::new(raw)))
    } else if start.starts_with(ZSTD) {
        let decoder = zstandard::decoder(raw).map_err(|error| file_error(path, error))?;
        Box::new(BufReader::with_capacity(BUFFER, decoder))
    } else {
        Box::new(raw)
    })
}

fn after_mark(path: &Path, mut reader: TextInput) -> Result<TextInput> {
    let start = reader.fill_buf().map_err(|error| file_error(path, error))?;
    if start.starts_with(b"\xFF\xFE") || start.starts_with(b"\xFE\xFF") {
        return Err(Error::data(
            path.display().to_string(),
            "the file is UTF-16 text",
            "convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW",
        ));
    }
    if start.starts_with(b"\xEF\xBB\xBF") {
        reader.consume(3);
    }
    Ok(reader)
}

/// Turns an error about a model directory's file into one about a data file.
pub fn of_data(error: Error) -> Error {
    match error {
        Error::Model { place, reason, fix } => Error::Data { place, reason, fix },
        other => other,
    }
}

/// The error for a file that cannot be read on. Without an error number of the system it is a decompressor's.
pub fn file_error(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::Unsupported {
        return Error::data(path.display().to_string(), error.to_string(), "or decompress the file: zstd -d FILE");
    }
    if error.raw_os_error().is_none() {
        let reason = format!("the compressed data are damaged or cut off: {error}");
        return Error::data(path.display().to_string(), reason, "fetch or compress the file again");
    }
    Error::file("read", path, error, "check the file and the disk it is on")
}

/// Counts the bytes that are read.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(bytes)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Latin-1 as UTF-8.
struct Latin1 {
    plain: Box<dyn BufRead + Send>,
    /// The second byte of a character whose first one was the last that fitted.
    half: Option<u8>,
}

impl Read for Latin1 {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        if let (Some(room), Some(half)) = (bytes.first_mut(), self.half) {
            *room = half;
            self.half = None;
            filled = 1;
        }
        // What is there is passed on: a further read might wait, or fail after bytes that were well.
        let stored = if filled == 0 { self.plain.fill_buf()? } else { &[] };
        let mut used = 0;
        for &byte in stored {
            if filled == bytes.len() {
                break;
            }
            used += 1;
            if byte < 0x80 {
                bytes[filled] = byte;
                filled += 1;
                continue;
            }
            bytes[filled] = 0xC0 | byte >> 6;
            let second = 0x80 | byte & 0x3F;
            filled += 1;
            match bytes.get_mut(filled) {
                Some(room) => {
                    *room = second;
                    filled += 1;
                }
                None => self.half = Some(second),
            }
        }
        self.plain.consume(used);
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(content: &[u8], encoding: TextEncoding) -> std::result::Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, content).unwrap();
        let counted = Arc::default();
        let mut text = String::new();
        let mut input = open_corpus_text(&path, encoding, &counted).map_err(|error| error.to_string())?;
        input.read_to_string(&mut text).map_err(|error| file_error(&path, error).to_string())?;
        assert_eq!(counted.load(Ordering::Relaxed), content.len() as u64);
        Ok(text)
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compressed_members_are_one_text() {
        let text = "caf\u{E9} \u{4E2D}\n".repeat(20_000);
        let (first, second) = text.as_bytes().split_at(70_001);
        assert_eq!(read(text.as_bytes(), TextEncoding::Utf8).unwrap(), text);
        assert_eq!(read(&[gzip(first), gzip(second)].concat(), TextEncoding::Utf8).unwrap(), text);
        #[cfg(feature = "zstd")]
        {
            let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
            assert_eq!(read(&[zstd(first), zstd(second)].concat(), TextEncoding::Utf8).unwrap(), text);
        }
        assert_eq!(read(&gzip(b"\xEF\xBB\xBFa"), TextEncoding::Utf8).unwrap(), "a");
        assert!(read(&gzip(b"\xFF\xFEa\0"), TextEncoding::Utf8).unwrap_err().contains("UTF-16"));
    }

    #[cfg(not(feature = "zstd"))]
    #[test]
    fn a_build_without_zstd_names_the_feature() {
        let error = read(ZSTD, TextEncoding::Utf8).unwrap_err();
        assert!(error.contains("without the feature zstd") && error.contains("zstd -d"), "{error}");
    }

    #[test]
    fn every_latin_1_byte_is_the_character_of_its_number() {
        let bytes: Vec<u8> = (0..=255).cycle().take(200_001).collect();
        let expected: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        assert_eq!(read(&bytes, TextEncoding::Latin1).unwrap(), expected);
        assert_eq!(read(&gzip(&bytes), TextEncoding::Latin1).unwrap(), expected);
    }

    #[test]
    fn damaged_compressed_data_are_named_as_such() {
        let content: Vec<u8> = (0..50_000_u32).flat_map(|n| n.to_string().into_bytes()).collect();
        let whole = [
            gzip(&content),
            #[cfg(feature = "zstd")]
            zstd::encode_all(&content[..], 1).unwrap(),
        ];
        for whole in whole {
            for end in [10, whole.len() / 2, whole.len() - 1] {
                let error = read(&whole[..end], TextEncoding::Utf8).unwrap_err();
                assert!(error.contains("damaged or cut off"), "{end}: {error}");
            }
            let mut damaged = whole.clone();
            damaged[whole.len() / 2] ^= 0xFF;
            if let Err(error) = read(&damaged, TextEncoding::Utf8) {
                assert!(error.contains("damaged or cut off"), "{error}");
            }
        }
    }
}

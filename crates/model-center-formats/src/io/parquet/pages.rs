//! The pages of a column, one in memory at a time.
//!
//! Defines [`Pages`], from which the library decodes values. The library's own reader of pages reserves what a header
//! promises, up to 2 GiB, and unpacks gzip without bound; this one reads no page above a limit, and compares the
//! numbers by which the library reserves memory with what the page has.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;

use super::compact::{Broken, PageContent, PageHeader};
use super::delta::deltas;
use crate::io::zstandard;

/// Headers have statistics, with values as long as their writer likes.
const MAX_HEADER_BYTES: usize = 1 << 24;
const FIRST_HEADER_BYTES: usize = 1 << 12;
/// Lengths of texts that are stored as differences take next to no room, and 4 bytes each in memory.
const MAX_DELTAS: u32 = 1 << 24;

/// Values of the pages that a row is in. Writers have about a million of them in a page.
pub(super) const MAX_ROW_VALUES: u64 = 1 << 25;

/// A page that is larger than allowed.
#[derive(Debug, thiserror::Error)]
#[error("a page of {bytes} bytes, of at most {most}")]
pub(super) struct PageTooLong {
    pub(super) bytes: usize,
    pub(super) most: usize,
}

/// Reads the pages of a column chunk.
pub(super) struct Pages {
    file: Arc<File>,
    /// Offset of the next page.
    at: u64,
    end: u64,
    codec: Compression,
    /// Bytes of a page.
    most: usize,
    /// Whether definition and repetition levels precede the values.
    is_optional: bool,
    is_repeated: bool,
    /// Number of values that the pages of the present row may still have.
    left: Arc<AtomicU64>,
}

impl Pages {
    /// The pages between two positions within the file.
    pub(super) fn new(
        file: Arc<File>,
        (at, end): (u64, u64),
        codec: Compression,
        most: usize,
        (is_optional, is_repeated): (bool, bool),
    ) -> Self {
        Pages { file, at, end, codec, most, is_optional, is_repeated, left: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Counts the values of its pages down, to an end.
    pub(super) fn counting(self, left: Arc<AtomicU64>) -> Self {
        Pages { left, ..self }
    }

    fn header(&self) -> Result<PageHeader, ParquetError> {
        let mut wanted = FIRST_HEADER_BYTES;
        loop {
            let bytes = self.read(self.at, wanted.min((self.end - self.at) as usize))?;
            match PageHeader::read(&bytes) {
                Ok(header) => return Ok(header),
                Err(Broken::CutOff) if bytes.len() == wanted && wanted < MAX_HEADER_BYTES => wanted *= 4,
                Err(Broken::CutOff) => return Err(damaged("the header of a page is cut off")),
                Err(Broken::Wrong) => return Err(damaged("the header of a page is broken")),
            }
        }
    }

    fn read(&self, at: u64, count: usize) -> Result<Vec<u8>, ParquetError> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, at).map_err(external)?;
        Ok(bytes)
    }

    /// The header of the next page with values and where it begins; those without are passed.
    fn next_header(&mut self) -> Result<Option<(PageHeader, u64)>, ParquetError> {
        while self.at < self.end {
            let header = self.header()?;
            let start = self.at + header.length as u64;
            let end = start.checked_add(header.stored_bytes as u64).filter(|end| *end <= self.end);
            let end = end.ok_or_else(|| damaged("a page is longer than its column"))?;
            let has_values = match header.content {
                PageContent::Data { values, .. } | PageContent::DataV2 { values, .. } => values > 0,
                PageContent::Dictionary { .. } => true,
                PageContent::Other => false,
            };
            if has_values {
                return Ok(Some((header, start)));
            }
            self.at = end;
        }
        Ok(None)
    }

    fn next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let Some((header, start)) = self.next_header()? else { return Ok(None) };
        self.at = start + header.stored_bytes as u64;
        let bytes = header.plain_bytes.max(header.stored_bytes);
        if bytes > self.most {
            return Err(external(PageTooLong { bytes, most: self.most }));
        }
        // Levels of lists take next to no room in a page, and some bytes each in memory.
        if let (true, PageContent::Data { values, .. } | PageContent::DataV2 { values, .. }) =
            (self.is_repeated, header.content)
        {
            let left = self.left.load(Ordering::Relaxed).checked_sub(u64::from(values));
            let left = left.ok_or_else(|| ParquetError::NYI("the pages of a row have too many values".into()))?;
            self.left.store(left, Ordering::Relaxed);
        }
        let stored = self.read(start, header.stored_bytes)?;
        if header.checksum.is_some_and(|checksum| checksum != crc32fast::hash(&stored)) {
            return Err(damaged("a page does not have the contents of its checksum"));
        }
        self.page(header, stored).map(Some)
    }

    fn page(&self, header: PageHeader, stored: Vec<u8>) -> Result<Page, ParquetError> {
        let contradiction = || damaged("the header of a page contradicts its contents");
        Ok(match header.content {
            PageContent::Dictionary { values, encoding } => {
                let buf = unpack(self.codec, &stored, header.plain_bytes)?;
                // Texts have a length of 4 bytes, numbers at least as many.
                if values as usize > buf.len() / 4 {
                    return Err(contradiction());
                }
                Page::DictionaryPage {
                    buf: buf.into(),
                    num_values: values,
                    encoding: known(encoding)?,
                    is_sorted: false,
                }
            }
            PageContent::Data { values, encoding, level_encoding } => {
                let buf = unpack(self.codec, &stored, header.plain_bytes)?;
                // Repetition levels come first, in their present encoding.
                let mut encoded = buf.as_slice();
                for (has_levels, encoding) in
                    [(self.is_repeated, Encoding::RLE), (self.is_optional, known(level_encoding)?)]
                {
                    let levels = match (has_levels, encoding) {
                        (false, _) => 0,
                        (true, Encoding::RLE) => {
                            let length = encoded.first_chunk().ok_or_else(contradiction)?;
                            4 + u32::from_le_bytes(*length) as usize
                        }
                        (true, _) => (values as usize).div_ceil(8),
                    };
                    encoded = encoded.get(levels..).ok_or_else(contradiction)?;
                }
                let encoding = known(encoding)?;
                check_deltas(encoding, encoded, values)?;
                Page::DataPage {
                    buf: buf.into(),
                    num_values: values,
                    encoding,
                    def_level_encoding: known(level_encoding)?,
                    rep_level_encoding: Encoding::RLE,
                    statistics: None,
                }
            }
            PageContent::DataV2 {
                values,
                nulls,
                rows,
                encoding,
                level_bytes: [repetition, definition],
                is_compressed,
            } => {
                let levels = repetition as usize + definition as usize;
                let plain_bytes = header.plain_bytes.checked_sub(levels).ok_or_else(contradiction)?;
                let (levels, encoded) = stored.split_at_checked(levels).ok_or_else(contradiction)?;
                let codec = if is_compressed { self.codec } else { Compression::UNCOMPRESSED };
                let encoded = if plain_bytes == 0 { Vec::new() } else { unpack(codec, encoded, plain_bytes)? };
                let encoding = known(encoding)?;
                check_deltas(encoding, &encoded, values)?;
                Page::DataPageV2 {
                    buf: [levels, &encoded].concat().into(),
                    num_values: values,
                    encoding,
                    num_nulls: nulls,
                    num_rows: rows,
                    def_levels_byte_len: definition,
                    rep_levels_byte_len: repetition,
                    is_compressed: false,
                    statistics: None,
                }
            }
            PageContent::Other => return Err(contradiction()),
        })
    }
}

/// The library reserves memory for as many lengths as a page states.
fn check_deltas(encoding: Encoding, encoded: &[u8], values: u32) -> Result<(), ParquetError> {
    let lists = match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
        Encoding::DELTA_BYTE_ARRAY => 2,
        _ => return Ok(()),
    };
    let most = u64::from(values.min(MAX_DELTAS));
    let mut rest = encoded;
    for _ in 0..lists {
        let end = deltas(rest, most).ok_or_else(|| damaged("lengths of texts contradict the header of their page"))?;
        rest = rest.get(end..).unwrap_or_default();
    }
    Ok(())
}

/// Decompresses a page to exactly the bytes that its header states.
fn unpack(codec: Compression, stored: &[u8], plain_bytes: usize) -> Result<Vec<u8>, ParquetError> {
    let plain = match codec {
        Compression::UNCOMPRESSED => return Ok(stored.to_vec()),
        Compression::SNAPPY => {
            if snap::raw::decompress_len(stored).map_err(external)? != plain_bytes {
                return Err(damaged("a page has not the length that its header states"));
            }
            snap::raw::Decoder::new().decompress_vec(stored).map_err(external)?
        }
        Compression::GZIP(_) => read_most(flate2::bufread::MultiGzDecoder::new(stored), plain_bytes)?,
        Compression::ZSTD(_) => read_most(zstandard::decoder(stored).map_err(wrong)?, plain_bytes)?,
        other => {
            let name = format!("{other:?}");
            let name = name.split('(').next().unwrap_or_default();
            return Err(ParquetError::NYI(format!("pages are compressed with {name}")));
        }
    };
    if plain.len() != plain_bytes {
        return Err(damaged("a page has not the length that its header states"));
    }
    Ok(plain)
}

fn read_most(decoder: impl Read, plain_bytes: usize) -> Result<Vec<u8>, ParquetError> {
    let mut plain = Vec::new();
    decoder.take(plain_bytes as u64 + 1).read_to_end(&mut plain).map_err(wrong)?;
    Ok(plain)
}

/// The encoding of a number in a header.
fn known(number: i32) -> Result<Encoding, ParquetError> {
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        #[expect(deprecated, reason = "the levels of old files")]
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return Err(damaged("a page has an unknown encoding")),
    })
}

fn damaged(reason: &str) -> ParquetError {
    ParquetError::General(reason.into())
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// An error of a decompressor, which is not one of the file.
fn wrong(error: io::Error) -> ParquetError {
    damaged(&format!("a page cannot be decompressed: {error}"))
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        self.next_page()
    }

    // A row that is a list may go on in the next page, unless that page is of the newer form.
    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        let next = self.next_header()?;
        Ok(next.is_none_or(|(header, _)| matches!(header.content, PageContent::DataV2 { .. })))
    }

    // The library asks for these where it skips rows.
    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        Err(ParquetError::NYI("pages are read in order".into()))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.next_page().map(|_| ())
    }
}

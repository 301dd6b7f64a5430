//! The layout of Megatron-LM's index file `PREFIX.idx`, which describes `PREFIX.bin`.
//!
//! | bytes | content |
//! |---|---|
//! | 9 | `MMIDIDX`, 0, 0 |
//! | 8 | version, 1 |
//! | 1 | dtype code |
//! | 8 | number of sequences, n |
//! | 8 | number of document boundaries, d |
//! | 4 n | length of each sequence, in ids |
//! | 8 n | where it starts in `PREFIX.bin`, in bytes |
//! | 8 d | the first sequence of each document, and n at the end |
//!
//! All numbers are stored least significant byte first. Defines [`Layout`], where the tables of such a file, or of a
//! [`legacy`](super::legacy) one, are.

use super::positioned::PositionedFile;
use super::token_type::TokenType;
use super::{IndexFormat, legacy};
use crate::Result;

/// First bytes of the file.
pub(super) const MAGIC: [u8; 9] = *b"MMIDIDX\0\0";
/// Bytes before the tables.
pub(super) const HEADER: u64 = 34;

/// Where the tables of an index file are, as far as its length proves that they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) format: IndexFormat,
    pub(super) token: TokenType,
    /// Number of sequences.
    pub(super) sequences: u64,
    /// Number of document boundaries.
    pub(super) boundaries: u64,
    /// Offset of the lengths; a legacy file has none of its own.
    pub(super) lengths: u64,
    /// Offset of the starts.
    pub(super) starts: u64,
    /// Offset of the document boundaries.
    pub(super) documents: u64,
}

impl Layout {
    /// Reads the header and compares it with the length of the file.
    pub(super) fn read(file: &PositionedFile) -> Result<Layout> {
        let mut header = [0; HEADER as usize];
        let there = header.len().min(usize::try_from(file.length()).unwrap_or(usize::MAX));
        file.read_at(0, &mut header[..there])?;
        if header.starts_with(&legacy::MAGIC) {
            return legacy::layout(file);
        }
        if !header.starts_with(&MAGIC) {
            let what =
                if file.length() == 0 { "the file is empty" } else { "the file is not an index of a token file" };
            let reason = format!("{what}: it does not begin with MMIDIDX (or TNTIDX, the format before it)");
            return Err(file.corrupt(reason));
        }
        if file.length() < HEADER {
            return Err(file.corrupt(format!("the file is cut off: it has {} of {HEADER} header bytes", file.length())));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        match number(9) {
            1 => {}
            version if version.swap_bytes() == 1 => {
                return Err(file.corrupt("the file was written with the most significant byte first"));
            }
            version => return Err(file.corrupt(format!("version {version} of the format; known: 1"))),
        }
        let token = TokenType::of_code(u64::from(header[17])).map_err(|reason| file.corrupt(reason))?;
        let (sequences, boundaries) = (number(18), number(26));
        let described = described_bytes(sequences, boundaries);
        if described != Some(file.length()) {
            return Err(file.corrupt(length_mismatch(file.length(), sequences, boundaries, described)));
        }
        let starts = HEADER + 4 * sequences;
        let documents = starts + 8 * sequences;
        let lengths = HEADER;
        Ok(Layout { format: IndexFormat::Mmap, token, sequences, boundaries, lengths, starts, documents })
    }
}

/// Bytes of an index file, `None` beyond 64 bits.
fn described_bytes(sequences: u64, boundaries: u64) -> Option<u64> {
    let tables = sequences.checked_mul(12)?.checked_add(boundaries.checked_mul(8)?)?;
    tables.checked_add(HEADER)
}

fn length_mismatch(length: u64, sequences: u64, boundaries: u64, described: Option<u64>) -> String {
    let counts = format!("{sequences} sequences and {boundaries} document boundaries");
    match described {
        // Megatron's multimodal files have one byte for each sequence after the tables.
        Some(described) if length == described.saturating_add(sequences) && sequences > 0 => {
            format!("{counts} are followed by modes of sequences: multimodal files are not read")
        }
        Some(described) if length < described => {
            format!("the file is cut off: {counts} take {described} bytes, and it has {length}")
        }
        _ => format!("the header does not fit the file: {counts}, and {length} bytes"),
    }
}

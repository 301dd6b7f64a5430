//! The index file that preceded [`super::index`]: `TNTIDX`, of the implementations "lazy" and "cached".
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `TNTIDX`, 0, 0 |
//! | 8 each | version, 1; dtype code; bytes of an id; number of sequences n; number of sizes s; document boundaries d |
//! | 8 (n + 1) | where the sizes of each sequence start among the sizes |
//! | 8 (n + 1) | where each sequence starts in the data, in ids |
//! | 8 s | sizes |
//! | 8 d | the first sequence of each document, and n at the end |
//!
//! Such files are read, not written.

use super::IndexFormat;
use super::index::Layout;
use super::positioned::PositionedFile;
use super::token_type::TokenType;
use crate::Result;

/// First bytes of the file.
pub(super) const MAGIC: [u8; 8] = *b"TNTIDX\0\0";
const HEADER: u64 = 56;

/// Reads the header and compares it with the length of the file.
pub(super) fn layout(file: &PositionedFile) -> Result<Layout> {
    if file.length() < HEADER {
        return Err(file.corrupt(format!("the file is cut off: it has {} of {HEADER} header bytes", file.length())));
    }
    let mut fields = [0; 6];
    for (at, field) in fields.iter_mut().enumerate() {
        *field = file.u64_at(8 + 8 * at as u64)?;
    }
    let [version, code, id_bytes, sequences, sizes, boundaries] = fields;
    if version != 1 {
        return Err(file.corrupt(format!("version {version} of the format TNTIDX; known: 1")));
    }
    let token = TokenType::of_code(code).map_err(|reason| file.corrupt(reason))?;
    if id_bytes != token.bytes() {
        let reason = format!("ids of {id_bytes} bytes with dtype code {code}, {}, of {}", token.name(), token.bytes());
        return Err(file.corrupt(reason));
    }
    if sizes != sequences {
        let reason = format!("{sequences} items with {sizes} sizes: the items are no sequences of token ids");
        return Err(file.corrupt(reason));
    }
    let numbers = sequences.checked_mul(3).and_then(|tables| tables.checked_add(2)?.checked_add(boundaries));
    let described = numbers.and_then(|numbers| numbers.checked_mul(8)?.checked_add(HEADER));
    if described != Some(file.length()) {
        let counts = format!("{sequences} sequences and {boundaries} document boundaries");
        let reason = match described {
            Some(described) if file.length() < described => {
                format!("the file is cut off: {counts} take {described} bytes, and it has {}", file.length())
            }
            _ => format!("the header does not fit the file: {counts}, and {} bytes", file.length()),
        };
        return Err(file.corrupt(reason));
    }
    let starts = HEADER + 8 * (sequences + 1);
    let lengths = starts + 8 * (sequences + 1);
    let documents = lengths + 8 * sizes;
    Ok(Layout { format: IndexFormat::Legacy, token, sequences, boundaries, lengths, starts, documents })
}

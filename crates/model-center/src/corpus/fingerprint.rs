//! Hashes that tie a derived file to what it was derived from.

use std::path::Path;

use super::positioned::PositionedFile;
use crate::Result;

const PIECE: usize = 1 << 20;

/// The BLAKE3 hash of a file, in hexadecimal.
pub(super) fn hash_file(path: &Path) -> Result<String> {
    let file = PositionedFile::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; PIECE.min(usize::try_from(file.length()).unwrap_or(PIECE))];
    let mut at = 0;
    while at < file.length() {
        let part = &mut buffer[..(file.length() - at).min(PIECE as u64) as usize];
        file.read_at(at, part)?;
        hasher.update(part);
        at += part.len() as u64;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

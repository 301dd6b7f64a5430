//! Hashes that tie a derived file to what it was derived from.

use std::path::Path;

use super::positioned::PositionedFile;
use super::token_file::TokenFile;
use crate::Result;

const PIECE: usize = 1 << 20;
/// Pieces of the ids that a fingerprint reads, and their bytes.
const PROBES: u64 = 64;
const PROBE: u64 = 1 << 12;

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

impl TokenFile {
    /// A hash of the index, of the number of ids and of 64 pieces of them: what a resumed run compares. A corpus that
    /// was built anew from other text differs; ids changed in place between the pieces do not show.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for ids that are not token ids, [`crate::Error::File`] if reading fails.
    pub fn fingerprint(&self) -> Result<String> {
        let tokens = self.tokens();
        let mut hasher = blake3::Hasher::new();
        hasher.update(hash_file(self.index_path())?.as_bytes());
        hasher.update(&tokens.to_le_bytes());
        let count = PROBE.min(tokens);
        let mut ids = vec![0; count as usize];
        for probe in 0..PROBES {
            let first = (u128::from(tokens - count) * u128::from(probe) / u128::from(PROBES - 1)) as u64;
            self.read_ids(first, &mut ids)?;
            ids.iter().for_each(|id| _ = hasher.update(&id.to_le_bytes()));
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

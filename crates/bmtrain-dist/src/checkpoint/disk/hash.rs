//! BLAKE3 hashes as values: 64 lower-case hexadecimal digits wherever they are written down.

use super::shard::CHUNK;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};

/// A BLAKE3 hash of 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }

    /// The number of bytes that `reader` gives until its end, and their hash.
    pub fn of_reader(mut reader: impl Read) -> io::Result<(u64, Self)> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; CHUNK];
        let mut bytes = 0;
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => return Ok((bytes, hasher.finalize().into())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hasher.update(buffer.get(..count).unwrap_or_default());
            bytes += count as u64;
        }
    }

    /// The hash that `text` spells: exactly 64 digits, none of them upper-case.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || text.bytes().any(|b| b.is_ascii_uppercase()) {
            return None;
        }
        blake3::Hash::from_hex(text).ok().map(Into::into)
    }

    /// The first eight digits, which name a checkpoint's directory.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(8);
        text
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<blake3::Hash> for ContentHash {
    fn from(hash: blake3::Hash) -> Self {
        ContentHash(hash.into())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> String {
        hash.to_string()
    }
}

impl TryFrom<String> for ContentHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        ContentHash::parse(&text).ok_or("a hash is not 64 lower-case hexadecimal digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_has_the_hash_of_its_bytes() {
        for length in [0, 1, CHUNK, CHUNK + 1] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(ContentHash::of_reader(&bytes[..]).unwrap(), (length as u64, ContentHash::of(&bytes)));
        }
    }

    #[test]
    fn a_hash_has_one_spelling() {
        let hash = ContentHash::of(b"abc");
        let text = hash.to_string();
        assert_eq!(ContentHash::parse(&text), Some(hash));
        assert_eq!(text[..8], hash.short());
        for wrong in [&text[1..], &text.to_uppercase(), &format!("{text}0"), "", &text.replace('a', "g")] {
            assert_eq!(ContentHash::parse(wrong), None, "{wrong}");
        }
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(serde_json::from_str::<ContentHash>(&json).unwrap(), hash);
        assert!(serde_json::from_str::<ContentHash>("[1,2]").is_err());
    }
}

//! BLAKE3 hashes as values: 64 lower-case hexadecimal digits wherever they are written down.

use super::shard::CHUNK;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

    /// The number of bytes of a file, and their hash, computed by up to this many threads. Memory: 4 MiB for each.
    ///
    /// # Errors
    /// What the disk refuses; a file that gets shorter meanwhile.
    pub fn of_file(file: &File, threads: usize) -> io::Result<(u64, Self)> {
        let length = file.metadata()?.len();
        let pieces = usize::try_from(length.div_ceil(PIECE)).map_err(io::Error::other)?;
        if pieces <= 1 || threads <= 1 {
            return Self::of_reader(file);
        }
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || -> io::Result<Vec<(usize, ChainingValue)>> {
            let mut buffer = vec![0; PIECE as usize];
            let mut done = Vec::new();
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                let start = PIECE * piece as u64;
                if piece >= pieces || failed.load(Ordering::Relaxed) {
                    return Ok(done);
                }
                let part = buffer.get_mut(..(length - start).min(PIECE) as usize).unwrap_or_default();
                file.read_exact_at(part, start).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                done.push((piece, blake3::Hasher::new().set_input_offset(start).update(part).finalize_non_root()));
            }
        };
        let mut found = Vec::with_capacity(pieces);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.min(pieces)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                found.extend(worker.join().map_err(|_| io::Error::other("a thread that hashes has ended"))??);
                Ok::<_, io::Error>(())
            })
        })?;
        found.sort_unstable_by_key(|(piece, _)| *piece);
        let values: Vec<ChainingValue> = found.into_iter().map(|(_, value)| value).collect();
        let (left, right) = halves(&values, length);
        Ok((length, merge_subtrees_root(&left, &right, Mode::Hash).into()))
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

/// Bytes that a thread hashes at a time: a power of two, so that each piece is a subtree of BLAKE3's tree.
const PIECE: u64 = 4 << 20;

/// The chaining values of both subtrees of the node above several pieces, which have `length` bytes.
fn halves(pieces: &[ChainingValue], length: u64) -> (ChainingValue, ChainingValue) {
    let left = left_subtree_len(length);
    let (first, second) = pieces.split_at(((left / PIECE) as usize).min(pieces.len()));
    (node(first, left), node(second, length - left))
}

/// The chaining value of the subtree over pieces of `length` bytes.
fn node(pieces: &[ChainingValue], length: u64) -> ChainingValue {
    match pieces {
        [] => ChainingValue::default(),
        [one] => *one,
        _ => {
            let (left, right) = halves(pieces, length);
            merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
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
    use std::io::{Seek, Write};

    #[test]
    fn a_reader_has_the_hash_of_its_bytes() {
        for length in [0, 1, CHUNK, CHUNK + 1] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(ContentHash::of_reader(&bytes[..]).unwrap(), (length as u64, ContentHash::of(&bytes)));
        }
    }

    #[test]
    fn threads_find_the_hash_of_a_file() {
        for length in [0, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE - 1, 7 * PIECE + 1024] {
            let mut file = tempfile::tempfile().unwrap();
            let mut bytes = vec![0; length as usize];
            bytes.iter_mut().step_by(1013).enumerate().for_each(|(at, byte)| *byte = at as u8);
            file.write_all(&bytes).unwrap();
            for threads in [1, 2, 5] {
                file.rewind().unwrap();
                let found = ContentHash::of_file(&file, threads).unwrap();
                assert_eq!(found, (length, ContentHash::of(&bytes)), "{length} bytes, {threads} threads");
            }
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

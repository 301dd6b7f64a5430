//! The contents of one file while they arrive: how far they are, what they hash to, and whether they are what was
//! announced.

use super::crc64::Crc64;
use super::hub::{About, Named, Trouble};
use super::place::{in_the_way, kind, open_blob, open_partial, refused};
use super::transfer::Answer;
use crate::cli::terminal;
use model_center_base::{Error, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const CHUNK: usize = 1 << 20;
/// Time between two reports of a long download.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Contents up to this length are hashed again where they are in the cache already; longer ones are known by name and
/// length.
const MAX_REHASH_BYTES: u64 = 16 << 20;

pub(super) struct Growing<'a> {
    file: File,
    path: &'a Path,
    /// The name of the file, fit to be shown.
    name: &'a str,
    about: &'a About,
    hash: Hash,
    pub(super) length: u64,
}

impl<'a> Growing<'a> {
    /// Continue after what an earlier process left at `path`, unless that is more than there should be.
    pub(super) fn open(path: &'a Path, name: &'a str, about: &'a About) -> Result<Self> {
        let file = open_partial(path)?;
        let mut growing = Self { file, path, name, about, hash: Hash::of(about), length: 0 };
        if growing.file.metadata().map_err(|e| refused(path, e))?.len() > about.size {
            growing.begin_anew()?;
        } else {
            growing.length = growing.hash.read(&mut growing.file).map_err(|e| refused(path, e))?;
        }
        Ok(growing)
    }

    /// Drop what has arrived.
    pub(super) fn begin_anew(&mut self) -> Result<()> {
        self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0))).map_err(|e| refused(self.path, e))?;
        self.length = 0;
        self.hash = Hash::of(self.about);
        Ok(())
    }

    /// Take in one answer: the outer error is of this machine, the inner one the server's.
    pub(super) fn receive(&mut self, mut answer: Answer<'_>) -> Result<Result<(), Trouble>> {
        let mut reported = Instant::now();
        loop {
            let bytes = match answer.piece() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                // All is there; how the answer ends does not matter.
                Err(_) if self.length == self.about.size => break,
                Err(reason) => return Ok(Err(Trouble::Passing(format!("{}: {reason}", self.name)))),
            };
            let length = self.length + bytes.len() as u64;
            if length > self.about.size {
                self.begin_anew()?;
                return Err(self.too_long());
            }
            self.file.write_all(&bytes).map_err(|e| refused(self.path, e))?;
            self.hash.update(&bytes);
            self.length = length;
            if reported.elapsed() >= REPORT_EVERY {
                terminal::note(&format!("{}: {}", self.name, self.progress()));
                reported = Instant::now();
            }
        }
        if self.length < self.about.size {
            let reason = format!("{}: the answer ends after {} of {} bytes", self.name, self.length, self.about.size);
            return Ok(Err(Trouble::Passing(reason)));
        }
        Ok(Ok(()))
    }

    fn too_long(&self) -> Error {
        let reason = format!("the server sends more than the {} bytes it announced", self.about.size);
        Error::model(self.name, reason, "try again later, or another revision")
    }

    /// Check what has arrived and flush it to the disk.
    pub(super) fn finish(self) -> Result<()> {
        if let Err(found) = self.hash.check(self.about) {
            // It would be continued by every later command.
            fs::remove_file(self.path).map_err(|e| refused(self.path, e))?;
            let reason = format!("what arrived has the {found}, the server announced {}", self.about.announced());
            let fix = "the download was damaged and is removed: give the same command again";
            return Err(Error::model(self.name, reason, fix));
        }
        self.file.sync_all().map_err(|e| refused(self.path, e))
    }

    pub(super) fn progress(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        match self.length {
            0 => format!("{:.1} MB", megabytes(self.about.size)),
            length => format!("{:.1} of {:.1} MB are there", megabytes(length), megabytes(self.about.size)),
        }
    }
}

/// The hash by which contents are named.
enum Hash {
    Sha256(Sha256),
    /// Hashes of git's object and of the bytes alone.
    Sha1([Sha1; 2]),
    Crc64(Crc64),
    None,
}

impl Hash {
    fn of(about: &About) -> Self {
        match about.named() {
            Named::Sha256 => Hash::Sha256(Sha256::new()),
            Named::Sha1 => Hash::Sha1([Sha1::new_with_prefix(format!("blob {}\0", about.size)), Sha1::new()]),
            Named::Crc64 => Hash::Crc64(Crc64::new()),
            Named::Opaque => Hash::None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hash::Sha256(hash) => hash.update(bytes),
            Hash::Sha1(hashes) => hashes.iter_mut().for_each(|hash| hash.update(bytes)),
            Hash::Crc64(hash) => hash.update(bytes),
            Hash::None => {}
        }
    }

    /// Take in the rest of a file; its length.
    fn read(&mut self, file: &mut File) -> std::io::Result<u64> {
        let (mut chunk, mut length) = (vec![0; CHUNK], 0);
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(length),
                read => {
                    self.update(&chunk[..read]);
                    length += read as u64;
                }
            }
        }
    }

    /// Whether contents have the hash that is their name; else the hash they have, as text.
    fn check(self, about: &About) -> Result<(), String> {
        let etag = &about.etag;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (kind, found) = match self {
            Hash::Sha256(hash) => ("SHA-256", vec![hex(&hash.finalize())]),
            Hash::Sha1(hashes) => ("SHA-1", hashes.into_iter().map(|hash| hex(&hash.finalize())).collect()),
            Hash::Crc64(hash) if about.crc64 == Some(hash.value()) => return Ok(()),
            Hash::Crc64(hash) => return Err(format!("CRC-64 {}", hash.value())),
            Hash::None => return Ok(()),
        };
        match found.iter().any(|found| etag.eq_ignore_ascii_case(found)) {
            true => Ok(()),
            false => Err(format!("{kind} {}", found.join(" or "))),
        }
    }
}

/// Whether contents are there: under their name, of their length, and short ones with their hash. Anything else under
/// the name is replaced, but for a directory.
pub(super) fn is_whole(blob: &Path, about: &About) -> Result<bool> {
    match kind(blob)? {
        None => return Ok(false),
        Some(found) if found.is_dir() => return Err(in_the_way(blob, "a directory where the cache has a file")),
        // A link may lead to any file; the hub's libraries make none here.
        Some(found) if !found.is_file() || found.len() != about.size => return Ok(false),
        Some(_) if about.size > MAX_REHASH_BYTES => return Ok(true),
        Some(_) => {}
    }
    let mut hash = Hash::of(about);
    open_blob(blob).and_then(|mut file| hash.read(&mut file)).map_err(|e| Error::file("read", blob, e, "remove it"))?;
    Ok(hash.check(about).is_ok())
}

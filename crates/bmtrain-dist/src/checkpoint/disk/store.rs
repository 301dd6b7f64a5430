//! The directory of checkpoints of a run: which are there, which is the newest that can be trusted, and why others
//! cannot.
//!
//! A run opens one at its start to resume from [`Store::newest_verified`], and gives it to every
//! [`Writer`](super::Writer). Removal is in `prune.rs`.

use super::fail_point::FailPoints;
use super::fault::{damaged, missing, refused, unreadable};
use super::filesystem::{Disk, EntryKind, RealDisk};
use super::manifest::{MAX_MANIFEST_BYTES, Manifest};
use super::name::{CheckpointName, MANIFEST_FILE};
use super::opened::Checkpoint;
use crate::error::{Error, Fault, Result};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A directory of checkpoints. Clones mean the same directory.
#[derive(Debug, Clone)]
pub struct Store {
    disk: Arc<dyn Disk>,
    fail_points: FailPoints,
}

/// Result of [`Store::newest_verified`].
#[derive(Debug)]
pub struct Newest {
    /// The newest checkpoint that verifies. If there is none although some were passed over, a run must not start
    /// afresh as if nothing had been saved.
    pub checkpoint: Option<Checkpoint>,
    /// The newer ones that do not, newest first.
    pub passed_over: Vec<PassedOver>,
}

/// A checkpoint that was not used. Displays as its name and the reason.
#[derive(Debug, Clone)]
pub struct PassedOver {
    /// Its name.
    pub name: CheckpointName,
    /// Place, reason and fix.
    pub reason: Error,
}

/// One checkpoint in a listing. Displays as one line.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its name.
    pub name: CheckpointName,
    /// Contents of the checkpoint, or the error in it.
    pub contents: Result<Contents>,
    /// Whether every byte was checked, or only the manifest and the sizes.
    pub verified: bool,
}

/// Size of a checkpoint's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// Files, one of each rank.
    pub files: usize,
    /// Logical tensors.
    pub tensors: usize,
    /// Bytes of all files, without the manifest.
    pub bytes: u64,
}

impl Store {
    /// An existing directory, for reading what is there; [`Fault::Missing`] if there is none.
    pub fn open(root: &Path) -> Result<Self> {
        let disk = RealDisk::open(root).map_err(|e| refused(root.display().to_string(), "open this directory", &e))?;
        Ok(Store::on(Arc::new(disk)))
    }

    /// A directory that is made where it does not exist, for a run that saves.
    pub fn create(root: &Path) -> Result<Self> {
        let disk =
            RealDisk::create(root).map_err(|e| refused(root.display().to_string(), "make this directory", &e))?;
        Ok(Store::on(Arc::new(disk)))
    }

    /// The checkpoints on any disk.
    pub fn on(disk: Arc<dyn Disk>) -> Self {
        Store { disk, fail_points: FailPoints::NONE }
    }

    /// This directory with armed fail points, which saves and removals through it then meet.
    pub fn with_fail_points(self, fail_points: FailPoints) -> Self {
        Store { fail_points, ..self }
    }

    /// Path of the directory, for messages.
    pub fn place(&self) -> String {
        self.disk.place()
    }

    /// Bytes that may still be written to this disk.
    pub fn free_bytes(&self) -> Result<u64> {
        self.disk.free_bytes().map_err(|e| refused(self.place(), "ask for the room that is left", &e))
    }

    /// The names of all committed checkpoints, newest first, whatever state they are in.
    pub fn list(&self) -> Result<Vec<CheckpointName>> {
        self.names(|kind| kind == EntryKind::Directory)
    }

    /// Newest first.
    fn names(&self, wanted: impl Fn(EntryKind) -> bool) -> Result<Vec<CheckpointName>> {
        let entries = self.disk.list(None).map_err(|e| refused(self.place(), "list this directory", &e))?;
        let named = entries.iter().filter(|(_, kind)| wanted(*kind)).filter_map(|(name, _)| name.parse().ok());
        let mut names: Vec<CheckpointName> = named.collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// The newest checkpoint whose every byte is as it was written, and why newer ones are not it. Reads it once; where
    /// there are several ranks, one of them calls this and the others [`Store::checkpoint`] with the name it found.
    ///
    /// Passed over are those that are damaged or gone. One that the disk refuses to read may be whole: a run that went
    /// on from an older one would remove it in the end.
    pub fn newest_verified(&self) -> Result<Newest> {
        let mut passed_over = Vec::new();
        // Entries that are not directories, too, to report why they were not used.
        for name in self.names(|_| true)? {
            match self.verify(&name) {
                Ok(checkpoint) => return Ok(Newest { checkpoint: Some(checkpoint), passed_over }),
                Err(reason @ Error::Checkpoint { fault: Fault::Damaged | Fault::Missing, .. }) => {
                    passed_over.push(PassedOver { name, reason });
                }
                Err(other) => return Err(other),
            }
        }
        Ok(Newest { checkpoint: None, passed_over })
    }

    /// Open a checkpoint: its manifest is intact and fits the name, every tensor is covered exactly once, and the files
    /// have the right sizes. Their bytes are checked when they are read. [`Fault::Missing`] if there is none of this
    /// name, [`Fault::Damaged`] with what is wrong.
    pub fn checkpoint(&self, name: &CheckpointName) -> Result<Checkpoint> {
        let directory = name.to_string();
        let place = self.place_of(&directory, MANIFEST_FILE);
        let manifest = self.manifest(name, &place)?;
        let checkpoint =
            Checkpoint::new(self.clone(), name.clone(), manifest).map_err(|reason| damaged(place, reason))?;
        checkpoint.check_sizes()?;
        Ok(checkpoint)
    }

    /// Open a checkpoint and check every byte of it.
    pub fn verify(&self, name: &CheckpointName) -> Result<Checkpoint> {
        let checkpoint = self.checkpoint(name)?;
        checkpoint.verify_files()?;
        Ok(checkpoint)
    }

    /// A line about every checkpoint, newest first; with `verify`, after checking every byte.
    pub fn reports(&self, verify: bool) -> Result<Vec<Report>> {
        let report = |name: CheckpointName| {
            let opened = if verify { self.verify(&name) } else { self.checkpoint(&name) };
            Report { name, contents: opened.map(|checkpoint| checkpoint.contents()), verified: verify }
        };
        Ok(self.names(|_| true)?.into_iter().map(report).collect())
    }

    fn manifest(&self, name: &CheckpointName, place: &str) -> Result<Manifest> {
        let directory = name.to_string();
        let file = match self.disk.open(&directory, MANIFEST_FILE) {
            Ok(file) => file,
            Err(_) if !self.names(|_| true)?.contains(name) => {
                return Err(missing(self.place_of(&directory, ""), "there is no such checkpoint"));
            }
            Err(error) => return Err(unreadable(place, &error)),
        };
        let size = file.size();
        let bad = |reason: String| damaged(place, reason);
        let length = usize::try_from(size).ok().filter(|_| size <= MAX_MANIFEST_BYTES);
        let length = length.ok_or_else(|| bad(format!("{size} bytes, at most {MAX_MANIFEST_BYTES} are read")))?;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, 0).map_err(|e| unreadable(place, &e))?;
        let (manifest, hash) = Manifest::decode(&bytes).map_err(bad)?;
        if !name.fits(&hash) || manifest.step != name.step() {
            let is = CheckpointName::new(manifest.step, &hash);
            return Err(bad(format!("this is the manifest of {is}, not of {name}")));
        }
        Ok(manifest)
    }

    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(super) fn fail_points(&self) -> &FailPoints {
        &self.fail_points
    }

    /// A file of a directory for messages; the directory itself where `file` is empty.
    pub(super) fn place_of(&self, directory: &str, file: &str) -> String {
        let separator = if file.is_empty() { "" } else { "/" };
        format!("{}/{directory}{separator}{file}", self.place())
    }
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.contents {
            Ok(Contents { files, tensors, bytes }) => {
                let checked = if self.verified { "every byte verified" } else { "manifest verified" };
                let size = *bytes as f64 / f64::from(1 << 20);
                write!(f, "{}  {checked}: {files} files, {tensors} tensors, {size:.1} MiB", self.name)
            }
            Err(error) => write!(f, "{}  not usable: {error}", self.name),
        }
    }
}
